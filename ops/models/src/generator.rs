//! Generation of texts, token by token.

use autobwd::{DType, Error, ErrorKind, Executor, Feed, Meta, Program, Result, Tensor};
use autobwd_ops::Model;

use crate::{
    GenerationOptions, Pretrained,
    generated_text::{NO_TEXT, Text},
    generation_config::decoder_start,
    inputs::{Capacity, is_of_source_cache},
    source::Source,
};

/// Generates texts with a decoder: one plan for all prompts and one for all steps, with a cache whose used part is data.
/// If there is an encoder, it runs once, and the keys and values of its output are kept.
///
/// The tokens of a text depend on its prompt, the options and the seed alone: not on other texts, nor on threads.
///
/// ```
/// use autobwd::Executor;
/// use autobwd_models::{GenerationOptions, Generator, Pretrained};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
/// // Two texts at a time, of 64 tokens at most.
/// let pretrained = Pretrained::open(folder);
/// let mut generator = Generator::new(&pretrained, 2, 64)?;
/// let options = GenerationOptions { max_new_tokens: 3, ..pretrained.generation_options()? };
/// let prompts = [vec![5, 7, 9], vec![11]];
/// let texts = generator.generate(&mut Executor::new(), &prompts, &options)?;
/// assert!(texts.iter().all(|new| (1..=3).contains(&new.len())));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct Generator {
    model: Model,
    capacity: Capacity,
    source: Source,
}

