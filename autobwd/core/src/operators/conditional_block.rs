//! The `conditional_block` operator.

use crate::{
    BlockCall, BlockId, CarriedInit, CarriedValue, Control, Error, GradCx, GradRule, NoGrad, Program, Result,
    StepCount, Var, register_op,
};

/// Runs a block if a condition is true. Otherwise its outputs keep their previous values, or are zeros.
#[register_op(grad = ConditionalBlockRule)]
pub struct ConditionalBlock<V = Var> {
    /// One bool.
    #[input]
    pub cond: V,
    /// All variables of enclosing blocks that the block reads.
    #[input]
    pub input: Vec<V>,
    /// All variables of enclosing blocks that the block writes.
    #[output]
    pub out: Vec<V>,
    /// The saved step state for the gradient.
    #[output]
    pub scope: V,
    /// Must be true; `where` selects row by row.
    #[attr(default = false)]
    pub is_scalar_condition: bool,
    /// The branch.
    #[block]
    pub sub_block: BlockId,
}
impl Control for ConditionalBlock {
    fn call(&self, _: &Program) -> Result<BlockCall> {
        if !self.is_scalar_condition {
            return Err(Error::attr("is_scalar_condition", "must be true"));
        }
        let mut call = BlockCall::new(self.sub_block, StepCount::If(self.cond));
        call.reads = self.input.iter().copied().filter(|x| !self.out.contains(x)).collect();
        let own = |v: Var| CarriedValue { first: CarriedInit::Value(v, v), start: v, end: v, last: Some(v) };
        call.carried = self.out.iter().map(|out| own(*out)).collect();
        call.scopes = Some(self.scope);
        Ok(call)
    }
}

/// The gradient of the branch.
#[derive(Debug)]
pub struct ConditionalBlockRule;
impl GradRule<ConditionalBlock> for ConditionalBlockRule {
    fn emit(fwd: &ConditionalBlock, g: &mut GradCx<'_>) {
        let Some(block) = g.block() else { return };
        let op = ConditionalBlockGrad {
            cond: fwd.cond,
            input: fwd.input.clone(),
            out: fwd.out.clone(),
            dout: fwd.out.iter().map(|out| Some(g.grad(*out))).collect(),
            scope: fwd.scope,
            dinput: fwd.input.iter().map(|x| g.wanted(*x)).collect(),
            is_scalar_condition: fwd.is_scalar_condition,
            sub_block: block.block,
        };
        g.push(op);
    }
}

/// The gradient of [`ConditionalBlock`]: runs the gradient of the branch if the branch has run; otherwise, gradients of
/// inputs are zeros.
#[register_op(grad_of = ConditionalBlock, grad = NoGrad)]
pub struct ConditionalBlockGrad<V = Var> {
    pub cond: V,
    pub input: Vec<V>,
    #[input(shape_only)]
    pub out: Vec<V>,
    pub dout: Vec<Option<V>>,
    pub scope: V,
    #[output]
    pub dinput: Vec<Option<V>>,
    pub is_scalar_condition: bool,
    /// The gradient of the branch.
    #[block]
    pub sub_block: BlockId,
}
impl Control for ConditionalBlockGrad {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.sub_block, StepCount::Recorded { reverse: false });
        let grad = |v: Var| program.gradient_name(v).unwrap_or(Var::EMPTY);
        let inputs = || self.input.iter().copied().zip(&self.dinput);
        for (out, dout) in self.out.iter().zip(&self.dout) {
            let Some(dout) = *dout else { continue };
            let last = inputs().find(|(x, _)| x == out).and_then(|(_, dx)| *dx);
            let inner = grad(*out);
            call.carried.push(CarriedValue {
                first: CarriedInit::Value(dout, *out),
                start: inner,
                end: inner,
                last,
            });
        }
        for (x, dx) in inputs().filter(|(x, _)| !self.out.contains(x)) {
            call.reads.push(x);
            if let Some(dx) = dx {
                call.sums.push((grad(x), *dx, x));
            }
        }
        call.scopes = Some(self.scope);
        Ok(call)
    }
}
