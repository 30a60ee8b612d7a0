//! The plan of a fine-tuning: its programs and sessions, within a budget.

use autobwd::{DType, Error, ErrorKind, Executor, Meta, Result, Scope, Session, exec::MemoryUse};
use autobwd_ops::Model;

use super::{FineTuning, process::resident_bytes, program::TuningPrograms};
use crate::Lora;

/// What is planned.
pub(super) struct Planner<'a> {
    pub(super) tuning: &'a FineTuning,
    pub(super) lora: Option<&'a Lora>,
    /// The dtype of products, if it is not the one of the parameters.
    pub(super) mixed: Option<DType>,
    /// The shapes of the feeds of a micro-batch.
    pub(super) feeds: &'a [(&'a str, Meta)],
    /// The number of all steps.
    pub(super) steps: u64,
    pub(super) has_evaluation: bool,
}

/// The programs of a fine-tuning, prepared.
pub(super) struct TuningPlan {
    pub(super) programs: TuningPrograms,
    pub(super) executor: Executor,
    /// Computes the gradients of a micro-batch, or does a whole step.
    pub(super) gradients: Session,
    pub(super) update: Option<Session>,
    /// There is one if there are evaluation examples.
    pub(super) evaluator: Option<Session>,
    /// The bytes of the process besides a step and evaluations; 0 if there is no budget for it.
    pub(super) process_bytes: usize,
    /// The bytes of evaluations besides the parameters.
    pub(super) evaluation_bytes: usize,
}

impl TuningPlan {
    fn besides_step(&self) -> usize {
        self.process_bytes.saturating_add(self.evaluation_bytes)
    }
}

impl Planner<'_> {
    /// The plan within the budgets. `before` are the bytes of the process before the model was read.
    pub(super) fn plan(&self, model: &mut Model, before: usize) -> Result<TuningPlan> {
        let FineTuning { memory, process_memory, .. } = *self.tuning;
        let Some(bytes) = process_memory else { return self.plan_step(model, memory) };
        let (resident, kept) = (resident_bytes(), kept_bytes(&model.scope));
        let mut besides = before;
        loop {
            let left = bytes.saturating_sub(besides);
            let mut plan =
                self.plan_step(model, Some(memory.map_or(left, |memory| memory.min(left)))).map_err(|e| {
                    let text = format!(
                        "the process may take {bytes} bytes, and takes {besides} besides a step; {}",
                        e.message()
                    );
                    if e.kind() == ErrorKind::Budget { Error::new(e.kind(), text).caused_by(e) } else { e }
                })?;
            let added = kept_bytes(&model.scope).saturating_sub(kept);
            let plans = resident_bytes().saturating_sub(resident).saturating_sub(added);
            plan.process_bytes = before.saturating_add(plans);
            let total = plan.programs.memory.total().saturating_add(plan.besides_step());
            // The plans of a step that recomputes more are larger by little.
            if total <= bytes || besides > before {
                return Ok(plan);
            }
            besides = plan.besides_step();
        }
    }

    /// The plan of a step within a budget.
    fn plan_step(&self, model: &mut Model, budget: Option<usize>) -> Result<TuningPlan> {
        let programs = TuningPrograms::new(
            self.tuning,
            (&mut *model, self.lora),
            self.mixed,
            (self.feeds, self.steps, budget),
        )?;
        let mut executor = self.tuning.threads.map_or_else(Executor::new, Executor::with_threads);
        let startup = model.scope.missing_only(&programs.startup)?;
        executor.run(&startup, &mut model.scope, &[], &[])?;
        let fetches = [programs.losses[1].as_str(), programs.rate.as_str()];
        let scope = &mut model.scope;
        let (gradients, update) = match &programs.accumulation {
            None => (executor.prepare(&programs.step, scope, self.feeds, &fetches)?, None),
            Some(parts) => {
                executor.run(&parts.startup, scope, &[], &[])?;
                let gradients = executor.prepare(&parts.gradients, scope, self.feeds, &fetches[..1])?;
                (gradients, Some(executor.prepare(&parts.update, scope, &[], &fetches[1..])?))
            }
        };
        let (mut evaluator, mut evaluation_bytes) = (None, 0);
        if self.has_evaluation {
            let session =
                executor.prepare(&programs.evaluation, scope, self.feeds, &[&programs.losses[0]])?;
            let memory = MemoryUse::of(&session, &programs.evaluation, scope);
            evaluation_bytes = memory.arena + memory.scratch + memory.copies;
            evaluator = Some(session);
        }
        Ok(TuningPlan {
            programs,
            executor,
            gradients,
            update,
            evaluator,
            process_bytes: 0,
            evaluation_bytes,
        })
    }
}

/// The bytes of all values.
fn kept_bytes(scope: &Scope) -> usize {
    scope.iter().map(|(_, value)| value.bytes().len()).sum()
}
