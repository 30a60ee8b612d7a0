//! Optimizers by text: names, options, clipping and schedules.

mod parser;

use std::{fmt, str::FromStr};

use autobwd::{DType, Error, ErrorKind, Expr, Result};

use super::{
    Adagrad, Adam, AdamW, ClippedOptimizer, GradientClip, Lamb, MixedPrecision, Momentum, Optimizer, RmsProp,
    Schedule, ScheduledOptimizer, Sgd, schedule::Number,
};
use parser::{number, split, whole};

/// An optimizer as text, as options of commands and configuration files name it.
///
/// ```
/// use autobwd_ops::optim::{Optimizer, OptimizerSpec};
/// # use autobwd::{Builder, DType};
/// # use autobwd_ops::{Init, Math};
/// # let net = Builder::new();
/// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
/// # let loss = w.square().mean();
/// let optimizer: OptimizerSpec = "adamw:0.001,decay=0.05,clip=global_norm(1)".parse()?;
/// optimizer.minimize(&loss)?.complete()?;
/// assert_eq!(optimizer.to_string(), "adamw:0.001,decay=0.05,clip=global_norm(1)");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Grammar
///
/// `NAME:RATE`, followed by options, each after a comma: `KEY=VALUE`, or `KEY` alone for a switch.
///
/// | name | options with their defaults |
/// |---|---|
/// | `sgd` | |
/// | `momentum` | `momentum=0.9`, `nesterov`, `lazy` |
/// | `adagrad` | `epsilon=1e-6`, `initial=0` |
/// | `rmsprop` | `decay=0.95`, `momentum=0`, `epsilon=1e-6`, `centered` |
/// | `adam` | `beta1=0.9`, `beta2=0.999`, `epsilon=1e-8`, `lazy` |
/// | `adamw` | `decay=0.01`, `beta1=0.9`, `beta2=0.999`, `epsilon=1e-8`, `lazy` |
/// | `lamb` | `decay=0.01`, `beta1=0.9`, `beta2=0.999`, `epsilon=1e-6` |
///
/// Values may also follow the rate after colons, in the order of the table: `momentum:0.1:0.95`. All optimizers have:
///
/// - `weight_decay=X`: L2 regularisation ([`WeightDecay`](super::WeightDecay));
/// - `clip=value(X)`, `clip=norm(X)`, `clip=global_norm(X)`: [`GradientClip`];
/// - `schedule=SCHEDULE`, in place of `:RATE`: the learning rate of each step, computed by the program
///   ([`ScheduledOptimizer`]). [`Schedule`] has the grammar: `adam,schedule=warmup(100,cosine(0.001,0,10000))`.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerSpec {
    form: &'static OptimizerForm,
    rate: f32,
    /// The values of the form's options, in its order; a switch is 0 or 1.
    options: Vec<f32>,
    weight_decay: Option<f32>,
    clip: Option<GradientClip>,
    schedule: Option<Schedule>,
}

/// An optimizer of the library.
struct OptimizerForm {
    name: &'static str,
    options: &'static [OptionForm],
    /// The optimizer with a rate and its options.
    make: fn(f32, &[f32]) -> Box<dyn Optimizer>,
}

#[derive(Clone, Copy)]
struct OptionForm {
    key: &'static str,
    default: f32,
    is_switch: bool,
}

const fn value(key: &'static str, default: f32) -> OptionForm {
    OptionForm { key, default, is_switch: false }
}

const fn switch(key: &'static str) -> OptionForm {
    OptionForm { key, default: 0.0, is_switch: true }
}

/// The options that all optimizers have.
const COMMON: [&str; 3] = ["weight_decay", "clip", "schedule"];

const ADAGRAD: Adagrad = Adagrad::new(0.0);
const RMSPROP: RmsProp = RmsProp::new(0.0);
const ADAM: Adam = Adam::new(0.0);
const ADAMW: AdamW = AdamW::new(0.0);
const LAMB: Lamb = Lamb::new(0.0);

