//! Dimensions of expressions; some are known only when the program runs.

use std::ops::{Add, Div, Mul, Rem, Sub};

use autobwd::{Arg, Builder, DType, Expr, New, emit, tensor::Dim};

use super::Math;
use crate::{
    elementwise::{ElementwiseAdd, ElementwiseMul, ElementwiseSub},
    fill::FillConstant,
    floor_division::{ElementwiseFloordiv, ElementwiseMod},
    min_max_pow::{ElementwiseMax, ElementwiseMin},
    ranges::Range,
    shape::{DecidedSizes, ExpandV2, Reshape2, ShapeOp, Slice},
};

/// A dimension of an expression: a number where it is known, else an integer that the program computes.
///
/// `+ - * / %` combine dimensions and integers; a quotient is rounded down, a remainder has the sign of the divisor. Known operands give a known dimension and
/// emit nothing. Others emit operators on int64, which planning evaluates, so that a
/// [composition](autobwd::Composition) that computes with dimensions also works where they are unknown.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 6, 4]);
/// assert_eq!((x.dim(1) / 2 + x.dim(-1)).known(), Some(7));
/// assert_eq!((x.dim(0) * 2).known(), None);
/// let y = x.reshape_to(&[x.dim(0) * 2, x.dim(1) / 2, x.dim(2)]);
/// assert_eq!(y.dims().to_string(), "[-1, 3, 4]");
/// # assert!(y.check().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct DimExpr {
    value: DimValue,
    /// What shape rules know of it: the number, or a polynomial of names.
    size: Dim,
}

#[derive(Clone, Debug)]
enum DimValue {
    Known(i64),
    /// An unknown dimension of a tensor.
    Axis(Expr, usize),
    /// int64 of one element.
    Computed(Expr),
}

impl From<i64> for DimExpr {
    fn from(n: i64) -> DimExpr {
        DimExpr { value: DimValue::Known(n), size: Dim::from(0) + n }
    }
}

impl DimExpr {
    /// The dimension of an axis; negative axes count from the end. Fails for other axes when it is used.
    #[track_caller]
    pub(super) fn of(x: &Expr, axis: i32) -> DimExpr {
        let dims = x.dims();
        let at = if axis < 0 { axis + dims.len() as i32 } else { axis };
        let Some(dim) = usize::try_from(at).ok().and_then(|at| dims.get(at)) else {
            let text = format!("`dim`: {axis} is not an axis of the shape {dims}");
            return DimExpr::computed(super::failed(&[x], text));
        };
        match dim.get() {
            Some(n) => DimExpr::from(n as i64),
            None => DimExpr { value: DimValue::Axis(x.clone(), at as usize), size: *dim },
        }
    }

    /// An element of an integer tensor of at most one dimension.
    #[track_caller]
    pub fn element(tensor: &Expr, at: i32) -> DimExpr {
        if tensor.dims().numel().get() == Some(1) {
            return DimExpr::only_element(tensor);
        }
        DimExpr::computed(tensor.slice(0, at, at + 1).cast(DType::I64))
    }

