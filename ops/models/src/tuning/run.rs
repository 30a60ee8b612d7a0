//! The steps of a fine-tuning.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use autobwd::{
    DType, Dims, Error, ErrorKind, Meta, OpDesc, Program, Result, Scope, Session, Tensor, exec::Checkpoint,
    tensor::Element,
};
use autobwd_core::__private::return_freed_memory;
use autobwd_data::{Batch, Loader};
use autobwd_ops::Model;
use xxhash_rust::xxh3::Xxh3;

use super::{
    Example, FineTuning, TuningSummary,
    facts::ModelFacts,
    loss::IGNORED,
    plan::{Planner, TuningPlan},
    process::resident_bytes,
    program::DIVISOR,
    rows::{LABELS, Limits, Rows, row_lengths},
};
use crate::{Adapter, Lora, Pretrained};

/// The number of batches that are read while a step runs, since images and sounds are decoded then.
const READ_AHEAD: usize = 1;

/// The notes of checkpoints: the position in the data, and the hash of what a run does not change.
const POSITION: &str = "data";
const UNCHANGED: &str = "unchanged";

/// A fine-tuning that is prepared, or under way.
///
/// A run that is resumed from a [`checkpoint`](TuningRun::save_checkpoint) has the same bits as one that was never
/// interrupted, on any number of threads.
pub struct TuningRun {
    pretrained: Pretrained,
    lora: Option<Lora>,
    tuning: FineTuning,
    model: Model,
    summary: TuningSummary,
    loader: Loader,
    evaluation: Option<Loader>,
    plan: TuningPlan,
    /// The hash of frozen weights and of the evaluation data.
    unchanged: String,
    step: u64,
}

impl std::fmt::Debug for TuningRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TuningRun")
            .field("tuning", &self.tuning)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The number of the step; the first is 1.
    pub step: u64,
    /// The mean loss of all labels that count, before the update.
    pub loss: f64,
    /// The learning rate of the update.
    pub learning_rate: f64,
    /// The number of labels that counted.
    pub labels: usize,
}

impl TuningRun {
    pub(super) fn new(
        tuning: &FineTuning,
        pretrained: &Pretrained,
        examples: Vec<Example>,
        evaluation: Vec<Example>,
    ) -> Result<TuningRun> {
        let before = tuning.process_memory.map_or(0, |_| resident_bytes());
        let mixed = tuning.mixed_precision(pretrained);
        let facts = ModelFacts::of(pretrained)?;
        let mut loaded = facts.second_input().into_iter().fold(pretrained.clone(), Pretrained::input);
        if mixed.is_some() {
            loaded = loaded.dtype(DType::F32);
        }
        let described = loaded.described(None)?;
        let (parameters, unread) = (elements(&described.program), described.unread.clone());
        let mut model = loaded.read(described)?;
        let logits = logits(&model)?;
        let kind = facts.row_kind(&model, logits.len())?;
        let classes = logits.last().and_then(|dim| dim.get()).unwrap_or(0) as i64;
        let vocabulary = if facts.second_input().is_some() { vocabulary(&model)? } else { 0 };
        let limits = Limits { positions: facts.positions, vocabulary, classes };
        let rows_of_step = tuning.batch * tuning.micro_batches;
        let lengths = row_lengths(tuning, &kind, &limits, examples.iter().chain(&evaluation))?;
        let rows = Arc::new(Rows::new(tuning, &kind, examples, &limits, (lengths, rows_of_step))?);
        let lora = adapt(tuning, (pretrained, &facts), &mut model)?;

        let mut feeds = rows.feeds(tuning.batch);
        feeds.push((DIVISOR, Meta::new(DType::F32, [])));
        let loader = Loader::builder(rows.clone()).batch(rows_of_step).shuffle(tuning.seed);
        let loader = loader.prefetch(READ_AHEAD).build()?;
        let steps = (loader.batches() as u64).checked_mul(tuning.epochs);
        let steps = steps.ok_or_else(|| Error::new(ErrorKind::Attr, "`epochs` is too large"))?;
        let evaluation = match evaluation.is_empty() {
            true => None,
            false => {
                let rows = Rows::new(tuning, &kind, evaluation, &limits, (lengths, tuning.batch));
                let rows = rows.map_err(|e| {
                    Error::new(e.kind(), format!("the evaluation data: {}", e.message())).caused_by(e)
                })?;
                Some(Loader::builder(rows).batch(tuning.batch).prefetch(READ_AHEAD).build()?)
            }
        };
        let planner = Planner {
            tuning,
            lora: lora.as_ref(),
            mixed,
            feeds: &feeds,
            steps,
            has_evaluation: evaluation.is_some(),
        };
        let plan = planner.plan(&mut model, before)?;
        let summary = TuningSummary::new(tuning, &model, &plan, (&rows, steps), (parameters, unread));
        let unchanged = unchanged(&plan.programs.step, &model.scope, evaluation.as_ref());
        // What reading and planning have freed is not a part of the plan.
        return_freed_memory();
        Ok(TuningRun {
            pretrained: pretrained.clone(),
            lora,
            tuning: tuning.clone(),
            model,
            summary,
            loader,
            evaluation,
            plan,
            unchanged,
            step: 0,
        })
    }

