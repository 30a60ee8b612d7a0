//! `completions` and `man`: files for shells and manual pages.

use std::io;

use clap::Args;

use crate::{
    definition,
    terminal::{CommandFailure, CommandResult, Terminal},
};

/// Print the completions of a shell
#[derive(Debug, Args)]
pub(crate) struct CompletionsCommand {
    /// The shell
    shell: clap_complete::Shell,
}

impl CompletionsCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut definition(terminal.name), terminal.name, &mut script);
        terminal.print(&String::from_utf8_lossy(&script))
    }
}

/// Print the manual page, in roff
#[derive(Debug, Args)]
pub(crate) struct ManCommand {
    /// The command whose page is printed, instead of the overview
    command: Option<String>,
}

impl ManCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let mut whole = definition(terminal.name);
        // Gives commands their full names.
        whole.build();
        let command = match &self.command {
            None => whole,
            Some(name) => whole.find_subcommand(name).cloned().ok_or_else(|| {
                CommandFailure::Unreadable(format!("there is no command `{name}` with a manual page"))
            })?,
        };
        let mut page = vec![];
        let rendered: io::Result<()> = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|e| CommandFailure::Failed(e.to_string()))?;
        terminal.print(&String::from_utf8_lossy(&page))
    }
}
