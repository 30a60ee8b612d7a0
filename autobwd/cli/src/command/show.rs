//! `show`: a summary of a program.

mod summary;

use clap::{Args, ValueEnum};

use super::Model;
use crate::{
    feeds::{NamedShape, shaped},
    program_file::{Format, read_program},
    terminal::{Outcome, Terminal},
};
use summary::Summary;

/// Summarise a program: operators, shapes, parameters, work
///
/// FLOPs are those of matrix products, convolutions and the like, as operators state them; the work of elementwise
/// operators is in the bytes that they read and write. Operators need not be linked, but the work of those that are not
/// is unknown.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    model: Model,
    /// The shape of an input, such as `x=32,784`; may be repeated
    #[arg(long = "shape", value_name = "VAR=DIMS")]
    shapes: Vec<NamedShape>,
    /// Print the program itself, one line an operator
    #[arg(long, conflicts_with_all = ["shapes", "format"])]
    ops: bool,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: Form,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// A table
    Text,
    /// One line of JSON
    Json,
    /// A drawing for Graphviz
    Dot,
    /// A drawing for pages that show Mermaid charts
    Mermaid,
}

impl Show {
    pub(super) fn run(&self, terminal: Terminal) -> Outcome {
        let program = read_program(&self.model.model)?;
        let summary = || -> Outcome<_> { Ok(Summary::of(&program, &shaped(&program, &self.shapes)?)) };
        match self.format {
            _ if self.ops => terminal.print(&Format::Text.write(&program)),
            Form::Text => terminal.print(&summary()?.to_text()),
            Form::Json => terminal.print_json(&summary()?),
            Form::Dot => terminal.print(&Format::Dot.write(&program)),
            Form::Mermaid => terminal.print(&Format::Mermaid.write(&program)),
        }
    }
}
