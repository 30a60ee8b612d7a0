//! The records in a report: what they say, and what a replay says of them.

use std::{num::NonZero, path::Path};

use autobwd::{
    ErrorKind, Executor,
    exec::{
        ARITHMETIC_VERSION,
        record::{RecordedRun, SegmentOutcome, VerifiedSegment},
    },
    viewer::{ReportedDifference, ReportedRecord, ReportedSegment, RunReport, SegmentVerdict},
};
use clap::Args;

use super::{names, refusal};
use crate::{
    command::{open_record, run::executor, segment_choice},
    terminal::{CommandResult, Terminal},
};

#[derive(Debug, Args)]
pub(super) struct RecordArguments {
    /// Replay the runs of the records, and show which segments a replay confirms
    #[arg(long)]
    verify: bool,
    /// The number of segments of each record to replay, chosen at random, instead of all
    #[arg(long, value_name = "N", requires = "verify")]
    segments: Option<NonZero<usize>>,
    /// The seed of the choice, instead of a random one
    #[arg(long, value_name = "S", requires = "segments")]
    seed: Option<u64>,
    /// Replay every other run with the first one, and show the step and the operator at which they start to differ
    #[arg(long)]
    bisect: bool,
    /// The number of threads of a replay, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl RecordArguments {
    /// Adds the records, and the differences of all others from the first.
    pub(super) fn add(&self, report: &mut RunReport, folders: &[&Path], terminal: Terminal) -> CommandResult {
        let (names, mut executor) = (names(folders, Path::file_name), executor(self.threads));
        let runs = folders.iter().map(|folder| open_record(folder, terminal));
        let runs: Vec<RecordedRun> = runs.collect::<CommandResult<_>>()?;
        for ((run, name), folder) in runs.iter().zip(&names).zip(folders) {
            report.add_record(name, self.record(run, &mut executor)?).map_err(|e| match e.kind() {
                ErrorKind::Duplicate => refusal(folder, &"this record is named twice"),
                _ => refusal(folder, &e),
            })?;
        }
        let mut named_runs = names.iter().zip(&runs);
        let Some((first_name, first)) = named_runs.next() else { return Ok(()) };
        for (name, run) in named_runs {
            let compared = first.compare(run);
            let mut difference = ReportedDifference {
                records: [first_name.clone(), name.clone()],
                compared_states: compared.compared_states,
                last_equal_state: compared.last_equal_state,
                first_different_state: compared.first_different_state,
                ..ReportedDifference::default()
            };
            if self.bisect {
                let bisection = first.bisect(run, &mut executor)?;
                difference.step = bisection.step.as_ref().map(|found| found.step);
                // The bisection repeats the sentences of the comparison.
                difference.bisection = bisection.to_string();
            } else {
                difference.sentences = compared.differences.into_iter().map(|known| known.text).collect();
            }
            report.add_difference(difference)?;
        }
        Ok(())
    }

    fn record(&self, run: &RecordedRun, executor: &mut Executor) -> CommandResult<ReportedRecord> {
        let segments = segment_choice::segments(self.segments, self.seed);
        let verification = if self.verify { run.verify(executor, segments)? } else { run.check_files()? };
        let fingerprint = format!("{:016x}", run.program().fingerprint());
        let version = ARITHMETIC_VERSION.to_string();
        let known =
            [("program", fingerprint.as_str()), ("arithmetic", &version), ("autobwd", run.library_version())];
        let notes = run.notes().iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let fact = |(name, text): (&str, &str)| (name.to_string(), text.to_string());
        let mut facts: Vec<_> = known.into_iter().chain(notes).map(fact).collect();
        if let Some(seed) = segment_choice::seed(segments) {
            facts.push(fact(("seed of the choice", &seed.to_string())));
        }
        Ok(ReportedRecord {
            facts,
            steps: run.steps(),
            is_finished: run.is_finished(),
            states: run.states().collect(),
            checkpoints: run.checkpoints().collect(),
            segments: verification.segments.iter().map(reported).collect(),
            damages: verification.damages,
            warnings: verification.warnings,
        })
    }
}

fn reported(segment: &VerifiedSegment) -> ReportedSegment {
    ReportedSegment {
        after: segment.after,
        last: segment.last,
        verdict: match segment.outcome {
            SegmentOutcome::Confirmed => SegmentVerdict::Confirmed,
            SegmentOutcome::Refused(_) => SegmentVerdict::Refused,
            _ => SegmentVerdict::Unverifiable,
        },
        text: segment.to_string(),
    }
}
