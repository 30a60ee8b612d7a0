//! `bisect`: where two recorded runs start to differ.

use std::path::PathBuf;

use autobwd::exec::record::Bisection;
use clap::Args;
use serde::Serialize;

use super::{ReportForm, open_record, run::executor};
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Find where two recorded runs start to differ
///
/// Two runs that ought to agree, of another machine, another version or a changed model: compares their records, replays
/// both to the first step with other results, and names the first operator of this step whose bits differ, with its
/// source line, the two values, their difference in ulps, and the gradient that they lead to. Operators of two programs
/// are matched as `diff` does. The status is 1 if the runs differ. The records are not changed.
#[derive(Debug, Args)]
pub(crate) struct BisectCommand {
    /// The folder of the first record, which `run --record` and `RunRecord` write
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The folder of the second record
    #[arg(value_name = "B")]
    second: PathBuf,
    /// The number of threads, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct BisectJson<'a> {
    schema: &'static str,
    agrees: bool,
    #[serde(flatten)]
    bisection: &'a Bisection,
}

impl BisectCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let first = open_record(&self.first, terminal)?;
        let second = open_record(&self.second, terminal)?;
        let bisection = first.bisect(&second, &mut executor(self.threads))?;
        let agrees = bisection.agrees();
        match self.format {
            ReportForm::Text => terminal.print(&bisection.to_string()),
            ReportForm::Json => {
                terminal.print_json(&BisectJson { schema: "autobwd.bisect/1", agrees, bisection: &bisection })
            }
        }?;
        if agrees { Ok(()) } else { Err(CommandFailure::Negative) }
    }
}
