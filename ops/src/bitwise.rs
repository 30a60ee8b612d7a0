//! Bitwise operators on integers and bools.

use std::ops::{BitAnd, BitOr, BitXor};

use autobwd::{
    Buf, Cx, DType, Infer, Kernel, Meta, Result, Var, ZeroGrad, check::*, register_op, tensor::Bool,
};

use crate::kernel_helpers::{broadcast, zip_broadcast};

fn has_bits(x: &Meta) -> Result<()> {
    x.require(!x.dtype.is_float(), || "integers or bools are needed".into())
}

/// An operator on two tensors: struct, shape rule, kernel and samples.
macro_rules! bitwise {
    ($(#[doc = $doc:literal])* $op:ident, $f:ident) => {
        $(#[doc = $doc])*
        #[register_op(grad = ZeroGrad, infallible, primitive)]
        pub struct $op<V = Var> {
            /// Integers or bools of any shape.
            #[input]
            pub x: V,
            /// Same dtype, any shape that broadcasts with that of `x`.
            #[input]
            pub y: V,
            /// The broadcast shape, same dtype.
            #[output]
            pub out: V,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                has_bits(&self.x)?;
                self.y.same_dtype(&self.x)?;
                self.out.set(self.x.dtype, broadcast(&self.x, &self.y, -1)?);
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let $op { x, y, out } = self;
                match x.dtype() {
                    DType::Bool => {
                        zip_broadcast(cx, (x, y), out, -1, |x: Bool, y: Bool| Bool::from(x.get().$f(y.get())))
                    }
                    DType::U8 => zip_broadcast(cx, (x, y), out, -1, u8::$f),
                    DType::I32 => zip_broadcast(cx, (x, y), out, -1, i32::$f),
                    DType::I64 => zip_broadcast(cx, (x, y), out, -1, i64::$f),
                    _ => Err(x.wrong("integers or bools are needed")),
                }
            }
        }
        autobwd::samples!(
            $op,
            [
                $op {
                    x: given([4], [0.0, 0.0, 1.0, 1.0]).of(DType::Bool),
                    y: given([4], [0.0, 1.0, 0.0, 1.0]).of(DType::Bool),
                    out: out()
                },
                $op {
                    x: given([4], [5.0, -1.0, -2147483648.0, 12.0]).of(DType::I32),
                    y: given([4], [3.0, 7.0, 2147483647.0, -4.0]).of(DType::I32),
                    out: out()
                },
                $op { x: integers_below(99, [2, 3, 4]), y: integers_below(99, [3, 1]), out: out() },
                $op {
                    x: integers_below(99, [3]).of(DType::U8),
                    y: integers_below(99, []).of(DType::U8),
                    out: out()
                },
                $op { x: integers_below(9, [0, 3]), y: integers_below(9, [3]), out: out() },
                $op { x: uniform([2]), y: uniform([2]), out: out() }.fails("`X`: integers or bools are needed"),
                $op { x: integers_below(9, [2]), y: integers_below(2, [2]).of(DType::Bool), out: out() }
                    .fails("`Y`: dtype bool does not match"),
                $op { x: integers_below(9, [2, 3]), y: integers_below(9, [4]), out: out() }
                    .fails("`Y`: a shape that broadcasts with [2, 3] of `X`"),
            ]
        );
    };
}

bitwise!(
    /// Bitwise and: `out = x & y`, broadcast.
    BitwiseAnd, bitand
);
bitwise!(
    /// Bitwise or: `out = x | y`, broadcast.
    BitwiseOr, bitor
);
bitwise!(
    /// Bitwise exclusive or: `out = x ^ y`, broadcast.
    BitwiseXor, bitxor
);

/// Bitwise not: `out = !x`.
#[register_op(grad = ZeroGrad, infallible, primitive)]
pub struct BitwiseNot<V = Var> {
    /// Integers or bools of any shape.
    #[input]
    pub x: V,
    /// Same shape and dtype.
    #[output]
    pub out: V,
}
impl Infer for BitwiseNot<Meta> {
    fn infer(&mut self) -> Result<()> {
        has_bits(&self.x)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for BitwiseNot<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        // A bool is a byte, 0 or 1.
        let flipped = if self.x.dtype() == DType::Bool { 1 } else { u8::MAX };
        let pairs = self.out.bytes_mut()?.iter_mut().zip(self.x.bytes()?);
        pairs.for_each(|(out, x)| *out = x ^ flipped);
        Ok(())
    }
}
autobwd::samples!(
    BitwiseNot,
    [
        BitwiseNot { x: given([2], [0.0, 1.0]).of(DType::Bool), out: out() },
        BitwiseNot { x: given([3], [0.0, -1.0, 2147483647.0]).of(DType::I32), out: out() },
        BitwiseNot { x: integers_below(99, [2, 3]), out: out() },
        BitwiseNot { x: integers_below(99, []).of(DType::U8), out: out() },
        BitwiseNot { x: uniform([2]), out: out() }.fails("`X`: integers or bools are needed"),
    ]
);
