//! Files of programs: one format an extension, and published models in folders and files of GGUF.

use std::{fmt::Display, io, path::Path};

use autobwd::{
    Error, ErrorKind, Program, Result, Scope,
    tensor::{read_bounded, read_file, write_atomically},
    viewer::ToHtml,
};
use autobwd_models::Pretrained;
use autobwd_onnx::LoadOptions;
use autobwd_ops::Model;
use clap::ValueEnum;

use crate::terminal::{CommandFailure, CommandResult, Terminal, json_escaped};

/// The path that stands for standard input or output.
pub(crate) const STANDARD: &str = "-";

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
    /// The files of ONNX
    Onnx,
}

/// How files of a format are read and written.
struct FormatEntry {
    format: Format,
    extension: &'static str,
    reader: Reader,
    writer: Writer,
}

/// How programs are read.
enum Reader {
    /// From text, which may come from standard input.
    Text(fn(&str) -> Result<Program>),
    /// From files, with values, inputs and outputs; the program alone, or the whole model.
    Files {
        program: fn(&str, &LoadOptions) -> Result<Program>,
        model: fn(&str, &LoadOptions) -> Result<Model>,
    },
    /// Not at all.
    None,
}

/// How programs are written.
enum Writer {
    /// As text.
    Text(fn(&Program) -> Result<String>),
    /// As files, with values, inputs and outputs.
    Files { of: &'static str, save: fn(&Model, &str) -> Result<()> },
}

/// All formats.
const FORMATS: [FormatEntry; 7] = [
    FormatEntry {
        format: Format::Json,
        extension: "json",
        reader: Reader::Text(Program::from_json),
        writer: Writer::Text(|program| Ok(program.to_json())),
    },
    FormatEntry {
        format: Format::Text,
        extension: "txt",
        reader: Reader::None,
        writer: Writer::Text(|program| Ok(program.to_string())),
    },
    FormatEntry {
        format: Format::Dot,
        extension: "dot",
        reader: Reader::None,
        writer: Writer::Text(|program| Ok(program.to_dot())),
    },
    FormatEntry {
        format: Format::Mermaid,
        extension: "mmd",
        reader: Reader::None,
        writer: Writer::Text(|program| Ok(program.to_mermaid())),
    },
    FormatEntry {
        format: Format::Html,
        extension: "html",
        reader: Reader::None,
        writer: Writer::Text(ToHtml::to_html),
    },
    FormatEntry {
        format: Format::Paddle,
        extension: "pdmodel",
        reader: Reader::Files {
            program: |path, _| autobwd_paddle::load_program(path),
            model: |path, _| autobwd_paddle::load(path),
        },
        writer: Writer::Files { of: "PaddlePaddle", save: |model, path| autobwd_paddle::save(model, path) },
    },
    FormatEntry {
        format: Format::Onnx,
        extension: "onnx",
        reader: Reader::Files {
            program: |path, options| Ok(autobwd_onnx::load_with(path, options)?.program),
            model: |path, options| autobwd_onnx::load_with(path, options),
        },
        writer: Writer::Files { of: "ONNX", save: |model, path| autobwd_onnx::save(model, path) },
    },
];

impl Format {
    fn entry(self) -> &'static FormatEntry {
        FORMATS.iter().find(|entry| entry.format == self).unwrap_or(&FORMATS[0])
    }

    /// The format of a file; that of a path without extension, and of standard input and output, is JSON.
    pub(crate) fn of(path: &str) -> CommandResult<Format> {
        let Some(extension) = Path::new(path).extension() else { return Ok(Format::Json) };
        let known = FORMATS.iter().find(|entry| extension == entry.extension);
        known.map(|entry| entry.format).ok_or_else(|| {
            let known = FORMATS.map(|entry| format!(".{}", entry.extension)).join(", ");
            CommandFailure::Unreadable(format!("`{path}`: no format has this extension; known are {known}"))
        })
    }

    /// Whether its files have values, inputs and outputs.
    pub(crate) fn has_values(self) -> bool {
        matches!(self.entry().writer, Writer::Files { .. })
    }

    /// A program as text.
    pub(crate) fn write(self, program: &Program) -> Result<String> {
        let FormatEntry { extension, writer, .. } = self.entry();
        match writer {
            Writer::Text(write) => write(program),
            Writer::Files { of, .. } => {
                let text = format!("files of {of} are not text: write to a path that ends in .{extension}");
                Err(Error::new(ErrorKind::Format, text))
            }
        }
    }
}

/// Whether a path is a published model: a folder with a configuration, or a file of GGUF.
pub(crate) fn is_published_model(path: &str) -> bool {
    let is_gguf = Path::new(path).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    is_gguf || path != STANDARD && Path::new(path).join("config.json").is_file()
}

/// Reads a program with its values, inputs and outputs; files of text have the program alone.
pub(crate) fn read_model(path: &str, options: &LoadOptions) -> CommandResult<Model> {
    if is_published_model(path) {
        return Pretrained::open(path).load().map_err(|e| CommandFailure::Unreadable(e.to_string()));
    }
    match Format::of(path)?.entry().reader {
        Reader::Files { model, .. } => {
            model(path, options).map_err(|e| CommandFailure::Unreadable(e.to_string()))
        }
        Reader::Text(_) | Reader::None => Ok(Model {
            program: read_program(path, options)?,
            feeds: vec![],
            fetches: vec![],
            scope: Scope::new(),
        }),
    }
}

/// Reads a program; `-` is JSON on standard input.
pub(crate) fn read_program(path: &str, options: &LoadOptions) -> CommandResult<Program> {
    if is_published_model(path) {
        return Ok(read_model(path, options)?.program);
    }
    let source = if path == STANDARD { "standard input".to_string() } else { format!("`{path}`") };
    let refuse = |why: &dyn Display| CommandFailure::Unreadable(format!("{source}: {why}"));
    match Format::of(path)?.entry().reader {
        Reader::Files { program, .. } => {
            program(path, options).map_err(|e| CommandFailure::Unreadable(e.to_string()))
        }
        Reader::Text(read) => {
            let bytes = match path {
                STANDARD => read_bounded(io::stdin().lock(), Program::FILE_LIMIT, "standard input"),
                path => read_file(path, Program::FILE_LIMIT),
            };
            let bytes = bytes.map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
            let text = str::from_utf8(&bytes).map_err(|e| refuse(&format!("not text: {e}")))?;
            read(text).map_err(|e| refuse(&e))
        }
        Reader::None => Err(refuse(&"this format is for output only; programs are read from JSON")),
    }
}

/// Writes a program, in this format or that of the extension; `-` is standard output, where the default is JSON. Files of
/// PaddlePaddle and ONNX also have inputs, outputs and values.
pub(crate) fn write_model(
    terminal: Terminal,
    path: &str,
    format: Option<Format>,
    model: &Model,
) -> CommandResult {
    let format = format.map_or_else(|| Format::of(path), Ok)?;
    if let Writer::Files { save, .. } = format.entry().writer
        && path != STANDARD
    {
        return Ok(save(model, path)?);
    }
    if path != STANDARD && format == Format::Json {
        return Ok(model.program.save(path)?);
    }
    let text = format.write(&model.program)?;
    match (path, format) {
        (STANDARD, Format::Json) => terminal.print(&json_escaped(&text)),
        (STANDARD, _) => terminal.print(&text),
        (path, _) => Ok(write_atomically(path, text.as_bytes())?),
    }
}
