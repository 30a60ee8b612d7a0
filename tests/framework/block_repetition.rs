//! Operators that run their block a fixed number of times.

use autobwd::{
    BlockId, Builder, DType, Dims, Executor, Expr, GradCx, GradRule, NoGrad, Program, Result, Scope, Tensor,
    Var, VarDesc, emit, gradients,
    op::{BlockCall, CarriedInit, CarriedValue, Control, StepCount},
    program::VarKind,
    register_op,
};
use autobwd_ops::Math;

use crate::support::derivatives::{assert_derivative, parameter, run as run_at};

/// Runs a block a fixed number of times.
#[register_op(grad = ApplyRule, name = "times_apply")]
pub(crate) struct Apply<V = Var> {
    /// Initial value of the first step.
    #[input]
    pub(crate) first: V,
    /// All variables of the surrounding block that the block reads.
    #[input]
    pub(crate) reads: Vec<V>,
    /// Slices of it are inputs of the steps.
    #[input]
    pub(crate) parts: Option<V>,
    /// Final value of the last step.
    #[output]
    pub(crate) last: V,
    /// Saved step state for the gradient.
    #[output]
    pub(crate) scopes: V,
    /// Names of the value within the block, at the start and at the end of a step.
    #[attr]
    pub(crate) names: Vec<String>,
    /// Number of steps.
    #[attr(min = 0)]
    pub(crate) times: i64,
    /// The step.
    #[block]
    pub(crate) body: BlockId,
}

/// The variables that a step starts and ends with.
fn ends(names: &[String], program: &Program) -> [Var; 2] {
    [0, 1].map(|i| program.find(&names[i]).unwrap_or(Var::EMPTY))
}

impl Control for Apply {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let [start, end] = ends(&self.names, program);
        let first = CarriedInit::Value(self.first, self.first);
        Ok(BlockCall {
            reads: self.reads.clone(),
            carried: vec![CarriedValue { first, start, end, last: Some(self.last) }],
            slices: self.parts.iter().map(|parts| (*parts, *parts, *parts)).collect(),
            scopes: Some(self.scopes),
            ..BlockCall::new(self.body, StepCount::Times(self.times as usize))
        })
    }
}

/// The gradient of the step, from the last to the first.
pub(crate) struct ApplyRule;
impl GradRule<Apply> for ApplyRule {
    fn emit(fwd: &Apply, g: &mut GradCx<'_>) {
        let Some(block) = g.block() else { return };
        let wanted = |x: &Var| g.wanted(*x).filter(|_| block.computed.contains(x));
        let op = ApplyGrad {
            first: fwd.first,
            reads: fwd.reads.clone(),
            scopes: fwd.scopes,
            dlast: g.grad(fwd.last),
            dfirst: g.wanted(fwd.first),
            dreads: fwd.reads.iter().map(wanted).collect(),
            names: fwd.names.clone(),
            body: block.block,
        };
        g.push(op);
    }
}

/// The gradient of [`Apply`].
#[register_op(grad_of = Apply, grad = NoGrad)]
pub(crate) struct ApplyGrad<V = Var> {
    pub(crate) first: V,
    pub(crate) reads: Vec<V>,
    pub(crate) scopes: V,
    pub(crate) dlast: V,
    #[output]
    pub(crate) dfirst: Option<V>,
    #[output]
    pub(crate) dreads: Vec<Option<V>>,
    pub(crate) names: Vec<String>,
    /// The gradient of the step.
    #[block]
    pub(crate) body: BlockId,
}
impl Control for ApplyGrad {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let grad = |v: Var| program.gradient_name(v).unwrap_or(Var::EMPTY);
        let [start, end] = ends(&self.names, program).map(grad);
        let first = CarriedInit::Value(self.dlast, self.first);
        let sums = self.reads.iter().zip(&self.dreads);
        Ok(BlockCall {
            reads: self.reads.clone(),
            carried: vec![CarriedValue { first, start: end, end: start, last: self.dfirst }],
            sums: sums.filter_map(|(x, dx)| Some((grad(*x), (*dx)?, *x))).collect(),
            scopes: Some(self.scopes),
            ..BlockCall::new(self.body, StepCount::Recorded { reverse: false })
        })
    }
}

