//! A node of the graph as rules see it: inputs as expressions, attributes, and what is known now.
//!
//! A rule reads every attribute that it supports; an attribute that no rule has read is refused.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

use autobwd::{Builder, DType, Dims, Error, ErrorKind, Expr, Result, Tensor};

use super::{Importer, sizes::SizeList, value::ImportedValue};
use crate::{
    elements::ElementType,
    proto::{AttributeProto, GraphProto, NodeProto, attribute_proto::AttributeType},
    tensors,
};

/// An output of a node.
pub(crate) enum NodeOutput {
    /// Computed by operators of the program.
    Expr(Expr),
    /// Follows from shapes.
    Sizes(SizeList),
    /// Known now.
    Known(Tensor),
    /// A value with its type.
    Value(ImportedValue),
}

impl From<Expr> for NodeOutput {
    fn from(expr: Expr) -> NodeOutput {
        NodeOutput::Expr(expr)
    }
}

/// The most elements of tensors with which a rule computes: products of dimensions do not overflow.
const ELEMENTS: usize = 1 << 36;

/// What a rule makes of a node.
pub(crate) type Outputs = Result<Vec<NodeOutput>>;

/// One output.
pub(crate) fn one(expr: Expr) -> Outputs {
    Ok(vec![expr.into()])
}

/// Several outputs.
pub(crate) fn all(exprs: impl IntoIterator<Item = Expr>) -> Outputs {
    Ok(exprs.into_iter().map(NodeOutput::Expr).collect())
}

/// An error about a node.
pub(crate) fn refuse(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, text)
}

/// What to give of the inputs that a value depends on.
pub(super) fn give(what: &str, value: &ImportedValue) -> String {
    let inputs: Vec<String> = value.sources.iter().map(|name| format!("`{name}`")).collect();
    match inputs.is_empty() {
        true => String::new(),
        false => format!("; give the {what} of the inputs {}", inputs.join(", ")),
    }
}

/// The elements of a tensor of int32 or int64.
pub(super) fn integers(tensor: &Tensor) -> Option<Vec<i64>> {
    match tensor.dtype() {
        DType::I64 => Some(tensor.slice::<i64>().ok()?.to_vec()),
        DType::I32 => Some(tensor.slice::<i32>().ok()?.iter().map(|n| i64::from(*n)).collect()),
        _ => None,
    }
}

/// A program apart, in which a node of constants is evaluated.
#[derive(Default)]
pub(super) struct FoldedProgram {
    pub(super) net: Builder,
    pub(super) feeds: Vec<(String, Rc<Tensor>)>,
}

/// A node that is being imported.
pub(crate) struct NodeContext<'i, 'm> {
    pub(super) importer: &'i mut Importer<'m>,
    pub(super) proto: &'i NodeProto,
    pub(super) inputs: Vec<Option<ImportedValue>>,
    pub(super) version: i64,
    pub(super) scratch: Option<FoldedProgram>,
    /// The attributes that were read.
    read: RefCell<BTreeSet<String>>,
    /// Types of outputs that do not follow from those of the inputs.
    pub(super) types: Vec<(usize, ElementType)>,
}

impl<'i, 'm> NodeContext<'i, 'm> {
    pub(super) fn new(
        importer: &'i mut Importer<'m>,
        proto: &'i NodeProto,
        inputs: Vec<Option<ImportedValue>>,
        version: i64,
    ) -> NodeContext<'i, 'm> {
        NodeContext {
            importer,
            proto,
            inputs,
            version,
            scratch: None,
            read: RefCell::default(),
            types: vec![],
        }
    }

