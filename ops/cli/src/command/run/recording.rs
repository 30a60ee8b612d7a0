//! The record of a run, which `verify-run` replays.

use std::path::PathBuf;

use autobwd::{
    Program, Scope,
    exec::record::{RecordOptions, RunRecord},
};
use clap::Args;

use crate::terminal::CommandResult;

#[derive(Debug, Args)]
pub(super) struct RecordArguments {
    /// The folder for a record of the run, which `verify-run` replays: hashes of the state after steps, inputs,
    /// checkpoints, and an in-toto statement to be signed. It must not have a record
    #[arg(long, value_name = "DIR", conflicts_with_all = ["device", "append"])]
    record: Option<PathBuf>,
    /// The number of steps between two hashes of the state in the record
    #[arg(long, value_name = "N", default_value_t = 10, requires = "record")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    record_every: u64,
    /// The number of steps between two checkpoints in the record
    #[arg(long, value_name = "N", default_value_t = 100, requires = "record")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
}

impl RecordArguments {
    /// Whether the run is recorded.
    pub(super) fn is_given(&self) -> bool {
        self.record.is_some()
    }

    /// The record of a run that starts with these values, which the startup programs have made, if there are any.
    pub(super) fn create(
        &self,
        program: &Program,
        scope: &Scope,
        startup: &[Program],
    ) -> CommandResult<Option<RunRecord>> {
        let Some(folder) = &self.record else { return Ok(None) };
        let options = RecordOptions::new().every(self.record_every).checkpoint_every(self.checkpoint_every);
        let options = startup.iter().fold(options, RecordOptions::startup);
        Ok(Some(RunRecord::create(folder, program, scope, options)?))
    }
}