    /// What the run will do.
    pub fn summary(&self) -> &TuningSummary {
        &self.summary
    }

    /// The number of steps that are done.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// The model with its present parameters.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.plan.executor.threads()
    }

    /// Does the next step; `None` after the last one.
    ///
    /// # Errors
    /// Those of [`Session::run`]; a loss that is no number.
    pub fn step(&mut self) -> Result<Option<StepReport>> {
        if self.step >= self.summary.steps {
            return Ok(None);
        }
        let batch = match self.loader.next_batch()? {
            Some(batch) => batch,
            // The next epoch.
            None => self
                .loader
                .next_batch()?
                .ok_or_else(|| Error::new(ErrorKind::Data, "an epoch has no batches"))?,
        };
        let labels = labels(&batch)?;
        let parts = self.tuning.micro_batches;
        // Gradients of parts are divided by their number.
        let divisor = labels.max(1) as f32 / parts as f32;
        let mut loss = 0.0;
        for part in 0..parts {
            feed(&mut self.plan.gradients, &batch, part * self.tuning.batch, divisor)?;
            self.plan.gradients.run(&mut self.model.scope)?;
            loss += self.plan.gradients.item(&self.plan.programs.losses[1])? / parts as f64;
        }
        let last = match &mut self.plan.update {
            Some(update) => {
                update.run(&mut self.model.scope)?;
                update
            }
            None => &mut self.plan.gradients,
        };
        let learning_rate = last.item(&self.plan.programs.rate)?;
        self.step += 1;
        require_finite(&format!("the loss of step {}", self.step), loss)?;
        Ok(Some(StepReport { step: self.step, loss, learning_rate, labels }))
    }

    /// The mean loss of the evaluation examples with the present parameters; `None` if there are none.
    ///
    /// # Errors
    /// Those of [`Session::run`].
    pub fn evaluate(&mut self) -> Result<Option<f64>> {
        let Some((loader, evaluator)) = self.evaluation.as_mut().zip(self.plan.evaluator.as_mut()) else {
            return Ok(None);
        };
        let (mut loss, mut count) = (0.0, 0);
        while let Some(batch) = loader.next_batch()? {
            count += labels(&batch)?;
            feed(evaluator, &batch, 0, 1.0)?;
            evaluator.run(&mut self.model.scope)?;
            loss += evaluator.item(&self.plan.programs.losses[0])?;
        }
        let mean = loss / count.max(1) as f64;
        require_finite("the loss of the evaluation examples", mean)?;
        Ok(Some(mean))
    }

    /// Saves the state of the run, without what it does not change: frozen weights are read again from the model.
    /// `notes` are named texts of the caller.
    ///
    /// # Errors
    /// Those of [`Checkpoint::save`].
    pub fn save_checkpoint(&self, path: impl AsRef<Path>, notes: &[(&str, String)]) -> Result<()> {
        let own = Checkpoint::new(self.step).with_note(POSITION, self.loader.state());
        let own = own.with_note(UNCHANGED, &*self.unchanged);
        let noted = notes.iter().fold(own, |checkpoint, (name, text)| checkpoint.with_note(*name, text));
        noted.save_changed(path, &self.plan.programs.step, &self.model.scope)
    }

    /// Goes on from a checkpoint of a run with the same options. Returns the checkpoint, with its notes.
    ///
    /// # Errors
    /// Those of [`Checkpoint::load`] and of [`Loader::resume`]: another model, other data, or other options. The run is then
    /// of no use.
    pub fn resume(&mut self, path: impl AsRef<Path>) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::load(path, &self.plan.programs.step, &mut self.model.scope)?;
        if checkpoint.note(UNCHANGED)? != self.unchanged {
            let text = "the frozen weights or the evaluation data are not those of the interrupted run";
            return Err(Error::new(ErrorKind::Checkpoint, text));
        }
        self.loader.resume(checkpoint.note(POSITION)?)?;
        self.step = checkpoint.step();
        Ok(checkpoint)
    }

    /// Writes the result into a folder, which must exist: the adapter as peft does, and `config.json` with its new head, if it
    /// has one ([`Pretrained::head_of_adapter`]); or else the model as transformers
    /// does, with its configuration and tokenizer.
    ///
    /// # Errors
    /// Parameters with a NaN or an infinity; those of the file system.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        for name in &self.plan.programs.trained {
            let value = self.model.scope.get(name)?;
            let wrong = value.slice::<f32>()?.iter().find(|x| !x.is_finite());
            wrong.map_or(Ok(()), |x| require_finite(&format!("an element of `{name}`"), f64::from(*x)))?;
        }
        match &self.lora {
            Some(lora) => {
                Adapter::of(&self.model, lora)?.save(folder)?;
                self.pretrained.save_new_head(folder)
            }
            None => self.pretrained.save(&self.model, folder),
        }
    }
}