/// `h ← tanh(h · w)`, `times` times.
fn apply(net: &Builder, [h, w]: [&Expr; 2], parts: Option<&Expr>, times: i64) -> Result<Expr> {
    let of_state = || VarDesc::new(DType::F64, [3].into());
    let (body, names) = net.sub_block(|| {
        let start = net.variable(net.block(), "h", of_state());
        Ok([start.name(), (start * w).tanh().name()])
    })?;
    let scopes = VarDesc { kind: VarKind::StepScopes, ..VarDesc::new(DType::F32, Dims::from([])) };
    let [last, scopes] =
        [("last", of_state()), ("scopes", scopes)].map(|(name, desc)| net.variable(net.block(), name, desc));
    Ok(emit(Apply {
        first: h.into(),
        reads: vec![w.into()],
        parts: parts.map(Into::into),
        last: (&last).into(),
        scopes: (&scopes).into(),
        names: names.map(Into::into).into(),
        times,
        body,
    })
    .last)
}

#[test]
fn steps_and_gradients_equal_the_unrolled_program() -> Result<()> {
    let at: [(&str, &[f64]); 2] = [("h0", &[0.5, -0.25, 1.0]), ("w", &[0.75, 1.5, -0.5])];
    for times in [0, 1, 4] {
        let run = |unrolled: bool| -> Result<Vec<Vec<f64>>> {
            let net = Builder::new();
            let [h, w] = ["h0", "w"].map(|name| parameter(&net, name, &[3]));
            let last = match unrolled {
                true => (0..times).fold(h.clone(), |h, _| (h * &w).tanh()),
                false => apply(&net, [&h, &w], None, times)?,
            };
            let sum = (&last * &last).sum(&[]);
            let mut program = (*net.program()?).clone();
            let grads = gradients(&mut program, &[&sum.name()], &["h0", "w"], &Default::default())?.entries();
            // Without steps, `w` is not read.
            let grads: Vec<&str> = grads.into_iter().flatten().map(|grad| program.name(grad)).collect();
            if !unrolled {
                assert_derivative(&program, &at, &sum.name(), "h0", grads[0]);
                assert_derivative(&program, &at, &sum.name(), "w", grads[1]);
            }
            let (mut fetches, last) = (grads, last.name());
            fetches.truncate(if times == 0 { 1 } else { 2 });
            fetches.push(&last);
            run_at(&program, &at, &fetches)
        };
        assert_eq!(run(false)?, run(true)?, "{times} steps");
    }
    Ok(())
}

#[test]
fn wrong_part_counts_and_step_counts_are_refused() -> Result<()> {
    let run = |parts: i64, times: i64| -> Result<()> {
        let net = Builder::new();
        let [h, w] = ["h", "w"].map(|name| net.input(name, DType::F64, &[3]));
        let parts = net.input("parts", DType::F64, &[parts, 3]);
        let last = apply(&net, [&h, &w], Some(&parts), times)?;
        let [three, all] = [vec![3], parts.dims().known().unwrap_or_default().to_vec()]
            .map(|dims| Tensor::zeros(DType::F64, &dims).unwrap());
        let feeds: [(&str, &dyn autobwd::Feed); 3] = [("h", &three), ("w", &three), ("parts", &all)];
        let mut executor = Executor::new().loop_limit(5);
        executor.run(&net.program()?, &mut Scope::new(), &feeds, &[&last.name()]).map(drop)
    };
    run(4, 4)?;
    let e = run(4, 3).unwrap_err().to_string();
    assert!(e.contains("`parts` has 4 steps, but the block runs 3 times"), "{e}");
    let e = run(6, 6).unwrap_err().to_string();
    assert!(e.contains("the loop has not ended after 5 steps, its limit"), "{e}");
    Ok(())
}
