//! Schedules of the learning rate.

use std::{f64::consts::PI, fmt};

use autobwd::{
    DType, Error, ErrorKind, Result, Scope,
    tensor::{bf16, f16},
};

use super::hyperparameters::at_least_zero;

/// A learning rate for every step: a plain function of the number of the step.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
/// use autobwd_ops::optim::Schedule;
/// let schedule = Schedule::cosine(0.1, 0.0, 10).warmup(2);
/// let rates: Vec<f64> = (0..4).map(|step| schedule.rate(step)).collect();
/// assert_eq!(rates[..3], [0.05, 0.1, 0.1]);
/// # let net = Builder::new();
/// # let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0));
/// # let loss = w.square().mean();
/// # Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
/// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// for step in 0..12 {
///     schedule.set(&mut scope, "learning_rate_0", step)?;
///     executor.run(&net.program()?, &mut scope, &[], &[])?;
/// }
/// # assert!(scope.get("learning_rate_0")?.item()? < 0.003);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// It has no state: a run that is resumed at step 500 goes on with `rate(500)`. In eager mode, where an optimizer is made
/// for each step, its rate is `schedule.rate(step) as f32`. [`Plateau`](super::Plateau) follows a loss instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(pub(super) ScheduleCurve);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScheduleCurve {
    Constant(f64),
    Step { rate: f64, gamma: f64, every: u64 },
    Linear { from: f64, to: f64, steps: u64 },
    Cosine { from: f64, to: f64, steps: u64 },
    Warmup { steps: u64, then: Box<Schedule> },
    Sequence { first: Box<Schedule>, steps: u64, then: Box<Schedule> },
}

impl Schedule {
    /// The same rate in every step.
    pub fn constant(rate: f64) -> Schedule {
        Schedule(ScheduleCurve::Constant(rate))
    }

    /// `rate` times `gamma` for every `every` steps: `rate · gamma^⌊step / every⌋`. With 0 in place of `every`, as with 1.
    pub fn step(rate: f64, gamma: f64, every: u64) -> Schedule {
        Schedule(ScheduleCurve::Step { rate, gamma, every: every.max(1) })
    }

    /// Linear from `from` at step 0 to `to` at step `steps`, and `to` from there on.
    pub fn linear(from: f64, to: f64, steps: u64) -> Schedule {
        Schedule(ScheduleCurve::Linear { from, to, steps })
    }

    /// Cosine annealing (Loshchilov and Hutter, 2017) from `from` at step 0 to `to` at step `steps`, and `to` from there
    /// on: `to + (from - to) · (1 + cos(π · step / steps)) / 2`.
    pub fn cosine(from: f64, to: f64, steps: u64) -> Schedule {
        Schedule(ScheduleCurve::Cosine { from, to, steps })
    }

    /// Linear warm-up before this schedule: in step `k` of the first `steps`, the rate is `(k + 1) / steps` times the
    /// first rate of this schedule, which begins after them.
    #[must_use]
    pub fn warmup(self, steps: u64) -> Schedule {
        Schedule(ScheduleCurve::Warmup { steps, then: Box::new(self) })
    }

    /// This schedule for `steps` steps, and then another one from its beginning.
    #[must_use]
    pub fn then(self, steps: u64, next: Schedule) -> Schedule {
        Schedule(ScheduleCurve::Sequence { first: Box::new(self), steps, then: Box::new(next) })
    }

    /// The learning rate of a step; the first has number 0.
    pub fn rate(&self, step: u64) -> f64 {
        // A schedule without steps has ended.
        let progress = |steps: u64| if step < steps { step as f64 / steps as f64 } else { 1.0 };
        match &self.0 {
            ScheduleCurve::Constant(rate) => *rate,
            ScheduleCurve::Step { rate, gamma, every } => rate * libm::pow(*gamma, (step / every) as f64),
            ScheduleCurve::Linear { from, to, steps } => from + (to - from) * progress(*steps),
            ScheduleCurve::Cosine { from, to, steps } => {
                to + (from - to) * (1.0 + libm::cos(PI * progress(*steps))) / 2.0
            }
            ScheduleCurve::Warmup { steps, then } if step < *steps => {
                then.rate(0) * ((step + 1) as f64 / *steps as f64)
            }
            ScheduleCurve::Warmup { steps, then } => then.rate(step - steps),
            ScheduleCurve::Sequence { first, steps, .. } if step < *steps => first.rate(step),
            ScheduleCurve::Sequence { steps, then, .. } => then.rate(step - steps),
        }
    }

