//! Bits, and remainders.

use autobwd_ops::{
    bitwise::{BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor},
    floor_division::ElementwiseMod,
};

use super::prelude::*;

family!(BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor, ElementwiseMod);

macro_rules! bitwise {
    ($($op:ident $method:ident),*) => {$(
        impl Lower for $op<Hlo> {
            fn lower(&mut self) {
                let [x, y] = [&self.x, &self.y].map(|value| value.broadcast_to(self.out.dims()));
                self.out = x.$method(&y);
            }
        }
    )*};
}
bitwise!(BitwiseAnd and, BitwiseOr or, BitwiseXor xor);

impl Lower for BitwiseNot<Hlo> {
    fn lower(&mut self) {
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

/// The remainder with the sign of the divisor.
fn modulo(x: &Hlo, y: &Hlo) -> Hlo {
    let (rest, zero) = (x.rem(y), x.full_like(0.0));
    let differ = rest.not_equal(&zero).and(&rest.less(&zero).xor(&y.less(&zero)));
    differ.select(&(&rest + y), &rest)
}

impl Lower for ElementwiseMod<Hlo> {
    fn lower(&mut self) {
        let [x, y] = [&self.x, &self.y].map(|value| aligned(value, self.out.dims(), self.axis));
        self.out = modulo(&x, &y);
    }
}
