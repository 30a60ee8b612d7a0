//! `convert`: the same program in another format.

use std::path::{Path, PathBuf};

use autobwd::tensor::save_tensors;
use autobwd_models::{Adapter, Pretrained};
use autobwd_ops::{
    Model,
    quantization::{QuantizeReport, quantize},
};
use clap::Args;

use super::ModelPath;
use crate::{
    feeds::complete,
    output::{check_outputs, make_folder},
    program_file::{Format, is_published_model, write_model},
    terminal::{CommandFailure, CommandResult, Terminal},
};

/// Convert a program to another format
///
/// A .pdmodel file has its values in a .pdiparams file next to it, an .onnx file has them in itself. Of a training program,
/// --fetch takes the part for inference.
#[derive(Debug, Args)]
pub(crate) struct ConvertCommand {
    #[command(flatten)]
    input: ModelPath,
    /// The file to write: .json, .txt, .dot, .mmd, .html, .pdmodel or .onnx; `-` is standard output; for a published
    /// model, also a folder in the layout of Hugging Face, which is there or ends in `/`
    output: String,
    /// The format to write, whatever the extension is
    #[arg(long, value_name = "FORMAT")]
    to: Option<Format>,
    /// The variables to fetch: only the operators that they need are written, in inference mode
    #[arg(long, value_name = "VAR", value_delimiter = ',')]
    fetch: Vec<String>,
    /// Values that the program keeps, in safetensors format; they replace the values of the input
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Quantise the weights of products: int8, int4 or nf4, with a group size (int4:128) and zero points
    /// (int4:128:asymmetric); with a pattern of names in front, only these ('h.*.w=nf4')
    #[arg(long, value_name = "[PATTERN=]KIND", value_delimiter = ',')]
    quantize: Vec<String>,
    /// The file for the values that the program keeps, in safetensors format
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Add an adapter, in a folder as peft or `tune` writes it, to the weights of a published model
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
}

impl ConvertCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let output = Path::new(&self.output);
        if output.is_dir() || self.output.ends_with('/') {
            return self.publish(output);
        }
        check_outputs([("OUTPUT", Some(output)), ("--save", self.save.as_deref())])?;
        let mut model = self.input.read_model()?;
        self.merge_adapter(&mut model)?;
        if let Some(path) = &self.weights {
            model.scope.load(path).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
            terminal.warn_converted(&model.scope.convert_to(&model.program)?);
        }
        if !self.fetch.is_empty() {
            let named: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
            model = Model::for_inference(&model.program, &model.scope, &named)?;
        } else {
            complete(&mut model);
        }
        for quantized in &self.quantize {
            let (pattern, kind) = quantized.rsplit_once('=').unwrap_or(("*", quantized));
            let report = quantize(&mut model, pattern, kind.parse()?)?;
            report_quantized(terminal, pattern, &report);
        }
        if let Some(path) = &self.save {
            save_tensors(path, model.scope.iter())?;
        }
        write_model(terminal, &self.output, self.to, &model)
    }
}

impl ConvertCommand {
    /// Writes a published model into a folder.
    fn publish(&self, folder: &Path) -> CommandResult {
        if !is_published_model(&self.input.model) {
            let text =
                format!("`{}` is a folder: only published models are written into folders", self.output);
            return Err(CommandFailure::Unreadable(text));
        }
        let has_others = self.to.is_some() || !self.fetch.is_empty() || !self.quantize.is_empty();
        if has_others || self.weights.is_some() || self.save.is_some() {
            let text = "`--to`, `--fetch`, `--weights`, `--quantize` and `--save` are not for folders";
            return Err(CommandFailure::Unreadable(text.into()));
        }
        if folder.exists() && folder.canonicalize().ok() == Path::new(&self.input.model).canonicalize().ok() {
            let text = format!("`{}` is read and would be replaced", self.output);
            return Err(CommandFailure::Unreadable(text));
        }
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        let pretrained = Pretrained::open(&self.input.model);
        let pretrained = self.adapter.iter().try_fold(pretrained, Pretrained::head_of_adapter);
        let pretrained = pretrained.map_err(unreadable)?;
        let mut model = pretrained.load().map_err(unreadable)?;
        self.merge_adapter(&mut model)?;
        make_folder(folder)?;
        Ok(pretrained.save(&model, folder)?)
    }

    fn merge_adapter(&self, model: &mut Model) -> CommandResult {
        let Some(folder) = &self.adapter else { return Ok(()) };
        let adapter = Adapter::read(folder).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
        Ok(adapter.merge(model)?)
    }
}

/// Says what was quantised, and what a pattern of the user has named in vain.
fn report_quantized(terminal: Terminal, pattern: &str, report: &QuantizeReport) {
    let QuantizeReport { weights, left, bytes_before, bytes_after, .. } = report;
    let [count, left_count] = [weights.len(), left.len()];
    let rest = format!("{left_count} other parameters stay as they are");
    terminal.warn(&format!("{count} weights quantised: {bytes_before} bytes are {bytes_after} now; {rest}"));
    for (name, reason) in left.iter().filter(|_| pattern != "*") {
        terminal.warn(&format!("`{name}` stays as it is: {reason}"));
    }
}
