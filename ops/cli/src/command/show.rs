//! `show`: a summary of a program.

mod summary;

use autobwd::{Program, viewer::Page};
use clap::{Args, ValueEnum};

use super::ModelPath;
use crate::{
    feeds::{feed_metas, shaped},
    program_file::Format,
    terminal::{CommandResult, Terminal},
};
use summary::ProgramSummary;

/// Summarise a program: operators, shapes, parameters, work
///
/// FLOPs count matrix products, convolutions and the like, as operators state them; the work of elementwise
/// operators is in the bytes that they read and write. Operators need not be linked, but the work of those that are not
/// is unknown.
#[derive(Debug, Args)]
pub(crate) struct ShowCommand {
    #[command(flatten)]
    model: ModelPath,
    /// Print the program itself, one line an operator
    #[arg(long, conflicts_with = "format")]
    ops: bool,
    /// Print a line for each module of a model that was loaded from a file with paths, such as `encoder/layers.0`, to
    /// this depth
    #[arg(long, value_name = "DEPTH", conflicts_with_all = ["format", "ops"])]
    modules: Option<usize>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ShowForm,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShowForm {
    /// A table
    Text,
    /// One line of JSON
    Json,
    /// A drawing for Graphviz
    Dot,
    /// A drawing for pages that show Mermaid charts
    Mermaid,
    /// A page: rows of operators, explanations of gradients, and the memory plan for the given shapes
    Html,
}

impl ShowCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let program = self.model.read_program()?;
        let summary = || -> CommandResult<_> {
            Ok(ProgramSummary::of(&program, &shaped(&program, &self.model.known.shapes)?))
        };
        if let Some(depth) = self.modules {
            return terminal.print(&summary()?.to_modules(depth));
        }
        match self.format {
            _ if self.ops => terminal.print(&Format::Text.write(&program)?),
            ShowForm::Text => terminal.print(&summary()?.to_text()),
            ShowForm::Json => terminal.print_json(&summary()?),
            ShowForm::Dot => terminal.print(&Format::Dot.write(&program)?),
            ShowForm::Mermaid => terminal.print(&Format::Mermaid.write(&program)?),
            ShowForm::Html => terminal.print(&self.page(&program)?),
        }
    }

    /// The page of a program. Without shapes, the memory plan is there if the program declares all of them.
    fn page(&self, program: &Program) -> CommandResult<String> {
        let page = Page::new(program).title(&self.model.model);
        let html = match feed_metas(program, &self.model.known.shapes) {
            Ok(feeds) => page.feeds(&feeds).to_html(),
            Err(_) if self.model.known.shapes.is_empty() => page.to_html(),
            Err(e) => return Err(e.into()),
        };
        Ok(html?)
    }
}