    /// The elements of an integer tensor of at most one dimension and of known size. They may depend on data: operators
    /// that read them are planned when they are known.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// use autobwd_ops::{DimExpr, Math};
    ///
    /// let net = Builder::new();
    /// let [x, n] = [net.input("x", DType::F32, &[2, 1]), net.input("n", DType::I64, &[1])];
    /// let y = x.expand_to(&[2.into(), DimExpr::decided(&n)[0].clone()]).name();
    /// let feeds = [Tensor::from_vec([2, 1], vec![1.0_f32, 2.0])?, Tensor::from_vec([1], vec![3_i64])?];
    /// let feeds: [(&str, &dyn autobwd::Feed); 2] = [("x", &feeds[0]), ("n", &feeds[1])];
    /// let found = Executor::new().run(&net.program()?, &mut Scope::new(), &feeds, &[&y])?;
    /// assert_eq!(found[0].dims(), [2, 3]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    pub fn decided(tensor: &Expr) -> Vec<DimExpr> {
        let vector = if tensor.dims().len() == 1 { tensor.clone() } else { tensor.reshape(&[1]) };
        let x = if vector.dtype() == DType::I64 { vector } else { vector.cast(DType::I64) };
        let out = (0..x.dims().numel().get().unwrap_or(0)).map(|_| New).collect();
        emit(DecidedSizes { x: (&x).into(), out }).out.iter().map(|size| DimExpr::of(size, 1)).collect()
    }

    /// The element of an integer tensor that has one.
    #[track_caller]
    pub(crate) fn only_element(tensor: &Expr) -> DimExpr {
        let vector = if tensor.dims().len() == 1 { tensor.clone() } else { tensor.reshape(&[1]) };
        let is_wide = vector.dtype() == DType::I64;
        DimExpr::computed(if is_wide { vector } else { vector.cast(DType::I64) })
    }

    /// A number that the program computes, int64 of one element.
    fn computed(number: Expr) -> DimExpr {
        DimExpr { value: DimValue::Computed(number), size: Dim::UNKNOWN }
    }

    /// The number, if it is known.
    pub fn known(&self) -> Option<i64> {
        match self.value {
            DimValue::Known(n) => Some(n),
            DimValue::Axis(..) | DimValue::Computed(_) => None,
        }
    }

    /// What shape rules know of it: the number, or a polynomial of names, or nothing.
    pub fn size(&self) -> Dim {
        self.size
    }

    /// The number as int64 `[1]`, for a program.
    #[track_caller]
    pub fn number(&self, builder: &Builder) -> Expr {
        match &self.value {
            DimValue::Known(n) => filled(builder, DType::I64, &n.to_string(), &[1.into()]),
            DimValue::Axis(x, axis) => {
                let all = emit(ShapeOp { input: x.into(), out: New }).out;
                all.slice(0, *axis as i32, *axis as i32 + 1).cast(DType::I64)
            }
            DimValue::Computed(number) => number.clone(),
        }
    }

    /// Times a factor, in float32, rounded down.
    #[track_caller]
    pub(crate) fn scaled(&self, factor: f32) -> DimExpr {
        match &self.value {
            DimValue::Known(n) => DimExpr::from((*n as f32 * factor) as i64),
            DimValue::Axis(x, _) | DimValue::Computed(x) => {
                let number = self.number(x.builder()).cast(DType::F32);
                DimExpr::rounded_down(&(number * f64::from(factor)))
            }
        }
    }

    /// A number of at least 0, one element, rounded down.
    #[track_caller]
    pub(crate) fn rounded_down(number: &Expr) -> DimExpr {
        DimExpr::computed(number.cast(DType::I64))
    }

    #[track_caller]
    fn combine(
        &self,
        other: &DimExpr,
        known: fn(i64, i64) -> i64,
        size: fn(Dim, Dim) -> Dim,
        emit: impl FnOnce(Expr, Expr) -> Expr,
    ) -> DimExpr {
        let builder = match (&self.value, &other.value) {
            (DimValue::Known(a), DimValue::Known(b)) => return DimExpr::from(known(*a, *b)),
            (DimValue::Axis(x, _) | DimValue::Computed(x), _)
            | (_, DimValue::Axis(x, _) | DimValue::Computed(x)) => x.builder(),
        };
        let size = size(self.size, other.size);
        if let Some(n) = size.get() {
            return DimExpr::from(n as i64);
        }
        if let Some(same) = [self, other].into_iter().find(|dim| size.is_named() && dim.size == size) {
            return same.clone();
        }
        DimExpr { size, ..DimExpr::computed(emit(self.number(builder), other.number(builder))) }
    }

    /// Whether it is at least 0 whatever the shapes are: a number, or a dimension as it is.
    pub fn is_nonnegative(&self) -> bool {
        match &self.value {
            DimValue::Known(n) => *n >= 0,
            DimValue::Axis(..) => true,
            DimValue::Computed(_) => false,
        }
    }

    /// Whether both are the same number, the same unknown dimension of one tensor, or equal polynomials of names. Others
    /// may be equal, too.
    pub fn is_same(&self, other: &DimExpr) -> bool {
        match (&self.value, &other.value) {
            (DimValue::Known(a), DimValue::Known(b)) => a == b,
            (DimValue::Axis(x, axis), _) if other.is_axis(x, *axis) => true,
            _ => self.size.is_named() && self.size == other.size,
        }
    }

    /// Whether it is the open dimension of that axis of a tensor.
    fn is_axis(&self, of: &Expr, at: usize) -> bool {
        let is_named = self.size.is_named() && of.dims().get(at) == Some(&self.size);
        is_named || matches!(&self.value, DimValue::Axis(x, axis) if *axis == at && x.is(of))
    }
}

