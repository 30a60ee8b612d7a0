//! The commands: one file each, or a few that belong together.

mod check;
mod grad;
mod inspect;
mod ops;
mod plan;
mod report;
mod run;
mod shell;
mod show;

use clap::{Args, Subcommand, ValueEnum};

use crate::{
    program_file::{Format, read_program, write_program},
    terminal::{CommandResult, Terminal},
};

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
    Convert(ConvertCommand),
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
struct Model {
    /// The program, in JSON; `-` is standard input
    model: String,
}

/// Convert a program to another format
#[derive(Debug, Args)]
pub(crate) struct ConvertCommand {
    /// The program to read; `-` is standard input
    input: String,
    /// The file to write: .json, .txt, .dot, .mmd or .html; `-` is standard output
    output: String,
    /// The format to write, instead of that of the extension
    #[arg(long, value_name = "FORMAT")]
    to: Option<Format>,
}

impl ConvertCommand {
    fn run(&self, terminal: Terminal) -> CommandResult {
        write_program(terminal, &self.output, self.to, &read_program(&self.input)?)
    }
}
