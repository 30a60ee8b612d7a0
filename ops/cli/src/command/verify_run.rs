//! `verify-run`: replays the record of a run.

use std::{num::NonZero, path::PathBuf};

use autobwd::{
    Executor,
    exec::record::{RecordedRun, SegmentOutcome, Verification, VerifiedSegment},
    parallel::{RunOptions, threads},
};
use clap::Args;
use serde::Serialize;

use super::{ReportForm, open_record, run::executor, segment_choice};
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Verify the record of a run
///
/// Runs the steps of a record again and compares every recorded hash. A record is refused if a weight, a sample, their
/// order, a seed or a rate is another than in the run that is recorded, or if any bit of its files has changed; the
/// result names the steps and the values. The number of threads and the instruction set do not matter. Several records are
/// the records of all ranks of one run, in their order, which are replayed together. No record is changed.
#[derive(Debug, Args)]
pub(crate) struct VerifyRunCommand {
    /// The folder of the record, which `run --record` and `RunRecord` write; of several ranks, the folders of all
    #[arg(required = true, value_name = "DIR")]
    records: Vec<PathBuf>,
    /// The number of segments between checkpoints to replay, chosen at random, instead of all
    #[arg(long, value_name = "N")]
    segments: Option<NonZero<usize>>,
    /// The seed of the choice, instead of a random one
    #[arg(long, value_name = "S", requires = "segments")]
    seed: Option<u64>,
    /// The number of threads, instead of one a core, or one a rank; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct VerifyRunJson<'a> {
    schema: &'static str,
    /// Of several records.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
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
        let runs = self.records.iter().map(|folder| open_record(folder, terminal));
        let runs: Vec<RecordedRun> = runs.collect::<CommandResult<_>>()?;
        let segments = segment_choice::segments(self.segments, self.seed);
        let seed = segment_choice::seed(segments);
        let verifications = match &runs[..] {
            [run] => vec![run.verify(&mut executor(self.threads), segments)?],
            _ => RecordedRun::verify_ranks(&runs, &mut self.executors(runs.len()), segments)?,
        };
        for (rank, verification) in verifications.iter().enumerate() {
            let rank = Some(rank).filter(|_| runs.len() > 1);
            match self.format {
                ReportForm::Text => {
                    let rank = rank.map_or_else(String::new, |rank| format!("rank {rank}\n"));
                    let seed = seed.map_or_else(String::new, |seed| format!("\nseed of the choice: {seed}"));
                    terminal.print(&format!("{rank}{verification}{seed}"))?;
                }
                ReportForm::Json => terminal.print_json(&VerifyRunJson {
                    schema: "autobwd.verify-run/1",
                    rank,
                    confirmed: verification.is_confirmed(),
                    steps: verification.steps,
                    finished: verification.is_finished,
                    seed,
                    segments: verification.segments.iter().map(SegmentJson::of).collect(),
                    damages: &verification.damages,
                    warnings: &verification.warnings,
                })?,
            }
        }
        match verifications.iter().all(Verification::is_confirmed) {
            true => Ok(()),
            false => Err(CommandFailure::Negative),
        }
    }

    /// The executors of ranks, which are connected.
    fn executors(&self, ranks: usize) -> Vec<Executor> {
        let transports = threads::connect(ranks, RunOptions::default().deadline).into_iter();
        transports.map(|transport| executor(self.threads.or(Some(1))).with_transport(transport)).collect()
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