macro_rules! extremes {
    ($($doc:literal $method:ident $emit:ident, $known:expr;)*) => {
        impl DimExpr {$(
            #[doc = $doc]
            #[track_caller]
            #[must_use]
            pub fn $method(&self, other: impl Into<DimExpr>) -> DimExpr {
                let size = |a: Dim, b: Dim| if a == b { a } else { Dim::UNKNOWN };
                let emit = |x: Expr, y: Expr| emit($emit { x: x.into(), y: y.into(), out: New, axis: -1 }).out;
                self.combine(&other.into(), $known, size, emit)
            }
        )*}
    };
}
extremes! {
    "The larger of two dimensions." max ElementwiseMax, i64::max;
    "The smaller of two dimensions." min ElementwiseMin, i64::min;
}

macro_rules! arithmetic {
    ($($op:ident $method:ident $emit:ident, $known:expr, $size:expr;)*) => {$(
        impl $op<&DimExpr> for &DimExpr {
            type Output = DimExpr;
            #[track_caller]
            fn $method(self, other: &DimExpr) -> DimExpr {
                self.combine(other, $known, $size, |x, y| emit($emit { x: x.into(), y: y.into(), out: New, axis: -1 }).out)
            }
        }
        arithmetic!(@ $op $method, &DimExpr, DimExpr, |a, b| (a, &b));
        arithmetic!(@ $op $method, DimExpr, &DimExpr, |a, b| (&a, b));
        arithmetic!(@ $op $method, DimExpr, DimExpr, |a, b| (&a, &b));
        arithmetic!(@ $op $method, &DimExpr, i64, |a, b| (a, &b.into()));
        arithmetic!(@ $op $method, DimExpr, i64, |a, b| (&a, &b.into()));
    )*};
    (@ $op:ident $method:ident, $left:ty, $right:ty, |$a:ident, $b:ident| ($x:expr, $y:expr)) => {
        impl $op<$right> for $left {
            type Output = DimExpr;
            #[track_caller]
            fn $method(self, other: $right) -> DimExpr {
                let ($a, $b) = (self, other);
                $op::$method($x, $y)
            }
        }
    };
}
// The rules of operators bound dimensions, so that known ones saturate only where no tensor is as long.
arithmetic! {
    Add add ElementwiseAdd, i64::saturating_add, |a, b| a + b;
    Sub sub ElementwiseSub, i64::saturating_sub, |a, b| a - b;
    Mul mul ElementwiseMul, i64::saturating_mul, |a, b| a * b;
    Div div ElementwiseFloordiv, |a, b| a.checked_div_euclid(b).unwrap_or(i64::MAX), |a, b| a / b;
    Rem rem ElementwiseMod, |a, b| a.checked_rem_euclid(b).unwrap_or(0), |a, b| a - a / b * b;
}

/// `x / dim`, in the dtype of `x`, for a mean. The mean of no elements is a quotient of 0 and 1.
impl Div<&DimExpr> for &Expr {
    type Output = Expr;
    #[track_caller]
    fn div(self, dim: &DimExpr) -> Expr {
        let count = dim.max(1);
        match count.known() {
            Some(n) => self / n as f64,
            None => {
                let count = count.number(self.builder()).cast(self.dtype());
                // One element broadcasts, except over a scalar.
                self / if self.dims().is_empty() { count.reshape(&[]) } else { count }
            }
        }
    }
}

