//! The commands: one file each, or a few that belong together.

mod check;
mod convert;
mod grad;
mod inspect;
mod ops;
mod plan;
mod report;
mod run;
mod shell;
mod show;

use clap::{Args, Subcommand, ValueEnum};

use crate::terminal::{CommandResult, Terminal};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ops(ops::OpsCommand),
    Show(show::ShowCommand),
    Verify(inspect::VerifyCommand),
    Explain(inspect::ExplainCommand),
    Diff(inspect::DiffCommand),
    Plan(plan::PlanCommand),
    Grad(grad::GradCommand),
    Run(run::RunCommand),
    Report(report::ReportCommand),
    Convert(convert::ConvertCommand),
    Check(check::CheckCommand),
    Completions(shell::CompletionsCommand),
    Man(shell::ManCommand),
}

impl Command {
    pub(crate) fn run(&self, terminal: Terminal) -> CommandResult {
        match self {
            Command::Ops(ops) => ops.run(terminal),
            Command::Show(show) => show.run(terminal),
            Command::Verify(verify) => verify.run(terminal),
            Command::Explain(explain) => explain.run(terminal),
            Command::Diff(diff) => diff.run(terminal),
            Command::Plan(plan) => plan.run(terminal),
            Command::Grad(grad) => grad.run(terminal),
            Command::Run(run) => run.run(terminal),
            Command::Report(report) => report.run(),
            Command::Convert(convert) => convert.run(terminal),
            Command::Check(check) => check.run(terminal),
            Command::Completions(completions) => completions.run(terminal),
            Command::Man(man) => man.run(terminal),
        }
    }
}

/// The form of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportForm {
    /// For people
    Text,
    /// For programs: one line of JSON
    Json,
}

/// The program that a command reads.
#[derive(Debug, Args)]
struct ModelPath {
    /// The program: JSON, or a .pdmodel file of PaddlePaddle; `-` is JSON on standard input
    model: String,
}
