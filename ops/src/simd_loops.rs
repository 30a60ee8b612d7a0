//! SIMD loops shared by kernels: sums and maxima.
//!
//! All functions must be inlined into [`VectorLoops::run`](autobwd::op::VectorLoops::run).

use autobwd::{
    op::{LaneOf, fold_lanes, map_fold_lanes},
    tensor::Element,
};

use crate::kernel_helpers::{KernelFloat, wide};

/// `Σ f(x)`
#[inline(always)]
pub(crate) fn sum<T: Element, F: LaneOf<T>, const I: usize>(x: [&[T]; I], f: impl Fn([F; I]) -> F) -> F {
    fold_lanes(x, F::from(0.0), |sum, x| sum + f(x), |a, b| a + b)
}

/// `x = f(x)`, and `Σ f(x)`.
#[inline(always)]
pub(crate) fn map_sum<T: Element, F: LaneOf<T>>(x: &mut [T], f: impl Fn(F) -> F) -> F {
    let each = |[sum]: [F; 1], []: [F; 0], [x]: [F; 1]| {
        let y = f(x);
        ([sum + y], [y])
    };
    let [sum] = map_fold_lanes([], [x], [F::from(0.0)], each, |[a], [b]| [a + b]);
    sum
}

/// Elements whose sum is accumulated in the tensor's dtype.
const RUN: usize = 4096;

/// `Σ f(x)` over slices of any equal length, with f64 accumulation of partial sums.
#[inline(always)]
pub(crate) fn total<T: KernelFloat, F: LaneOf<T>, const I: usize>(
    x: [&[T]; I],
    f: impl Fn([F; I]) -> F,
) -> f64 {
    let (mut total, mut at, n) = (0.0, 0, x[0].len());
    while at < n {
        let end = n.min(at + RUN);
        total += wide(sum(x.map(|x| &x[at..end]), &f).get());
        at = end;
    }
    total
}

/// The largest element; NaN is ignored.
#[inline(always)]
pub(crate) fn largest<T: Element, F: LaneOf<T>>(x: &[T]) -> F {
    let larger = |a: F, b: F| F::select(b.gt(a), b, a);
    fold_lanes([x], F::from(f64::NEG_INFINITY), |top, [x]| larger(top, x), larger)
}
