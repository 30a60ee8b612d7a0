//! The `while` operator.

use crate::{
    BlockCall, BlockId, CarriedInit, CarriedValue, Control, GradCx, GradRule, NoGrad, Program, Result,
    StepCount, Var, register_op,
};

use super::recurrent::checkpoint_interval;

/// Runs a block while a condition is true. Variables of enclosing blocks that the block overwrites are carried from
/// step to step.
#[register_op(grad = WhileRule)]
pub struct While<V = Var> {
    /// All variables of enclosing blocks that the block reads.
    #[input]
    pub x: Vec<V>,
    /// One bool, which the block overwrites.
    #[input]
    pub condition: V,
    /// All variables of enclosing blocks that the block overwrites: they keep dtype and shape.
    #[output]
    pub out: Vec<V>,
    /// The saved step state for the gradient.
    #[output]
    pub step_scopes: V,
    /// As in [`Recurrent`](super::Recurrent).
    #[attr(default = 0, min = 0)]
    pub checkpoint_every: i32,
    /// The body.
    #[block]
    pub sub_block: BlockId,
}
impl Control for While {
    fn call(&self, _: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.sub_block, StepCount::While(self.condition));
        call.reads = self.x.iter().copied().filter(|x| !self.out.contains(x)).collect();
        let own = |v: Var| CarriedValue { first: CarriedInit::Value(v, v), start: v, end: v, last: Some(v) };
        call.carried = self.out.iter().map(|out| own(*out)).collect();
        call.scopes = Some(self.step_scopes);
        call.every = checkpoint_interval(self.checkpoint_every);
        Ok(call)
    }
}

/// The gradient of the body, from the last step to the first.
#[derive(Debug)]
pub struct WhileRule;
impl GradRule<While> for WhileRule {
    fn emit(fwd: &While, g: &mut GradCx<'_>) {
        let Some(block) = g.block() else { return };
        let name = |v: &Var| format!("{}@GRAD", g.name(*v));
        let op = WhileGrad {
            x: fwd.x.clone(),
            out: fwd.out.clone(),
            dout: block.given.iter().map(|out| Some(g.grad(*out))).collect(),
            step_scopes: fwd.step_scopes,
            dx: fwd.x.iter().map(|x| g.wanted(*x).filter(|_| block.computed.contains(x))).collect(),
            original_output_grad: block.given.iter().map(name).collect(),
            sub_block: block.block,
        };
        g.push(op);
    }
}

/// The gradient of [`While`]: runs the gradient of the body on the saved step state, last to first. Gradients of
/// carried variables are carried in reverse; gradients of other variables are summed over the steps.
#[register_op(grad_of = While, grad = NoGrad)]
pub struct WhileGrad<V = Var> {
    pub x: Vec<V>,
    #[input(shape_only)]
    pub out: Vec<V>,
    pub dout: Vec<Option<V>>,
    pub step_scopes: V,
    #[output]
    pub dx: Vec<Option<V>>,
    /// Names of `dout` in the block.
    #[attr(default = [])]
    pub original_output_grad: Vec<String>,
    /// The gradient of the body.
    #[block]
    pub sub_block: BlockId,
}
impl Control for WhileGrad {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.sub_block, StepCount::Recorded { reverse: false });
        let grad = |v: Var| program.gradient_name(v).unwrap_or(Var::EMPTY);
        let dx = |inner: Var| {
            let of = self.x.iter().zip(&self.dx).find(|(x, _)| grad(**x) == inner);
            of.and_then(|(_, dx)| *dx)
        };
        for (name, dout) in self.original_output_grad.iter().zip(&self.dout) {
            let out = self.out.iter().find(|out| program.find(name).is_some_and(|v| v == grad(**out)));
            let (Some(dout), Some(out)) = (*dout, out) else { continue };
            let inner = grad(*out);
            call.carried.push(CarriedValue {
                first: CarriedInit::Value(dout, *out),
                start: inner,
                end: inner,
                last: dx(inner),
            });
        }
        for (x, dx) in self.x.iter().zip(&self.dx) {
            if !self.out.contains(x) {
                call.reads.push(*x);
            }
            let inner = grad(*x);
            if let Some(dx) = dx.filter(|_| !call.carried.iter().any(|c| c.start == inner)) {
                call.sums.push((inner, dx, *x));
            }
        }
        call.scopes = Some(self.step_scopes);
        Ok(call)
    }
}
