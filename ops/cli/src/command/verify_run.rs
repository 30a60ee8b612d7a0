//! `verify-run`: replays the record of a run.

use std::{num::NonZero, path::PathBuf};

use autobwd::exec::record::{SegmentOutcome, VerifiedSegment};
use clap::Args;
use serde::Serialize;

use super::{ReportForm, open_record, run::executor, segment_choice};
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Verify the record of a run
///
/// Runs the steps of a record again and compares every recorded hash. A record is refused if a weight, a sample, their
/// order, a seed or a rate is another than in the run that is recorded, or if any bit of its files has changed; the
/// result names the steps and the values. The number of threads and the instruction set do not matter. The record is not
/// changed.
#[derive(Debug, Args)]
pub(crate) struct VerifyRunCommand {
    /// The folder of the record, which `run --record` and `RunRecord` write
    #[arg(value_name = "DIR")]
    record: PathBuf,
    /// The number of segments between checkpoints to replay, chosen at random, instead of all
    #[arg(long, value_name = "N")]
    segments: Option<NonZero<usize>>,
    /// The seed of the choice, instead of a random one
    #[arg(long, value_name = "S", requires = "segments")]
    seed: Option<u64>,
    /// The number of threads, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct VerifyRunJson<'a> {
    schema: &'static str,
    confirmed: bool,
    steps: u64,
    finished: bool,
    /// Of the choice of segments.
    seed: Option<u64>,
    segments: Vec<SegmentJson<'a>>,
    damages: &'a [String],
    warnings: &'a [String],
}

#[derive(Serialize)]
struct SegmentJson<'a> {
    after: u64,
    last: u64,
    outcome: &'static str,
    /// The steps between which a refused segment differs, and the values that differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    between: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl VerifyRunCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let run = open_record(&self.record, terminal)?;
        let segments = segment_choice::segments(self.segments, self.seed);
        let seed = segment_choice::seed(segments);
        let verification = run.verify(&mut executor(self.threads), segments)?;
        let confirmed = verification.is_confirmed();
        match self.format {
            ReportForm::Text => {
                let seed = seed.map_or_else(String::new, |seed| format!("\nseed of the choice: {seed}"));
                terminal.print(&format!("{verification}{seed}"))?;
            }
            ReportForm::Json => terminal.print_json(&VerifyRunJson {
                schema: "autobwd.verify-run/1",
                confirmed,
                steps: verification.steps,
                finished: verification.is_finished,
                seed,
                segments: verification.segments.iter().map(SegmentJson::of).collect(),
                damages: &verification.damages,
                warnings: &verification.warnings,
            })?,
        }
        if confirmed { Ok(()) } else { Err(CommandFailure::Negative) }
    }
}

impl SegmentJson<'_> {
    fn of(segment: &VerifiedSegment) -> SegmentJson<'_> {
        let VerifiedSegment { after, last, outcome } = segment;
        let json = |outcome| SegmentJson {
            after: *after,
            last: *last,
            outcome,
            between: None,
            values: None,
            reason: None,
        };
        match outcome {
            SegmentOutcome::Refused(refusal) => SegmentJson {
                between: Some([refusal.after, refusal.step]),
                values: Some(&refusal.values),
                reason: Some(&refusal.text),
                ..json("refused")
            },
            SegmentOutcome::Unverifiable(text) => SegmentJson { reason: Some(text), ..json("unverifiable") },
            _ => json("confirmed"),
        }
    }
}
