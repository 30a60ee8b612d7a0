//! `classify`: the classes of texts, or of their words, by a published model.

use std::path::PathBuf;

use autobwd::{DType, Executor, Tensor, eager};
use autobwd_models::{Tokenizer, class_names};
use autobwd_ops::{Math, Model};
use clap::Args;
use serde::Serialize;

use super::{pretrained::PretrainedArgs, run::executor};
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Classify texts with a published model
///
/// A line has the most probable class of a text, its probability, and the text. A model that classifies tokens gives a line
/// for each word, which white space separates, by the word's first token.
#[derive(Debug, Args)]
pub(crate) struct ClassifyCommand {
    #[command(flatten)]
    pretrained: PretrainedArgs,
    /// The text to classify; may be repeated
    #[arg(long, value_name = "TEXT", required = true)]
    text: Vec<String>,
    /// A folder with an adapter, as peft or `tune` writes it
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// The number of threads, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one line of JSON, with the probabilities of all classes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ClassifyJson<'a> {
    schema: &'static str,
    classes: &'a [String],
    texts: Vec<Classified>,
}

/// A text or a word with its probabilities.
#[derive(Serialize)]
struct Classified {
    text: String,
    class: String,
    probabilities: Vec<f64>,
}

/// A model that classifies, with its tokenizer.
struct Classifier {
    model: Model,
    tokenizer: Tokenizer,
    classes: Vec<String>,
    executor: Executor,
}

impl ClassifyCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        let tokenizer = Tokenizer::open(&self.pretrained.model).map_err(unreadable)?;
        let pretrained = self.pretrained.open();
        let classes = class_names(&pretrained).map_err(unreadable)?;
        let mut model = pretrained.input("attention_mask").load().map_err(unreadable)?;
        self.pretrained.adapt(&mut model, self.adapter.as_ref())?;
        let mut classifier = Classifier { model, tokenizer, classes, executor: executor(self.threads) };
        let mut texts = vec![];
        for text in &self.text {
            texts.extend(classifier.classify(text)?);
        }
        if self.json {
            let classes = &classifier.classes;
            return terminal.print_json(&ClassifyJson { schema: "autobwd.classify/1", classes, texts });
        }
        let width = texts.iter().map(|text| text.class.chars().count()).max().unwrap_or(0);
        texts.iter().try_for_each(|Classified { text, class, probabilities }| {
            let probability = probabilities.iter().copied().fold(0.0, f64::max);
            terminal.print(&format!("{class:width$}  {probability:.3}  {text}"))
        })
    }
}

impl Classifier {
    /// The text with its class, or its words with theirs.
    fn classify(&mut self, text: &str) -> CommandResult<Vec<Classified>> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_whole = self.model.builder().expr(&self.model.fetches[0]).dims().len() == 2;
        let (tokens, starts) = match is_whole {
            true => (self.tokenizer.encode(text)?, vec![]),
            false => self.tokenizer.encode_words(&words)?,
        };
        let dims = [1, tokens.len()];
        let mask = Tensor::from_vec(dims, vec![1_i64; tokens.len()])?;
        let ids = Tensor::from_vec(dims, tokens)?;
        let feeds = [("input_ids", &ids), ("attention_mask", &mask)];
        let logits = self.model.run_named(&mut self.executor, &feeds)?.swap_remove(0).1;
        let probabilities = eager().constant(logits).cast(DType::F32).softmax(-1).tensor()?.to_f64s();
        let count = self.classes.len();
        if probabilities.len() != count * if is_whole { 1 } else { starts.len() } {
            let text = format!("the model has not {count} logits for its {count} classes");
            return Err(CommandFailure::Unreadable(text));
        }
        let classified = |text: &str, probabilities: &[f64]| {
            let best = (0..count).max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b])).unwrap_or(0);
            let probabilities = probabilities.to_vec();
            Classified { text: text.into(), class: self.classes[best].clone(), probabilities }
        };
        if is_whole {
            return Ok(vec![classified(text, &probabilities)]);
        }
        let of_words = starts.iter().zip(probabilities.chunks(count));
        Ok(of_words.filter_map(|(word, own)| Some(classified(words[(*word)?], own))).collect())
    }
}
