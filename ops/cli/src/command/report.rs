//! `report`: logs and records of runs as a page.

mod records;

use std::{
    collections::HashSet,
    ffi::OsStr,
    io::BufReader,
    path::{Path, PathBuf},
};

use autobwd::{
    ErrorKind,
    tensor::{open_file, write_atomically},
    viewer::RunReport,
};
use clap::Args;

use crate::{
    output::check_outputs,
    terminal::{CommandFailure, CommandResult, Terminal},
};
use records::RecordArguments;

/// The largest log that is read, in bytes.
const LIMIT: u64 = 1 << 34;

/// Draw the curves and the records of training runs
///
/// The page is one self-contained HTML file: losses, learning rates, gradient norms, time and memory, several runs in
/// the same axes; of records, the steps with their hashes, the checkpoints, the segments that a replay confirms, and where
/// runs part. A last line without its end, which a killed run may leave, is left out.
#[derive(Debug, Args)]
pub(crate) struct ReportCommand {
    /// Logs, as `run --log` and `autobwd::exec::Monitor` write them, and folders of records, as `run --record` and
    /// `RunRecord` write them
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page, in HTML
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// The title of the page
    #[arg(long, default_value = "Training runs")]
    title: String,
    #[command(flatten)]
    records: RecordArguments,
}

impl ReportCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        check_outputs([("--output", Some(&*self.output))])?;
        let (folders, logs): (Vec<&Path>, Vec<&Path>) =
            self.runs.iter().map(PathBuf::as_path).partition(|path| path.is_dir());
        let mut report = RunReport::new().title(&self.title);
        for (path, name) in logs.iter().zip(names(&logs, Path::file_stem)) {
            let log = open_file(path, LIMIT).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
            report.add_run(&name, BufReader::new(log)).map_err(|e| match e.kind() {
                ErrorKind::Duplicate => refusal(path, &"this log is named twice"),
                _ => refusal(path, &e),
            })?;
        }
        self.records.add(&mut report, &folders, terminal)?;
        Ok(write_atomically(&self.output, report.to_html()?.as_bytes())?)
    }
}

/// The refusal of a log or a record.
fn refusal(path: &Path, e: &dyn std::fmt::Display) -> CommandFailure {
    CommandFailure::Unreadable(format!("`{}`: {e}", path.display()))
}

/// The names of runs: names in their paths if they differ, else the paths.
fn names(paths: &[&Path], name: fn(&Path) -> Option<&OsStr>) -> Vec<String> {
    let short = |path: &&Path| name(path).unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let names: Vec<String> = paths.iter().map(short).collect();
    let different: HashSet<&String> = names.iter().collect();
    match different.len() == names.len() {
        true => names,
        false => paths.iter().map(|path| path.display().to_string()).collect(),
    }
}
