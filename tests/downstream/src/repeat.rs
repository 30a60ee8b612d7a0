//! An operator that runs a block, with its gradient.
//!
//! Its number of steps is an attribute, so the gradient has gradients: the library rewrites the pair of operators as
//! recurrences.

use autobwd::{
    BlockId, DType, Dims, Expr, GradCx, GradRule, Program, Result, Var, VarDesc,
    check::*,
    emit,
    op::{BlockCall, CarriedInit, CarriedValue, Control, StepCount},
    program::VarKind,
    register_op,
};
use autobwd_ops::Math;

/// Applies its body a fixed number of times: `out = body(… body(x))`.
#[register_op(grad = RepeatRule)]
pub struct Repeat<V = Var> {
    /// The first state. In the body, its name means the state before a step.
    #[input]
    pub x: V,
    /// All other variables that the body reads.
    #[input]
    pub reads: Vec<V>,
    /// The last state. In the body, its name means the state after a step.
    #[output]
    pub out: V,
    /// What the gradient needs of each step.
    #[output]
    pub scope: V,
    /// How often the body runs.
    #[attr(min = 0)]
    pub times: i64,
    /// The body.
    #[block]
    pub body: BlockId,
}
impl Control for Repeat {
    fn call(&self, _: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.body, StepCount::Times(self.times as usize));
        let first = CarriedInit::Value(self.x, self.x);
        call.carried = vec![CarriedValue { first, start: self.x, end: self.out, last: Some(self.out) }];
        call.reads = self.reads.clone();
        call.scopes = Some(self.scope);
        Ok(call)
    }
}
autobwd::samples!(
    Repeat,
    [
        Sample::of_program::<Repeat>([uniform([2, 3]), uniform([3])], |_, x| {
            Ok(vec![repeat(&x[0], 3, |state| (state * &x[1]).tanh())?])
        }),
        Sample::of_program::<Repeat>([uniform([2, 3]), uniform([3])], |_, x| {
            Ok(vec![repeat(&x[0], 1, |state| (state * &x[1]).tanh())?])
        }),
        Sample::of_program::<Repeat>([uniform([4])], |_, x| Ok(vec![repeat(&x[0], 0, Expr::tanh)?])),
    ]
);

/// Emits [`RepeatGrad`] with the gradient of the body.
pub struct RepeatRule;
impl GradRule<Repeat> for RepeatRule {
    fn emit(fwd: &Repeat, g: &mut GradCx<'_>) {
        let Some(block) = g.block() else { return };
        let dreads = fwd.reads.iter().map(|x| g.wanted(*x).filter(|_| block.computed.contains(x))).collect();
        let op = RepeatGrad {
            x: fwd.x,
            reads: fwd.reads.clone(),
            out: fwd.out,
            dout: Some(g.grad(fwd.out)),
            scope: fwd.scope,
            dx: g.wanted(fwd.x),
            dreads,
            body: block.block,
        };
        g.push(op);
    }
}

/// Runs the gradient of the body from the last step to the first.
#[register_op(name = "repeat_grad", grad_of = Repeat, grad = autobwd::NoGrad)]
pub struct RepeatGrad<V = Var> {
    pub x: V,
    pub reads: Vec<V>,
    #[input(shape_only)]
    pub out: V,
    #[input]
    pub dout: Option<V>,
    pub scope: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dreads: Vec<Option<V>>,
    /// The gradient of the body.
    #[block]
    pub body: BlockId,
}
impl Control for RepeatGrad {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.body, StepCount::Recorded { reverse: false });
        let grad = |var| program.gradient_name(var).unwrap_or(Var::EMPTY);
        let first = self.dout.map_or(CarriedInit::ZerosLike(self.x), |dout| CarriedInit::Value(dout, self.x));
        call.carried = vec![CarriedValue { first, start: grad(self.out), end: grad(self.x), last: self.dx }];
        call.reads = self.reads.clone();
        let sums = self.reads.iter().zip(&self.dreads);
        call.sums = sums.filter_map(|(x, dx)| Some((grad(*x), (*dx)?, *x))).collect();
        call.scopes = Some(self.scope);
        Ok(call)
    }
}

/// Applies `body` `times` times, starting with `x`.
///
/// # Errors
/// Those of the body.
pub fn repeat(x: &Expr, times: usize, body: impl FnOnce(&Expr) -> Expr) -> Result<Expr> {
    let (net, state) = (x.builder(), x.copy());
    let (body, out) = net.sub_block(|| {
        net.declare_in(net.block(), &state, VarDesc::new(state.dtype(), state.dims()));
        let out = body(&state);
        out.check()?;
        Ok(out)
    })?;
    net.declare_in(net.block(), &out, VarDesc::new(state.dtype(), state.dims()));
    let reads = net.program()?.captures(body).into_iter().filter(|var| *var != state.var());
    let reads = reads.map(|var| net.existing(var).into()).collect();
    let scopes = VarDesc { kind: VarKind::StepScopes, ..VarDesc::new(DType::F32, Dims::from([])) };
    let scope = net.variable(net.block(), "step_scopes", scopes);
    let (x, out, scope) = ((&state).into(), (&out).into(), (&scope).into());
    Ok(emit(Repeat { x, reads, out, scope, times: times as i64, body }).out)
}
