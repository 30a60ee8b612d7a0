//! Learning rates that a program computes by itself.

use std::f64::consts::PI;

use autobwd::{
    Builder, DType, Error, ErrorKind, Expr, Result, emit,
    exec::SCHEDULE_STEP,
    operators::{Assign, Increment},
};

use super::{Optimizer, Schedule, schedule::ScheduleCurve, state::cast};
use crate::{Init, Math};

/// An optimizer whose program computes the learning rate of each step by a [`Schedule`], from a counter that it keeps:
/// also where no code sets the rate, as in a program from a file.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math};
/// use autobwd_ops::optim::{Optimizer, Schedule, ScheduledOptimizer, Sgd};
/// # let net = Builder::new();
/// # let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0));
/// # let loss = w.sum(&[]);
/// let schedule = Schedule::linear(0.5, 0.0, 4);
/// ScheduledOptimizer { optimizer: Sgd { rate: 0.0 }, schedule }.minimize(&loss)?.complete()?;
/// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let mut rates = vec![];
/// for _ in 0..5 {
///     executor.run(&net.program()?, &mut scope, &[], &[])?;
///     rates.push(scope.get("learning_rate_0")?.item()?);
/// }
/// assert_eq!(rates, [0.5, 0.375, 0.25, 0.125, 0.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// The rate is computed in float64, and starts with the first rate of the schedule. The optimizer's own rate does not
/// count, except for [groups](super::ParameterGroups) within it, which keep their multiples of it. The counter,
/// `schedule_step_0`, is kept like the state of the optimizer, so a resumed run goes on with it.
#[derive(Clone, Debug)]
pub struct ScheduledOptimizer<O> {
    /// The optimizer.
    pub optimizer: O,
    /// Its learning rate.
    pub schedule: Schedule,
}

impl<O: Optimizer> Optimizer for ScheduledOptimizer<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn learning_rate(&self) -> f32 {
        self.schedule.rate(0) as f32
    }

    fn schedule(&self) -> Option<&Schedule> {
        Some(&self.schedule)
    }

    fn validate(&self) -> Result<()> {
        self.schedule.validate()?;
        self.optimizer.validate()
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        self.optimizer.update(parameter, gradient, learning_rate)
    }
}

/// Appends operators that set the learning rate for this step, and count the step.
pub(super) fn set_rate(net: &Builder, rate: &Expr, schedule: &Schedule) -> Result<()> {
    if net.is_eager() {
        let text =
            "in eager mode, an optimizer is made for each step: give it the rate `schedule.rate(step)`";
        return Err(Error::new(ErrorKind::Program, text));
    }
    let name = net.scoped(SCHEDULE_STEP);
    let step = net.persistable(&name, DType::F64, &[1], |step| Init::Constant(0.0).emit(step, 0));
    let scheduled = cast(&schedule.expr(&step), rate.dtype());
    emit(Assign { x: (&scheduled).into(), out: rate.into() }).out.check()?;
    emit(Increment { x: (&step).into(), out: (&step).into(), step: 1.0 }).out.check().map(drop)
}

impl Schedule {
    /// The rate at a step, a float64 variable, as operators.
    #[track_caller]
    fn expr(&self, step: &Expr) -> Expr {
        let constant = |x: f64| step * 0.0 + x;
        // A schedule without steps has ended.
        let progress = |steps: u64| match steps {
            0 => constant(1.0),
            steps => (step * (1.0 / steps as f64)).clip(0.0, 1.0),
        };
        let choose = |steps: u64, first: &Expr, then: &dyn Fn(&Expr) -> Expr| {
            let steps = steps as f64;
            let then = then(&(step - steps).clip(0.0, f64::MAX));
            step.less_than(&constant(steps)).where_cond(first, &then)
        };
        match &self.0 {
            ScheduleCurve::Constant(rate) => constant(*rate),
            ScheduleCurve::Step { rate, gamma, every } => {
                let count = (step / *every as f64).floor();
                constant(*gamma).pow(&count) * *rate
            }
            ScheduleCurve::Linear { from, to, steps } => progress(*steps) * (to - from) + *from,
            ScheduleCurve::Cosine { from, to, steps } => {
                ((progress(*steps) * PI).cos() + 1.0) * ((from - to) / 2.0) + *to
            }
            ScheduleCurve::Warmup { steps: 0, then } => then.expr(step),
            ScheduleCurve::Warmup { steps, then } => {
                let first = (step + 1.0) * (then.rate(0) / *steps as f64);
                choose(*steps, &first, &|step| then.expr(step))
            }
            ScheduleCurve::Sequence { first, steps, then } => {
                choose(*steps, &first.expr(step), &|step| then.expr(step))
            }
        }
    }
}
