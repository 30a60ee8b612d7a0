//! Bits, and division with rounding down.

use autobwd_ops::{
    bitwise::{BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor},
    floor_division::{ElementwiseFloordiv, ElementwiseMod, ElementwiseModGrad},
};

use super::prelude::*;

rules!(
    BitwiseAnd,
    BitwiseNot,
    BitwiseOr,
    BitwiseXor,
    ElementwiseFloordiv,
    ElementwiseMod,
    ElementwiseModGrad
);

macro_rules! bitwise {
    ($($op:ident $method:ident),*) => {$(
        impl Rule<Hlo> for $op<Hlo> {
            fn apply(&mut self) {
                let [x, y] = [&self.x, &self.y].map(|value| value.broadcast_to(self.out.dims()));
                self.out = x.$method(&y);
            }
        }
    )*};
}
bitwise!(BitwiseAnd and, BitwiseOr or, BitwiseXor xor);

impl Rule<Hlo> for BitwiseNot<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.not();
    }
}

/// An operand in the dimensions of the result: it begins at dimension `axis` if it has fewer.
fn aligned(value: &Hlo, dims: &[usize], axis: i32) -> Hlo {
    match usize::try_from(axis) {
        Ok(axis) if value.rank() < dims.len() => {
            let aligned = autobwd_core::__private::aligned(value.dims(), dims.len(), Some(axis), 1);
            let kept = aligned.map_or(value.dims().to_vec(), |dims| dims.to_vec());
            value.reshape(&kept).broadcast_to(dims)
        }
        _ => value.broadcast_to(dims),
    }
}

/// The sum of a gradient over the dimensions in which an operand was broadcast.
fn summed(gradient: &Hlo, like: &Hlo, axis: i32) -> Hlo {
    let axis = usize::try_from(axis).ok();
    let aligned = autobwd_core::__private::aligned(like.dims(), gradient.rank(), axis, 1);
    gradient.sum_to(&aligned.map_or(like.dims().to_vec(), |dims| dims.to_vec()))
}

/// The quotient, rounded down.
fn floor_quotient(x: &Hlo, y: &Hlo) -> Hlo {
    if x.dtype().is_float() {
        return (x / y).floor();
    }
    let (quotient, rest) = (x / y, x.rem(y));
    let zero = x.full_like(0.0);
    let differ = rest.not_equal(&zero).and(&rest.less(&zero).xor(&y.less(&zero)));
    differ.select(&(&quotient - 1.0), &quotient)
}

/// The remainder with the sign of the divisor.
fn modulo(x: &Hlo, y: &Hlo) -> Hlo {
    let (rest, zero) = (x.rem(y), x.full_like(0.0));
    let differ = rest.not_equal(&zero).and(&rest.less(&zero).xor(&y.less(&zero)));
    differ.select(&(&rest + y), &rest)
}

impl Rule<Hlo> for ElementwiseFloordiv<Hlo> {
    fn apply(&mut self) {
        let [x, y] = [&self.x, &self.y].map(|value| aligned(value, self.out.dims(), self.axis));
        self.out = floor_quotient(&x, &y);
    }
}
impl Rule<Hlo> for ElementwiseMod<Hlo> {
    fn apply(&mut self) {
        let [x, y] = [&self.x, &self.y].map(|value| aligned(value, self.out.dims(), self.axis));
        self.out = modulo(&x, &y);
    }
}
impl Rule<Hlo> for ElementwiseModGrad<Hlo> {
    fn apply(&mut self) {
        let dims = self.dout.dims();
        let [x, y] = [&self.x, &self.y].map(|value| aligned(value, dims, self.axis));
        if let Some(dx) = &mut self.dx {
            *dx = summed(&self.dout, &self.x, self.axis);
        }
        if let Some(dy) = &mut self.dy {
            let gradient = -(&self.dout * floor_quotient(&x, &y));
            *dy = summed(&gradient, &self.y, self.axis);
        }
    }
}
