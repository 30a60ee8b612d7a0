//! The result of a search for the first NaN of a run.

use std::fmt;

use serde::Serialize;

use crate::phrases;

/// Where the first NaN or infinity of a recorded run arises; it prints as one sentence for each finding.
#[derive(Clone, Debug, Serialize)]
pub struct NanReport {
    /// The number of steps in the record.
    pub steps: u64,
    /// The step in which it arises. `None` if all values that the run keeps are finite, and the last step computes no NaN.
    pub step: Option<NanStep>,
    /// A checkpoint whose values are not finite, although the values of a replay on this machine are.
    pub unreproduced: Option<u64>,
}

/// The step in which a NaN or an infinity arises.
#[derive(Clone, Debug, Serialize)]
pub struct NanStep {
    /// The number of the step; 0 for the values before the first one.
    pub step: u64,
    /// The kept values that are not finite after it.
    pub values: Vec<String>,
    /// The operator that makes the first value which is not finite, of those that lead to the kept values.
    pub operator: Option<NanOperator>,
    /// The samples in the row of the batch that the operator computes it from, if it has a row for each sample, and the
    /// other rows are finite.
    pub samples: Vec<FedSample>,
    /// The kept values that the inputs of the operator are computed from, with their largest magnitudes: those that grew
    /// most.
    pub histories: Vec<MagnitudeHistory>,
    /// The learning rates of the step.
    pub rates: Vec<LearningRate>,
}

/// An operator that makes a value which is not finite.
#[derive(Clone, Debug, Serialize)]
pub struct NanOperator {
    /// The operator: type, place, source line and slots.
    pub operator: String,
    /// The type.
    pub ty: String,
    /// The index of the block.
    pub block: usize,
    /// The position in the block.
    pub index: usize,
    /// The number of calls of the operator before this one in the step: iterations of loops, or parts of a composition.
    pub repetition: usize,
    /// The source line that added the operator, if known.
    pub source_line: Option<String>,
    /// The forward operator, for an operator of a gradient.
    pub forward: Option<String>,
    /// The inputs.
    pub inputs: Vec<RangedValue>,
    /// The outputs.
    pub outputs: Vec<RangedValue>,
    /// The indices of the first element that is not finite.
    pub element: Vec<usize>,
}

/// A value in a slot of the operator.
#[derive(Clone, Debug, Serialize)]
pub struct RangedValue {
    /// The slot; empty for an operator that runs a block.
    pub slot: String,
    /// The name of the variable.
    pub name: String,
    /// Dtype and shape.
    pub meta: String,
    /// The range of the elements: `from -1.5 to 2.0, 3 NaN`.
    pub range: String,
}

/// A sample of a feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FedSample {
    /// The feed.
    pub feed: String,
    /// The row of the feed.
    pub row: usize,
    /// The number of the sample among the samples of the feed in the record.
    pub sample: u64,
}

/// The magnitude of a kept value over steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MagnitudeHistory {
    /// The name of the value.
    pub name: String,
    /// Steps, each with the largest absolute value of an element after it.
    pub magnitudes: Vec<(u64, f64)>,
}

/// A learning rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearningRate {
    /// The name of the value.
    pub name: String,
    /// The rate.
    pub rate: f64,
}

impl NanReport {
    /// Whether no NaN nor infinity is found, in a replay or in a checkpoint.
    pub fn is_finite(&self) -> bool {
        self.step.is_none() && self.unreproduced.is_none()
    }
}

impl fmt::Display for NanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.step, self.unreproduced) {
            (Some(step), _) => write!(f, "{step}"),
            (None, Some(step)) => write!(
                f,
                "the checkpoint of step {step} holds values that are not finite, but a replay on this machine does not: \
                 `autobwd verify-run` says where they differ"
            ),
            (None, None) => write!(
                f,
                "no NaN: the values of all checkpoints are finite, and step {}, the last one, computes no NaN",
                self.steps
            ),
        }
    }
}

impl fmt::Display for NanStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NanStep { step, values, operator, samples, histories, rates } = self;
        let are = phrases::values(values, "is", "are");
        match &values[..] {
            [] => write!(f, "step {step} computes a NaN, which no kept value holds after it")?,
            _ if *step == 0 => write!(f, "before the first step, {} not finite", are)?,
            _ => write!(
                f,
                "the first value that is not finite arises in step {step}: {} not finite after it",
                are
            )?,
        }
        if let Some(operator) = operator {
            write!(f, "\n{operator}")?;
        }
        for FedSample { feed, row, sample } in samples {
            write!(f, "\n  row {row} of the batch is sample {sample} of `{feed}`")?;
        }
        for MagnitudeHistory { name, magnitudes } in histories {
            let texts = magnitudes.iter().map(|(step, x)| format!("{x:.3e} after step {step}"));
            let texts = texts.collect::<Vec<_>>().join(", ");
            write!(f, "\nthe inputs are computed from `{name}`; its largest magnitudes: {texts}")?;
        }
        rates
            .iter()
            .try_for_each(|LearningRate { name, rate }| write!(f, "\nthe learning rate `{name}` is {rate:?}"))
    }
}

impl fmt::Display for NanOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operator)?;
        if self.repetition > 0 {
            write!(f, ", after {} calls in the step", self.repetition)?;
        }
        write!(f, ": element {:?} is the first that is not finite", self.element)?;
        if let Some(forward) = &self.forward {
            write!(f, "\n  it belongs to the gradient of {forward}")?;
        }
        self.inputs.iter().try_for_each(|value| write!(f, "\n  reads {value}"))?;
        self.outputs.iter().try_for_each(|value| write!(f, "\n  writes {value}"))
    }
}

impl fmt::Display for RangedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RangedValue { slot, name, meta, range } = self;
        write!(f, "{slot} = `{name}`: {meta}, {range}")
    }
}
