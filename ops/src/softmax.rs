//! Softmax and log-softmax.
//!
//! A lane is a one-dimensional slice along the axis; kernels work on one lane at a time.

use std::ops::Range;

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{LaneOf, VectorLoops, Vectorised, map_lanes, with_float},
    register_op,
    tensor::InOut,
};
use ndarray::{ArrayView1, ArrayViewMut1, Axis, Slice};

use crate::{
    Math,
    kernel_helpers::{KernelFloat, add_up, axis_if_any, lanes_along},
    reduce::{ReduceAttrs, ReduceMax, ReduceSum},
    simd_loops,
};

/// Elements of a unit of shared work; small, since exponentials are expensive.
const PART: usize = 1 << 14;

/// Softmax along an axis: `out = exp(x) / Σ exp(x)`.
#[register_op(grad = SoftmaxGrad, infallible)]
pub struct Softmax<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The axis; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for Softmax<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer_softmax(&self.x, self.axis, &mut self.out)
    }
}
impl Kernel for Softmax<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let lanes = SoftmaxLanes::along(&self.x, self.axis);
            lanes.each(cx, self.out.inout::<T>(&self.x)?, |_, x| softmax(x));
            Ok(())
        })
    }
}
impl Composition for Softmax<Expr> {
    fn compose(&mut self) {
        let exp = below_zero(&self.x, self.axis).exp();
        self.out = &exp / &sum_along(&exp, self.axis);
    }
}
autobwd::samples!(
    Softmax,
    [
        Softmax { x: uniform([2, 3]), out: out(), axis: -1 },
        Softmax { x: uniform([2, 3, 4]), out: out(), axis: 1 },
        Softmax { x: uniform([2, 3, 4]), out: out(), axis: 0 },
        Softmax { x: between(-30.0, 30.0, [2, 19]), out: out(), axis: 1 },
        Softmax { x: uniform([]), out: out(), axis: -1 },
        Softmax { x: uniform([0, 3]), out: out(), axis: -1 },
        Softmax { x: uniform([3, 0]), out: out(), axis: -1 },
        Softmax { x: uniform([2, 3]), out: out(), axis: 2 }.fails("attribute `axis` = 2"),
    ]
);

/// `dx = out * (dout - Σ dout * out)`.
#[register_op(grad_of = Softmax, grad = Composed, infallible)]
pub struct SoftmaxGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub axis: i32,
}
impl Infer for SoftmaxGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.same_as(&self.out)?;
        infer_softmax(&self.out, self.axis, &mut self.dx)
    }
}
impl Kernel for SoftmaxGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.out, T => {
            let (lanes, out) = (SoftmaxLanes::along(&self.out, self.axis), self.out.slice::<T>()?);
            lanes.each(cx, self.dx.inout(&self.dout)?, |i, mut dx| {
                let out = lanes.lane(out, i);
                if let (Some(dx), Some(out)) = (dx.as_slice_mut(), out.to_slice()) {
                    return T::vectorised(SoftmaxBackward { dx, out });
                }
                let mean = T::of(sum(dx.view(), out, |dout, out| dout * out));
                dx.zip_mut_with(&out, |dx, out| *dx = (*dx - mean) * *out);
            });
            Ok(())
        })
    }
}

impl Composition for SoftmaxGrad<Expr> {
    fn compose(&mut self) {
        let mean = sum_along(&(&self.dout * &self.out), self.axis);
        self.dx = (&self.dout - &mean) * &self.out;
    }
}

/// Logarithm of the softmax along an axis: `out = x - ln Σ exp(x)`.
#[register_op(grad = LogSoftmaxGrad, infallible)]
pub struct LogSoftmax<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The axis; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for LogSoftmax<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer_softmax(&self.x, self.axis, &mut self.out)
    }
}
impl Kernel for LogSoftmax<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let lanes = SoftmaxLanes::along(&self.x, self.axis);
            lanes.each(cx, self.out.inout::<T>(&self.x)?, |_, x| log_softmax(x));
            Ok(())
        })
    }
}
impl Composition for LogSoftmax<Expr> {
    fn compose(&mut self) {
        let rest = below_zero(&self.x, self.axis);
        self.out = &rest - &sum_along(&rest.exp(), self.axis).log();
    }
}
autobwd::samples!(
    LogSoftmax,
    [
        LogSoftmax { x: uniform([2, 3]), out: out(), axis: -1 },
        LogSoftmax { x: uniform([2, 3, 4]), out: out(), axis: 1 },
        LogSoftmax { x: between(-30.0, 30.0, [2, 19]), out: out(), axis: 1 },
        LogSoftmax { x: uniform([]), out: out(), axis: 0 },
        LogSoftmax { x: uniform([2, 3]), out: out(), axis: -3 }.fails("attribute `axis` = -3"),
    ]
);