static FORMS: [OptimizerForm; 7] = [
    OptimizerForm { name: "sgd", options: &[], make: |rate, _| Box::new(Sgd { rate }) },
    OptimizerForm {
        name: "momentum",
        options: &[value("momentum", 0.9), switch("nesterov"), switch("lazy")],
        make: |rate, o| Box::new(Momentum { rate, momentum: o[0], nesterov: o[1] != 0.0, lazy: o[2] != 0.0 }),
    },
    OptimizerForm {
        name: "adagrad",
        options: &[value("epsilon", ADAGRAD.epsilon), value("initial", ADAGRAD.initial)],
        make: |rate, o| Box::new(Adagrad { epsilon: o[0], initial: o[1], ..Adagrad::new(rate) }),
    },
    OptimizerForm {
        name: "rmsprop",
        options: &[
            value("decay", RMSPROP.decay),
            value("momentum", RMSPROP.momentum),
            value("epsilon", RMSPROP.epsilon),
            switch("centered"),
        ],
        make: |rate, o| {
            let (decay, momentum, epsilon, centered) = (o[0], o[1], o[2], o[3] != 0.0);
            Box::new(RmsProp { decay, momentum, epsilon, centered, ..RmsProp::new(rate) })
        },
    },
    OptimizerForm {
        name: "adam",
        options: &[
            value("beta1", ADAM.beta1),
            value("beta2", ADAM.beta2),
            value("epsilon", ADAM.epsilon),
            switch("lazy"),
        ],
        make: |rate, o| {
            let (beta1, beta2, epsilon, lazy) = (o[0], o[1], o[2], o[3] != 0.0);
            Box::new(Adam { beta1, beta2, epsilon, lazy, ..Adam::new(rate) })
        },
    },
    OptimizerForm {
        name: "adamw",
        options: &[
            value("decay", ADAMW.decay),
            value("beta1", ADAMW.beta1),
            value("beta2", ADAMW.beta2),
            value("epsilon", ADAMW.epsilon),
            switch("lazy"),
        ],
        make: |rate, o| {
            let (decay, beta1, beta2, epsilon, lazy) = (o[0], o[1], o[2], o[3], o[4] != 0.0);
            Box::new(AdamW { decay, beta1, beta2, epsilon, lazy, ..AdamW::new(rate) })
        },
    },
    OptimizerForm {
        name: "lamb",
        options: &[
            value("decay", LAMB.decay),
            value("beta1", LAMB.beta1),
            value("beta2", LAMB.beta2),
            value("epsilon", LAMB.epsilon),
        ],
        make: |rate, o| {
            let (decay, beta1, beta2, epsilon) = (o[0], o[1], o[2], o[3]);
            Box::new(Lamb { decay, beta1, beta2, epsilon, ..Lamb::new(rate) })
        },
    },
];

impl PartialEq for OptimizerForm {
    fn eq(&self, other: &OptimizerForm) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for OptimizerForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl OptimizerSpec {
    /// The names of all optimizers.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FORMS.iter().map(|form| form.name)
    }

    /// The options of an optimizer, by its name, with their defaults; a switch has none. Those that all optimizers have
    /// are not among them.
    ///
    /// ```
    /// use autobwd_ops::optim::OptimizerSpec;
    /// let options: Vec<(&str, Option<f32>)> = OptimizerSpec::options("adagrad").collect();
    /// assert_eq!(options, [("epsilon", Some(1e-6)), ("initial", Some(0.0))]);
    /// ```
    pub fn options(name: &str) -> impl Iterator<Item = (&'static str, Option<f32>)> {
        let forms = FORMS.iter().filter(move |form| form.name == name);
        forms
            .flat_map(|form| form.options)
            .map(|option| (option.key, (!option.is_switch).then_some(option.default)))
    }

    /// The optimizer that the text names.
    pub fn optimizer(&self) -> Box<dyn Optimizer> {
        let mut optimizer = (self.form.make)(self.rate, &self.options);
        if let Some(decay) = self.weight_decay {
            optimizer = Box::new(optimizer.weight_decay(decay));
        }
        if let Some(clip) = self.clip {
            optimizer = Box::new(ClippedOptimizer { optimizer, clip });
        }
        match &self.schedule {
            Some(schedule) => Box::new(ScheduledOptimizer { optimizer, schedule: schedule.clone() }),
            None => optimizer,
        }
    }

