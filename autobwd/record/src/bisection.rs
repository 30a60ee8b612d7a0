//! The result of a bisection of two runs.

use std::fmt;

use serde::Serialize;

use crate::{
    phrases::{self, between},
    value_difference::ValueDifference,
    verification::Refusal,
};

/// Where two recorded runs start to differ; it prints as one sentence for each finding.
#[derive(Clone, Debug, Serialize)]
pub struct Bisection {
    /// The numbers of steps in the records.
    pub steps: [u64; 2],
    /// What the records say without a replay.
    pub differences: Vec<RecordedDifference>,
    /// The last step after which both records have the same state. Values that differ before the first step do not count.
    pub last_equal_state: u64,
    /// The first step after which the recorded states differ.
    pub first_different_state: Option<u64>,
    /// The number of states that both records have.
    pub compared_states: usize,
    /// The step at which the replayed runs start to differ.
    pub step: Option<StepDifference>,
    /// Records whose hashes a replay on this machine does not have: of the first and of the second run.
    pub unreproduced: [Option<UnreproducedRecord>; 2],
    /// The number of replays: segments from a checkpoint on, and single steps.
    pub replays: usize,
    /// The number of steps in these replays.
    pub replayed_steps: u64,
}

/// A difference of two records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedDifference {
    /// The part of the records that differs.
    pub subject: DifferenceSubject,
    /// The first step with the difference, if it is of a step; 0 before the first one.
    pub step: Option<u64>,
    /// What differs.
    pub text: String,
}

/// A part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DifferenceSubject {
    /// The program of a step.
    Program,
    /// A program that made the values before the first step.
    Startup,
    /// The values before the first step.
    InitialState,
    /// The data that a step is fed.
    Feeds,
    /// Values that the caller changed between steps, such as a rate.
    ChangedValues,
    /// The number of steps.
    Length,
    /// The state after a step.
    State,
}

/// A record that a replay does not confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreproducedRecord {
    /// The last step whose recorded hash the replay has.
    pub after: u64,
    /// The first step whose recorded hash the replay does not have.
    pub step: u64,
    /// The values that differ from the record.
    pub values: Vec<String>,
}

/// The first step whose results differ.
#[derive(Clone, Debug, Serialize)]
pub struct StepDifference {
    /// The number of the step.
    pub step: u64,
    /// The values of the state that differ after it.
    pub values: Vec<String>,
    /// The first operator with other outputs. `None` if every operator that both programs have writes the same bits.
    pub operator: Option<OperatorDifference>,
}

/// The first operator whose outputs differ.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorDifference {
    /// The operator in the program of the first run: type, place, source line and slots.
    pub operator: String,
    /// The same in the program of the second run, if it is described otherwise there.
    pub other_operator: Option<String>,
    /// The type.
    pub ty: String,
    /// The index of the block.
    pub block: usize,
    /// The position in the block, in the program of the first run.
    pub index: usize,
    /// The number of calls of the operator before this one in the step: iterations of loops, or parts of a composition.
    pub repetition: usize,
    /// The source line that added the operator, if known.
    pub source_line: Option<String>,
    /// The inputs.
    pub inputs: Vec<ComparedValue>,
    /// The outputs.
    pub outputs: Vec<ComparedValue>,
    /// The forward operator, for an operator of a gradient.
    pub forward: Option<String>,
    /// The first gradient of a parameter that differs after the operator.
    pub gradient: Option<String>,
    /// How that gradient is computed, as [`explain`](autobwd_backward::explain) tells it.
    pub story: Option<String>,
}

/// A value in a slot of the operator, in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedValue {
    /// The slot; empty for an operator that runs a block.
    pub slot: String,
    /// The name of the variable in the first run.
    pub name: String,
    /// Dtype and shape in the first run.
    pub meta: String,
    /// Whether all bits are equal.
    pub equal: bool,
    /// How the elements differ. `None` if they are equal, or if dtype or shape differ.
    pub difference: Option<ValueDifference>,
}

impl Bisection {
    /// Whether no recorded state differs.
    pub fn agrees(&self) -> bool {
        let is_of_state = |difference: &RecordedDifference| {
            matches!(difference.subject, DifferenceSubject::State | DifferenceSubject::InitialState)
        };
        !self.differences.iter().any(is_of_state)
    }
}

impl fmt::Display for Bisection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.differences {
            writeln!(f, "{}", difference.text)?;
        }
        if self.first_different_state.is_none() {
            let subject = if self.agrees() { "the runs agree" } else { "all other values agree" };
            let (states, last) = (self.compared_states, self.last_equal_state);
            return write!(f, "{subject} in all {states} states that both records have, up to step {last}");
        }
        for (run, record) in ["first", "second"].iter().zip(&self.unreproduced) {
            if let Some(UnreproducedRecord { after, step, values }) = record {
                let differ = phrases::values(values, "differs", "differ");
                writeln!(
                    f,
                    "the record of the {run} run is not reproduced on this machine: {}, {differ} from it",
                    between(*after, *step)
                )?;
            }
        }
        match &self.step {
            Some(step) => writeln!(f, "{step}")?,
            None => {
                f.write_str("a replay on this machine finds no step at which the runs start to differ\n")?
            }
        }
        write!(f, "replays: {}, of {} steps", self.replays, self.replayed_steps)
    }
}

impl fmt::Display for StepDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepDifference { step, values, operator } = self;
        writeln!(
            f,
            "the runs start to differ at step {step}: {} after it",
            phrases::values(values, "differs", "differ")
        )?;
        match operator {
            Some(operator) => write!(f, "{operator}"),
            None => f.write_str("every operator that both programs have writes the same bits: one of the other operators writes the values"),
        }
    }
}

impl fmt::Display for OperatorDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_equal = self.inputs.iter().all(|input| input.equal);
        let inputs =
            if is_equal { "other outputs from equal inputs" } else { "other outputs from other inputs" };
        write!(f, "first {}", self.operator)?;
        if self.repetition > 0 {
            write!(f, ", after {} calls in the step", self.repetition)?;
        }
        write!(f, ": {inputs}")?;
        if let Some(other) = &self.other_operator {
            write!(f, "\n  in the second run {other}")?;
        }
        if let Some(forward) = &self.forward {
            write!(f, "\n  it belongs to the gradient of {forward}")?;
        }
        self.inputs.iter().try_for_each(|input| write!(f, "\n  reads {input}"))?;
        self.outputs.iter().try_for_each(|output| write!(f, "\n  writes {output}"))?;
        let Some((gradient, story)) = self.gradient.as_ref().zip(self.story.as_ref()) else { return Ok(()) };
        write!(f, "\n  the first gradient of a parameter that differs is `{gradient}`")?;
        story.lines().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl fmt::Display for ComparedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ComparedValue { slot, name, meta, equal, difference } = self;
        write!(f, "{slot} = `{name}`: {meta}, ")?;
        match difference {
            Some(difference) => write!(f, "{difference}"),
            None if *equal => f.write_str("equal bits"),
            None => f.write_str("of another dtype or shape in the second run"),
        }
    }
}

impl From<Refusal> for UnreproducedRecord {
    fn from(Refusal { after, step, values, .. }: Refusal) -> UnreproducedRecord {
        UnreproducedRecord { after, step, values }
    }
}
