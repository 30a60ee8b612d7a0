//! Operators that find elements: `top_k_v2`, `arg_max`, `arg_min`, `accuracy`.

mod accuracy;

pub use accuracy::Accuracy;

use autobwd::{
    Attrs, Buf, Composition, Cx, DType, Dims, Error, Expr, GradCx, GradRule, Infer, Kernel, Meta, New,
    Result, Var, ZeroGrad,
    check::*,
    emit,
    op::{with_float, with_signed},
    operators::constant_int,
    register_op,
    tensor::{Dim, Element},
};

use crate::{
    Math,
    kernel_helpers::{AnyNumber, ConvertElement, axis_if_any, lanes_along, number_dtype},
    math::{in_dtype, like, positions},
    scatter::{Along, TakeAlongAxis, TakeAlongAxisGrad},
    shape::Slice,
    sort::Argsort,
};

/// The `k` largest elements along an axis, and their positions: `out = x[indices]`.
///
/// Ties are in the order of `x`, and the gradient goes to the positions that were chosen. NaN counts as the largest
/// number.
#[register_op(grad = TopKV2Grad, infallible)]
pub struct TopKV2<V = Var> {
    /// Signed integers or floating-point numbers of any shape; a scalar has one axis.
    #[input]
    pub x: V,
    /// The number of elements, in place of attribute `k`: int32 or int64, one element; it may be 0.
    #[input("K", constant)]
    pub k_tensor: Option<V>,
    /// The elements, `k` along the axis.
    #[output]
    pub out: V,
    /// Their positions along the axis, int64; same shape as `out`.
    #[output]
    pub indices: V,
    /// Number of elements.
    #[attr(default = 1, min = 1)]
    pub k: i32,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Find the largest elements, not the smallest.
    #[attr(default = true)]
    pub largest: bool,
    /// Accepted for compatibility: the elements are always sorted.
    #[attr(default = true)]
    pub sorted: bool,
}
impl Infer for TopKV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        let k = constant_int(self.k_tensor.as_ref(), self.k.into())?;
        let dims = top_dims(&self.x, k, self.axis)?;
        self.out.set(self.x.dtype, dims.clone());
        self.indices.set(DType::I64, dims);
        Ok(())
    }
}
/// Infers the dimensions of the `k` elements along an axis.
fn top_dims(x: &Meta, k: Option<i64>, axis: i32) -> Result<Dims> {
    let (axis, mut dims) = (axis_if_any(x, axis.into())?, x.dims.clone());
    let Some(k) = k else {
        axis.into_iter().for_each(|axis| dims[axis] = Dim::UNKNOWN);
        return Ok(dims);
    };
    let count = usize::try_from(k).ok().filter(|k| *k > 0 || axis.is_some());
    let k = count.ok_or_else(|| Error::attr("k", format!("a number of elements is needed, not {k}")))?;
    let n = axis.map_or(Dim::from(1), |axis| dims[axis]);
    if n.get().is_some_and(|n| n < k) {
        let of = axis.map_or("of a scalar".into(), |axis| format!("along axis {axis}"));
        return Err(x.wrong(&format!("at least `k` = {k} elements {of} are needed")));
    }
    if let Some(axis) = axis {
        dims[axis] = k.into();
    }
    Ok(dims)
}
impl Kernel for TopKV2<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_signed!(self.x, T => {
            let (outer, n, inner) = lanes_along(&self.x, self.axis.into());
            let (_, k, _) = lanes_along(&self.out, self.axis.into());
            let (largest, lanes) = (self.largest, if k == 0 { 0 } else { outer * inner });
            let x = self.x.slice::<T>()?;
            let (values, indices) = (self.out.slice_mut()?, self.indices.slice_mut()?);
            for lane in 0..lanes {
                let (row, column) = (lane / inner, lane % inner);
                let x = x[row * n * inner + column..].iter().step_by(inner).take(n);
                let at = row * k * inner + column;
                TopK { values: &mut values[at..], indices: &mut indices[at..], step: inner, largest }.select(k, x);
            }
            Ok(())
        })
    }
}
impl Composition for TopKV2<Expr> {
    fn compose(&mut self) {
        let (axis, descending) = (self.axis, self.largest);
        let sorted = emit(Argsort { x: (&self.x).into(), out: New, indices: New, axis, descending });
        // The only element of a scalar.
        let first = |x: &Expr| match (&self.k_tensor, x.dims().is_empty()) {
            (_, true) => x.clone(),
            (None, _) => x.slice(axis, 0, self.k),
            (Some(k), _) => {
                let ends_tensor_list = vec![k.into()];
                let (axes, starts, ends) = (vec![axis], vec![0], vec![self.k]);
                let op = Slice { axes, starts, ends, ..Slice::of(x.into(), New) };
                emit(Slice { ends_tensor_list, ..op }).out
            }
        };
        (self.out, self.indices) = (first(&sorted.out), first(&sorted.indices));
    }
}
autobwd::samples!(
    TopKV2,
    [
        top_k_v2(distinct([2, 5]), 1, -1),
        TopKV2 { largest: false, ..top_k_v2(distinct([2, 5]), 3, 1) },
        TopKV2 { sorted: false, ..top_k_v2(distinct([4, 2, 3]), 2, 0) },
        top_k_v2(distinct([7]), 7, 0),
        top_k_v2(distinct([0, 3]), 2, 1),
        top_k_v2(
            given([2, 4], [3.0, -9.0, 3.0, 2147483647.0, 0.0, 5.0, -2147483648.0, 5.0]).of(DType::I32),
            3,
            -1
        ),
        TopKV2 { largest: false, ..top_k_v2(integers_below(99, [5, 2]), 2, 0) },
        top_k_v2(uniform([]), 1, -1),
        TopKV2 { k_tensor: Some(integers(&[3])), ..top_k_v2(distinct([2, 5]), 1, 1) },
        TopKV2 { k_tensor: Some(integers(&[0]).of(DType::I32)), ..top_k_v2(distinct([2, 5]), 1, 1) },
        TopKV2 { k_tensor: Some(integers(&[-1])), ..top_k_v2(distinct([2, 5]), 1, 1) }
            .fails("attribute `k`: a number of elements is needed, not -1"),
        TopKV2 { k_tensor: Some(integers(&[0])), ..top_k_v2(uniform([]), 1, -1) }
            .fails("attribute `k`: a number of elements is needed, not 0"),
        TopKV2 { k_tensor: Some(integers(&[6])), ..top_k_v2(distinct([2, 5]), 1, 1) }
            .fails("`X`: at least `k` = 6 elements along axis 1 are needed"),
        top_k_v2(uniform([]), 2, 0).fails("`X`: at least `k` = 2 elements of a scalar are needed"),
        top_k_v2(integers_below(2, [3]).of(DType::Bool), 1, 0)
            .fails("`X`: signed or floating point numbers are needed"),
        top_k_v2(distinct([2, 5]), 3, 0).fails("`X`: at least `k` = 3 elements along axis 0 are needed"),
    ]
);

