//! Sizes: integers that follow from shapes, element by element.
//!
//! Exporters compute the shape of a reshape from dimensions, by a node for every step. A vector of them is no tensor here
//! but a list of [`DimExpr`]: numbers where dimensions are known, and nothing is emitted until an operator needs one.

use std::rc::Rc;

use autobwd::{BlockId, Builder, DType, Expr, Result, Tensor, tensor::Bool};
use autobwd_ops::{DimExpr, Math, concat as concatenated};

use super::{
    Importer,
    arith::reshape,
    node::{NodeContext, NodeOutput, Outputs},
    value::{ImportedValue, KnownVariable, ValueContent},
};
use crate::elements::ElementType;

/// The most elements of a vector of sizes; shapes are shorter.
const MAX_SIZES: usize = 64;

/// Integers of rank 1, or one integer of rank 0: int64, or int32.
#[derive(Clone)]
pub(crate) struct Sizes {
    pub(crate) elements: Rc<[DimExpr]>,
    pub(crate) scalar: bool,
    pub(crate) dtype: DType,
    /// The variable in the main block, once an operator has read it.
    pub(crate) expr: KnownVariable,
}

impl Sizes {
    fn new(elements: Vec<DimExpr>, scalar: bool) -> Sizes {
        Sizes { elements: elements.into(), scalar, dtype: DType::I64, expr: KnownVariable::default() }
    }

