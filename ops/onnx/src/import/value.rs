//! Values of a graph while it is imported.
//!
//! A value remembers the model's inputs that it depends on (`ImportedValue::sources`). A value that depends on shapes
//! only may be computed when the program is planned; for any other, the error names the inputs whose values
//! `LoadOptions` must give.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use autobwd::{Dims, Expr, Tensor};

use super::sizes::SizeList;
use crate::elements::ElementType;

/// Names of inputs of the model.
pub(crate) type Sources = Rc<BTreeSet<String>>;

/// The variable of a known value in the main block of the program, if it has one; all copies of the value share it.
pub(crate) type KnownVariable = Rc<RefCell<Option<Expr>>>;

/// The variables of parameters, by address: different parameters may have one name in the file.
pub(crate) type ParameterVariables = BTreeMap<*const RefCell<Option<Expr>>, KnownVariable>;

/// A value of the graph.
#[derive(Clone)]
pub(crate) struct ImportedValue {
    /// Its name in the file.
    pub(crate) name: Rc<str>,
    pub(crate) element: ElementType,
    pub(crate) content: ValueContent,
    /// The inputs of the model that it depends on and whose values could be given.
    pub(crate) sources: Sources,
    /// Its elements in the file, if it is computed from parameters and constants alone and is small.
    pub(crate) initial: Option<InitialElements>,
}

/// The elements that a computed value has while its parameters have the values of the file.
#[derive(Clone)]
pub(crate) struct InitialElements {
    pub(crate) tensor: Rc<Tensor>,
    pub(crate) parameters: Rc<ParameterVariables>,
}

/// What is known of a value.
#[derive(Clone)]
pub(crate) enum ValueContent {
    /// It is computed when the program runs.
    Computed(Expr),
    /// It is known now.
    Known(Known),
    /// It follows from shapes.
    Sizes(SizeList),
    /// It is a sequence of tensors.
    Sequence(Rc<[ImportedValue]>),
}

/// A constant.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) tensor: Rc<Tensor>,
    /// The name of an initializer that becomes a parameter where operators read it.
    pub(crate) parameter: Option<Rc<str>>,
    pub(crate) expr: KnownVariable,
    /// As a value that steps change and no optimizer does: an initializer may be this and a parameter.
    pub(crate) statistic: KnownVariable,
}

impl Known {
    pub(crate) fn new(tensor: Tensor, parameter: Option<Rc<str>>) -> Known {
        Known { tensor: Rc::new(tensor), parameter, expr: Rc::default(), statistic: Rc::default() }
    }

    /// Its variable, if it is a parameter.
    fn parameter_variable(&self) -> ParameterVariables {
        self.parameter.iter().map(|_| (Rc::as_ptr(&self.expr), self.expr.clone())).collect()
    }
}

impl ImportedValue {
    pub(crate) fn known(name: &str, element: ElementType, tensor: Tensor, parameter: bool) -> ImportedValue {
        let parameter = parameter.then(|| name.into());
        let known = Known::new(tensor, parameter);
        ImportedValue {
            name: name.into(),
            element,
            content: ValueContent::Known(known),
            sources: Rc::default(),
            initial: None,
        }
    }

    pub(crate) fn computed(name: &str, element: ElementType, expr: Expr) -> ImportedValue {
        ImportedValue {
            name: name.into(),
            element,
            content: ValueContent::Computed(expr),
            sources: Rc::default(),
            initial: None,
        }
    }

    pub(crate) fn sequence(element: ElementType, items: Vec<ImportedValue>) -> ImportedValue {
        ImportedValue {
            name: "".into(),
            element,
            content: ValueContent::Sequence(items.into()),
            sources: Rc::default(),
            initial: None,
        }
    }

    pub(crate) fn sizes(name: &str, sizes: SizeList) -> ImportedValue {
        ImportedValue {
            name: name.into(),
            element: ElementType::of(sizes.dtype),
            content: ValueContent::Sizes(sizes),
            sources: Rc::default(),
            initial: None,
        }
    }

    /// The elements in the file, if they are known; [`Importer::number`](super::Importer::number) lets a rule use them.
    pub(crate) fn tensor(&self) -> Option<&Rc<Tensor>> {
        match &self.content {
            ValueContent::Known(known) => Some(&known.tensor),
            ValueContent::Computed(_) | ValueContent::Sizes(_) | ValueContent::Sequence(_) => {
                self.initial.as_ref().map(|initial| &initial.tensor)
            }
        }
    }

    /// The elements, if no training changes them.
    pub(crate) fn constant(&self) -> Option<&Rc<Tensor>> {
        match &self.content {
            ValueContent::Known(known) if known.parameter.is_none() => Some(&known.tensor),
            _ => None,
        }
    }

    /// The parameters that decide about its elements in the file.
    pub(crate) fn parameters(&self) -> Rc<ParameterVariables> {
        match &self.content {
            ValueContent::Known(known) => Rc::new(known.parameter_variable()),
            ValueContent::Computed(_) | ValueContent::Sizes(_) | ValueContent::Sequence(_) => {
                self.initial.as_ref().map(|initial| initial.parameters.clone()).unwrap_or_default()
            }
        }
    }

    /// The dimensions.
    pub(crate) fn dims(&self) -> Dims {
        match &self.content {
            ValueContent::Computed(expr) => expr.dims(),
            ValueContent::Sizes(sizes) if sizes.scalar => Dims::default(),
            ValueContent::Sequence(_) => Dims::default(),
            ValueContent::Sizes(sizes) => [sizes.elements.len()].into(),
            ValueContent::Known(known) => known.tensor.dims().into(),
        }
    }
}