fn top_k_v2(x: Draw, k: i32, axis: i32) -> TopKV2<Draw> {
    TopKV2 { x, k_tensor: None, out: out(), indices: out(), k, axis, largest: true, sorted: true }
}

/// Elements with a total order.
pub(crate) trait RankedElement: Element {
    /// Whether it is larger; NaN is larger than all numbers.
    fn is_above(self, other: Self) -> bool;
}
macro_rules! ranked {
    ($($t:ty, $above:expr;)*) => {$(
        impl RankedElement for $t {
            #[inline(always)]
            fn is_above(self, other: $t) -> bool {
                let above: fn($t, $t) -> bool = $above;
                above(self, other)
            }
        }
    )*};
}
ranked! {
    f32, |a, b| a > b || (a.is_nan() && !b.is_nan());
    f64, |a, b| a > b || (a.is_nan() && !b.is_nan());
    i32, |a, b| a > b;
    i64, |a, b| a > b;
}

/// The best elements of one lane, as a heap with the worst on top.
pub(crate) struct TopK<'a, T> {
    pub(crate) values: &'a mut [T],
    pub(crate) indices: &'a mut [i64],
    /// Distance between consecutive elements.
    pub(crate) step: usize,
    pub(crate) largest: bool,
}

impl<T: RankedElement> TopK<'_, T> {
    /// Fills it with the best `k` of at least `k` elements.
    pub(crate) fn select<'x>(mut self, k: usize, x: impl Iterator<Item = &'x T>)
    where
        T: 'x,
    {
        for (i, x) in x.enumerate() {
            let new = (*x, i as i64);
            if i < k {
                self.set(i, new);
                // The first `k` elements become a heap.
                if i + 1 == k {
                    (0..k / 2).rev().for_each(|at| self.sift(at, k, self.get(at)));
                }
            } else if self.before(new, self.get(0)) {
                self.sift(0, k, new);
            }
        }
        for len in (1..k).rev() {
            let (worst, last) = (self.get(0), self.get(len));
            self.sift(0, len, last);
            self.set(len, worst);
        }
    }

    fn get(&self, i: usize) -> (T, i64) {
        (self.values[i * self.step], self.indices[i * self.step])
    }

    fn set(&mut self, i: usize, (value, index): (T, i64)) {
        self.values[i * self.step] = value;
        self.indices[i * self.step] = index;
    }

    /// Whether `a` comes before `b`.
    fn before(&self, a: (T, i64), b: (T, i64)) -> bool {
        let above = T::is_above;
        let (best, worst) = if self.largest { (a.0, b.0) } else { (b.0, a.0) };
        above(best, worst) || (!above(worst, best) && a.1 < b.1)
    }

    /// Puts `new` at position `at` of a heap of `len`, and sifts it down.
    fn sift(&mut self, mut at: usize, len: usize, new: (T, i64)) {
        loop {
            let left = 2 * at + 1;
            let right_is_worse = left + 1 < len && self.before(self.get(left), self.get(left + 1));
            let child = left + usize::from(right_is_worse);
            if child >= len || self.before(self.get(child), new) {
                return self.set(at, new);
            }
            self.set(at, self.get(child));
            at = child;
        }
    }
}

