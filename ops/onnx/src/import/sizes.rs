//! Sizes: integers that follow from shapes, element by element.
//!
//! Exporters compute the shape of a reshape from dimensions, by a node for every step. A vector of them is no tensor here
//! but a list of [`DimExpr`]: known elements are numbers, dimensions are taken from shapes where an operator reads them,
//! and only sums, products and quotients of unknown ones are operators of the program.

use std::rc::Rc;

use autobwd::{BlockId, Builder, DType, Expr, Result, Tensor, tensor::Bool};
use autobwd_ops::{DimExpr, all_sizes, concat as concatenated, product};

use super::{
    Importer,
    arith::{in_dtype, reshape},
    node::{NodeContext, NodeOutput, Outputs, integers},
    value::{ImportedValue, KnownVariable, ValueContent},
};
use crate::elements::ElementType;

/// The most elements of a vector of sizes; shapes are shorter.
const MAX_SIZES: usize = 64;

/// Integers of rank 1, or one integer of rank 0: int64, or int32.
#[derive(Clone)]
pub(crate) struct SizeList {
    pub(crate) elements: Rc<[DimExpr]>,
    pub(crate) scalar: bool,
    pub(crate) dtype: DType,
    /// The variable in the main block, once an operator has read it.
    pub(crate) expr: KnownVariable,
}

impl SizeList {
    fn new(elements: Vec<DimExpr>, scalar: bool) -> SizeList {
        SizeList { elements: elements.into(), scalar, dtype: DType::I64, expr: KnownVariable::default() }
    }

    /// Others of the same dtype.
    fn with(&self, elements: Vec<DimExpr>, scalar: bool) -> SizeList {
        SizeList { dtype: self.dtype, ..SizeList::new(elements, scalar) }
    }

    /// The same elements as one integer, or as a vector.
    fn ranked(&self, scalar: bool) -> SizeList {
        self.with(self.elements.to_vec(), scalar)
    }

    /// The elements as numbers, if all are known.
    pub(super) fn tensor(&self) -> Option<Result<Tensor>> {
        let known: Vec<i64> = self.elements.iter().map(DimExpr::known).collect::<Option<_>>()?;
        let dims: &[usize] = if self.scalar { &[] } else { &[known.len()] };
        Some(match self.dtype {
            DType::I32 => Tensor::from_vec(dims, known.iter().map(|n| *n as i32).collect()),
            _ => Tensor::from_vec(dims, known),
        })
    }
}

impl NodeContext<'_, '_> {
    /// The elements of an input of sizes or of few constants.
    pub(super) fn own_sizes(&self, i: usize) -> Option<SizeList> {
        let value = self.value(i)?;
        if let ValueContent::Sizes(sizes) = &value.content {
            return Some(sizes.clone());
        }
        let tensor = value.constant().filter(|x| x.dims().len() <= 1 && x.numel() <= MAX_SIZES)?;
        let elements = integers(tensor)?.into_iter().map(Into::into).collect();
        Some(SizeList { dtype: tensor.dtype(), ..SizeList::new(elements, tensor.dims().is_empty()) })
    }

    /// The number of integers of an input that is a vector of few, or one integer, computed from shapes.
    fn computed_count(&self, i: usize) -> Option<usize> {
        let value = self.value(i)?;
        let ValueContent::Computed(expr) = &value.content else { return None };
        let of_shapes = value.sources.is_empty() && value.tensor().is_none();
        let is_integer = matches!(expr.dtype(), DType::I32 | DType::I64);
        let count = expr.dims().numel().get().filter(|count| *count <= MAX_SIZES)?;
        (of_shapes && is_integer && expr.dims().len() <= 1).then_some(count)
    }

    /// The elements of each of the inputs, if all have some: also of those that the program computes, one by one.
    fn all_own_sizes(&self) -> Option<Vec<SizeList>> {
        let inputs = 0..self.input_count();
        // Before anything is emitted.
        if !inputs.clone().all(|i| self.own_sizes(i).is_some() || self.computed_count(i).is_some()) {
            return None;
        }
        inputs.map(|i| self.own_sizes(i).or_else(|| self.computed_sizes(i))).collect()
    }

    fn computed_sizes(&self, i: usize) -> Option<SizeList> {
        let count = self.computed_count(i)?;
        let ValueContent::Computed(expr) = &self.value(i)?.content else { return None };
        let elements = (0..count as i32).map(|at| DimExpr::element(expr, at)).collect();
        Some(SizeList { dtype: expr.dtype(), ..SizeList::new(elements, expr.dims().is_empty()) })
    }