    /// The operator.
    pub(crate) fn op(&self) -> &'i str {
        self.proto.op_type()
    }

    /// The version of its operator set.
    pub(crate) fn version(&self) -> i64 {
        self.version
    }

    /// Where operators are appended.
    pub(crate) fn net(&self) -> Builder {
        self.scratch.as_ref().map_or_else(|| self.importer.net.clone(), |scratch| scratch.net.clone())
    }

    /// The number of inputs, absent ones among them included.
    pub(crate) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// The number of outputs.
    pub(crate) fn output_count(&self) -> usize {
        self.proto.output.len()
    }

    /// Whether the graph uses an output.
    pub(crate) fn wants(&self, i: usize) -> bool {
        self.proto.output.get(i).is_some_and(|name| !name.is_empty())
    }

    /// An input, if it is there.
    pub(crate) fn value(&self, i: usize) -> Option<&ImportedValue> {
        self.inputs.get(i).and_then(Option::as_ref)
    }

    /// An input that must be there.
    pub(crate) fn required(&self, i: usize) -> Result<&ImportedValue> {
        self.value(i).ok_or_else(|| refuse(format!("operator `{}` lacks its input {i}", self.op())))
    }

    /// Whether an input is there.
    pub(crate) fn has(&self, i: usize) -> bool {
        self.value(i).is_some()
    }

    /// An input as an expression.
    pub(crate) fn input(&mut self, i: usize) -> Result<Expr> {
        let value = self.required(i)?.clone();
        self.expr(&value)
    }

    /// An input as an expression, if it is there.
    pub(crate) fn optional(&mut self, i: usize) -> Result<Option<Expr>> {
        if self.has(i) { self.input(i).map(Some) } else { Ok(None) }
    }

    /// All inputs as expressions.
    pub(crate) fn all_inputs(&mut self) -> Result<Vec<Expr>> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// A value as an expression.
    pub(crate) fn expr(&mut self, value: &ImportedValue) -> Result<Expr> {
        let Some(scratch) = &mut self.scratch else { return self.importer.value_expr(value) };
        let tensor = value.tensor().ok_or_else(|| refuse("a value that is not known"))?;
        let name = format!("in_{}", scratch.feeds.len());
        let dims: Vec<i64> = tensor.dims().iter().map(|dim| *dim as i64).collect();
        scratch.feeds.push((name.clone(), tensor.clone()));
        Ok(scratch.net.input(&name, tensor.dtype(), &dims))
    }

    /// A tensor as a constant of the program.
    pub(crate) fn tensor_expr(&self, tensor: &Tensor) -> Result<Expr> {
        super::fold::constant(&self.net(), tensor)?.check().cloned()
    }

    /// A known value as a constant of the program.
    pub(crate) fn importer_constant(&self, value: &ImportedValue) -> Result<Expr> {
        let tensor = value.constant().ok_or_else(|| refuse("a value that is not known"))?;
        self.tensor_expr(tensor)
    }

    /// Integers as a constant of the program.
    pub(crate) fn ints_expr(&self, ints: &[i64]) -> Result<Expr> {
        self.tensor_expr(&Tensor::from_vec([ints.len()], ints.to_vec())?)
    }

    /// The tensor in the precision that is asked for.
    pub(crate) fn in_precision(&self, tensor: Tensor) -> Result<Tensor> {
        self.importer.in_precision(tensor)
    }

    /// The type of an input.
    pub(crate) fn element(&self, i: usize) -> Result<ElementType> {
        Ok(self.required(i)?.element)
    }

    /// The dimensions of an input.
    pub(crate) fn dims(&self, i: usize) -> Result<Dims> {
        Ok(self.required(i)?.dims())
    }

    /// The rank of an input.
    pub(crate) fn rank(&self, i: usize) -> Result<usize> {
        Ok(self.dims(i)?.len())
    }

    /// The dimensions of an input, which must be known.
    pub(crate) fn known_dims(&self, i: usize) -> Result<Vec<usize>> {
        let dims = self.dims(i)?;
        let known: Option<Vec<usize>> = dims.iter().map(|dim| dim.get()).collect();
        let count = known.iter().flatten().try_fold(1_usize, |all, dim| all.checked_mul((*dim).max(1)));
        if count.is_none_or(|count| count > ELEMENTS) {
            return Err(refuse(format!(
                "operator `{}`: its input {i} is {dims}, which is too large",
                self.op()
            )));
        }
        known.ok_or_else(|| self.unknown_dims(i, &dims))
    }

    /// The dimensions behind the batch and the channels of the first input, which must be known.
    pub(crate) fn spatial_dims(&self) -> Result<Vec<usize>> {
        let dims = self.dims(0)?;
        let known = dims.iter().skip(2).map(|dim| dim.get().filter(|dim| *dim < ELEMENTS));
        known.collect::<Option<_>>().ok_or_else(|| self.unknown_dims(0, &dims))
    }

    fn unknown_dims(&self, i: usize, dims: &Dims) -> Error {
        let text = format!("operator `{}` needs known dimensions, but its input {i} is {dims}", self.op());
        refuse(text + &self.required(i).map_or_else(|_| String::new(), |value| give("shapes", value)))
    }

    /// An axis of an input; negative ones count from the end.
    pub(crate) fn axis(&self, i: usize, axis: i64) -> Result<usize> {
        let dims = self.dims(i)?;
        dims.axis(axis).ok_or_else(|| refuse(format!("operator `{}`: {dims} has no axis {axis}", self.op())))
    }

    /// The dtype that holds a type here.
    pub(crate) fn dtype(&self, element: ElementType) -> Result<DType> {
        self.importer.dtype(element)
    }

    /// Sets the type of an output.
    pub(crate) fn set_type(&mut self, output: usize, element: ElementType) {
        self.types.push((output, element));
    }

    /// The elements of an input, which must be known now; `None` if it is not there.
    pub(crate) fn constant(&self, i: usize) -> Result<Option<Rc<Tensor>>> {
        let Some(value) = self.value(i) else { return Ok(None) };
        match self.importer.number(value) {
            Some(tensor) => Ok(Some(tensor)),
            None => {
                let give = give("values", value);
                let (op, name) = (self.op(), &value.name);
                Err(refuse(format!("operator `{op}` needs the value of `{name}` when it is imported{give}")))
            }
        }
    }

    /// The integers of an input, which must be known now; `None` if it is not there.
    pub(crate) fn constant_ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        let Some(tensor) = self.constant(i)? else { return Ok(None) };
        let no_integers =
            || refuse(format!("operator `{}` needs integers, not {}", self.op(), tensor.dtype()));
        integers(&tensor).ok_or_else(no_integers).map(Some)
    }

    /// The integers of an input; `None` if they are computed from shapes, so that a program knows them when it is planned.
    pub(crate) fn planned_ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        let computed = |value: &ImportedValue| value.tensor().is_none() && value.sources.is_empty();
        if self.required(i).is_ok_and(computed) { Ok(None) } else { self.constant_ints(i) }
    }

    /// The numbers of an input, which must be known now; `None` if it is not there.
    pub(crate) fn constant_floats(&self, i: usize) -> Result<Option<Vec<f64>>> {
        Ok(self.constant(i)?.map(|tensor| tensor.to_f64s()))
    }

    /// An attribute, which counts as read.
    fn attribute(&self, name: &str) -> Option<&'i AttributeProto> {
        self.read.borrow_mut().insert(name.to_string());
        self.proto.attribute.iter().find(|attribute| attribute.name() == name)
    }

    fn typed<T>(
        &self,
        name: &str,
        ty: AttributeType,
        get: impl Fn(&'i AttributeProto) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(attribute) = self.attribute(name) else { return Ok(None) };
        // Files before IR version 2 do not give the type.
        let fits = attribute.r#type.is_none() || attribute.r#type() == ty;
        match get(attribute).filter(|_| fits) {
            Some(value) => Ok(Some(value)),
            None => {
                let (op, ty) = (self.op(), ty.as_str_name());
                Err(refuse(format!("attribute `{name}` of operator `{op}` is not of type {ty}")))
            }
        }
    }

    pub(crate) fn int(&self, name: &str) -> Result<Option<i64>> {
        self.typed(name, AttributeType::Int, |attribute| attribute.i)
    }

    pub(crate) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer that is 0 or 1.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name)?.map_or(default, |value| value != 0))
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f32>> {
        self.typed(name, AttributeType::Float, |attribute| attribute.f)
    }

    pub(crate) fn float_or(&self, name: &str, default: f32) -> Result<f32> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'i str>> {
        self.typed(name, AttributeType::String, |attribute| str::from_utf8(attribute.s()).ok())
    }

    pub(crate) fn text_or(&self, name: &str, default: &'i str) -> Result<&'i str> {
        Ok(self.text(name)?.unwrap_or(default))
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        self.typed(name, AttributeType::Ints, |attribute| Some(attribute.ints.clone()))
    }

    pub(crate) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.typed(name, AttributeType::Floats, |attribute| Some(attribute.floats.clone()))
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        self.typed(name, AttributeType::Strings, |attribute| {
            attribute.strings.iter().map(|text| String::from_utf8(text.clone()).ok()).collect()
        })
    }

    pub(crate) fn graph(&self, name: &str) -> Result<&'i GraphProto> {
        let graph = self.typed(name, AttributeType::Graph, |attribute| attribute.g.as_ref())?;
        graph.ok_or_else(|| refuse(format!("operator `{}` lacks its graph `{name}`", self.op())))
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<tensors::OnnxTensor>> {
        let tensor = self.typed(name, AttributeType::Tensor, |attribute| attribute.t.as_ref())?;
        tensor.map(|tensor| self.importer.read_tensor(tensor)).transpose()
    }

    /// Whether an attribute is there; it does not count as read.
    pub(crate) fn has_attribute(&self, name: &str) -> bool {
        self.proto.attribute.iter().any(|attribute| attribute.name() == name)
    }

    /// Counts attributes as read that have no influence on results.
    pub(crate) fn ignore(&self, names: &[&str]) {
        self.read.borrow_mut().extend(names.iter().map(|name| name.to_string()));
    }

    /// The attributes that no rule has read.
    pub(super) fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        let names = self.proto.attribute.iter().map(|attribute| attribute.name().to_string());
        names.filter(|name| !read.contains(name)).collect()
    }
}