/// `dx[indices] = dout`, 0 elsewhere.
#[register_op(grad_of = TopKV2, grad = TopKV2GradGrad, inferred)]
pub struct TopKV2Grad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(constant)]
    pub k_tensor: Option<V>,
    pub indices: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub k: i32,
    pub axis: i32,
}
impl Kernel for TopKV2Grad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let along = Along::new(&self.x, &self.indices, self.axis);
            along.add_up::<T>(self.dout.slice()?, self.dx.slice_mut()?)
        })
    }
}

impl Composition for TopKV2Grad<Expr> {
    fn compose(&mut self) {
        let (input, index, dresult) = ((&self.x).into(), (&self.indices).into(), (&self.dout).into());
        self.dx = emit(TakeAlongAxisGrad { input, index, dresult, dinput: New, axis: self.axis }).dinput;
    }
}

/// `ddout = ddx[indices]`.
#[derive(Debug)]
pub struct TopKV2GradGrad;
impl GradRule<TopKV2Grad> for TopKV2GradGrad {
    fn emit(fwd: &TopKV2Grad, g: &mut GradCx<'_>) {
        if let Some(result) = g.wanted(fwd.dout) {
            let (input, index) = (g.grad(fwd.dx), fwd.indices);
            g.push(TakeAlongAxis { input, index, result, axis: fwd.axis });
        }
    }
}

/// The attributes of searches for the position of an element.
#[derive(Attrs, Clone, Debug)]
pub struct ArgAttrs {
    /// The dimension; negative counts from the end.
    #[attr]
    pub axis: i64,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keepdims: bool,
    /// Position among all elements; `axis` is ignored.
    #[attr(default = false)]
    pub flatten: bool,
    /// Dtype of the positions, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
}

impl ArgAttrs {
    /// Positions along an axis, int64, without the dimension.
    pub fn along(axis: i64) -> ArgAttrs {
        ArgAttrs { axis, keepdims: false, flatten: false, dtype: DType::I64 }
    }

