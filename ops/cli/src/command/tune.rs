//! `tune`: fine-tunes a published model.

mod lora;
mod outputs;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use autobwd_data::Progress;
use autobwd_models::{
    Adapter, Example, ExampleFormat, FeatureExtractor, FineTuning, ImageProcessor, Lora, Pretrained,
    StepReport, Tokenizer, TuningRun, class_names, class_names_of, read_examples, read_images, read_sounds,
    transcription_prompt,
};
use clap::Args;
use serde::Serialize;

use super::pretrained::{PretrainedArgs, require_main_input};
use crate::{
    bytes::parse_bytes,
    output::make_folder,
    terminal::{CommandFailure, CommandResult, Terminal},
};
use lora::lora;
use outputs::TuningFiles;

/// The number of steps after which the time of all is estimated.
const MEASURED_STEPS: u64 = 3;

/// Fine-tune a published model on texts, images or sounds
///
/// A line of the data is an object: with `messages` of a conversation (the answers are learned), with `prompt` and
/// `completion` (the completion is learned), with `text`; for models that classify, with a text or the path of an image and
/// a class, or with words and their classes; or with the path of a sound and its text. Paths are relative to the folder of
/// the data.
///
/// What the run will do is said on standard error before the first step. A run that is killed goes on with --resume, with
/// the same bits as if it had not been. The folder of --output gets the adapter, as peft writes it, or the model, as
/// transformers writes it; `log.jsonl`; and `report.html` with the curves. With evaluation data, the parameters with the
/// least loss on these are kept, otherwise the last ones.
#[derive(Debug, Args)]
pub(crate) struct TuneCommand {
    #[command(flatten)]
    pretrained: PretrainedArgs,
    /// The examples, one object of JSON a line
    data: PathBuf,
    /// Lines have `messages`
    #[arg(long, conflicts_with_all = ["text", "labels"])]
    chat: bool,
    /// The field of the text
    #[arg(long, value_name = "FIELD")]
    text: Option<String>,
    /// The field of the class of a text, by its number or its name in the configuration
    #[arg(long, value_name = "FIELD")]
    labels: Option<String>,
    /// The field of the classes of words, a list, likewise: the field of --text is a list of words
    #[arg(long, value_name = "FIELD", conflicts_with_all = ["chat", "labels", "mask"])]
    tags: Option<String>,
    /// The field of the path of an image, PNG or JPEG, which --labels classifies: for ViT
    #[arg(long, value_name = "FIELD", requires = "labels", conflicts_with_all = ["chat", "text", "mask", "tags"])]
    image: Option<String>,
    /// The field of the path of a sound, WAV, whose text is in the field of --text: for Whisper
    #[arg(long, value_name = "FIELD", conflicts_with_all = ["chat", "labels", "mask", "tags", "image"])]
    audio: Option<String>,
    /// The language of the sounds, such as `en`: for models of many languages
    #[arg(long, value_name = "NAME", requires = "audio", conflicts_with_all = ["chat", "labels", "mask", "tags"])]
    language: Option<String>,
    /// Give an encoder a new head for the classes that the data have: texts in their order, or numbers from 0
    #[arg(long)]
    new_head: bool,
    /// Hide this share of the tokens, and learn them: for masked language models
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["chat", "labels"])]
    mask: Option<f64>,
    /// Train adapters instead of the weights: a rank, and options after commas, such as
    /// `r=8,alpha=16,targets=q_proj+v_proj`; `targets=all-linear` are all products but the head, without `exclude=` and in
    /// all layers but for `layers=0-5+11`; `dropout=0.05` drops parts of their inputs; `rslora` scales by the root of the
    /// rank; `pattern=`, which is the last, is a regular expression of whole names of modules
    #[arg(long, value_name = "OPTIONS", value_parser = lora)]
    lora: Option<Lora>,
    /// Train the adapter in this folder further, which peft or `tune` has written
    #[arg(long, value_name = "FOLDER", conflicts_with = "lora")]
    adapter: Option<PathBuf>,
    /// The memory that the command may take from the first step on, such as `1.5GB`: values are recomputed until it fits
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// The number of times that all examples are seen
    #[arg(long, value_name = "N", default_value_t = FineTuning::default().epochs)]
    epochs: u64,
    /// Rows of a micro-batch
    #[arg(long, value_name = "N", default_value_t = FineTuning::default().batch)]
    batch: usize,
    /// Micro-batches of a step, which take the memory of one
    #[arg(long, value_name = "N", default_value_t = FineTuning::default().micro_batches)]
    micro_batches: usize,
    /// Tokens of a row, instead of those of the longest example
    #[arg(long, value_name = "N")]
    length: Option<usize>,
    /// Cut examples that are longer than a row
    #[arg(long)]
    truncate: bool,
    /// Put each text into a row of its own
    #[arg(long)]
    no_packing: bool,
    /// The learning rate: 2e-4 for adapters and 2e-5 otherwise, by default
    #[arg(long, value_name = "X")]
    rate: Option<f64>,
    /// The part of the steps in which the rate grows
    #[arg(long, value_name = "X", default_value_t = FineTuning::default().warmup)]
    warmup: f64,
    /// Keep the rate, instead of a cosine that falls to 0
    #[arg(long)]
    constant: bool,
    /// The decay of weights; biases and normalisations do not decay
    #[arg(long, value_name = "X", default_value_t = FineTuning::default().weight_decay)]
    decay: f32,
    /// The largest norm of all gradients together; 0 for no bound
    #[arg(long, value_name = "X", default_value_t = FineTuning::default().max_gradient_norm)]
    clip: f32,
    /// The seed of the order of examples, and of new parameters
    #[arg(long, value_name = "N", default_value_t = FineTuning::default().seed)]
    seed: u64,
    /// Examples that are not learned, in the format of the data: their loss is measured after each epoch
    #[arg(long, value_name = "FILE")]
    evaluation: Option<PathBuf>,
    /// Also measure it after so many steps
    #[arg(long, value_name = "N", requires = "evaluation", value_parser = clap::value_parser!(u64).range(1..))]
    evaluate_every: Option<u64>,
    /// Save the state of the run after so many steps
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    /// Go on with the run in the folder of --output, which was interrupted
    #[arg(long)]
    resume: bool,
    /// Say what the run would do, and end
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
    /// The number of threads, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The folder for the result, which is made if it is not there
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
}

