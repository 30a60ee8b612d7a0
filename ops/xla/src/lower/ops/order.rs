//! Sorting.

use autobwd_ops::sort::Argsort;

use super::prelude::*;

family!(Argsort);

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

impl Lower for Argsort<Hlo> {
    fn lower(&mut self) {
        let x = with_axis(&self.x);
        let (values, positions) = sorted(&x, x.axis(self.axis), self.descending);
        (self.out, self.indices) = (values, positions.convert(self.indices.dtype()));
    }
}