    fn set(&mut self, option: &str) -> Result<()> {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        let name = self.form.name;
        let needed =
            || value.ok_or_else(|| refuse(format!("option `{key}` of `{name}` needs a value: `{key}=…`")));
        match key {
            "weight_decay" => self.weight_decay = Some(number(needed()?)?),
            "clip" => self.clip = Some(clip(needed()?)?),
            "schedule" => self.schedule = Some(needed()?.parse()?),
            _ => {
                let Some(at) = self.form.options.iter().position(|option| option.key == key) else {
                    let known: Vec<&str> =
                        self.form.options.iter().map(|option| option.key).chain(COMMON).collect();
                    let text = format!("`{name}` has no option `{key}`; it has {}", known.join(", "));
                    return Err(refuse(text));
                };
                self.options[at] = match (self.form.options[at].is_switch, value) {
                    (false, _) => number(needed()?)?,
                    (true, None) => 1.0,
                    (true, Some(_)) => {
                        return Err(refuse(format!(
                            "option `{key}` of `{name}` is a switch: it has no value"
                        )));
                    }
                };
            }
        }
        Ok(())
    }
}

impl FromStr for OptimizerSpec {
    type Err = Error;

    /// Reads the [grammar](OptimizerSpec#grammar).
    fn from_str(text: &str) -> Result<OptimizerSpec> {
        let parts = split(text, ',')?;
        let mut head = parts[0].split(':');
        let name = head.next().unwrap_or_default();
        let Some(form) = FORMS.iter().find(|form| form.name == name) else {
            let known: Vec<&str> = OptimizerSpec::names().collect();
            let text = format!("there is no optimizer `{name}`; known are {}", known.join(", "));
            return Err(refuse(text));
        };
        let options = form.options.iter().map(|option| option.default).collect();
        let (weight_decay, clip, schedule) = (None, None, None);
        let mut spec = OptimizerSpec { form, rate: 0.0, options, weight_decay, clip, schedule };
        let scheduled = || refuse(format!("the schedule gives the rate: write `{name},schedule=…`"));
        let rate = match head.next() {
            Some(rate) if rate.starts_with("schedule=") => return Err(scheduled()),
            rate => rate.map(number).transpose()?,
        };
        let values: Vec<&str> = head.collect();
        let known = form.options.iter().filter(|option| !option.is_switch).count();
        if values.len() > known {
            return Err(refuse(format!("`{}` has more values than `{name}` has options", parts[0])));
        }
        let positional = form.options.iter().filter(|option| !option.is_switch).zip(values);
        let mut seen: Vec<&str> = vec![];
        for (option, value) in positional {
            spec.set(&format!("{}={value}", option.key))?;
            seen.push(option.key);
        }
        for option in &parts[1..] {
            let key = option.split('=').next().unwrap_or_default();
            if seen.contains(&key) {
                return Err(refuse(format!("option `{key}` of `{name}` is given twice")));
            }
            spec.set(option)?;
            seen.push(key);
        }
        spec.rate = match (rate, &spec.schedule) {
            (Some(rate), None) => rate,
            (None, Some(schedule)) => schedule.rate(0) as f32,
            (Some(_), Some(_)) => return Err(scheduled()),
            (None, None) => {
                return Err(refuse(format!("`{name}` needs a learning rate, such as `{name}:0.01`")));
            }
        };
        Ok(spec)
    }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.form.name)?;
        if self.schedule.is_none() {
            write!(f, ":{}", Number(self.rate))?;
        }
        for (option, value) in self.form.options.iter().zip(&self.options) {
            match option {
                OptionForm { default, .. } if default.to_bits() == value.to_bits() => {}
                OptionForm { key, is_switch: true, .. } => write!(f, ",{key}")?,
                OptionForm { key, .. } => write!(f, ",{key}={}", Number(*value))?,
            }
        }
        if let Some(decay) = self.weight_decay {
            write!(f, ",weight_decay={}", Number(decay))?;
        }
        match self.clip {
            None => {}
            Some(GradientClip::Value(limit)) => write!(f, ",clip=value({})", Number(limit))?,
            Some(GradientClip::Norm(limit)) => write!(f, ",clip=norm({})", Number(limit))?,
            Some(GradientClip::GlobalNorm(limit)) => write!(f, ",clip=global_norm({})", Number(limit))?,
        }
        self.schedule.as_ref().map_or(Ok(()), |schedule| write!(f, ",schedule={schedule}"))
    }
}