#[derive(Serialize)]
struct TuneJson {
    schema: &'static str,
    threads: usize,
    trained_parameters: usize,
    steps: u64,
    /// The mean loss of the labels of the first and of the last step.
    losses: [f64; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation_loss: Option<f64>,
    /// Without those of files and evaluations.
    seconds_per_step: f64,
    planned_bytes: usize,
}

impl TuneCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let pretrained = self.open()?;
        self.require_other_folders()?;
        let [examples, evaluation] = self.examples(&pretrained)?;
        let files = TuningFiles::of(&self.output, self.resume)?;
        let mut run = self.prepare(&pretrained, examples, evaluation)?;
        terminal.warn(&format!("fine-tuning `{}`\n{}", self.pretrained.model.display(), run.summary()));
        if self.dry_run {
            return Ok(());
        }
        make_folder(&self.output)?;
        let mut state = files.start(&mut run, self.resume)?;
        let (reports, seconds) = self.steps(terminal, &files, &mut run, &mut state)?;
        if state.best.is_none() {
            run.save(&self.output)?;
        }
        files.finish()?;
        let loss = |report: Option<&StepReport>| report.map_or(f64::NAN, |report| report.loss);
        terminal.print_json(&TuneJson {
            schema: "autobwd.tune/1",
            threads: run.threads(),
            trained_parameters: run.summary().trained,
            steps: run.summary().steps,
            losses: [loss(reports.first()), loss(reports.last())],
            evaluation_loss: state.best,
            seconds_per_step: seconds / reports.len().max(1) as f64,
            planned_bytes: run.summary().total_bytes(),
        })
    }

    /// Refuses to replace what is read.
    fn require_other_folders(&self) -> CommandResult {
        let output = self.output.canonicalize().ok();
        for folder in [Some(&self.pretrained.model), self.adapter.as_ref()].into_iter().flatten() {
            if output.is_some() && output == folder.canonicalize().ok() {
                let text =
                    format!("`{}` is read and would be replaced: give another --output", folder.display());
                return Err(CommandFailure::Unreadable(text));
            }
        }
        Ok(())
    }

    /// The model, with a new head if it is asked for.
    fn open(&self) -> CommandResult<Pretrained> {
        let pretrained = self.pretrained.open_for(self.adapter.as_ref())?;
        if !self.new_head {
            return Ok(pretrained);
        }
        let Some(label) = self.labels.as_ref().or(self.tags.as_ref()) else {
            let text = "a new head needs the field of classes: give --labels or --tags";
            return Err(CommandFailure::Unreadable(text.into()));
        };
        let names =
            class_names_of(&self.data, label).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
        Ok(match self.tags {
            None => pretrained.classes(names),
            Some(_) => pretrained.token_classes(names),
        })
    }

    /// What is learned, and what is evaluated.
    fn examples(&self, pretrained: &Pretrained) -> CommandResult<[Vec<Example>; 2]> {
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        let model = &self.pretrained.model;
        require_main_input(
            pretrained,
            match (&self.image, &self.audio) {
                (Some(_), _) => "pixel_values",
                (_, Some(_)) => "input_features",
                _ => "input_ids",
            },
        )?;
        let text = self.text.as_deref().unwrap_or("text");
        if let Some((image, label)) = self.image.as_deref().zip(self.labels.as_deref()) {
            let processor = ImageProcessor::open(model).map_err(unreadable)?;
            let names = class_names(pretrained).map_err(unreadable)?;
            return self.read(|path| read_images(path, [image, label], &names, &processor));
        }
        // Of a large vocabulary, it takes as much memory as a small model, and is dropped before that is read.
        let tokenizer = Tokenizer::open(model).map_err(unreadable)?;
        if let Some(audio) = &self.audio {
            let extractor = FeatureExtractor::open(model).map_err(unreadable)?;
            let prompt = transcription_prompt(pretrained, &tokenizer, self.language.as_deref());
            let prompt = prompt.map_err(unreadable)?;
            return self.read(|path| read_sounds(path, [audio, text], &prompt, (&tokenizer, &extractor)));
        }
        let format = self.format(pretrained, text)?;
        self.read(|path| read_examples(path, &tokenizer, format.as_ref()))
    }

    /// The examples in the data and in the evaluation data.
    fn read(
        &self,
        read: impl Fn(&Path) -> autobwd::Result<Vec<Example>>,
    ) -> CommandResult<[Vec<Example>; 2]> {
        let examples = read(&self.data).and_then(|examples| {
            let evaluation = self.evaluation.as_deref().map_or(Ok(vec![]), &read)?;
            Ok([examples, evaluation])
        });
        examples.map_err(|e| CommandFailure::Unreadable(e.to_string()))
    }

    /// The format of texts; without one, the fields of the first line decide.
    fn format(&self, pretrained: &Pretrained, text: &str) -> CommandResult<Option<ExampleFormat>> {
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        let field = text.to_string();
        let names = || class_names(pretrained).map_err(unreadable);
        Ok(match (&self.labels, &self.tags, self.mask) {
            (Some(label), ..) => {
                Some(ExampleFormat::Classes { field, label: label.clone(), names: names()? })
            }
            (_, Some(label), _) => {
                Some(ExampleFormat::TokenClasses { field, label: label.clone(), names: names()? })
            }
            (.., Some(share)) => Some(ExampleFormat::Masked { field, share, seed: self.seed }),
            _ if self.chat => Some(ExampleFormat::Chat),
            _ if pretrained.is_encoder_decoder().map_err(unreadable)? => Some(ExampleFormat::SourceAndTarget),
            _ => self.text.is_some().then_some(ExampleFormat::Text { field }),
        })
    }

    fn prepare(
        &self,
        pretrained: &Pretrained,
        examples: Vec<Example>,
        evaluation: Vec<Example>,
    ) -> CommandResult<TuningRun> {
        let has_adapter = self.lora.is_some() || self.adapter.is_some();
        let default_rate = if has_adapter { 2e-4 } else { 2e-5 };
        let adapter = self.adapter.as_ref().map(Adapter::read).transpose();
        let adapter = adapter.map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
        let tuning = FineTuning {
            lora: self.lora.clone(),
            adapter,
            epochs: self.epochs,
            batch: self.batch,
            micro_batches: self.micro_batches,
            length: self.length,
            is_truncating: self.truncate,
            is_packing: !self.no_packing,
            learning_rate: self.rate.unwrap_or(default_rate),
            warmup: self.warmup,
            is_constant: self.constant,
            weight_decay: self.decay,
            max_gradient_norm: self.clip,
            seed: self.seed,
            memory: None,
            process_memory: self
                .memory
                .as_deref()
                .map(parse_bytes)
                .transpose()
                .map_err(CommandFailure::unreadable)?,
            threads: self.threads,
        };
        Ok(tuning.prepare(pretrained, examples, evaluation)?)
    }

    /// Does the steps; returns what they did, and their seconds.
    fn steps(
        &self,
        terminal: Terminal,
        files: &TuningFiles,
        run: &mut TuningRun,
        state: &mut outputs::TuningState,
    ) -> CommandResult<(Vec<StepReport>, f64)> {
        let steps = run.summary().steps;
        let progress = Progress::new(steps).resume_at(run.steps_done());
        let (mut reports, mut seconds) = (vec![], 0.0);
        let steps_of_epoch = steps / self.epochs;
        loop {
            let start = Instant::now();
            let Some(report) = run.step()? else { break };
            seconds += start.elapsed().as_secs_f64();
            reports.push(report);
            state.log(&report)?;
            progress.show(format!("loss {:.4}", report.loss));
            progress.advance();
            if reports.len() as u64 == MEASURED_STEPS {
                let left = (steps - report.step) as f64 * seconds / MEASURED_STEPS as f64;
                let each = seconds / MEASURED_STEPS as f64;
                terminal.warn(&format!("{each:.2} s a step; about {:.1} minutes are left", left / 60.0));
            }
            let is_asked = self.evaluate_every.is_some_and(|every| report.step.is_multiple_of(every));
            if is_asked || report.step.is_multiple_of(steps_of_epoch) {
                state.evaluate(run, report.step, &self.output)?;
            }
            if report.step.is_multiple_of(self.checkpoint_every) {
                files.save(run, state)?;
            }
        }
        Ok((reports, seconds))
    }
}