/// `dx = dout - exp(out) * Σ dout`.
#[register_op(grad_of = LogSoftmax, grad = Composed, infallible)]
pub struct LogSoftmaxGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub axis: i32,
}
impl Infer for LogSoftmaxGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.same_as(&self.out)?;
        infer_softmax(&self.out, self.axis, &mut self.dx)
    }
}
impl Kernel for LogSoftmaxGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.out, T => {
            let (lanes, out) = (SoftmaxLanes::along(&self.out, self.axis), self.out.slice::<T>()?);
            lanes.each(cx, self.dx.inout(&self.dout)?, |i, mut dx: ArrayViewMut1<'_, T>| {
                let out = lanes.lane(out, i);
                if let (Some(dx), Some(out)) = (dx.as_slice_mut(), out.to_slice()) {
                    return T::vectorised(LogSoftmaxBackward { dx, out });
                }
                let total = T::of(sum(dx.view(), dx.view(), |dout, _| dout));
                dx.zip_mut_with(&out, |dx, out: &T| *dx -= KernelFloat::exp(*out) * total);
            });
            Ok(())
        })
    }
}

impl Composition for LogSoftmaxGrad<Expr> {
    fn compose(&mut self) {
        let total = sum_along(&self.dout, self.axis);
        self.dx = &self.dout - &(self.out.exp() * &total);
    }
}

/// `Σ x` along an axis, kept with size 1.
pub(crate) fn sum_along(x: &Expr, axis: i32) -> Expr {
    emit(ReduceSum { x: x.into(), out: New, reduce: ReduceAttrs::keeping([axis]) }).out
}

/// `x - max x` along an axis, whose exponential does not overflow.
fn below_zero(x: &Expr, axis: i32) -> Expr {
    x - &largest_along(x, axis).stop_gradient()
}

/// `max x` along an axis, kept with size 1; 0 for no elements.
pub(crate) fn largest_along(x: &Expr, axis: i32) -> Expr {
    if x.dims().iter().any(|dim| *dim == 0) {
        return sum_along(x, axis);
    }
    emit(ReduceMax { x: x.into(), out: New, reduce: ReduceAttrs::keeping([axis]) }).out
}

/// A scalar is a lane of one element.
fn infer_softmax(x: &Meta, axis: i32, out: &mut Meta) -> Result<()> {
    x.float()?;
    axis_if_any(x, axis.into())?;
    out.like(x);
    Ok(())
}

/// Memory layout of lanes: `n` elements with stride `inner`.
#[derive(Clone, Copy)]
pub(crate) struct SoftmaxLanes {
    pub(crate) n: usize,
    inner: usize,
}

impl SoftmaxLanes {
    pub(crate) fn along(x: &Buf<'_>, axis: i32) -> SoftmaxLanes {
        let (_, n, inner) = lanes_along(x, axis.into());
        SoftmaxLanes { n, inner }
    }

    /// The range that a lane spans, and its elements in it.
    fn place(self, index: usize) -> (Range<usize>, Slice) {
        let first = index / self.inner * self.n * self.inner + index % self.inner;
        (first..first + (self.n - 1) * self.inner + 1, Slice::new(0, None, self.inner as isize))
    }

    pub(crate) fn lane<T>(self, all: &[T], index: usize) -> ArrayView1<'_, T> {
        let (range, step) = self.place(index);
        let mut lane = ArrayView1::from(&all[range]);
        lane.slice_axis_inplace(Axis(0), step);
        lane
    }

    /// Calls `work(index, lane)` for every lane of the output, which holds a copy of the input.
    pub(crate) fn each<T: KernelFloat>(
        self,
        cx: &Cx,
        inout: InOut<'_, T>,
        work: impl Fn(usize, ArrayViewMut1<'_, T>) + Sync,
    ) {
        let (x, out) = match inout {
            InOut::Same(out) => (None, out),
            InOut::Apart(x, out) => (Some(x), out),
        };
        if out.is_empty() {
            return;
        }
        let block = self.n * self.inner;
        let part = block * (PART / block).max(1);
        cx.chunks_mut(out, part, |index, out| {
            if let Some(x) = x {
                out.copy_from_slice(&x[index * part..][..out.len()]);
            }
            for i in 0..out.len() / self.n {
                let (range, step) = self.place(i);
                let mut lane = ArrayViewMut1::from(&mut out[range]);
                lane.slice_axis_inplace(Axis(0), step);
                work(index * (part / self.n) + i, lane);
            }
        });
    }

    /// Fills an output that has one element for each lane.
    pub(crate) fn fill<T: KernelFloat>(self, cx: &Cx, out: &mut [T], of_lane: impl Fn(usize) -> T + Sync) {
        let part = (PART / self.n).max(1);
        cx.chunks_mut(out, part, |index, out| {
            for (i, out) in out.iter_mut().enumerate() {
                *out = of_lane(index * part + i);
            }
        });
    }
}

