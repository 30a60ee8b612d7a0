//! The programs of a fine-tuning.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, Meta, Program, Result,
    backward::RecomputeReport,
    exec::{MemoryUse, PlannedRun},
    parallel::{Accumulation, accumulate},
    program::Var,
};
use autobwd_ops::{
    Model,
    optim::{
        AdamW, GradientClip, MemoryBudget, MixedPrecisionOptimizer, Optimizer, ParameterGroups, Schedule,
        ScheduledOptimizer,
    },
};

use super::{FineTuning, loss::summed_token_loss};

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
    /// steps, on feeds of these shapes.
    pub(super) fn new(
        tuning: &FineTuning,
        model: &mut Model,
        mixed: Option<DType>,
        (feeds, steps): (&[(&str, Meta)], u64),
    ) -> Result<TuningPrograms> {
        let logits = model.fetches[0].clone();
        let evaluation = model.builder();
        let evaluated = loss(&evaluation, &logits)?;
        model.train(&[])?;
        let net = model.builder();
        let loss = loss(&net, &logits)?;
        let optimizer = optimizer(tuning, model, steps, mixed);
        let backward = Backward::default();
        let (updates, budgeted) = match tuning.memory {
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
fn loss(net: &Builder, logits: &str) -> Result<Expr> {
    let logits = net.expr(logits);
    let dims = vec![-1; logits.dims().len() - 1];
    let labels = net.input("labels", DType::I64, &dims);
    let divisor = net.input(DIVISOR, DType::F32, &[]);
    (summed_token_loss(&logits, &labels)? / divisor).check().cloned()
}

/// AdamW, with the options of a fine-tuning.
fn optimizer(tuning: &FineTuning, model: &Model, steps: u64, mixed: Option<DType>) -> Box<dyn Optimizer> {
    let rate = tuning.learning_rate;
    let adamw = AdamW { decay: tuning.weight_decay, ..AdamW::new(rate as f32) };
    let mut optimizer: Box<dyn Optimizer> = Box::new(adamw);
    if tuning.weight_decay != 0.0 {
        let (program, without) = (&model.program, AdamW { decay: 0.0, ..adamw });
        let is_trained_vector = |var: &Var| {
            program.root().vars.get(var).is_some_and(|desc| desc.dims.len() < 2 && !desc.stop_gradient)
        };
        let vectors = program.parameters().filter(is_trained_vector);
        let groups: Option<ParameterGroups> = vectors.fold(None, |groups, var| {
            let name = program.name(var);
            Some(match groups {
                None => adamw.group(name, without),
                Some(groups) => groups.group(name, without),
            })
        });
        if let Some(groups) = groups {
            optimizer = Box::new(groups);
        }
    }
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
