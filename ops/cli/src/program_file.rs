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

use crate::{
    feeds::complete,
    terminal::{CommandFailure, CommandResult, Terminal, json_escaped},
};

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
    pub(crate) fn of(path: &str) -> Result<Format> {
        let Some(extension) = Path::new(path).extension() else { return Ok(Format::Json) };
        let known = FORMATS.iter().find(|entry| extension == entry.extension);
        known.map(|entry| entry.format).ok_or_else(|| {
            let known = FORMATS.map(|entry| format!(".{}", entry.extension)).join(", ");
            let text = format!("`{path}`: no format has this extension; known are {known}");
            Error::new(ErrorKind::Format, text)
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

/// Loads a model from a file that the commands read: a program in JSON, without values; an .onnx file; a .pdmodel file;
/// or a published model, which is a folder or a .gguf file. Inputs and outputs that the file does not name are all that
/// the program has. `options` are for .onnx files.
///
/// ```
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../onnx/tests/models");
/// let model = autobwd_cli::load_model(&format!("{folder}/images.onnx"), &Default::default())?;
/// assert_eq!(model.feeds, ["x"]);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of the file system; files in another format; everything that the reader of a format refuses.
pub fn load_model(path: &str, options: &LoadOptions) -> Result<Model> {
    let mut model = read_model(path, options)?;
    complete(&mut model);
    Ok(model)
}

/// Saves a model in the format of the extension: .onnx and .pdmodel files have its values, inputs and outputs; others have
/// its program.
///
/// ```
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../onnx/tests/models");
/// let model = autobwd_cli::load_model(&format!("{folder}/images.onnx"), &Default::default())?;
/// let written = tempfile::tempdir()?;
/// let path = written.path().join("images.pdmodel");
/// autobwd_cli::save_model(&model, &path.display().to_string())?;
/// assert!(path.with_extension("pdiparams").exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An unknown extension; everything that the format cannot express; the errors of the file system.
pub fn save_model(model: &Model, path: &str) -> Result<()> {
    write_file(path, Format::of(path)?, model)
}

/// Reads a program with its values, inputs and outputs; files of text have the program alone.
pub(crate) fn read_model(path: &str, options: &LoadOptions) -> Result<Model> {
    if is_published_model(path) {
        return Pretrained::open(path).load();
    }
    match Format::of(path)?.entry().reader {
        Reader::Files { model, .. } => model(path, options),
        Reader::Text(_) | Reader::None => Ok(Model {
            program: read_program(path, options)?,
            feeds: vec![],
            fetches: vec![],
            scope: Scope::new(),
        }),
    }
}

/// Reads a program; `-` is JSON on standard input.
pub(crate) fn read_program(path: &str, options: &LoadOptions) -> Result<Program> {
    if is_published_model(path) {
        return Ok(read_model(path, options)?.program);
    }
    let source = if path == STANDARD { "standard input".to_string() } else { format!("`{path}`") };
    let refuse = |why: &dyn Display| Error::new(ErrorKind::Format, format!("{source}: {why}"));
    match Format::of(path)?.entry().reader {
        Reader::Files { program, .. } => program(path, options),
        Reader::Text(read) => {
            let bytes = match path {
                STANDARD => read_bounded(io::stdin().lock(), Program::FILE_LIMIT, "standard input"),
                path => read_file(path, Program::FILE_LIMIT),
            }?;
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
    let format = format.map_or_else(|| Format::of(path), Ok).map_err(CommandFailure::unreadable)?;
    if path != STANDARD {
        return Ok(write_file(path, format, model)?);
    }
    let text = format.write(&model.program)?;
    terminal.print(&if format == Format::Json { json_escaped(&text) } else { text })
}

fn write_file(path: &str, format: Format, model: &Model) -> Result<()> {
    match format.entry().writer {
        Writer::Files { save, .. } => save(model, path),
        Writer::Text(_) if format == Format::Json => model.program.save(path),
        Writer::Text(write) => write_atomically(path, write(&model.program)?.as_bytes()),
    }
}
