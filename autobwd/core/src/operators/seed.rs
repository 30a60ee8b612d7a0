//! Random seeds as variables.

use crate::{Buf, Cx, DType, Infer, Kernel, Meta, Result, Var, ZeroGrad, register_op, sample::*};

/// A random seed as a variable: `out = seed`.
///
/// A random operator that takes its seed from a variable can be recomputed with the same numbers.
#[register_op(grad = ZeroGrad, infallible, primitive)]
pub struct Seed<V = Var> {
    /// One number, int32.
    #[output]
    pub out: V,
    /// The seed.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Seed<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(DType::I32, [1]);
        Ok(())
    }
}
impl Kernel for Seed<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.slice_mut::<i32>()?.fill(self.seed);
        Ok(())
    }
}
crate::samples!(Seed, [Seed { out: out(), seed: 0 }, Seed { out: out(), seed: -7 }]);
