#![doc = include_str!("../README.md")]

mod bytes;
mod command;
mod feeds;
mod output;
mod program_file;
mod source_lines;
mod terminal;

use std::{env, ffi::OsString, process::ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, error::ErrorKind};

// Operators of the library are found at link time.
use autobwd_ops as _;

pub use bytes::parse_bytes;
pub use feeds::feed_metas;
pub use program_file::{load_model, save_model};
pub use source_lines::forget_source_lines;

use command::Command;
use terminal::{CommandFailure, CommandResult, Terminal};

/// What the commands read, below the list of commands.
const FILES: &str = "A program is a file: JSON as `Program::save` writes it, a .pdmodel file of PaddlePaddle or an .onnx file. \
                     Weights are in safetensors files, inputs in .npz files.";

/// Inspects, checks, differentiates and runs programs of autobwd
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100, after_help = FILES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Runs the command with the arguments of this process, and returns its exit status. `name` is the name of the binary,
/// as in usage, diagnostics, completions and the manual page.
///
/// The operators are those that are linked into the binary, including [`autobwd_ops`].
pub fn main_with(name: &'static str) -> ExitCode {
    ExitCode::from(status_of(name, env::args_os()))
}

/// As [`main_with`], with these arguments, whose first is the binary; returns the exit status as a number.
///
/// ```
/// assert_eq!(autobwd_cli::status_of("autobwd", ["autobwd", "ops", "relu"].map(Into::into)), 0);
/// assert_eq!(autobwd_cli::status_of("autobwd", ["autobwd", "show", "missing.onnx"].map(Into::into)), 2);
/// ```
pub fn status_of(name: &'static str, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let terminal = Terminal { name };
    terminal.exit(parsed(terminal, arguments).and_then(|command| command.run(terminal)))
}

/// The definition of the command.
fn definition(name: &'static str) -> clap::Command {
    Arguments::command().name(name).bin_name(name)
}

/// Parses the arguments; help and version are printed here.
fn parsed(terminal: Terminal, arguments: impl IntoIterator<Item = OsString>) -> CommandResult<Command> {
    let matches = definition(terminal.name).try_get_matches_from(arguments);
    match matches.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => Ok(arguments.command),
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            e.print().map_err(CommandFailure::of_stdout)?;
            Err(CommandFailure::Closed)
        }
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            _ = e.print();
            Err(CommandFailure::Usage)
        }
        Err(e) => {
            let text = e.render().to_string();
            Err(CommandFailure::Unreadable(text.strip_prefix("error: ").unwrap_or(&text).to_string()))
        }
    }
}