    /// The first position of the highest rank along an axis, in a composition: `ranks` gives int64 from 0 up.
    fn first(&self, x: &Expr, ranks: impl FnOnce(&Expr, i32) -> Expr) -> Expr {
        let (rank, is_flat) = (x.dims().len(), self.flatten || x.dims().is_empty());
        let x = if is_flat { x.reshape(&[-1]) } else { x.clone() };
        let mut dims = vec![1; x.dims().len()];
        let axis = if is_flat { 0 } else { self.axis.rem_euclid(rank as i64) as i32 };
        dims[axis as usize] = -1;
        // The largest of `rank * n - position` has the highest rank, and the first position of those.
        let n = x.dim(axis).number(x.builder());
        let keys = ranks(&x, axis) * &n - positions(x.builder(), &x.dim(axis)).reshape(&dims);
        let first = in_dtype(&(-keys.max_keepdim(&[axis])).remainder(&n), self.dtype);
        match (is_flat, self.keepdims) {
            (true, true) => first.reshape(&vec![1; rank]),
            (true, false) => first.reshape(&[]),
            (false, true) => first,
            (false, false) => first.squeeze(&[axis]),
        }
    }
}

/// Position of the largest element along an axis.
///
/// Ties give the first position; NaN counts as the largest number.
#[register_op(grad = ZeroGrad, infallible)]
pub struct ArgMax<V = Var> {
    /// At least one element along the axis.
    #[input]
    pub x: V,
    /// Positions along the axis, in the shape of `x` without it, or with 1 in its place if `keepdims`.
    #[output]
    pub out: V,
    /// Where positions are searched, and their form.
    #[attrs]
    pub arg: ArgAttrs,
}
impl Infer for ArgMax<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = found_dims(&self.x, &self.arg)?;
        self.out.set(self.arg.dtype, dims);
        Ok(())
    }
}
impl Kernel for ArgMax<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        find::<true>(&self.x, self.arg.axis, self.arg.flatten, &mut self.out)
    }
}
impl Composition for ArgMax<Expr> {
    fn compose(&mut self) {
        self.out = self.arg.first(&self.x, |x, axis| {
            let is_largest = x.equal(&x.max_keepdim(&[axis])).cast(DType::I64);
            // Backends need not find a maximum of NaN.
            if x.dtype().is_float() { is_largest + x.isnan().cast(DType::I64) * 2.0 } else { is_largest }
        });
    }
}
autobwd::samples!(
    ArgMax,
    [
        arg_max(distinct([2, 5]), ArgAttrs::along(1)),
        arg_max(distinct([4, 2, 3]), ArgAttrs::along(-2).keepdims(true).dtype(DType::I32)),
        arg_max(distinct([4, 2, 3]), ArgAttrs::along(0)),
        arg_max(distinct([2, 3]), ArgAttrs::along(0).flatten(true)),
        arg_max(distinct([2, 3]), ArgAttrs::along(0).keepdims(true).flatten(true)),
        arg_max(distinct([]), ArgAttrs::along(0).flatten(true)),
        arg_max(distinct([]), ArgAttrs::along(-1).keepdims(true)),
        arg_max(
            given([2, 3], [-5.0, -3.0, -3.0, -2147483648.0, -2147483648.0, -2147483648.0]).of(DType::I32),
            ArgAttrs::along(1)
        ),
        arg_max(integers_below(99, [4, 3]), ArgAttrs::along(0).dtype(DType::I32)),
        arg_max(given([4], [f64::INFINITY, f64::NAN, 1.0, f64::NAN]), ArgAttrs::along(0)),
        arg_max(distinct([2, 0]), ArgAttrs::along(1))
            .fails("`X`: at least one element to choose from is needed"),
        arg_max(distinct([2, 3]), ArgAttrs::along(1).dtype(DType::F32))
            .fails("attribute `dtype`: int64 or int32 is needed"),
    ]
);

fn arg_max(x: Draw, arg: ArgAttrs) -> ArgMax<Draw> {
    ArgMax { x, out: out(), arg }
}