    /// The integers of a vector; `None` if their number is unknown.
    ///
    /// # Errors
    /// The model computes them from its data.
    pub(crate) fn sizes(&mut self, i: usize) -> Result<Option<Vec<DimExpr>>> {
        if let Some(sizes) = self.own_sizes(i).or_else(|| self.computed_sizes(i)) {
            return Ok(Some(sizes.elements.to_vec()));
        }
        Ok(self.planned_ints(i)?.map(|ints| ints.into_iter().map(Into::into).collect()))
    }

    /// Whether an input is a vector of few integers, or one integer, that the model computes from its data.
    pub(crate) fn is_data(&self, i: usize) -> bool {
        let of_data = |value: &ImportedValue| match &value.content {
            ValueContent::Computed(expr) => {
                let is_integer = matches!(expr.dtype(), DType::I32 | DType::I64);
                let is_short = expr.dims().numel().get().is_some_and(|count| count <= MAX_SIZES);
                is_integer && is_short && expr.dims().len() <= 1 && !value.sources.is_empty()
            }
            _ => false,
        };
        self.value(i).is_some_and(|value| value.tensor().is_none() && of_data(value))
    }

    /// As [`sizes`](NodeContext::sizes), also of integers that the model computes from its data. None is negative.
    pub(crate) fn decided_sizes(&mut self, i: usize) -> Result<Option<Vec<DimExpr>>> {
        if !self.is_data(i) {
            return self.sizes(i);
        }
        Ok(Some(DimExpr::decided(&self.input(i)?)))
    }

    /// Sizes as int64 of rank 1.
    pub(crate) fn sizes_expr(&self, sizes: &[DimExpr]) -> Result<Expr> {
        if let Some(tensor) = SizeList::new(sizes.to_vec(), false).tensor() {
            return self.tensor_expr(&tensor?);
        }
        Ok(vector(sizes, &self.net()))
    }
}

/// Sizes as int64 of rank 1.
fn vector(sizes: &[DimExpr], net: &Builder) -> Expr {
    let numbers: Vec<Expr> = sizes.iter().map(|size| size.number(net)).collect();
    match &numbers[..] {
        [number] => number.clone(),
        _ => concatenated(&numbers.iter().collect::<Vec<_>>(), 0),
    }
}

impl Importer<'_> {
    /// Sizes as an expression of the current block.
    pub(super) fn emit_sizes(&mut self, sizes: &SizeList) -> Result<Expr> {
        if let Some(expr) = &*sizes.expr.borrow() {
            return Ok(expr.clone());
        }
        let numbers = vector(&sizes.elements, &self.net);
        let numbers = in_dtype(&numbers, sizes.dtype);
        let expr = if sizes.scalar { reshape(&numbers, &[]) } else { numbers };
        expr.check()?;
        if self.net.block() == BlockId::ROOT {
            *sizes.expr.borrow_mut() = Some(expr.clone());
        }
        Ok(expr)
    }
}

/// The dimensions of an input, from one to another, as `Shape` counts them.
pub(super) fn shape(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::I64);
    let rank = n.rank(0)? as i64;
    let bound = |at: i64| (if at < 0 { at + rank } else { at }).clamp(0, rank) as usize;
    let (start, end) = (bound(n.int_or("start", 0)?), bound(n.int_or("end", rank)?));
    let dims = n.dims(0)?;
    let known: Option<Vec<i64>> =
        dims[start..end.max(start)].iter().map(|dim| dim.get().map(|n| n as i64)).collect();
    if let Some(known) = known {
        return Ok(vec![NodeOutput::Known(Tensor::from_vec([known.len()], known)?)]);
    }
    let x = n.input(0)?;
    let elements = all_sizes(&x)[start..end.max(start)].to_vec();
    Ok(vec![NodeOutput::Sizes(SizeList::new(elements, false))])
}

/// The number of elements of an input.
pub(super) fn size(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::I64);
    if let Some(size) = n.dims(0)?.numel().get() {
        return Ok(vec![NodeOutput::Known(Tensor::scalar(size as i64)?)]);
    }
    let x = n.input(0)?;
    Ok(vec![NodeOutput::Sizes(SizeList::new(vec![product(&all_sizes(&x))], true))])
}

