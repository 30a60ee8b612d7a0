//! `completions` and `man`: files for shells and manual pages.

use std::io;

use clap::Args;

use crate::{
    definition,
    terminal::{Failure, Outcome, Terminal},
};

/// Print the completions of a shell
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub(super) fn run(&self, terminal: Terminal) -> Outcome {
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut definition(terminal.name), terminal.name, &mut script);
        terminal.print(&String::from_utf8_lossy(&script))
    }
}

/// Print the manual page, in roff
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The command whose page is printed, instead of the overview
    command: Option<String>,
}

impl Man {
    pub(super) fn run(&self, terminal: Terminal) -> Outcome {
        let mut whole = definition(terminal.name);
        // Gives commands their full names.
        whole.build();
        let command = match &self.command {
            None => whole,
            Some(name) => whole.find_subcommand(name).cloned().ok_or_else(|| {
                Failure::Unreadable(format!("there is no command `{name}` with a manual page"))
            })?,
        };
        let mut page = vec![];
        let rendered: io::Result<()> = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|e| Failure::Failed(e.to_string()))?;
        terminal.print(&String::from_utf8_lossy(&page))
    }
}
