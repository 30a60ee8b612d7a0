//! Loops that several kernels are made of, for the machine's vectors.
//!
//! Everything here is to be inlined into [`Loops::run`](autobwd::Loops::run).

use autobwd::{Element, LaneOf, fold_lanes};

/// `Σ f(x)`
#[inline(always)]
pub(crate) fn sum<T: Element, F: LaneOf<T>, const I: usize>(x: [&[T]; I], f: impl Fn([F; I]) -> F) -> F {
    fold_lanes(x, F::of(0.0), |sum, x| sum + f(x), |a, b| a + b)
}

/// The largest element; NaN counts for nothing.
#[inline(always)]
pub(crate) fn largest<T: Element, F: LaneOf<T>>(x: &[T]) -> F {
    let larger = |a: F, b: F| F::select(b.gt(a), b, a);
    fold_lanes([x], F::of(f64::NEG_INFINITY), |top, [x]| larger(top, x), larger)
}
