//! The programs of a fine-tuning.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, Meta, Program, Result, Scope,
    backward::RecomputeReport,
    exec::{MemoryUse, PlannedRun},
    parallel::{Accumulation, accumulate},
};
use autobwd_ops::{
    Model,
    optim::{
        AdamW, GradientClip, MemoryBudget, MixedPrecisionOptimizer, Optimizer, Schedule, ScheduledOptimizer,
    },
};

use super::{FineTuning, loss::summed_token_loss, rows::LABELS};
use crate::Lora;

/// The input that losses are divided by.
pub(super) const DIVISOR: &str = "label_count";

/// The programs of a fine-tuning, over one scope.
pub(super) struct TuningPrograms {
    /// The loss of a batch, without training.
    pub(super) evaluation: Program,
    /// A step on one micro-batch: gradients and updates.
    pub(super) step: Program,
    /// The same in two programs, if there are several micro-batches.
    pub(super) accumulation: Option<Accumulation>,
    /// What initialises the state of the optimizer.
    pub(super) startup: Program,
    /// The loss in `evaluation`, and in `step`.
    pub(super) losses: [String; 2],
    pub(super) rate: String,
    pub(super) memory: MemoryUse,
    pub(super) recomputed: RecomputeReport,
    /// The names of the parameters that are trained.
    pub(super) trained: Vec<String>,
}

impl TuningPrograms {
    /// Appends the loss and the training to a model, whose parameters are frozen or not. `steps` is the number of all
    /// steps, on feeds of these shapes; one has the memory of the budget.
    pub(super) fn new(
        tuning: &FineTuning,
        (model, lora): (&mut Model, Option<&Lora>),
        mixed: Option<DType>,
        (feeds, steps, budget): (&[(&str, Meta)], u64, Option<usize>),
    ) -> Result<TuningPrograms> {
        let logits = model.fetches[0].clone();
        let evaluation = model.builder();
        let evaluated = loss(&evaluation, &logits, false)?;
        let (feeds_of_model, fetches) = (model.feeds.clone(), model.fetches.clone());
        let program = model.program.clone();
        let mut trained = Model { program, feeds: feeds_of_model, fetches, scope: Scope::new() };
        lora.map_or(Ok(()), |lora| lora.add_dropout(&mut trained))?;
        trained.train(&[])?;
        trained.scope.iter().for_each(|(name, counter)| model.scope.set(name, counter.clone()));
        let net = trained.builder();
        let loss = loss(&net, &logits, true)?;
        let optimizer = optimizer(tuning, steps, mixed);
        let backward = Backward::default();
        let (updates, budgeted) = match budget {
            Some(bytes) => {
                let budget = MemoryBudget::bytes(bytes).feeds(feeds).micro_batches(tuning.micro_batches);
                let budget = tuning.threads.map_or(budget.clone(), |threads| budget.threads(threads));
                let (updates, memory) = optimizer.minimize_within(&loss, &backward, &budget)?;
                (updates, Some(memory))
            }
            None => (optimizer.minimize_with(&loss, &backward)?, None),
        };
        let (step, mut startup) = (net.program()?.clone(), net.startup().program()?.clone());
        let accumulation = match tuning.micro_batches {
            1 => None,
            parts => Some(accumulate(&step, parts)?),
        };
        let losses = [evaluated.name(), loss.name()];
        let memory = match budgeted {
            Some(memory) => memory,
            None => planned(tuning, &step, accumulation.as_ref(), feeds, &losses[1])?,
        };
        startup.mark_startup();
        let evaluation = evaluation.program()?.clone();
        Ok(TuningPrograms {
            evaluation,
            step,
            accumulation,
            startup,
            losses,
            rate: optimizer.rate_name(),
            memory,
            trained: updates.trained.iter().map(|(parameter, _)| parameter.name()).collect(),
            recomputed: updates.recomputed,
        })
    }
}

/// The sum of the losses of a batch, divided by a number that is fed.
fn loss(net: &Builder, logits: &str, is_learned: bool) -> Result<Expr> {
    let logits = net.expr(logits);
    let dims = vec![-1; logits.dims().len() - 1];
    let labels = net.input(LABELS, DType::I64, &dims);
    let divisor = net.input(DIVISOR, DType::F32, &[]);
    (summed_token_loss(&logits, &labels, is_learned)? / divisor).check().cloned()
}

/// AdamW whose decay leaves biases and scales of normalisations out: parameters of rank 1.
struct MatrixDecay {
    adamw: AdamW,
}

impl Optimizer for MatrixDecay {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.adamw)
    }

    fn learning_rate(&self) -> f32 {
        self.adamw.rate
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let decay = if parameter.dims().len() < 2 { 0.0 } else { self.adamw.decay };
        AdamW { decay, ..self.adamw }.update(parameter, gradient, learning_rate)
    }
}

/// AdamW, with the options of a fine-tuning.
fn optimizer(tuning: &FineTuning, steps: u64, mixed: Option<DType>) -> Box<dyn Optimizer> {
    let rate = tuning.learning_rate;
    let adamw = AdamW { decay: tuning.weight_decay, ..AdamW::new(rate as f32) };
    let mut optimizer: Box<dyn Optimizer> = Box::new(MatrixDecay { adamw });
    if tuning.max_gradient_norm > 0.0 {
        optimizer = Box::new(optimizer.clip(GradientClip::GlobalNorm(tuning.max_gradient_norm)));
    }
    let warmup = (tuning.warmup * steps as f64).ceil() as u64;
    let after = match tuning.is_constant {
        true => Schedule::constant(rate),
        false => Schedule::cosine(rate, 0.0, steps.saturating_sub(warmup).max(1)),
    };
    let schedule = if warmup > 0 { after.warmup(warmup) } else { after };
    let scheduled = ScheduledOptimizer { optimizer, schedule };
    match mixed {
        Some(dtype) => Box::new(MixedPrecisionOptimizer { optimizer: scheduled, precision: dtype.into() }),
        None => Box::new(scheduled),
    }
}

/// The memory of a step.
fn planned(
    tuning: &FineTuning,
    step: &Program,
    accumulation: Option<&Accumulation>,
    feeds: &[(&str, Meta)],
    loss: &str,
) -> Result<MemoryUse> {
    let executor = tuning.threads.map_or_else(Executor::new, Executor::with_threads);
    match accumulation {
        None => MemoryUse::planned(&executor, &[PlannedRun { program: step, feeds, fetches: &[loss] }]),
        Some(Accumulation { gradients, update, .. }) => MemoryUse::planned(
            &executor,
            &[
                PlannedRun { program: gradients, feeds, fetches: &[loss] },
                PlannedRun { program: update, feeds: &[], fetches: &[] },
            ],
        ),
    }
}
