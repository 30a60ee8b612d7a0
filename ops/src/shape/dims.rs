//! The number of elements of a tensor as data.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, Infer, Kernel, Meta, Result, Var, ZeroGrad, check::*, register_op,
};

use crate::{
    Math,
    math::{all_sizes, product},
};

/// The number of elements of a tensor: `out = n₀ · n₁ · …`.
///
/// It is known when a program is planned, so it may be a dimension of another operator.
#[register_op(grad = ZeroGrad, infallible, any_dtype)]
pub struct Size<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub input: V,
    /// A scalar, int64.
    #[output]
    pub out: V,
}
impl Infer for Size<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(DType::I64, []);
        Ok(())
    }
}
impl Kernel for Size<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.slice_mut::<i64>()?.fill(self.input.numel() as i64);
        Ok(())
    }
}
impl Composition for Size<Expr> {
    fn compose(&mut self) {
        self.out = product(&all_sizes(&self.input)).number(self.input.builder()).reshape(&[]);
    }
}
autobwd::samples!(
    Size,
    [
        Size { input: uniform([2, 3, 4]), out: out() },
        Size { input: uniform([]), out: out() },
        Size { input: uniform([0, 5]), out: out() },
        Size { input: integers_below(9, [3]), out: out() },
    ]
);
