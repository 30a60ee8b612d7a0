//! SIMD loops shared by kernels: sums and maxima.
//!
//! All functions must be inlined into [`VectorLoops::run`](autobwd::op::VectorLoops::run).

use autobwd::{
    op::{LaneOf, fold_lanes, map_fold_lanes},
    tensor::Element,
};

use crate::kernel_helpers::{KernelFloat, wide};

/// Elements whose sum is accumulated in the tensor's dtype.
const RUN: usize = 4096;

/// `Σ f(x)` over slices of any equal length; the sums of runs are added in float64.
#[inline(always)]
pub(crate) fn total<T: KernelFloat, F: LaneOf<T>, const I: usize>(
    x: [&[T]; I],
    f: impl Fn([F; I]) -> F,
) -> f64 {
    let (mut total, mut at, n) = (0.0, 0, x[0].len());
    while at < n {
        let end = n.min(at + RUN);
        let run = x.map(|x| &x[at..end]);
        total += wide(fold_lanes(run, F::from(0.0), |sum, x| sum + f(x), |a, b| a + b).get());
        at = end;
    }
    total
}

/// `Σ f(x)` in the tensor's dtype, as exact as [`total`].
#[inline(always)]
pub(crate) fn sum<T: KernelFloat, F: LaneOf<T>, const I: usize>(x: [&[T]; I], f: impl Fn([F; I]) -> F) -> F {
    F::from(total(x, f))
}

/// `x = f(x)`, and `Σ f(x)`, as exact as [`total`].
#[inline(always)]
pub(crate) fn map_sum<T: KernelFloat, F: LaneOf<T>>(x: &mut [T], f: impl Fn(F) -> F) -> F {
    let mut total = 0.0;
    for run in x.chunks_mut(RUN) {
        let each = |[sum]: [F; 1], []: [F; 0], [x]: [F; 1]| {
            let y = f(x);
            ([sum + y], [y])
        };
        let [sum] = map_fold_lanes([], [run], [F::from(0.0)], each, |[a], [b]| [a + b]);
        total += wide(sum.get());
    }
    F::from(total)
}

/// The largest element; NaN is ignored.
#[inline(always)]
pub(crate) fn largest<T: Element, F: LaneOf<T>>(x: &[T]) -> F {
    let larger = |a: F, b: F| F::select(b.gt(a), b, a);
    fold_lanes([x], F::from(f64::NEG_INFINITY), |top, [x]| larger(top, x), larger)
}
