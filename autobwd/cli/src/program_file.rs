//! Files of programs: one format an extension.

use std::{
    fmt::Display,
    fs::File,
    io::{self, Read},
    path::Path,
};

use autobwd::{Error, ErrorKind, Program, Result, Scope, tensor::write_atomically, viewer::ToHtml};
use autobwd_paddle::{Model, load_program};
use clap::ValueEnum;

use crate::terminal::{CommandFailure, CommandResult, Terminal, json_escaped};

/// The largest file that is read, in bytes.
const LIMIT: u64 = 1 << 27;

/// The path that stands for standard input or output.
const STANDARD: &str = "-";

/// A format of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// JSON, which keeps the whole program
    Json,
    /// One line an operator
    Text,
    /// A drawing for Graphviz
    Dot,
    /// A drawing for pages that show Mermaid charts
    Mermaid,
    /// A page that shows the program
    Html,
    /// The files of PaddlePaddle
    Paddle,
}

impl Format {
    /// The formats by extension. A further one needs a row here, and a line in `read` or `write`.
    const EXTENSIONS: [(&str, Format); 6] = [
        ("json", Format::Json),
        ("txt", Format::Text),
        ("dot", Format::Dot),
        ("mmd", Format::Mermaid),
        ("html", Format::Html),
        ("pdmodel", Format::Paddle),
    ];

    /// The format of a file; that of a path without extension is JSON.
    fn of(path: &str) -> CommandResult<Format> {
        let Some(extension) = Path::new(path).extension() else { return Ok(Format::Json) };
        let known = Format::EXTENSIONS.iter().find(|(known, _)| extension == *known);
        known.map(|(_, format)| *format).ok_or_else(|| {
            let known = Format::EXTENSIONS.map(|(known, _)| format!(".{known}")).join(", ");
            CommandFailure::Unreadable(format!("`{path}`: no format has this extension; known are {known}"))
        })
    }

    fn read(self, text: &str) -> Option<Result<Program>> {
        match self {
            Format::Json => Some(Program::from_json(text)),
            Format::Text | Format::Dot | Format::Mermaid | Format::Html | Format::Paddle => None,
        }
    }

    pub(crate) fn write(self, program: &Program) -> Result<String> {
        Ok(match self {
            Format::Json => program.to_json(),
            Format::Text => program.to_string(),
            Format::Dot => program.to_dot(),
            Format::Mermaid => program.to_mermaid(),
            Format::Html => program.to_html()?,
            Format::Paddle => {
                let text = "files of PaddlePaddle are not text: write to a path that ends in .pdmodel";
                return Err(Error::new(ErrorKind::Format, text));
            }
        })
    }
}

/// Reads a program with its values, inputs and outputs; files in JSON have the program alone.
pub(crate) fn read_model(path: &str) -> CommandResult<Model> {
    if path != STANDARD && Format::of(path)? == Format::Paddle {
        return Model::load(path).map_err(|e| CommandFailure::Unreadable(e.to_string()));
    }
    Ok(Model { program: read_program(path)?, feeds: vec![], fetches: vec![], scope: Scope::new() })
}

/// Reads a program; `-` is JSON on standard input.
pub(crate) fn read_program(path: &str) -> CommandResult<Program> {
    if path != STANDARD && Format::of(path)? == Format::Paddle {
        return load_program(path).map_err(|e| CommandFailure::Unreadable(e.to_string()));
    }
    let (format, source) = match path {
        STANDARD => (Format::Json, "standard input".to_string()),
        path => (Format::of(path)?, format!("`{path}`")),
    };
    let refuse = |why: &dyn Display| CommandFailure::Unreadable(format!("{source}: {why}"));
    let bytes = read_bytes(path).map_err(|e| refuse(&e))?;
    let text = str::from_utf8(&bytes).map_err(|e| refuse(&format!("not text: {e}")))?;
    match format.read(text) {
        Some(program) => program.map_err(|e| refuse(&e)),
        None => Err(refuse(&"this format is for output only; programs are read from JSON")),
    }
}

/// Reads a file of at most [`LIMIT`] bytes: longer input, which may be endless, fails before it fills the memory.
fn read_bytes(path: &str) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::other(format!("longer than the {LIMIT} bytes that are read"));
    let mut bytes = vec![];
    if path == STANDARD {
        io::stdin().lock().take(LIMIT + 1).read_to_end(&mut bytes)?;
    } else {
        let file = File::open(path)?;
        if file.metadata()?.len() > LIMIT {
            return Err(too_long());
        }
        file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > LIMIT { Err(too_long()) } else { Ok(bytes) }
}

/// Writes a program, in this format or that of the extension; `-` is standard output, where the default is JSON. Files of
/// PaddlePaddle have inputs, outputs and values, too.
pub(crate) fn write_model(
    terminal: Terminal,
    path: &str,
    format: Option<Format>,
    model: &Model,
) -> CommandResult {
    let format = match (path, format) {
        (_, Some(format)) => format,
        (STANDARD, None) => Format::Json,
        (path, None) => Format::of(path)?,
    };
    if format == Format::Paddle && path != STANDARD {
        return Ok(model.save(path)?);
    }
    let text = format.write(&model.program)?;
    match (path, format) {
        (STANDARD, Format::Json) => terminal.print(&json_escaped(&text)),
        (STANDARD, _) => terminal.print(&text),
        (path, _) => Ok(write_atomically(path, text.as_bytes())?),
    }
}