fn args(tensors: impl IntoIterator<Item = Expr>) -> Vec<Arg> {
    tensors.into_iter().map(Arg::from).collect()
}

/// An attribute of 32 bits; no tensor has a longer dimension.
fn narrow(n: i64) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Dimensions as an attribute, −1 where unknown.
fn attr(dims: &[DimExpr]) -> Vec<i64> {
    dims.iter().map(|dim| dim.known().unwrap_or(-1)).collect()
}

/// A result with these dimensions, as far as their names are known.
fn with_dims(result: Expr, dims: &[DimExpr]) -> Expr {
    // −1 may stand for a dimension that stays, or follows from the others.
    let size = |dim: &DimExpr| if dim.known().is_some_and(|n| n < 0) { Dim::UNKNOWN } else { dim.size };
    let sizes: Vec<Dim> = dims.iter().map(size).collect();
    if sizes.iter().any(|size| size.is_named()) && result.check().is_ok() {
        result.builder().refine(&result, &sizes);
    }
    result
}

/// Dimensions as tensors.
#[track_caller]
fn tensors(builder: &Builder, dims: &[DimExpr]) -> Vec<Arg> {
    args(dims.iter().map(|dim| dim.number(builder)))
}

/// A number, given as text, everywhere in a tensor with these dimensions.
#[track_caller]
pub fn filled(builder: &Builder, dtype: DType, number: &str, dims: &[DimExpr]) -> Expr {
    let shape = attr(dims);
    let shape_tensor_list = if shape.contains(&-1) { tensors(builder, dims) } else { vec![] };
    let str_value = number.to_string();
    let op = FillConstant { shape, shape_tensor_list, dtype, str_value, ..FillConstant::of(New) };
    with_dims(builder.emit(op).out, dims)
}

/// `0, 1, …` up to a bound, exclusive, as int64.
#[track_caller]
pub fn positions(builder: &Builder, length: &DimExpr) -> Expr {
    let [start, end, step] = [0.into(), length.clone(), 1.into()].map(|n: DimExpr| n.number(builder).into());
    let numbers = emit(Range { start, end, step, out: New }).out;
    // Shape rules do not know the elements of `end`.
    match length.known() {
        Some(n) => numbers.reshape(&[narrow(n)]),
        None => with_dims(numbers, std::slice::from_ref(length)),
    }
}

/// The dimensions of a tensor of known rank.
#[track_caller]
pub fn sizes<const RANK: usize>(x: &Expr) -> [DimExpr; RANK] {
    std::array::from_fn(|axis| DimExpr::of(x, axis as i32))
}

/// The dimensions of a tensor.
#[track_caller]
pub fn all_sizes(x: &Expr) -> Vec<DimExpr> {
    (0..x.dims().len()).map(|axis| DimExpr::of(x, axis as i32)).collect()
}

/// The product of dimensions, 1 for none.
#[track_caller]
pub fn product(dims: &[DimExpr]) -> DimExpr {
    if dims.iter().any(|dim| dim.known() == Some(0)) {
        return 0.into();
    }
    let factors = dims.iter().filter(|dim| dim.known() != Some(1)).cloned();
    factors.reduce(|product, dim| product * dim).unwrap_or(1.into())
}

/// The integers that a tensor gives, or else a list of tensors with one each, or else an attribute.
#[track_caller]
pub(crate) fn given_integers(
    tensor: Option<&Expr>,
    list: &[Expr],
    attr: impl ExactSizeIterator<Item = i64>,
) -> Vec<DimExpr> {
    match tensor {
        Some(tensor) => {
            let count = tensor.dims().numel().get().unwrap_or(attr.len());
            let elements = if tensor.dims().len() == 1 { tensor.clone() } else { tensor.reshape(&[-1]) };
            (0..count as i32).map(|at| DimExpr::element(&elements, at)).collect()
        }
        None if list.is_empty() => attr.map(DimExpr::from).collect(),
        None => list.iter().map(DimExpr::only_element).collect(),
    }
}

