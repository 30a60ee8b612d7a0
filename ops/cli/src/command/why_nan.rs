//! `why-nan`: the origin of the first NaN of a recorded run.

use std::path::PathBuf;

use autobwd::exec::record::NanReport;
use clap::Args;
use serde::Serialize;

use super::{ReportForm, open_record, run::executor};
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Find the operator that makes the first NaN of a recorded run
///
/// Replays the run to the first step after which a value is NaN or infinite, and names the operator that makes it, with
/// its source line, the ranges of its inputs, and the samples in the same row of the batch; then the kept values that the
/// inputs are computed from, with their largest magnitudes over the last steps, and the learning rates. The status is 1
/// if there is a NaN. The record is not changed.
#[derive(Debug, Args)]
pub(crate) struct WhyNanCommand {
    /// The folder of the record, which `run --record` and `RunRecord` write
    #[arg(value_name = "DIR")]
    record: PathBuf,
    /// The number of threads, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct WhyNanJson<'a> {
    schema: &'static str,
    finite: bool,
    #[serde(flatten)]
    report: &'a NanReport,
}

impl WhyNanCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let report = open_record(&self.record, terminal)?.why_nan(&mut executor(self.threads))?;
        let finite = report.is_finite();
        match self.format {
            ReportForm::Text => terminal.print(&report.to_string()),
            ReportForm::Json => {
                terminal.print_json(&WhyNanJson { schema: "autobwd.why-nan/1", finite, report: &report })
            }
        }?;
        if finite { Ok(()) } else { Err(CommandFailure::Negative) }
    }
}
