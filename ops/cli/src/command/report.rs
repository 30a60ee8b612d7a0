//! `report`: logs of runs as a page.

use std::{collections::HashSet, io::BufReader, path::PathBuf};

use autobwd::{
    ErrorKind,
    tensor::{open_file, write_atomically},
    viewer::RunReport,
};
use clap::Args;

use crate::{
    output::check_outputs,
    terminal::{CommandFailure, CommandResult},
};

/// The largest log that is read, in bytes.
const LIMIT: u64 = 1 << 34;

/// Draw the curves of training runs
///
/// The page is one self-contained HTML file: losses, learning rates, gradient norms, time and memory, several runs in
/// the same axes. A last line without its end, which a killed run may leave, is left out.
#[derive(Debug, Args)]
pub(crate) struct ReportCommand {
    /// Logs, as `run --log` and `autobwd::exec::Monitor` write them
    #[arg(required = true, value_name = "RUN.jsonl")]
    logs: Vec<PathBuf>,
    /// The page, in HTML
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// The title of the page
    #[arg(long, default_value = "Training runs")]
    title: String,
}

impl ReportCommand {
    pub(super) fn run(&self) -> CommandResult {
        check_outputs([("--output", Some(&*self.output))])?;
        let mut report = RunReport::new().title(&self.title);
        for (path, name) in self.logs.iter().zip(self.names()) {
            let refuse =
                |e: &dyn std::fmt::Display| CommandFailure::Unreadable(format!("`{}`: {e}", path.display()));
            let log = open_file(path, LIMIT).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
            report.add_run(&name, BufReader::new(log)).map_err(|e| match e.kind() {
                ErrorKind::Duplicate => refuse(&"this log is named twice"),
                _ => refuse(&e),
            })?;
        }
        Ok(write_atomically(&self.output, report.to_html()?.as_bytes())?)
    }

    /// The names of the runs: those of the files if they differ, else the paths.
    fn names(&self) -> Vec<String> {
        let stem = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let names: Vec<String> = self.logs.iter().map(stem).collect();
        let different: HashSet<&String> = names.iter().collect();
        match different.len() == names.len() {
            true => names,
            false => self.logs.iter().map(|path| path.display().to_string()).collect(),
        }
    }
}
