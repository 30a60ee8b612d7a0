//! `verify`, `explain` and `diff`: questions about programs with a text as the answer.

use autobwd::{explain, program, verify, viewer::Page};
use autobwd_onnx::LoadOptions;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{ModelPath, ReportForm};
use crate::{
    program_file::read_program,
    terminal::{CommandFailure, CommandResult, Terminal},
};

/// Check a program against the linked operators
///
/// Lists every fault; the status is 1 if there is one.
#[derive(Debug, Args)]
pub(crate) struct VerifyCommand {
    #[command(flatten)]
    model: ModelPath,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct VerifyReport<'a> {
    schema: &'static str,
    valid: bool,
    faults: &'a [String],
}

impl VerifyCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let program = self.model.read_program()?;
        let faults = verify(&program).map_or_else(|e| faults(&e.to_string()), |()| vec![]);
        let ops: usize = program.blocks().iter().map(|block| block.ops.len()).sum();
        match self.format {
            ReportForm::Text if faults.is_empty() => terminal.print(&format!("valid: {ops} operators")),
            ReportForm::Text => terminal.print(&faults.join("\n")),
            ReportForm::Json => terminal.print_json(&VerifyReport {
                schema: "autobwd.verify/1",
                valid: faults.is_empty(),
                faults: &faults,
            }),
        }?;
        if faults.is_empty() { Ok(()) } else { Err(CommandFailure::Negative) }
    }
}

/// Splits an error with several faults; the further lines of a fault are indented.
fn faults(text: &str) -> Vec<String> {
    let mut faults: Vec<String> = vec![];
    for line in text.lines() {
        match faults.last_mut() {
            Some(fault) if line.starts_with(' ') => fault.extend(["\n", line]),
            _ => faults.push(line.into()),
        }
    }
    faults
}

/// Tell how a gradient is computed, or why there is none
#[derive(Debug, Args)]
pub(crate) struct ExplainCommand {
    #[command(flatten)]
    model: ModelPath,
    /// The gradient, such as `w@GRAD`
    variable: String,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct ExplainReport<'a> {
    schema: &'static str,
    variable: &'a str,
    lines: Vec<&'a str>,
}

impl ExplainCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let story = explain(&self.model.read_program()?, &self.variable)?;
        match self.format {
            ReportForm::Text => terminal.print(&story),
            ReportForm::Json => terminal.print_json(&ExplainReport {
                schema: "autobwd.explain/1",
                variable: &self.variable,
                lines: story.lines().collect(),
            }),
        }
    }
}

/// List what turns one program into another
///
/// `-` removes, `+` adds, `~` changes and `>` moves a variable or an operator. The status is 1 if the programs differ.
#[derive(Debug, Args)]
pub(crate) struct DiffCommand {
    /// The old program
    old: String,
    /// The new program
    new: String,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: DiffForm,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DiffForm {
    /// One line a difference
    Text,
    /// One line of JSON
    Json,
    /// A page of the new program with the differences marked
    Html,
}

#[derive(Serialize)]
struct DiffReport<'a> {
    schema: &'static str,
    equal: bool,
    lines: Vec<&'a str>,
}

impl DiffCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let read = |path| read_program(path, &LoadOptions::default()).map_err(CommandFailure::unreadable);
        let (old, new) = (read(&self.old)?, read(&self.new)?);
        let diff = program::diff(&old, &new);
        let text = diff.to_string();
        match self.format {
            DiffForm::Text => terminal.print(&text),
            DiffForm::Json => terminal.print_json(&DiffReport {
                schema: "autobwd.diff/1",
                equal: diff.is_empty(),
                lines: text.lines().collect(),
            }),
            DiffForm::Html => {
                let title = format!("{} → {}", self.old, self.new);
                terminal.print(&Page::new(&new).title(&title).compare_with(&old).to_html()?)
            }
        }?;
        if diff.is_empty() { Ok(()) } else { Err(CommandFailure::Negative) }
    }
}