    /// Others of the same dtype.
    fn with(&self, elements: Vec<DimExpr>, scalar: bool) -> Sizes {
        Sizes { dtype: self.dtype, ..Sizes::new(elements, scalar) }
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
    /// The elements of an input of sizes, of few constants, or of few integers that the program computes from shapes.
    fn own_sizes(&self, i: usize) -> Option<Sizes> {
        let value = self.value(i)?;
        let dims = value.dims();
        let count = dims.numel().get().filter(|count| *count <= MAX_SIZES && dims.len() <= 1)?;
        let (dtype, elements): (DType, Vec<DimExpr>) = match &value.content {
            ValueContent::Sizes(sizes) => return Some(sizes.clone()),
            ValueContent::Computed(expr) if value.sources.is_empty() && value.tensor().is_none() => {
                let dtype = expr.dtype();
                if !matches!(dtype, DType::I32 | DType::I64) {
                    return None;
                }
                (dtype, (0..count as i32).map(|at| DimExpr::element(expr, at)).collect())
            }
            _ => {
                let tensor = value.constant()?;
                let ints: Vec<i64> = match tensor.dtype() {
                    DType::I64 => tensor.slice::<i64>().ok()?.to_vec(),
                    DType::I32 => tensor.slice::<i32>().ok()?.iter().map(|n| (*n).into()).collect(),
                    _ => return None,
                };
                (tensor.dtype(), ints.into_iter().map(Into::into).collect())
            }
        };
        Some(Sizes { dtype, ..Sizes::new(elements, dims.is_empty()) })
    }

    /// The integers of a vector; `None` if their number is unknown.
    ///
    /// # Errors
    /// The model computes them from its data.
    pub(crate) fn sizes(&mut self, i: usize) -> Result<Option<Vec<DimExpr>>> {
        if let Some(sizes) = self.own_sizes(i) {
            return Ok(Some(sizes.elements.to_vec()));
        }
        Ok(self.planned_ints(i)?.map(|ints| ints.into_iter().map(Into::into).collect()))
    }

    /// Sizes as int64 of rank 1.
    pub(crate) fn sizes_expr(&self, sizes: &[DimExpr]) -> Result<Expr> {
        if let Some(tensor) = Sizes::new(sizes.to_vec(), false).tensor() {
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
    pub(super) fn emit_sizes(&mut self, sizes: &Sizes) -> Result<Expr> {
        if let Some(expr) = &*sizes.expr.borrow() {
            return Ok(expr.clone());
        }
        let numbers = vector(&sizes.elements, &self.net);
        let numbers = if sizes.dtype == DType::I64 { numbers } else { numbers.cast(sizes.dtype) };
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
    let elements = (start..end.max(start)).map(|axis| x.dim(axis as i32)).collect();
    Ok(vec![NodeOutput::Sizes(Sizes::new(elements, false))])
}

/// The number of elements of an input.
pub(super) fn size(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::I64);
    if let Some(size) = n.dims(0)?.numel().get() {
        return Ok(vec![NodeOutput::Known(Tensor::scalar(size as i64)?)]);
    }
    let x = n.input(0)?;
    let size = (0..x.dims().len()).fold(DimExpr::from(1), |size, axis| size * x.dim(axis as i32));
    Ok(vec![NodeOutput::Sizes(Sizes::new(vec![size], true))])
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
        "Squeeze" => {
            n.own_sizes(0).filter(|sizes| sizes.elements.len() == 1).map(|sizes| with_rank(&sizes, 0))
        }
        "Unsqueeze" => n.own_sizes(0).filter(|sizes| sizes.scalar).map(|sizes| with_rank(&sizes, 1)),
        "Reshape" => reshaped(n)?,
        "Add" => elementwise(n, |a, b| Some(a + b)),
        "Sub" => elementwise(n, |a, b| Some(a - b)),
        "Mul" => elementwise(n, |a, b| Some(a * b)),
        // Of ONNX, quotients are rounded towards 0.
        "Div" => {
            elementwise(n, |a, b| (a.is_nonnegative() && b.known().is_some_and(|b| b > 0)).then(|| a / b))
        }
        "Equal" => return Ok(equal(n)),
        "Where" => chosen(n)?,
        _ => None,
    };
    Ok(sizes.map(NodeOutput::Sizes))
}

fn cast(n: &NodeContext<'_, '_>) -> Result<Option<Sizes>> {
    n.ignore(&["saturate", "round_mode"]);
    let to = n.int("to")?.and_then(|code| ElementType::from_code(code.try_into().ok()?));
    let dtype = to.and_then(ElementType::dtype).filter(|dtype| matches!(dtype, DType::I32 | DType::I64));
    let dtype = dtype.filter(|dtype| to == Some(ElementType::of(*dtype)));
    Ok(n.own_sizes(0).zip(dtype).map(|(sizes, dtype)| Sizes {
        dtype,
        expr: KnownVariable::default(),
        ..sizes
    }))
}

fn with_rank(sizes: &Sizes, rank: usize) -> Sizes {
    sizes.with(sizes.elements.to_vec(), rank == 0)
}

fn gather(n: &NodeContext<'_, '_>) -> Result<Option<Sizes>> {
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

fn slice(n: &NodeContext<'_, '_>) -> Result<Option<Sizes>> {
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
    let count = sizes.elements.len() as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(count) } else { at };
    let taken: Vec<DimExpr> = match step {
        1.. => {
            let (start, end) =
                (from_end(start).clamp(0, count) as usize, from_end(end).clamp(0, count) as usize);
            sizes.elements[start..end.max(start)].iter().step_by(step as usize).cloned().collect()
        }
        _ => return Ok(None),
    };
    Ok(Some(sizes.with(taken, false)))
}

fn concat(n: &NodeContext<'_, '_>) -> Result<Option<Sizes>> {
    n.int("axis")?;
    let parts = (0..n.input_count()).map(|i| n.own_sizes(i).filter(|sizes| !sizes.scalar));
    let Some(parts) = parts.collect::<Option<Vec<_>>>() else { return Ok(None) };
    let elements: Vec<DimExpr> = parts.iter().flat_map(|sizes| sizes.elements.iter().cloned()).collect();
    let first = parts.first().filter(|_| elements.len() <= MAX_SIZES);
    Ok(first.map(|sizes| sizes.with(elements, false)))
}

/// To rank 0 or 1.
fn reshaped(n: &NodeContext<'_, '_>) -> Result<Option<Sizes>> {
    n.flag("allowzero", false)?;
    let (Some(sizes), Some(shape)) = (n.own_sizes(0), n.own_sizes(1).filter(|_| n.version() >= 5)) else {
        return Ok(None);
    };
    let shape: Option<Vec<i64>> = shape.elements.iter().map(DimExpr::known).collect();
    let count = sizes.elements.len() as i64;
    Ok(match shape.as_deref() {
        Some([]) if count == 1 => Some(with_rank(&sizes, 0)),
        Some([size]) if *size == -1 || *size == count => Some(with_rank(&sizes, 1)),
        _ => None,
    })
}

/// Elements of broadcast sizes, two by two.
fn pairs(a: &Sizes, b: &Sizes) -> Option<Vec<(DimExpr, DimExpr)>> {
    let count = match (a.elements.len(), b.elements.len()) {
        (x, y) if x == y || y == 1 => x,
        (1, y) => y,
        _ => return None,
    };
    let at = |sizes: &Sizes, i: usize| sizes.elements[if sizes.elements.len() == 1 { 0 } else { i }].clone();
    Some((0..count).map(|i| (at(a, i), at(b, i))).collect())
}

fn elementwise(
    n: &NodeContext<'_, '_>,
    apply: impl Fn(DimExpr, DimExpr) -> Option<DimExpr>,
) -> Option<Sizes> {
    let (a, b) = (n.own_sizes(0)?, n.own_sizes(1)?);
    let elements: Option<Vec<DimExpr>> = pairs(&a, &b)?.into_iter().map(|(a, b)| apply(a, b)).collect();
    Some(a.with(elements?, a.scalar && b.scalar))
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
fn chosen(n: &mut NodeContext<'_, '_>) -> Result<Option<Sizes>> {
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
