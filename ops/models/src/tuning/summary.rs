//! What a fine-tuning will do.

use std::fmt;

use autobwd::exec::MemoryUse;
use autobwd_ops::Model;

use super::{FineTuning, plan::TuningPlan, rows::Rows};

/// What a fine-tuning will do, before its first step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TuningSummary {
    /// The number of elements of all parameters, without those of adapters.
    pub parameters: usize,
    /// The number of elements of the parameters that are trained.
    pub trained: usize,
    /// The names of tensors in the files that the model does not read, as
    /// [`Pretrained::unread_tensors`](crate::Pretrained::unread_tensors) has them.
    pub unread: Vec<String>,
    /// The number of examples.
    pub examples: usize,
    /// The number of their tokens.
    pub tokens: usize,
    /// The number of labels that count.
    pub labels: usize,
    /// The number of rows.
    pub rows: usize,
    /// The number of tokens of a row; 0 for images and sounds.
    pub length: usize,
    /// The number of tokens that a decoder generates from a row; 0 without an encoder and a decoder.
    pub target_length: usize,
    /// The number of rows of a step.
    pub rows_of_step: usize,
    /// The number of all steps.
    pub steps: u64,
    /// The number of times that all rows are seen.
    pub epochs: u64,
    /// The memory of a step.
    pub memory: MemoryUse,
    /// The memory of evaluations besides the parameters, in bytes.
    pub evaluation_bytes: usize,
    /// The memory of the process besides a step and evaluations, in bytes, before the first step; 0 without a bound for the
    /// process ([`FineTuning::process_memory`]).
    pub process_bytes: usize,
    /// What is recomputed to save memory, and what that costs.
    pub recomputed: String,
}

impl TuningSummary {
    pub(super) fn new(
        tuning: &FineTuning,
        model: &Model,
        plan: &TuningPlan,
        (rows, steps): (&Rows, u64),
        (parameters, unread): (usize, Vec<String>),
    ) -> TuningSummary {
        let programs = &plan.programs;
        let elements = |name: &String| model.scope.find(name).map_or(0, |value| value.numel());
        let [row_count, examples, tokens, labels] = rows.counts();
        TuningSummary {
            parameters,
            trained: programs.trained.iter().map(elements).sum(),
            unread,
            examples,
            tokens,
            labels,
            rows: row_count,
            length: rows.length,
            target_length: rows.target_length,
            rows_of_step: tuning.batch * tuning.micro_batches,
            steps,
            epochs: tuning.epochs,
            memory: programs.memory,
            evaluation_bytes: plan.evaluation_bytes,
            process_bytes: plan.process_bytes,
            recomputed: programs.recomputed.to_string(),
        }
    }
}

impl TuningSummary {
    /// The memory of the run, in bytes: of a step, of evaluations, and of the process besides, where it is measured.
    pub fn total_bytes(&self) -> usize {
        self.memory.total().saturating_add(self.evaluation_bytes).saturating_add(self.process_bytes)
    }
}

impl fmt::Display for TuningSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.trained as f64 / self.parameters.max(1) as f64;
        writeln!(f, "trained     {} of {} parameters ({share:.2} %)", self.trained, self.parameters)?;
        if !self.unread.is_empty() {
            writeln!(f, "not read    {}", self.unread.join(", "))?;
        }
        write!(f, "examples    {}", self.examples)?;
        if self.length > 0 {
            write!(f, ", with {} tokens", self.tokens)?;
        }
        writeln!(f, "; {} labels are counted", self.labels)?;
        write!(f, "rows        {}", self.rows)?;
        if self.length > 0 {
            let used = 100.0 * self.tokens as f64 / (self.rows * self.length).max(1) as f64;
            write!(f, " of {} tokens, {used:.0} % of them used", self.length)?;
        }
        if self.target_length > 0 {
            write!(f, ", with {} tokens to generate", self.target_length)?;
        }
        writeln!(f)?;
        let epochs = self.epochs;
        writeln!(
            f,
            "steps       {}, {epochs} times over all rows, {} rows each",
            self.steps, self.rows_of_step
        )?;
        let besides = [("evaluation", self.evaluation_bytes), ("the process besides", self.process_bytes)];
        let parts = self.memory.parts().into_iter().chain(besides).filter(|(_, bytes)| *bytes > 0);
        for (part, bytes) in parts.chain([("in all", self.total_bytes())]) {
            writeln!(f, "memory      {:>8.1} MB {part}", bytes as f64 / 1e6)?;
        }
        match self.recomputed.trim() {
            "" => Ok(()),
            recomputed => writeln!(f, "recomputed  {recomputed}"),
        }
    }
}