/// What a node of sizes makes of them; `None` for other nodes, which get them as tensors.
pub(super) fn of_sizes(n: &mut NodeContext<'_, '_>) -> Result<Option<NodeOutput>> {
    let is_sizes = |value: &ImportedValue| matches!(value.content, ValueContent::Sizes(_));
    if !n.inputs.iter().flatten().any(is_sizes) {
        return Ok(None);
    }
    let sizes = match n.op() {
        "Identity" => n.own_sizes(0),
        "Cast" => cast(n)?,
        "Gather" => gather(n)?,
        "Slice" => slice(n)?,
        "Concat" => concat(n)?,
        "Squeeze" => n.own_sizes(0).filter(|sizes| sizes.elements.len() == 1).map(|sizes| sizes.ranked(true)),
        "Unsqueeze" => n.own_sizes(0).filter(|sizes| sizes.scalar).map(|sizes| sizes.ranked(false)),
        "Reshape" => reshaped(n)?,
        "Add" => elementwise(n, |a, b| a + b),
        "Sub" => elementwise(n, |a, b| a - b),
        "Mul" => elementwise(n, |a, b| a * b),
        "Div" if has_floor(n) => elementwise(n, |a, b| a / b),
        "Equal" => return Ok(equal(n)),
        "Where" => chosen(n)?,
        _ => None,
    };
    Ok(sizes.map(NodeOutput::Sizes))
}

fn cast(n: &NodeContext<'_, '_>) -> Result<Option<SizeList>> {
    n.ignore(&["saturate", "round_mode"]);
    let to = n.int("to")?.and_then(|code| ElementType::from_code(code.try_into().ok()?));
    let dtype = to.and_then(ElementType::dtype).filter(|dtype| matches!(dtype, DType::I32 | DType::I64));
    let dtype = dtype.filter(|dtype| to == Some(ElementType::of(*dtype)));
    Ok(n.own_sizes(0).zip(dtype).map(|(sizes, dtype)| SizeList {
        dtype,
        expr: KnownVariable::default(),
        ..sizes
    }))
}

fn gather(n: &NodeContext<'_, '_>) -> Result<Option<SizeList>> {
    let (Some(sizes), Some(index)) = (n.own_sizes(0).filter(|sizes| !sizes.scalar), n.own_sizes(1)) else {
        return Ok(None);
    };
    n.int_or("axis", 0)?;
    let count = sizes.elements.len() as i64;
    let element = |at: &DimExpr| {
        let at = at.known()?;
        sizes.elements.get(usize::try_from(if at < 0 { at + count } else { at }).ok()?).cloned()
    };
    let elements: Option<Vec<DimExpr>> = index.elements.iter().map(element).collect();
    Ok(elements.map(|elements| sizes.with(elements, index.scalar)))
}

fn slice(n: &NodeContext<'_, '_>) -> Result<Option<SizeList>> {
    let Some(sizes) = n.own_sizes(0).filter(|sizes| !sizes.scalar && n.version() >= 10) else {
        return Ok(None);
    };
    let number = |i: usize, default: i64| match n.has(i) {
        false => Some(default),
        true => n.own_sizes(i)?.elements.first()?.known(),
    };
    let (Some(start), Some(end), Some(step)) = (number(1, 0), number(2, 0), number(4, 1)) else {
        return Ok(None);
    };
    let Ok(step) = usize::try_from(step.max(0)) else { return Ok(None) };
    let count = sizes.elements.len() as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(count) } else { at }.clamp(0, count) as usize;
    let (start, end) = (from_end(start), from_end(end));
    let taken = (step > 0).then(|| sizes.elements[start..end.max(start)].iter().step_by(step).cloned());
    Ok(taken.map(|taken| sizes.with(taken.collect(), false)))
}

fn concat(n: &NodeContext<'_, '_>) -> Result<Option<SizeList>> {
    n.int("axis")?;
    let Some(parts) = n.all_own_sizes().filter(|parts| parts.iter().all(|sizes| !sizes.scalar)) else {
        return Ok(None);
    };
    let elements: Vec<DimExpr> = parts.iter().flat_map(|sizes| sizes.elements.iter().cloned()).collect();
    let first = parts.first().filter(|_| elements.len() <= MAX_SIZES);
    Ok(first.map(|sizes| sizes.with(elements, false)))
}