    /// Checks that no rate is negative.
    pub(super) fn validate(&self) -> Result<()> {
        let check = |name: &str, x: f64| at_least_zero(name, x as f32);
        match &self.0 {
            ScheduleCurve::Constant(rate) => check("rate", *rate),
            ScheduleCurve::Step { rate, gamma, .. } => check("rate", *rate).and(check("gamma", *gamma)),
            ScheduleCurve::Linear { from, to, .. } | ScheduleCurve::Cosine { from, to, .. } => {
                check("rate", *from).and(check("rate", *to))
            }
            ScheduleCurve::Warmup { then, .. } => then.validate(),
            ScheduleCurve::Sequence { first, then, .. } => first.validate().and_then(|()| then.validate()),
        }
    }

    /// Sets the variable of a learning rate in the scope, `learning_rate_0` for an optimizer without a name
    /// ([`rate_name`](super::Optimizer::rate_name)), for a step that is about to run.
    ///
    /// # Errors
    /// As [`set_rate`].
    pub fn set(&self, scope: &mut Scope, name: &str, step: u64) -> Result<()> {
        set_rate(scope, name, self.rate(step))
    }
}

/// In the grammar that [`FromStr`](std::str::FromStr) reads, unless more than 16 schedules are within each other.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ScheduleCurve::Constant(rate) => write!(f, "constant({})", Number(*rate)),
            ScheduleCurve::Step { rate, gamma, every } => {
                write!(f, "step({},{},{every})", Number(*rate), Number(*gamma))
            }
            ScheduleCurve::Linear { from, to, steps } => {
                write!(f, "linear({},{},{steps})", Number(*from), Number(*to))
            }
            ScheduleCurve::Cosine { from, to, steps } => {
                write!(f, "cosine({},{},{steps})", Number(*from), Number(*to))
            }
            ScheduleCurve::Warmup { steps, then } => write!(f, "warmup({steps},{then})"),
            ScheduleCurve::Sequence { first, steps, then } => write!(f, "then({first},{steps},{then})"),
        }
    }
}

/// A number with an exponent where it would have many zeros.
pub(super) struct Number<T>(pub(super) T);

impl<T: Copy + Into<f64> + fmt::Display + fmt::LowerExp> fmt::Display for Number<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.into() {
            0.0 => fmt::Display::fmt(&self.0, f),
            x if (1e-5..1e16).contains(&x.abs()) => fmt::Display::fmt(&self.0, f),
            _ => write!(f, "{:e}", self.0),
        }
    }
}

/// Sets the variable of a learning rate in the scope, such as `learning_rate_0`.
///
/// # Errors
/// A rate that is negative, infinite or NaN; a name that the scope does not have; a value that is not one floating point
/// number.
pub fn set_rate(scope: &mut Scope, name: &str, rate: f64) -> Result<()> {
    let meta = scope.get(name)?.meta();
    let largest = match meta.dtype {
        DType::F64 => f64::MAX,
        DType::F16 => f16::MAX.into(),
        DType::BF16 => bf16::MAX.into(),
        _ => f32::MAX.into(),
    };
    if !(0.0..=largest).contains(&rate) {
        let text = format!("{rate} is not a finite number from 0 on, so `{name}` stays");
        return Err(Error::attr("rate", text));
    }
    let is_set = match meta.dtype {
        DType::F32 => scope.slice_mut::<f32>(name).map(|all| set_one(all, rate as f32)),
        DType::F64 => scope.slice_mut::<f64>(name).map(|all| set_one(all, rate)),
        DType::F16 => scope.slice_mut(name).map(|all| set_one(all, f16::from_f64(rate))),
        DType::BF16 => scope.slice_mut(name).map(|all| set_one(all, bf16::from_f64(rate))),
        _ => Ok(false),
    }?;
    if !is_set {
        let text = format!("`{name}` is {meta}, not a learning rate: one floating point number");
        return Err(Error::new(ErrorKind::DType, text));
    }
    Ok(())
}

fn set_one<T>(all: &mut [T], rate: T) -> bool {
    match all {
        [one] => {
            *one = rate;
            true
        }
        _ => false,
    }
}