/// The input of an encoder, by its name.
type EncoderInput = (&'static str, Tensor);

impl Generator {
    /// A generator for `texts` texts at a time, of at most `tokens` tokens, prompts included. Texts that an encoder reads
    /// have at most as many.
    ///
    /// # Errors
    /// Those of [`Pretrained::load`]; models that do not generate texts token by token.
    pub fn new(pretrained: &Pretrained, texts: usize, tokens: usize) -> Result<Generator> {
        let capacity = Capacity { texts, tokens };
        if texts == 0 || tokens == 0 {
            return Err(Error::new(ErrorKind::Shape, "a generator needs room for a text and a token"));
        }
        Ok(Generator {
            model: pretrained.load_with(Some(capacity))?,
            capacity,
            source: pretrained.source().clone(),
        })
    }

    /// The model, for adapters, whose branches are attached to it.
    ///
    /// Its output is `logits`. The inputs of a decoder are `input_ids` and `positions`, int64 `[texts, length]`. With an
    /// encoder, they are those of the model, `positions` of `decoder_input_ids`, and `source_lengths`, int64 `[texts, 1]`,
    /// the number of positions of the encoder's output.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Generates texts, each until it has a token of `eos_token_ids` or `max_new_tokens` new ones. Returns the new tokens.
    ///
    /// A decoder continues the prompts. With an encoder, it reads the prompts, and the decoder starts with the token that
    /// the folder names, `decoder_start_token_id`.
    ///
    /// # Errors
    /// More prompts than texts; empty prompts; texts that may exceed the capacity; tokens that the model does not have;
    /// options out of range; a model that reads sound; those of [`Executor::run`].
    pub fn generate(
        &mut self,
        executor: &mut Executor,
        prompts: &[impl AsRef<[i64]>],
        options: &GenerationOptions,
    ) -> Result<Vec<Vec<i64>>> {
        self.generate_with(executor, prompts, options, |_, _| true)
    }

    /// As [`generate`](Generator::generate); each new token is given to `on_token`, with the number of its text. A text
    /// ends with a token for which the result is `false`.
    ///
    /// # Errors
    /// As there.
    pub fn generate_with(
        &mut self,
        executor: &mut Executor,
        prompts: &[impl AsRef<[i64]>],
        options: &GenerationOptions,
        on_token: impl FnMut(usize, i64) -> bool,
    ) -> Result<Vec<Vec<i64>>> {
        if self.reads("input_features") {
            let text =
                "the model reads `input_features`, not texts: `Generator::transcribe` generates with it";
            return Err(Error::new(ErrorKind::Feed, text));
        }
        let prompts: Vec<&[i64]> = prompts.iter().map(AsRef::as_ref).collect();
        if !self.reads("decoder_input_ids") {
            let texts = prompts.iter().map(|prompt| Text::new(prompt, prompt, 0, options)).collect();
            return self.run(executor, None, texts, options, on_token);
        }
        self.check_prompts(&prompts, 0)?;
        let start = [decoder_start(&self.source)?];
        let length = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(1);
        let source = ("input_ids", self.padded(&prompts, length, 0)?);
        let texts = prompts.iter().map(|source| Text::new(&start, source, source.len(), options)).collect();
        self.run(executor, Some(source), texts, options, on_token)
    }

    /// Generates texts for sounds, float32 `[prompts, bands, columns]`, from the first tokens of the decoder: for Whisper,
    /// its start, a language and a task. Returns the new tokens.
    ///
    /// ```
    /// use autobwd::Executor;
    /// use autobwd_models::{FeatureExtractor, Generator, Pretrained};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/whisper");
    /// let samples = vec![0.0_f32; 16_000];
    /// let features = FeatureExtractor::open(folder)?.log_mel_spectrogram(&samples)?;
    /// let mut generator = Generator::new(&Pretrained::open(folder), 1, 32)?;
    /// let options = Pretrained::open(folder).generation_options()?;
    /// let texts = generator.transcribe(&mut Executor::new(), &features, &[[1, 2, 3, 4]], &options)?;
    /// assert_eq!(texts.len(), 1);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`generate`](Generator::generate); a model that does not read sound; another number of sounds than prompts.
    pub fn transcribe(
        &mut self,
        executor: &mut Executor,
        features: &Tensor,
        prompts: &[impl AsRef<[i64]>],
        options: &GenerationOptions,
    ) -> Result<Vec<Vec<i64>>> {
        self.transcribe_with(executor, features, prompts, options, |_, _| true)
    }

    /// As [`transcribe`](Generator::transcribe), with `on_token` as in [`generate_with`](Generator::generate_with).
    ///
    /// # Errors
    /// As there.
    pub fn transcribe_with(
        &mut self,
        executor: &mut Executor,
        features: &Tensor,
        prompts: &[impl AsRef<[i64]>],
        options: &GenerationOptions,
        on_token: impl FnMut(usize, i64) -> bool,
    ) -> Result<Vec<Vec<i64>>> {
        if !self.reads("input_features") {
            return Err(Error::new(ErrorKind::Feed, "the model has no input `input_features`"));
        }
        let prompts: Vec<&[i64]> = prompts.iter().map(AsRef::as_ref).collect();
        let mut needed = self.dims("input_features");
        needed.iter_mut().take(1).for_each(|count| *count = prompts.len());
        if features.dims() != needed {
            let text = format!("features are {:?}, not {needed:?}", features.dims());
            return Err(Error::new(ErrorKind::Shape, text));
        }
        self.check_prompts(&prompts, 0)?;
        let (source, length) = (("input_features", self.padded_features(features)?), self.source_capacity());
        let texts = prompts.iter().map(|prompt| Text::new(prompt, &[], length, options)).collect();
        self.run(executor, Some(source), texts, options, on_token)
    }

    /// Generates texts until all are complete.
    fn run(
        &mut self,
        executor: &mut Executor,
        source: Option<EncoderInput>,
        mut texts: Vec<Text<'_>>,
        options: &GenerationOptions,
        mut on_token: impl FnMut(usize, i64) -> bool,
    ) -> Result<Vec<Vec<i64>>> {
        let prompts: Vec<&[i64]> = texts.iter().map(|text| &text.tokens[..]).collect();
        self.check_prompts(&prompts, options.max_new_tokens)?;
        let vocabulary = self.dims(&self.model.fetches[0]).last().copied().unwrap_or(0);
        options.check(vocabulary)?;
        self.read_prompts(executor, source.as_ref(), &texts)?;

        let (rows, logits) = (self.capacity.texts, self.model.fetches[0].clone());
        let names = self.step_inputs();
        let feeds: Vec<_> = names.iter().map(|name| (*name, Meta::new(DType::I64, [rows, 1]))).collect();
        let Model { program, scope, .. } = &mut self.model;
        let mut session = executor.prepare(&without_encoder(program), scope, &feeds, &[&logits])?;
        while texts.iter().any(|text| !text.is_complete) {
            for (part, name) in names.iter().enumerate() {
                let feed = session.feed_mut::<i64>(name)?;
                feed.fill(NO_TEXT[part]);
                feed.iter_mut().zip(&texts).for_each(|(feed, text)| *feed = text.step()[part]);
            }
            session.run(scope)?;
            let found = session.fetch(&logits)?.to_f64s();
            let words = found.len() / rows;
            for (row, text) in texts.iter_mut().enumerate().filter(|(_, text)| !text.is_complete) {
                let row_logits: Vec<f32> = found[row * words..][..words].iter().map(|x| *x as f32).collect();
                let token = text.choose(row_logits, options)?;
                let goes_on = on_token(row, token);
                let is_full = text.tokens.len() - text.prompt >= options.max_new_tokens;
                text.is_complete = !goes_on || is_full || options.eos_token_ids.contains(&token);
            }
        }
        Ok(texts.into_iter().map(|mut text| text.tokens.split_off(text.prompt)).collect())
    }

    /// Runs the encoder, and keeps the keys and values of its output and of all tokens of the prompts but the last ones,
    /// which begin the first step.
    fn read_prompts(
        &mut self,
        executor: &mut Executor,
        source: Option<&EncoderInput>,
        texts: &[Text<'_>],
    ) -> Result<()> {
        let starts: Vec<&[i64]> = texts.iter().map(|text| &text.tokens[..text.prompt - 1]).collect();
        let longest = starts.iter().map(|start| start.len()).max().unwrap_or(0);
        if longest == 0 && source.is_none() {
            return Ok(());
        }
        // A plan needs a token, if only one of padding.
        let length = longest.max(1);
        let numbers: Vec<i64> = (0..length as i64).collect();
        let positions: Vec<&[i64]> = starts.iter().map(|start| &numbers[..start.len()]).collect();
        let source_lengths: Vec<[i64; 1]> = texts.iter().map(|text| [text.source_length as i64]).collect();
        let source_lengths: Vec<&[i64]> = source_lengths.iter().map(|length| &length[..]).collect();
        let values = [
            self.padded(&starts, length, NO_TEXT[0])?,
            self.padded(&positions, length, NO_TEXT[1])?,
            self.padded(&source_lengths, 1, NO_TEXT[2])?,
        ];
        let of_steps = self.step_inputs().iter().zip(&values);
        let of_encoder = source.iter().map(|(name, value)| (name, value));
        let feeds = of_steps.chain(of_encoder).map(|(name, value)| (*name, value as &dyn Feed));
        let feeds: Vec<(&str, &dyn Feed)> = feeds.collect();
        let Model { program, scope, .. } = &mut self.model;
        executor.run(program, scope, &feeds, &[])?;
        Ok(())
    }

    /// Rows of one length, one for each text of the capacity: `[texts, length]`.
    fn padded(&self, rows: &[&[i64]], length: usize, padding: i64) -> Result<Tensor> {
        let mut padded = vec![padding; self.capacity.texts * length];
        for (padded, row) in padded.chunks_mut(length.max(1)).zip(rows) {
            padded[..row.len()].copy_from_slice(row);
        }
        Tensor::from_vec([self.capacity.texts, length], padded)
    }

    /// Features for each text of the capacity: silence for those that are not given.
    fn padded_features(&self, features: &Tensor) -> Result<Tensor> {
        let dims = self.dims("input_features");
        let mut values = features.slice::<f32>()?.to_vec();
        values.resize(dims.iter().product(), 0.0);
        Tensor::from_vec(dims, values)
    }

    fn check_prompts(&self, prompts: &[&[i64]], new: usize) -> Result<()> {
        let Capacity { texts, tokens } = self.capacity;
        let refuse = |text: String| Err(Error::new(ErrorKind::Shape, text));
        if prompts.len() > texts {
            return refuse(format!("{} prompts are more than the {texts} of the generator", prompts.len()));
        }
        if let Some(row) = prompts.iter().position(|prompt| prompt.is_empty()) {
            return refuse(format!("prompt {row} is empty"));
        }
        let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        match longest.saturating_add(new) > tokens {
            true => refuse(format!(
                "a prompt of {longest} tokens and {new} new ones exceed the capacity of {tokens}"
            )),
            false => Ok(()),
        }
    }

    /// Whether the model has an input.
    fn reads(&self, name: &str) -> bool {
        self.model.feeds.iter().any(|feed| feed == name)
    }

    /// The names of the parts of [`Text::step`] that the model reads.
    fn step_inputs(&self) -> &'static [&'static str] {
        match self.reads("decoder_input_ids") {
            true => &["decoder_input_ids", "positions", "source_lengths"],
            false => &["input_ids", "positions"],
        }
    }

    /// The dimensions of a variable; 0 for those that are open.
    fn dims(&self, name: &str) -> Vec<usize> {
        let program = &self.model.program;
        let desc = program.find(name).and_then(|var| program.root().vars.get(&var));
        desc.map(|desc| desc.dims.iter().map(|dim| dim.get().unwrap_or(0)).collect()).unwrap_or_default()
    }

    /// The number of positions that the encoder's output has at most.
    fn source_capacity(&self) -> usize {
        let mut values = self.model.scope.iter().filter(|(name, _)| is_of_source_cache(name));
        values.next().map_or(0, |(_, value)| value.dims()[1])
    }
}

/// The program of a step, in which a decoder sees what is kept of its encoder.
fn without_encoder(program: &Program) -> Program {
    let mut step = program.clone();
    // What computes the dropped operators' inputs is dead, and does not run.
    step.root_mut().ops.retain(|op| !op.writes().any(|var| is_of_source_cache(program.name(var))));
    step
}
