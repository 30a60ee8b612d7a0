//! The commands: one file each, or a few that belong together.

mod bisect;
mod check;
mod classify;
mod convert;
mod generate;
mod grad;
mod inspect;
mod ops;
mod plan;
mod pretrained;
mod report;
mod run;
mod segment_choice;
mod shell;
mod show;
mod tune;
mod verify_run;
mod why_nan;

use std::path::{Path, PathBuf};

use autobwd::{Program, Result, Tensor, exec::record::RecordedRun, op::isa};
use autobwd_data::load_npz;
use autobwd_onnx::LoadOptions;
use autobwd_ops::Model;
use clap::{Args, Subcommand, ValueEnum};

use crate::{
    feeds::shaped,
    program_file::{Format, is_published_model, read_model, read_program},
    terminal::{CommandFailure, CommandResult, Terminal},
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
    Run(Box<run::RunCommand>),
    VerifyRun(verify_run::VerifyRunCommand),
    Bisect(bisect::BisectCommand),
    WhyNan(why_nan::WhyNanCommand),
    Generate(generate::GenerateCommand),
    Classify(classify::ClassifyCommand),
    Tune(Box<tune::TuneCommand>),
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
            Command::VerifyRun(verify_run) => verify_run.run(terminal),
            Command::Bisect(bisect) => bisect.run(terminal),
            Command::WhyNan(why_nan) => why_nan.run(terminal),
            Command::Generate(generate) => generate.run(terminal),
            Command::Classify(classify) => classify.run(terminal),
            Command::Tune(tune) => tune.run(terminal),
            Command::Report(report) => report.run(terminal),
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

/// Opens the record of a run, which is replayed, and warns of a processor that is slow at it.
fn open_record(folder: &Path, terminal: Terminal) -> CommandResult<RecordedRun> {
    let run = RecordedRun::open(folder).map_err(CommandFailure::unreadable)?;
    if let Some(warning) = isa().warning() {
        terminal.warn(warning);
    }
    Ok(run)
}

/// The program that a command reads.
#[derive(Debug, Args)]
struct ModelPath {
    /// The program: JSON, a .pdmodel file of PaddlePaddle, an .onnx file, or a published model, which is a folder or a
    /// .gguf file; `-` is JSON on standard input
    model: String,
    #[command(flatten)]
    known: KnownInputs,
}

impl ModelPath {
    fn read_program(&self) -> CommandResult<Program> {
        self.known.read(&self.model, read_program, |program| program)
    }

    fn read_model(&self) -> CommandResult<Model> {
        self.known.read(&self.model, read_model, |model| &model.program)
    }
}

/// What is known of the inputs of a program before it runs.
#[derive(Debug, Args)]
struct KnownInputs {
    /// The shape of an input, such as `x=32,784`; may be repeated
    #[arg(long = "shape", value_name = "VAR=DIMS", value_parser = named_shape)]
    shapes: Vec<(String, Vec<usize>)>,
    /// The size of a dimension that an .onnx file names, such as `batch=32`; may be repeated
    #[arg(long = "dim", value_name = "NAME=N", value_parser = named_dim)]
    dims: Vec<(String, usize)>,
    /// Values of inputs of an .onnx file that become constants, by name, in npz format
    #[arg(long, value_name = "FILE")]
    constants: Option<PathBuf>,
    /// Fold small parameters of an .onnx file and those that it only moves: faster, for programs that are only run
    #[arg(long)]
    inference: bool,
    /// Keep functions that an .onnx file writes out in several nodes, such as attention, as they are
    #[arg(long)]
    as_written: bool,
}

impl KnownInputs {
    /// Reads a file with what is known, which must agree with the program.
    fn read<T>(
        &self,
        path: &str,
        read: fn(&str, &LoadOptions) -> Result<T>,
        program: fn(&T) -> &Program,
    ) -> CommandResult<T> {
        let mut options = LoadOptions::default();
        if !is_published_model(path) && Format::of(path).map_err(CommandFailure::unreadable)? == Format::Onnx
        {
            options.shapes = self.shapes.iter().cloned().collect();
            options.dims = self.dims.iter().cloned().collect();
            let constants = self.constants.as_deref().map_or(Ok(vec![]), read_npz)?;
            options.values = constants.into_iter().collect();
            options.inference = self.inference;
            options.as_written = self.as_written;
        } else if !self.dims.is_empty() || self.constants.is_some() || self.inference || self.as_written {
            let text = format!(
                "`{path}`: `--dim`, `--constants`, `--inference` and `--as-written` are for .onnx files"
            );
            return Err(CommandFailure::Unreadable(text));
        }
        let read = read(path, &options).map_err(CommandFailure::unreadable)?;
        shaped(program(&read), &self.shapes)?;
        Ok(read)
    }
}

/// The arrays of an npz file.
fn read_npz(path: &Path) -> CommandResult<Vec<(String, Tensor)>> {
    load_npz(path).map_err(CommandFailure::unreadable)
}

/// The shape of a variable, `x=32,784`.
fn named_shape(text: &str) -> Result<(String, Vec<usize>), String> {
    let expected = || "a name and dimensions, such as `x=32,784`, are expected".to_string();
    let (name, dims) = text.rsplit_once('=').ok_or_else(expected)?;
    let dims = dims.split(',').filter(|dim| !dim.is_empty()).map(str::parse).collect::<Result<_, _>>();
    Ok((name.into(), dims.map_err(|_| expected())?))
}

/// The size of a dimension, `batch=32`.
fn named_dim(text: &str) -> Result<(String, usize), String> {
    let (name, size) = text.rsplit_once('=').unwrap_or_default();
    let size = size.parse().map_err(|_| "a name and a size, such as `batch=32`, are expected".to_string())?;
    Ok((name.into(), size))
}