/// [`Math::reshape_to`].
#[track_caller]
pub(super) fn reshape_to(x: &Expr, dims: &[DimExpr]) -> Expr {
    if dims.iter().any(|dim| dim.known() == Some(0)) {
        // In a shape, 0 would copy a dimension.
        return filled(x.builder(), x.dtype(), "0", dims);
    }
    let wanted = dims;
    let shape =
        dims.iter().enumerate().map(|(at, dim)| if dim.is_axis(x, at) { 0.into() } else { dim.clone() });
    let dims: Vec<DimExpr> = shape.collect();
    let attr = attr(&dims);
    let op = Reshape2::of(x.into(), New, New, attr.iter().map(|n| narrow(*n)).collect());
    // One dimension follows from the others.
    let is_computed = attr.iter().filter(|n| **n == -1).count() > 1;
    let shape_tensor = if is_computed { tensors(x.builder(), &dims) } else { vec![] };
    with_dims(emit(Reshape2 { shape_tensor, ..op }).out, wanted)
}

/// [`Math::expand_to`].
#[track_caller]
pub(super) fn expand_to(x: &Expr, dims: &[DimExpr]) -> Expr {
    let added = dims.len().saturating_sub(x.dims().len());
    let stays = |at: usize, dim: &DimExpr| at >= added && dim.is_axis(x, at - added);
    // −1 keeps a dimension.
    let dim = |(at, dim): (usize, &DimExpr)| if stays(at, dim) { (-1).into() } else { dim.clone() };
    let kept: Vec<DimExpr> = dims.iter().enumerate().map(dim).collect();
    let is_open = kept.iter().any(|dim| dim.known().is_none());
    let expand_shapes_tensor = args(kept.iter().filter(|_| is_open).map(|dim| dim.number(x.builder())));
    let shape = kept.iter().map(|dim| dim.known().map_or(-1, narrow)).collect();
    let op = ExpandV2 { x: x.into(), shape_input: None, expand_shapes_tensor, out: New, shape };
    with_dims(emit(op).out, dims)
}

/// [`Math::slice_to`].
#[track_caller]
pub(super) fn slice_to(x: &Expr, axis: i32, start: &DimExpr, end: &DimExpr) -> Expr {
    if let (Some(start), Some(end)) = (start.known(), end.known()) {
        return x.slice(axis, narrow(start), narrow(end));
    }
    let [starts, ends] = [start, end].map(|bound| vec![bound.known().map_or(-1, narrow)]);
    let [starts_tensor_list, ends_tensor_list] = [start, end].map(|bound| args([bound.number(x.builder())]));
    let op = Slice { axes: vec![axis], starts, ends, ..Slice::of(x.into(), New) };
    emit(Slice { starts_tensor_list, ends_tensor_list, ..op }).out
}

/// [`Math::pad_to`].
#[track_caller]
pub(super) fn pad_by(x: &Expr, paddings: &[[DimExpr; 2]], value: f32) -> Expr {
    let known = |pair: &[DimExpr; 2]| Some([narrow(pair[0].known()?), narrow(pair[1].known()?)]);
    if let Some(paddings) = paddings.iter().map(known).collect::<Option<Vec<_>>>() {
        return if paddings.iter().all(|pair| *pair == [0, 0]) { x.clone() } else { x.pad(&paddings, value) };
    }
    let is_padded = |pair: &[DimExpr; 2]| pair.iter().any(|length| length.known() != Some(0));
    let padded = paddings.iter().enumerate().filter(|(_, pair)| is_padded(pair));
    padded.fold(x.clone(), |x, (axis, pair)| {
        let [before, after] = pair.each_ref().map(|length| {
            let dim = |at: usize| if at == axis { length.clone() } else { DimExpr::of(&x, at as i32) };
            let shape: Vec<DimExpr> = (0..x.dims().len()).map(dim).collect();
            filled(x.builder(), x.dtype(), &value.to_string(), &shape)
        });
        super::concat(&[&before, &x, &after], axis as i32)
    })
}
