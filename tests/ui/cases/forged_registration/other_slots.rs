//! A formula with lanes for other slots than its operator has.

use autobwd::{Float, Kernel, OpDesc, Result, Var, register_op, op::{Lanes, OpInfo, Schema, SlotDef}};

/// `out = x`
#[register_op(grad = autobwd::NoGrad, name = "forged")]
pub struct Forged<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Like `x`.
    #[output(like = x)]
    pub out: V,
}
impl Kernel for Forged<autobwd::Buf<'_>> {
    fn run(&mut self, _: &autobwd::Cx) -> Result<()> {
        Ok(())
    }
}

const SLOT: SlotDef = SlotDef::new("X", autobwd::op::Arity::One, "", 0);
impl Lanes for Forged<Var> {
    const SLOTS: Schema = Schema { inputs: &[SLOT, SLOT, SLOT], ..<Forged as autobwd::op::Op>::SCHEMA };
    type Attrs = ();
    fn lane<F: Float>(_: &(), _: impl FnMut(usize) -> F, _: impl FnMut(usize, F)) {}
    fn attrs(_: &OpDesc) -> Result<()> {
        Ok(())
    }
}
static INFO: OpInfo = OpInfo::pointwise::<Forged>("forged", "0");

fn main() {}
