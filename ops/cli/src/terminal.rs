//! Standard output and standard error, and failures as exit statuses.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use autobwd::{Error, ErrorKind, exec::MismatchedValue};
use serde::Serialize;

/// The reason why a command ends early.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The request cannot be met; the message says why. Status 1.
    Failed(String),
    /// Bad usage or unreadable input; the message says why. Status 2.
    Unreadable(String),
    /// Bad usage, which clap has reported. Status 2.
    Usage,
    /// The printed result is negative: programs differ, a check fails. Status 1.
    Negative,
    /// The reader of standard output has closed it, and nothing else is to be written. Status 0.
    Closed,
}

impl CommandFailure {
    /// Input that cannot be read.
    pub(crate) fn unreadable(e: Error) -> CommandFailure {
        CommandFailure::Unreadable(e.to_string())
    }

    /// The failure of a write to standard output.
    pub(crate) fn of_stdout(e: io::Error) -> CommandFailure {
        match e.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::Closed,
            _ => CommandFailure::Failed(format!("cannot write to standard output: {e}")),
        }
    }
}

impl From<Error> for CommandFailure {
    fn from(e: Error) -> CommandFailure {
        CommandFailure::Failed(e.to_string())
    }
}

pub(crate) type CommandResult<T = ()> = Result<T, CommandFailure>;

/// Writes results to standard output, diagnostics to standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// The name of the command.
    pub(crate) name: &'static str,
}

impl Terminal {
    /// Writes text to standard output, with a newline at its end.
    pub(crate) fn print(self, text: &str) -> CommandResult {
        let text = escaped(text);
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let mut stdout = io::stdout().lock();
        let written = write!(stdout, "{text}{end}").and_then(|()| stdout.flush());
        written.map_err(CommandFailure::of_stdout)
    }

    /// Writes a part of a text to standard output, without waiting for its line. Tabs stay.
    pub(crate) fn print_part(self, part: &str) -> CommandResult {
        let part: Vec<String> = part.split('\t').map(escaped).collect();
        let mut stdout = io::stdout().lock();
        let written = write!(stdout, "{}", part.join("\t")).and_then(|()| stdout.flush());
        written.map_err(CommandFailure::of_stdout)
    }

    /// Writes a document to standard output, as one line of JSON.
    pub(crate) fn print_json(self, document: &impl Serialize) -> CommandResult {
        let json =
            serde_json::to_string(document).map_err(|e| Error::new(ErrorKind::Format, e.to_string()))?;
        self.print(&json_escaped(&json))
    }

    /// Writes a diagnostic to standard error.
    pub(crate) fn warn(self, message: &str) {
        // Standard error may be closed.
        _ = writeln!(io::stderr(), "{}: {}", self.name, escaped(message.trim_end()));
    }

    /// Says which values of a file have other floating point numbers than the program.
    pub(crate) fn warn_converted(self, converted: &[MismatchedValue]) {
        if let Some(first) = converted.first() {
            self.warn(&format!("{} values are converted, such as {first}", converted.len()));
        }
    }

    /// Reports the outcome of a command; returns the exit status.
    pub(crate) fn exit(self, outcome: CommandResult) -> u8 {
        match outcome {
            Ok(()) | Err(CommandFailure::Closed) => 0,
            Err(CommandFailure::Negative) => 1,
            Err(CommandFailure::Usage) => 2,
            Err(CommandFailure::Failed(message)) => {
                self.warn(&message);
                1
            }
            Err(CommandFailure::Unreadable(message)) => {
                self.warn(&message);
                2
            }
        }
    }
}

/// Escapes control characters except newlines: names come from files and must not control the terminal.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Escapes the control characters that JSON text may contain: those from U+007F.
pub(crate) fn json_escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Writing to a string does not fail.
            c if c.is_control() => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out
}

/// Lays out rows below their headers, in columns; a header that starts with a space is of a column of numbers, which is
/// aligned to the right.
pub(crate) fn table<const N: usize>(headers: [&str; N], rows: &[[String; N]]) -> String {
    let numeric = headers.map(|header| header.starts_with(' '));
    let cell = |text: &str| escaped(text).replace('\n', "\\n");
    let header = headers.map(|header| header.trim().to_string());
    let lines: Vec<[String; N]> =
        std::iter::once(header).chain(rows.iter().map(|row| row.each_ref().map(|text| cell(text)))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in &lines {
        let padded = (0..N).map(|i| match numeric[i] {
            true => format!("{:>1$}", line[i], widths[i]),
            false => format!("{:<1$}", line[i], widths[i]),
        });
        text += padded.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Groups digits: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
