//! Values of a graph while it is imported.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

use autobwd::{Dims, Expr, Tensor};

use crate::elements::ElementType;

/// Names of inputs of the model.
pub(crate) type Sources = Rc<BTreeSet<String>>;

/// A value of the graph.
#[derive(Clone)]
pub(crate) struct ImportedValue {
    /// Its name in the file.
    pub(crate) name: Rc<str>,
    pub(crate) element: ElementType,
    pub(crate) content: ValueContent,
    /// The inputs of the model that it depends on and whose values could be given.
    pub(crate) sources: Sources,
}

/// What is known of a value.
#[derive(Clone)]
pub(crate) enum ValueContent {
    /// It is computed when the program runs.
    Computed(Expr),
    /// It is known now.
    Known(Known),
}

/// A constant.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) tensor: Rc<Tensor>,
    /// Whether it becomes a parameter where operators read it.
    pub(crate) weight: bool,
    /// Its variable in the main block of the program, if it has one.
    pub(crate) expr: Rc<RefCell<Option<Expr>>>,
}

impl ImportedValue {
    pub(crate) fn known(name: &str, element: ElementType, tensor: Tensor, weight: bool) -> ImportedValue {
        let known = Known { tensor: Rc::new(tensor), weight, expr: Rc::default() };
        ImportedValue {
            name: name.into(),
            element,
            content: ValueContent::Known(known),
            sources: Rc::default(),
        }
    }

    pub(crate) fn computed(name: &str, element: ElementType, expr: Expr) -> ImportedValue {
        ImportedValue {
            name: name.into(),
            element,
            content: ValueContent::Computed(expr),
            sources: Rc::default(),
        }
    }

    /// The elements, if they are known.
    pub(crate) fn tensor(&self) -> Option<&Rc<Tensor>> {
        match &self.content {
            ValueContent::Known(known) => Some(&known.tensor),
            ValueContent::Computed(_) => None,
        }
    }

    /// The dimensions.
    pub(crate) fn dims(&self) -> Dims {
        match &self.content {
            ValueContent::Computed(expr) => expr.dims(),
            ValueContent::Known(known) => known.tensor.dims().into(),
        }
    }
}
