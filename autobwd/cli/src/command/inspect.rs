//! `verify`, `explain` and `diff`: questions about programs with a text as the answer.

use autobwd::{explain, program, verify};
use clap::Args;
use serde::Serialize;

use super::{Model, Report};
use crate::{
    program_file::read_program,
    terminal::{Failure, Outcome, Terminal},
};

/// Check a program against the linked operators
///
/// Lists every fault; the status is 1 if there is one.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    model: Model,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: Report,
}

#[derive(Serialize)]
struct Verified<'a> {
    schema: &'static str,
    valid: bool,
    faults: &'a [String],
}

impl Verify {
    pub(super) fn run(&self, terminal: Terminal) -> Outcome {
        let program = read_program(&self.model.model)?;
        let faults = verify(&program).map_or_else(|e| faults(&e.to_string()), |()| vec![]);
        let ops: usize = program.blocks().iter().map(|block| block.ops.len()).sum();
        match self.format {
            Report::Text if faults.is_empty() => terminal.print(&format!("valid: {ops} operators")),
            Report::Text => terminal.print(&faults.join("\n")),
            Report::Json => terminal.print_json(&Verified {
                schema: "autobwd.verify/1",
                valid: faults.is_empty(),
                faults: &faults,
            }),
        }?;
        if faults.is_empty() { Ok(()) } else { Err(Failure::Negative) }
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
pub(crate) struct Explain {
    #[command(flatten)]
    model: Model,
    /// The gradient, such as `w@GRAD`
    variable: String,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: Report,
}

#[derive(Serialize)]
struct Explained<'a> {
    schema: &'static str,
    variable: &'a str,
    lines: Vec<&'a str>,
}

impl Explain {
    pub(super) fn run(&self, terminal: Terminal) -> Outcome {
        let story = explain(&read_program(&self.model.model)?, &self.variable)?;
        match self.format {
            Report::Text => terminal.print(&story),
            Report::Json => terminal.print_json(&Explained {
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
pub(crate) struct Diff {
    /// The old program
    old: String,
    /// The new program
    new: String,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: Report,
}

#[derive(Serialize)]
struct Difference<'a> {
    schema: &'static str,
    equal: bool,
    lines: Vec<&'a str>,
}

impl Diff {
    pub(super) fn run(&self, terminal: Terminal) -> Outcome {
        let (old, new) = (read_program(&self.old)?, read_program(&self.new)?);
        let diff = program::diff(&old, &new);
        let text = diff.to_string();
        match self.format {
            Report::Text => terminal.print(&text),
            Report::Json => terminal.print_json(&Difference {
                schema: "autobwd.diff/1",
                equal: diff.is_empty(),
                lines: text.lines().collect(),
            }),
        }?;
        if diff.is_empty() { Ok(()) } else { Err(Failure::Negative) }
    }
}
