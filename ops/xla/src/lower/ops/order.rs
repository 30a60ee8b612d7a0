//! Order: sorting, the largest elements and their positions.

use autobwd_ops::{
    sort::Argsort,
    top_k::{Accuracy, ArgAttrs, ArgMax, ArgMin, TopKV2, TopKV2Grad},
};

use super::prelude::*;

rules!(Accuracy, ArgMax, ArgMin, Argsort, TopKV2, TopKV2Grad);

/// Elements along an axis in order, with their positions; equal ones by position. NaN counts as the largest number.
fn sorted(x: &Hlo, axis: usize, descending: bool) -> (Hlo, Hlo) {
    let positions = x.iota(HloDType::I64, x.dims(), axis);
    let sorted = Hlo::sort(&[x.clone(), positions], axis, |pairs| {
        let (a, b) = &pairs[0];
        let before = if descending { a.greater(b) } else { a.less(b) };
        if !a.dtype().is_float() {
            return before;
        }
        let (a_nan, b_nan) = (a.not_equal(a), b.not_equal(b));
        match descending {
            true => before.or(&a_nan.and(&b_nan.not())),
            false => before.or(&b_nan.and(&a_nan.not())),
        }
    });
    match <[Hlo; 2]>::try_from(sorted) {
        Ok([values, positions]) => (values, positions),
        Err(_) => (x.clone(), x.clone()),
    }
}

/// A scalar as a vector, so that it has the axis 0.
fn with_axis(x: &Hlo) -> Hlo {
    if x.rank() == 0 { x.reshape(&[1]) } else { x.clone() }
}

impl Rule<Hlo> for Argsort<Hlo> {
    fn apply(&mut self) {
        let x = with_axis(&self.x);
        let (values, positions) = sorted(&x, x.axis(self.axis), self.descending);
        (self.out, self.indices) = (values, positions.convert(self.indices.dtype()));
    }
}

impl Rule<Hlo> for TopKV2<Hlo> {
    fn apply(&mut self) {
        let x = with_axis(&self.x);
        let axis = x.axis(self.axis);
        let k = if self.out.rank() == 0 { 1 } else { self.out.dims()[axis] };
        let (values, positions) = sorted(&x, axis, self.largest);
        self.out = values.slice_axis(axis, 0, k);
        self.indices = positions.slice_axis(axis, 0, k).convert(self.indices.dtype());
    }
}
impl Rule<Hlo> for TopKV2Grad<Hlo> {
    fn apply(&mut self) {
        let (zeros, indices) = (with_axis(&self.dx.full_like(0.0)), with_axis(&self.indices));
        let axis = zeros.axis(self.axis);
        self.dx = zeros.scatter_along(axis, &indices, &with_axis(&self.dout), Some(Reduction::Sum));
    }
}

/// The first position of the extreme element.
fn extreme(x: &Hlo, out: &Hlo, arg: &ArgAttrs, largest: bool) -> Hlo {
    let x = if arg.flatten || x.rank() == 0 { x.reshape(&[x.numel()]) } else { x.clone() };
    let axis = if arg.flatten { 0 } else { x.axis(arg.axis) };
    // NaN counts as the largest number.
    let is_nan = x.not_equal(&x);
    let numbers = is_nan.select(&x.full_like(x.dtype().highest()), &x);
    let by = if largest { Reduction::Max } else { Reduction::Min };
    let mut is_found = numbers.equal(&numbers.reduce_spread(by, &[axis]));
    if largest {
        let has_nan = is_nan.reduce_spread(Reduction::Any, &[axis]);
        is_found = has_nan.select(&is_nan, &is_found);
    }
    let positions = x.iota(HloDType::I64, x.dims(), axis);
    let found = is_found.select(&positions, &positions.full_like(x.dims()[axis] as f64));
    found.reduce(Reduction::Min, &[axis]).convert(out.dtype())
}

impl Rule<Hlo> for ArgMax<Hlo> {
    fn apply(&mut self) {
        self.out = extreme(&self.x, &self.out, &self.arg, true);
    }
}
impl Rule<Hlo> for ArgMin<Hlo> {
    fn apply(&mut self) {
        self.out = extreme(&self.x, &self.out, &self.arg, false);
    }
}

impl Rule<Hlo> for Accuracy<Hlo> {
    fn apply(&mut self) {
        let (n, indices) = (self.label.numel(), self.indices.convert(HloDType::I64));
        let label = self.label.convert(HloDType::I64).reshape(&[n]).broadcast(indices.dims(), &[0]);
        let found = indices.equal(&label).reduce(Reduction::Any, &[1]).convert(HloDType::I32).sum_all();
        self.accuracy = found.convert(self.accuracy.dtype()) / n.max(1) as f64;
        self.correct = found;
        self.total = self.total.full_like(n as f64);
    }
}