/// To rank 0 or 1.
fn reshaped(n: &NodeContext<'_, '_>) -> Result<Option<SizeList>> {
    n.flag("allowzero", false)?;
    let (Some(sizes), Some(shape)) = (n.own_sizes(0), n.own_sizes(1).filter(|_| n.version() >= 5)) else {
        return Ok(None);
    };
    let shape: Option<Vec<i64>> = shape.elements.iter().map(DimExpr::known).collect();
    let count = sizes.elements.len() as i64;
    Ok(match shape.as_deref() {
        Some([]) if count == 1 => Some(sizes.ranked(true)),
        Some([size]) if *size == -1 || *size == count => Some(sizes.ranked(false)),
        _ => None,
    })
}

/// Elements of broadcast sizes, two by two.
fn pairs(a: &SizeList, b: &SizeList) -> Option<Vec<(DimExpr, DimExpr)>> {
    let count = match (a.elements.len(), b.elements.len()) {
        (x, y) if x == y || y == 1 => x,
        (1, y) => y,
        _ => return None,
    };
    let at =
        |sizes: &SizeList, i: usize| sizes.elements[if sizes.elements.len() == 1 { 0 } else { i }].clone();
    Some((0..count).map(|i| (at(a, i), at(b, i))).collect())
}

fn elementwise(n: &NodeContext<'_, '_>, apply: impl Fn(DimExpr, DimExpr) -> DimExpr) -> Option<SizeList> {
    let inputs = n.all_own_sizes()?;
    let [a, b] = &inputs[..] else { return None };
    let elements = pairs(a, b)?.into_iter().map(|(a, b)| apply(a, b)).collect();
    Some(a.with(elements, a.scalar && b.scalar))
}

/// Whether quotients, which ONNX rounds towards 0, are rounded down: none is negative.
fn has_floor(n: &NodeContext<'_, '_>) -> bool {
    let all = |i: usize, is: fn(&DimExpr) -> bool| n.own_sizes(i).is_some_and(|x| x.elements.iter().all(is));
    all(0, DimExpr::is_nonnegative) && all(1, |divisor| divisor.known().is_some_and(|n| n > 0))
}

/// Whether elements are equal, where all are known to be or not to be: no dimension is negative.
fn equal(n: &mut NodeContext<'_, '_>) -> Option<NodeOutput> {
    let (a, b) = (n.own_sizes(0)?, n.own_sizes(1)?);
    let is_equal = |(a, b): &(DimExpr, DimExpr)| match (a.known(), b.known()) {
        (Some(a), Some(b)) => Some(a == b),
        (None, Some(n)) if n < 0 && a.is_nonnegative() => Some(false),
        (Some(n), None) if n < 0 && b.is_nonnegative() => Some(false),
        _ => None,
    };
    let equal: Vec<bool> = pairs(&a, &b)?.iter().map(is_equal).collect::<Option<_>>()?;
    n.set_type(0, ElementType::BOOL);
    let equal: Vec<Bool> = equal.into_iter().map(Into::into).collect();
    let tensor =
        if a.scalar && b.scalar { Tensor::scalar(equal[0]) } else { Tensor::from_vec([equal.len()], equal) };
    Some(NodeOutput::Known(tensor.ok()?))
}

/// Elements of one or of the other, where a known condition says which.
fn chosen(n: &mut NodeContext<'_, '_>) -> Result<Option<SizeList>> {
    let condition = n.value(0).and_then(ImportedValue::constant).filter(|x| x.dtype() == DType::Bool);
    let (Some(condition), Some(a), Some(b)) = (condition, n.own_sizes(1), n.own_sizes(2)) else {
        return Ok(None);
    };
    let (condition, scalar) = (condition.slice::<Bool>()?, condition.dims().is_empty());
    let Some(pairs) = pairs(&a, &b).filter(|pairs| [1, pairs.len()].contains(&condition.len())) else {
        return Ok(None);
    };
    let choose = |(i, (a, b)): (usize, (DimExpr, DimExpr))| {
        if condition[if condition.len() == 1 { 0 } else { i }].get() { a } else { b }
    };
    let elements: Vec<DimExpr> = pairs.into_iter().enumerate().map(choose).collect();
    Ok(Some(a.with(elements, scalar && a.scalar && b.scalar)))
}

/// The broadcast of two sizes. One is 1, or both are equal.
pub(super) fn broadcast(a: &DimExpr, b: &DimExpr) -> DimExpr {
    // The larger one, unless the smaller one is 0.
    a.max(b.clone()) * a.min(b.clone()).min(1)
}