/// Position of the smallest element along an axis.
///
/// Ties give the first position; NaN counts as the largest number.
#[register_op(grad = ZeroGrad, infallible)]
pub struct ArgMin<V = Var> {
    /// At least one element along the axis.
    #[input]
    pub x: V,
    /// Positions along the axis, in the shape of `x` without it, or with 1 in its place if `keepdims`.
    #[output]
    pub out: V,
    /// Where positions are searched, and their form.
    #[attrs]
    pub arg: ArgAttrs,
}
impl Infer for ArgMin<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = found_dims(&self.x, &self.arg)?;
        self.out.set(self.arg.dtype, dims);
        Ok(())
    }
}
impl Kernel for ArgMin<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        find::<false>(&self.x, self.arg.axis, self.arg.flatten, &mut self.out)
    }
}
impl Composition for ArgMin<Expr> {
    fn compose(&mut self) {
        self.out = self.arg.first(&self.x, |x, axis| {
            let is_float = x.dtype().is_float();
            let numbers = if is_float { x.isnan().where_cond(&like(x, f64::INFINITY), x) } else { x.clone() };
            x.equal(&numbers.min_keepdim(&[axis])).cast(DType::I64)
        });
    }
}
autobwd::samples!(
    ArgMin,
    [
        arg_min(distinct([2, 5]), ArgAttrs::along(1)),
        arg_min(distinct([4, 2, 3]), ArgAttrs::along(-2).keepdims(true).dtype(DType::I32)),
        arg_min(distinct([2, 3]), ArgAttrs::along(0).flatten(true)),
        arg_min(distinct([2, 3]), ArgAttrs::along(0).keepdims(true).flatten(true)),
        arg_min(distinct([]), ArgAttrs::along(-1)),
        arg_min(given([2, 3], [-5.0, -3.0, -5.0, 2147483647.0, 7.0, 7.0]).of(DType::I32), ArgAttrs::along(1)),
        arg_min(given([4], [f64::NAN, 2.0, 1.0, f64::NAN]), ArgAttrs::along(0)),
        arg_min(given([2, 2], [f64::NAN, f64::INFINITY, f64::NAN, f64::NAN]), ArgAttrs::along(1)),
        arg_min(distinct([2, 0]), ArgAttrs::along(1))
            .fails("`X`: at least one element to choose from is needed"),
        arg_min(distinct([2, 3]), ArgAttrs::along(1).dtype(DType::F32))
            .fails("attribute `dtype`: int64 or int32 is needed"),
    ]
);

fn arg_min(x: Draw, arg: ArgAttrs) -> ArgMin<Draw> {
    ArgMin { x, out: out(), arg }
}

/// Infers the dimensions of positions along an axis.
fn found_dims(x: &Meta, arg: &ArgAttrs) -> Result<Dims> {
    let ArgAttrs { axis, keepdims, flatten, dtype } = *arg;
    x.signed()?;
    number_dtype(dtype)?;
    let axis = if flatten { None } else { axis_if_any(x, axis)? };
    let searched = axis.map_or(x.dims.numel(), |axis| x.dims[axis]);
    if searched == 0 {
        return Err(x.wrong("at least one element to choose from is needed"));
    }
    let result = x.dims.iter().enumerate().filter_map(|(i, n)| match flatten || axis == Some(i) {
        true => keepdims.then_some(Dim::from(1)),
        false => Some(*n),
    });
    Ok(result.collect())
}

/// Finds the largest or the smallest element.
fn find<const LARGEST: bool>(x: &Buf<'_>, axis: i64, flatten: bool, out: &mut Buf<'_>) -> Result<()> {
    let cut = if flatten { (1, x.numel(), 1) } else { lanes_along(x, axis) };
    with_signed!(x, T => {
        let x = x.slice::<T>()?;
        match out.dtype() {
            DType::I32 => find_in_lanes::<T, i32, LARGEST>(x, cut, out.slice_mut()?),
            _ => find_in_lanes::<T, i64, LARGEST>(x, cut, out.slice_mut()?),
        }
        Ok(())
    })
}

fn find_in_lanes<T: RankedElement, I: ConvertElement, const LARGEST: bool>(
    x: &[T],
    (_, n, inner): (usize, usize, usize),
    out: &mut [I],
) {
    let better = |next: T, best: T| if LARGEST { next.is_above(best) } else { best.is_above(next) };
    for (lane, out) in out.iter_mut().enumerate() {
        let (row, column) = (lane / inner, lane % inner);
        let lane = x[row * n * inner + column..].iter().step_by(inner).take(n);
        // The shape rule has rejected empty lanes.
        let found =
            lane.copied().enumerate().reduce(|best, next| if better(next.1, best.1) { next } else { best });
        *out = I::narrow(AnyNumber::Int(found.map_or(0, |(place, _)| place as i64)));
    }
}