impl Optimizer for OptimizerSpec {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }

    fn validate(&self) -> Result<()> {
        self.optimizer().validate()
    }

    #[track_caller]
    fn transform(&self, gradients: Vec<(Expr, Expr)>) -> Result<Vec<(Expr, Expr)>> {
        self.optimizer().transform(gradients)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        self.optimizer().update(parameter, gradient, learning_rate)
    }
}

impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        (**self).inner()
    }

    fn learning_rate(&self) -> f32 {
        (**self).learning_rate()
    }

    fn update_dtype(&self, parameter: &Expr) -> DType {
        (**self).update_dtype(parameter)
    }

    fn schedule(&self) -> Option<&Schedule> {
        (**self).schedule()
    }

    fn precision(&self) -> Option<&MixedPrecision> {
        (**self).precision()
    }

    fn state_prefix(&self) -> &str {
        (**self).state_prefix()
    }

    fn validate(&self) -> Result<()> {
        (**self).validate()
    }

    #[track_caller]
    fn transform(&self, gradients: Vec<(Expr, Expr)>) -> Result<Vec<(Expr, Expr)>> {
        (**self).transform(gradients)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        (**self).update(parameter, gradient, learning_rate)
    }
}

fn clip(text: &str) -> Result<GradientClip> {
    let (name, arguments) = parser::call(text)?;
    let clip = match name {
        "value" => GradientClip::Value,
        "norm" => GradientClip::Norm,
        "global_norm" => GradientClip::GlobalNorm,
        _ => {
            let text = format!("there is no clipping `{name}`; known are value(X), norm(X), global_norm(X)");
            return Err(refuse(text));
        }
    };
    match arguments[..] {
        [limit] => Ok(clip(number(limit)?)),
        _ => Err(refuse(format!("`{text}` needs one number, such as `{name}(1)`"))),
    }
}

fn refuse(text: String) -> Error {
    Error::new(ErrorKind::Format, text)
}

/// The grammar of schedules, in text without spaces:
///
/// - `constant(RATE)`
/// - `step(RATE,GAMMA,EVERY)`
/// - `linear(FROM,TO,STEPS)`
/// - `cosine(FROM,TO,STEPS)`
/// - `warmup(STEPS,SCHEDULE)`: [`Schedule::warmup`]
/// - `then(SCHEDULE,STEPS,SCHEDULE)`: [`Schedule::then`]
impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Schedule> {
        schedule(text, 0)
    }
}

/// The most schedules within each other.
const DEPTH: usize = 16;

fn schedule(text: &str, depth: usize) -> Result<Schedule> {
    if depth > DEPTH {
        return Err(refuse(format!("schedules are nested more than {DEPTH} deep")));
    }
    let inner = |text: &str| schedule(text, depth + 1);
    let (name, arguments) = parser::call(text)?;
    Ok(match (name, &arguments[..]) {
        ("constant", [rate]) => Schedule::constant(number(rate)?),
        ("step", [rate, gamma, every]) => Schedule::step(number(rate)?, number(gamma)?, whole(every)?),
        ("linear", [from, to, steps]) => Schedule::linear(number(from)?, number(to)?, whole(steps)?),
        ("cosine", [from, to, steps]) => Schedule::cosine(number(from)?, number(to)?, whole(steps)?),
        ("warmup", [steps, then]) => inner(then)?.warmup(whole(steps)?),
        ("then", [first, steps, then]) => inner(first)?.then(whole(steps)?, inner(then)?),
        _ => {
            let text = format!(
                "`{text}` is not a schedule; known are constant(RATE), step(RATE,GAMMA,EVERY), \
                 linear(FROM,TO,STEPS), cosine(FROM,TO,STEPS), warmup(STEPS,SCHEDULE) and \
                 then(SCHEDULE,STEPS,SCHEDULE)"
            );
            return Err(refuse(text));
        }
    })
}