/// # Errors
/// A NaN or an infinity.
fn require_finite(what: &str, value: f64) -> Result<()> {
    match value.is_finite() {
        true => Ok(()),
        false => {
            let text = format!("{what} is {value}: try a smaller learning rate");
            Err(Error::new(ErrorKind::NotFinite, text))
        }
    }
}

/// The hash of the values that a step does not write, and of the evaluation data.
fn unchanged(step: &Program, scope: &Scope, evaluation: Option<&Loader>) -> String {
    let written: BTreeSet<&str> =
        step.root().ops.iter().flat_map(OpDesc::writes).map(|var| step.name(var)).collect();
    let mut hash = Xxh3::new();
    for (name, value) in scope.iter().filter(|(name, _)| step.find(name).is_some() && !written.contains(name))
    {
        hash.update(name.as_bytes());
        hash.update(value.bytes());
    }
    hash.update(evaluation.map(Loader::state).unwrap_or_default().as_bytes());
    format!("{:016x}", hash.digest())
}

/// The number of labels that count.
fn labels(batch: &Batch) -> Result<usize> {
    Ok(batch.get(LABELS)?.slice::<i64>()?.iter().filter(|label| **label != IGNORED).count())
}

/// Feeds a micro-batch, from this row of the batch on.
fn feed(session: &mut Session, batch: &Batch, row: usize, divisor: f32) -> Result<()> {
    for (name, values) in batch {
        match values.dtype() {
            DType::F32 => feed_rows::<f32>(session, (name, values), row)?,
            _ => feed_rows::<i64>(session, (name, values), row)?,
        }
    }
    session.feed_mut::<f32>(DIVISOR)?[0] = divisor;
    Ok(())
}

/// Feeds the rows of a batch from this one on.
fn feed_rows<T: Element>(session: &mut Session, (name, values): (&str, &Tensor), row: usize) -> Result<()> {
    let of_row: usize = values.dims()[1..].iter().product();
    let part = session.feed_mut::<T>(name)?;
    let count = part.len();
    part.copy_from_slice(&values.slice::<T>()?[row * of_row..][..count]);
    Ok(())
}

/// Adds adapters to the model, next to which a new head is trained.
fn adapt(
    tuning: &FineTuning,
    (pretrained, facts): (&Pretrained, &ModelFacts),
    model: &mut Model,
) -> Result<Option<Lora>> {
    if let Some(adapter) = &tuning.adapter {
        adapter.attach(model)?;
        return Ok(Some(adapter.lora.clone()));
    }
    let Some(mut lora) = tuning.lora.clone() else { return Ok(None) };
    let new = pretrained.new_modules(&model.program)?;
    let known = |module: &String| lora.saves(module);
    let new: Vec<String> = new.into_iter().filter(|module| !known(module)).collect();
    lora.saved_modules.extend(new);
    if lora.targets.is_empty() && lora.pattern.is_none() {
        lora.targets = facts.default_targets()?;
    } else if lora.targets == ["all-linear"] {
        lora.target_all(model);
    }
    lora.attach(model)?;
    Ok(Some(lora))
}

/// The number of elements of all parameters, before any is quantised.
fn elements(program: &Program) -> usize {
    let descs = program.parameters().filter_map(|var| program.root().vars.get(&var));
    descs.filter_map(|desc| desc.dims.numel().get()).sum()
}

/// The dimensions of the logits.
///
/// # Errors
/// A model without logits.
fn logits(model: &Model) -> Result<Dims> {
    let program = &model.program;
    let output = program.signature().outputs.first().filter(|output| output.name == "logits");
    let desc = output.and_then(|output| program.root().vars.get(&program.find(&output.variable)?));
    match desc {
        Some(desc) => Ok(desc.dims.clone()),
        None => {
            let text = "the model has no head that computes logits: give it a new one, for classes of texts or of tokens \
                        (`Pretrained::classes`, `--new-head` of the command)";
            Err(Error::new(ErrorKind::Program, text))
        }
    }
}

/// The number of rows of the table of tokens.
fn vocabulary(model: &Model) -> Result<i64> {
    let program = &model.program;
    let ids = program.find("input_ids");
    let look_up = program.root().ops.iter().find(|op| op.inputs.get("Ids").first().copied() == ids);
    let table = look_up.and_then(|op| op.inputs.get("W").first());
    let rows = table.and_then(|table| program.root().vars.get(table)?.dims.first()?.get());
    rows.map(|rows| rows as i64)
        .ok_or_else(|| Error::new(ErrorKind::Program, "the model has no table of tokens"))
}
