//! An operator without inputs.
use autobwd::{Buf, Cx, DType, Infer, Kernel, Meta, NoGrad, Result, Var, op::Op, register_op};

#[register_op(grad = NoGrad, name = "count_up")]
pub struct Count<W = Var> {
    #[output]
    pub out: W,
    #[attr(min = 1)]
    pub n: i64,
}
impl Infer for Count<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(DType::I64, [self.n as usize]);
        Ok(())
    }
}
impl Kernel for Count<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.slice_mut::<i64>()?.iter_mut().zip(0..).for_each(|(out, n)| *out = n);
        Ok(())
    }
}

#[test]
fn operator_may_read_nothing() {
    assert!(Count::SCHEMA.inputs.is_empty());
}
