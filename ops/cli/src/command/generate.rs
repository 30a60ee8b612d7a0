//! `generate`: continues texts, or transcribes sounds, with a published model.

use std::{io, path::PathBuf, time::Instant};

use autobwd::{Tensor, tensor::read_bounded};
use autobwd_models::{
    ChatMessage, FeatureExtractor, GeneratedText, GenerationOptions, GenerationOverrides, Generator,
    Tokenizer, transcription_prompt,
};
use clap::Args;
use serde::Serialize;

use super::{
    pretrained::{PretrainedArgs, require_main_input},
    run::executor,
};
use crate::{
    program_file::STANDARD,
    terminal::{CommandFailure, CommandResult, Terminal},
};

/// The largest prompt on standard input, in bytes.
const LARGEST_PROMPT: u64 = 16 << 20;

/// Continue texts, or transcribe sounds, with a published model
///
/// The options of the model's `generation_config.json` hold unless they are given, but for the number of new tokens. The text of a single prompt appears
/// as it is made. Texts depend on the prompt, the options and the seed alone, not on other prompts or threads.
#[derive(Debug, Args)]
pub(crate) struct GenerateCommand {
    #[command(flatten)]
    pretrained: PretrainedArgs,
    /// The text to continue; may be repeated; `-` is standard input
    #[arg(long, value_name = "TEXT", required_unless_present = "audio")]
    prompt: Vec<String>,
    /// A sound to transcribe, a file of WAV, with Whisper; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "chat"])]
    audio: Vec<PathBuf>,
    /// The language of the sounds, such as `en`: for models of many languages
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    language: Option<String>,
    /// Answer the prompts as messages of a user, by the chat template of the model
    #[arg(long)]
    chat: bool,
    /// The system message before the prompts of --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// A folder with an adapter, as peft or `tune` writes it
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// The number of new tokens after which a text ends
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// End texts before this string; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Take the most probable tokens, even if the options of the model say otherwise
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    greedy: bool,
    /// Draw tokens by chance, with logits divided by this number
    #[arg(long, value_name = "X")]
    temperature: Option<f32>,
    /// Draw from so many of the most probable tokens; 0 for all
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Draw from the most probable tokens that together have this probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Draw tokens whose probability is at least this part of the largest
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Divide positive logits of tokens that the text has by this number, and multiply others
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// What draws depend on, besides the prompt
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The number of threads, instead of one a core; texts do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one line of JSON, with times
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct GenerateJson {
    schema: &'static str,
    threads: usize,
    texts: Vec<TextJson>,
    load_seconds: f64,
    /// From the first prompt to the last token.
    seconds: f64,
    tokens_per_second: f64,
}

#[derive(Serialize)]
struct TextJson {
    prompt_tokens: usize,
    new_tokens: usize,
    text: String,
}

impl GenerateCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let start = Instant::now();
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        let pretrained = self.pretrained.open();
        require_main_input(&pretrained, if self.audio.is_empty() { "input_ids" } else { "input_features" })?;
        let tokenizer = Tokenizer::open(&self.pretrained.model).map_err(unreadable)?;
        let sounds = self.sounds()?;
        let prompts = match &sounds {
            None => self.prompts(&tokenizer)?,
            Some(_) => {
                let prompt = transcription_prompt(&pretrained, &tokenizer, self.language.as_deref());
                vec![prompt.map_err(unreadable)?; self.audio.len()]
            }
        };
        let options = self.options(pretrained.generation_options().map_err(unreadable)?, &tokenizer);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let capacity = longest.saturating_add(options.max_new_tokens);
        let mut generator = Generator::new(&pretrained, prompts.len(), capacity).map_err(unreadable)?;
        self.pretrained.adapt(generator.model_mut(), self.adapter.as_ref())?;
        let load_seconds = start.elapsed().as_secs_f64();

        let mut executor = executor(self.threads);
        let is_streamed = prompts.len() == 1 && !self.json;
        let (start, mut shown) = (Instant::now(), Ok(()));
        let on_text = |_: usize, part: &str| {
            if is_streamed && shown.is_ok() {
                shown = terminal.print_part(part);
            }
            shown.is_ok()
        };
        let (executor, stop) = (&mut executor, &self.stop[..]);
        let texts = match &sounds {
            None => generator.generate_texts(executor, &tokenizer, &prompts, &options, stop, on_text)?,
            Some(sounds) => {
                let sources = (sounds, &prompts[..]);
                generator.transcribe_texts(executor, &tokenizer, sources, &options, stop, on_text)?
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        shown?;
        if is_streamed {
            return terminal.print("\n");
        }
        if !self.json {
            return texts.iter().try_for_each(|text| terminal.print(&text.text));
        }
        let total: usize = texts.iter().map(|text| text.tokens.len()).sum();
        let texts = texts.into_iter().zip(&prompts).map(|(GeneratedText { text, tokens }, prompt)| {
            TextJson { prompt_tokens: prompt.len(), new_tokens: tokens.len(), text }
        });
        terminal.print_json(&GenerateJson {
            schema: "autobwd.generate/1",
            threads: executor.threads(),
            texts: texts.collect(),
            load_seconds,
            seconds,
            tokens_per_second: total as f64 / seconds,
        })
    }

    /// The spectrograms of all sounds, if there are any.
    fn sounds(&self) -> CommandResult<Option<Tensor>> {
        let unreadable = |e: autobwd::Error| CommandFailure::Unreadable(e.to_string());
        if self.audio.is_empty() {
            return Ok(None);
        }
        let extractor = FeatureExtractor::open(&self.pretrained.model).map_err(unreadable)?;
        let [bands, columns] = extractor.dims();
        let mut features = Vec::with_capacity(self.audio.len() * bands * columns);
        for path in &self.audio {
            features.extend_from_slice(extractor.read_wav(path).map_err(unreadable)?.slice::<f32>()?);
        }
        Ok(Some(Tensor::from_vec([self.audio.len(), bands, columns], features)?))
    }

    /// The tokens of the prompts.
    fn prompts(&self, tokenizer: &Tokenizer) -> CommandResult<Vec<Vec<i64>>> {
        let tokens = |prompt: &String| {
            let prompt = match prompt.as_str() {
                STANDARD => {
                    let bytes = read_bounded(io::stdin().lock(), LARGEST_PROMPT, "standard input")
                        .map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
                    String::from_utf8(bytes)
                        .map_err(|e| CommandFailure::Unreadable(format!("standard input: not text: {e}")))?
                }
                prompt => prompt.to_string(),
            };
            if !self.chat {
                return Ok(tokenizer.encode(&prompt)?);
            }
            let system = self.system.iter().map(|text| ChatMessage::new("system", text));
            let messages: Vec<ChatMessage> = system.chain([ChatMessage::new("user", prompt)]).collect();
            Ok(tokenizer.encode_plain(&tokenizer.render_chat(&messages, true)?)?)
        };
        self.prompt.iter().map(tokens).collect()
    }

    /// The options of the model, with those that are given.
    fn options(&self, model: GenerationOptions, tokenizer: &Tokenizer) -> GenerationOptions {
        let given = GenerationOverrides {
            greedy: self.greedy,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        };
        let options = GenerationOptions { max_new_tokens: self.max_tokens, ..model };
        options.overridden(&given).with_end_of(tokenizer)
    }
}
