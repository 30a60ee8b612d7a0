//! `classify`: the classes of texts, of their words, or of images, by a published model.

use std::path::PathBuf;

use autobwd::{DType, Executor, Tensor, eager};
use autobwd_models::{ImageProcessor, Tokenizer, class_names};
use autobwd_ops::{Math, Model};
use clap::Args;
use serde::Serialize;

use super::{
    pretrained::{PretrainedArgs, require_main_input},
    run::executor,
};
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Classify texts or images with a published model
///
/// A line has the most probable class of a text or an image, its probability, and the text or the path. A model that classifies tokens gives a line
/// for each word, which white space separates, by the word's first token.
#[derive(Debug, Args)]
pub(crate) struct ClassifyCommand {
    #[command(flatten)]
    pretrained: PretrainedArgs,
    /// The text to classify; may be repeated
    #[arg(long, value_name = "TEXT", required_unless_present = "image")]
    text: Vec<String>,
    /// The path of an image to classify, PNG or JPEG, for ViT; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    image: Vec<PathBuf>,
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

/// A text, a word or the path of an image with its probabilities.
#[derive(Serialize)]
struct Classified {
    text: String,
    class: String,
    probabilities: Vec<f64>,
}

/// A model that classifies.
struct Classifier {
    model: Model,
    classes: Vec<String>,
    executor: Executor,
}

impl ClassifyCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        let pretrained = self.pretrained.open_for(self.adapter.as_ref())?;
        let given = if self.image.is_empty() { "input_ids" } else { "pixel_values" };
        require_main_input(&pretrained, given)?;
        let classes = class_names(&pretrained).map_err(unreadable)?;
        let pretrained = if self.image.is_empty() { pretrained.input("attention_mask") } else { pretrained };
        let mut model = pretrained.load().map_err(unreadable)?;
        self.pretrained.adapt(&mut model, self.adapter.as_ref())?;
        let mut classifier = Classifier { model, classes, executor: executor(self.threads) };
        let mut texts = vec![];
        match self.image.is_empty() {
            true => {
                let tokenizer = Tokenizer::open(&self.pretrained.model).map_err(unreadable)?;
                for text in &self.text {
                    texts.extend(classifier.classify_text(&tokenizer, text)?);
                }
            }
            false => {
                let processor = ImageProcessor::open(&self.pretrained.model).map_err(unreadable)?;
                for path in &self.image {
                    let pixels = processor.pixel_values(path).map_err(unreadable)?;
                    let probabilities = classifier.probabilities(&[("pixel_values", &pixels)])?;
                    texts.extend(classifier.classified(&[&path.to_string_lossy()], &probabilities)?);
                }
            }
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
    fn classify_text(&mut self, tokenizer: &Tokenizer, text: &str) -> CommandResult<Vec<Classified>> {
        let is_whole = self.model.builder().expr(&self.model.fetches[0]).dims().len() == 2;
        let words: Vec<&str> = text.split_whitespace().collect();
        let (tokens, starts) = match is_whole {
            true => (tokenizer.encode(text)?, vec![]),
            false => tokenizer.encode_words(&words)?,
        };
        let dims = [1, tokens.len()];
        let mask = Tensor::from_vec(dims, vec![1_i64; tokens.len()])?;
        let ids = Tensor::from_vec(dims, tokens)?;
        let probabilities = self.probabilities(&[("input_ids", &ids), ("attention_mask", &mask)])?;
        if is_whole {
            return self.classified(&[text], &probabilities);
        }
        // Tokens that begin no word have no class.
        let texts: Vec<&str> = starts.iter().map(|word| word.map_or("", |word| words[word])).collect();
        let classified = self.classified(&texts, &probabilities)?;
        Ok(classified
            .into_iter()
            .zip(starts)
            .filter(|(_, word)| word.is_some())
            .map(|(own, _)| own)
            .collect())
    }

    /// The probabilities of all classes, of one text or image or of each token.
    fn probabilities(&mut self, feeds: &[(&str, &Tensor)]) -> CommandResult<Vec<f64>> {
        let logits = self.model.run_named(&mut self.executor, feeds)?.swap_remove(0).1;
        Ok(eager().constant(logits).cast(DType::F32).softmax(-1).tensor()?.to_f64s())
    }

    /// Texts with their most probable classes.
    fn classified(&self, texts: &[&str], probabilities: &[f64]) -> CommandResult<Vec<Classified>> {
        let count = self.classes.len();
        if probabilities.len() != count * texts.len() {
            let text = format!("the model has not {count} logits for its {count} classes");
            return Err(CommandFailure::Unreadable(text));
        }
        let classified = |(text, own): (&&str, &[f64])| {
            let best = (0..count).max_by(|a, b| own[*a].total_cmp(&own[*b])).unwrap_or(0);
            let class = self.classes[best].clone();
            Classified { text: text.to_string(), class, probabilities: own.to_vec() }
        };
        Ok(texts.iter().zip(probabilities.chunks(count)).map(classified).collect())
    }
}
