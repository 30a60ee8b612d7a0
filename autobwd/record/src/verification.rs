//! What a verification has found.

use std::fmt;

use crate::phrases::{between, steps};

/// The segments of a run that are replayed. A segment lies between two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// All segments.
    All,
    /// So many segments, chosen at random by a seed. The person who made the record must not know the seed.
    Random {
        /// The number of segments.
        count: usize,
        /// The seed of the choice.
        seed: u64,
    },
}

/// The result of a verification; it prints as one sentence for each finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// The number of steps in the record.
    pub steps: u64,
    /// Whether the record says that the run is complete.
    pub is_finished: bool,
    /// Damage of the record: lines or files that are not as they were written.
    pub damages: Vec<String>,
    /// What is missing, and what it means for the verification.
    pub warnings: Vec<String>,
    /// The segments that were chosen.
    pub segments: Vec<VerifiedSegment>,
}

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSegment {
    /// The step after which it starts.
    pub after: u64,
    /// Its last step.
    pub last: u64,
    /// The result.
    pub outcome: SegmentOutcome,
}

/// The result of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentOutcome {
    /// Every recorded hash is the hash of the replayed state.
    Confirmed,
    /// The record is not a record of such a run.
    Refused(Refusal),
    /// The segment cannot be replayed; the text says why.
    Unverifiable(String),
}

/// Where and how a record differs from the replayed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The last step whose state is confirmed.
    pub after: u64,
    /// The step at which the difference is found: it arose after step `after`, in this step at the latest.
    pub step: u64,
    /// The values that differ.
    pub values: Vec<String>,
    /// What differs.
    pub text: String,
}

impl Verification {
    /// Whether nothing is damaged, and all chosen segments are confirmed.
    pub fn is_confirmed(&self) -> bool {
        let is_confirmed = |segment: &VerifiedSegment| segment.outcome == SegmentOutcome::Confirmed;
        self.damages.is_empty() && self.segments.iter().all(is_confirmed)
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            writeln!(f, "{segment}")?;
        }
        self.damages.iter().try_for_each(|text| writeln!(f, "damaged: {text}"))?;
        self.warnings.iter().try_for_each(|text| writeln!(f, "warning: {text}"))?;
        let confirmed: u64 = self.segments.iter().map(VerifiedSegment::confirmed_steps).sum();
        let verdict = if self.is_confirmed() { "confirmed" } else { "refused" };
        write!(f, "{verdict}; replayed steps: {confirmed} of {}", self.steps)
    }
}

impl VerifiedSegment {
    fn confirmed_steps(&self) -> u64 {
        match &self.outcome {
            SegmentOutcome::Confirmed => self.last - self.after,
            SegmentOutcome::Refused(refusal) => refusal.after.saturating_sub(self.after),
            SegmentOutcome::Unverifiable(_) => 0,
        }
    }
}

impl fmt::Display for VerifiedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last - self.after {
            0 => write!(f, "values after step {}: ", self.last)?,
            _ => write!(f, "{}: ", steps(self.after + 1, self.last))?,
        }
        match &self.outcome {
            SegmentOutcome::Confirmed => f.write_str("confirmed"),
            SegmentOutcome::Refused(refusal) => write!(f, "refused: {refusal}"),
            SegmentOutcome::Unverifiable(text) => write!(f, "not verified: {text}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", between(self.after, self.step), self.text)
    }
}
