//! The shape of a tensor as data.

use crate::{Buf, Cx, DType, Dim, Infer, Kernel, Meta, Result, Var, ZeroGrad, register_op, sample::*};

/// The shape of a tensor: `out = [n₀, n₁, …]`.
///
/// It is known when a program is planned, so it may be the shape of another operator.
#[register_op(grad = ZeroGrad, infallible, any_dtype, primitive)]
pub struct ShapeOp<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub input: V,
    /// The dimensions of `input`, int32.
    #[output]
    pub out: V,
}
impl Infer for ShapeOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let fits = |dim: &Dim| dim.get().is_none_or(|n| i32::try_from(n).is_ok());
        self.input.require(self.input.dims.iter().all(fits), || "dimensions of 32 bits are needed".into())?;
        self.out.set(DType::I32, [self.input.rank()]);
        Ok(())
    }
}
impl Kernel for ShapeOp<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let dims = self.input.dims().iter();
        self.out.slice_mut::<i32>()?.iter_mut().zip(dims).for_each(|(out, n)| *out = *n as i32);
        Ok(())
    }
}
crate::samples!(
    ShapeOp,
    [
        ShapeOp { input: uniform([2, 3, 4]), out: out() },
        ShapeOp { input: uniform([]), out: out() },
        ShapeOp { input: uniform([0, 5]), out: out() },
        ShapeOp { input: integers_below(9, [3]), out: out() },
    ]
);