pub(crate) fn softmax<T: KernelFloat>(mut x: ArrayViewMut1<'_, T>) {
    if let Some(x) = x.as_slice_mut() {
        return T::vectorised(SoftmaxForward(x));
    }
    let top = largest(x.view());
    x.mapv_inplace(|x| (x - top).exp());
    let factor = T::of(1.0 / sum(x.view(), x.view(), |x, _| x));
    x.mapv_inplace(|x| x * factor);
}

struct SoftmaxForward<'a, T>(&'a mut [T]);
impl<T: KernelFloat> VectorLoops<T> for SoftmaxForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let top: F = simd_loops::largest(self.0);
        let factor = F::from(1.0) / simd_loops::map_sum(&mut *self.0, |x: F| (x - top).exp());
        map_lanes([], [self.0], |[], [x]: [F; 1]| [x * factor]);
    }
}

struct SoftmaxBackward<'a, T> {
    dx: &'a mut [T],
    out: &'a [T],
}
impl<T: KernelFloat> VectorLoops<T> for SoftmaxBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let mean = simd_loops::sum([&*self.dx, self.out], |[dout, out]: [F; 2]| dout * out);
        map_lanes([self.out], [self.dx], |[out]: [F; 1], [dout]| [(dout - mean) * out]);
    }
}

fn log_softmax<T: KernelFloat>(mut x: ArrayViewMut1<'_, T>) {
    if let Some(x) = x.as_slice_mut() {
        return T::vectorised(LogSoftmaxForward(x));
    }
    let top = largest(x.view());
    let rest = T::of(libm::log(sum(x.view(), x.view(), |x, _| libm::exp(x - top.into()))));
    x.mapv_inplace(|x| x - top - rest);
}

struct LogSoftmaxForward<'a, T>(&'a mut [T]);
impl<T: KernelFloat> VectorLoops<T> for LogSoftmaxForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let top: F = simd_loops::largest(self.0);
        let rest = simd_loops::sum([&*self.0], |[x]: [F; 1]| (x - top).exp()).log();
        map_lanes([], [self.0], |[], [x]: [F; 1]| [x - top - rest]);
    }
}

struct LogSoftmaxBackward<'a, T> {
    dx: &'a mut [T],
    out: &'a [T],
}
impl<T: KernelFloat> VectorLoops<T> for LogSoftmaxBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let total = simd_loops::sum([&*self.dx], |[dout]: [F; 1]| dout);
        map_lanes([self.out], [self.dx], |[out]: [F; 1], [dout]| [dout - out.exp() * total]);
    }
}

/// The largest element; NaN is ignored.
pub(crate) fn largest<T: KernelFloat>(x: ArrayView1<'_, T>) -> T {
    match x.to_slice() {
        Some(x) => T::vectorised(Largest(x)),
        None => x.fold(T::neg_infinity(), |a, b| if *b > a { *b } else { a }),
    }
}

struct Largest<'a, T>(&'a [T]);
impl<T: KernelFloat> VectorLoops<T> for Largest<'_, T> {
    type Output = T;

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) -> T {
        simd_loops::largest::<T, F>(self.0).get()
    }
}

/// The sum of a term for each pair of elements; several accumulators are faster than one, and more exact.
pub(crate) fn sum<T: KernelFloat>(
    x: ArrayView1<'_, T>,
    y: ArrayView1<'_, T>,
    term: impl Fn(f64, f64) -> f64,
) -> f64 {
    let (Some(a), Some(b)) = (x.to_slice(), y.to_slice()) else {
        return add_up(x.iter().zip(y).map(|(x, y)| term((*x).into(), (*y).into())));
    };
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (x, y))| *sum += term((*x).into(), (*y).into()));
    }
    sums.iter().sum::<f64>()
        + a_rest.iter().zip(b_rest).map(|(x, y)| term((*x).into(), (*y).into())).sum::<f64>()
}
