//! Generation of texts, token by token.

use autobwd::{DType, Error, ErrorKind, Executor, Meta, Result, Tensor};
use autobwd_ops::Model;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::Value;

use crate::{GenerationOptions, Pretrained, inputs::Capacity, source::Source};

/// The position of padding.
const PADDING: i64 = -1;

/// Continues texts with a decoder: one plan for all prompts and one for all steps, with a cache whose used part is data.
///
/// The tokens of a text depend on its prompt, the options and the seed alone: not on other texts, nor on threads.
///
/// ```
/// use autobwd::Executor;
/// use autobwd_models::{GenerationOptions, Generator, Pretrained};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
/// // Two texts at a time, of 64 tokens at most.
/// let mut generator = Generator::new(&Pretrained::open(folder), 2, 64)?;
/// let options = GenerationOptions { max_new_tokens: 3, ..generator.defaults()? };
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

/// A text that is being continued.
struct Text {
    tokens: Vec<i64>,
    prompt: usize,
    rng: Pcg64Mcg,
    is_complete: bool,
}

impl Generator {
    /// A generator for `texts` texts at a time, of at most `tokens` tokens, prompts included.
    ///
    /// # Errors
    /// Those of [`Pretrained::load`]; models that do not continue texts token by token.
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

    /// The model, whose inputs are `input_ids` and `positions`, int64 `[texts, length]`, and whose output is `logits`: for
    /// adapters, whose branches are attached to it.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The options of the folder: `generation_config.json`, and the end of texts in `config.json` otherwise.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn defaults(&self) -> Result<GenerationOptions> {
        defaults(&self.source)
    }

    /// Continues texts, each until it has a token of `eos_token_ids` or `max_new_tokens` new ones. Returns the new tokens.
    ///
    /// # Errors
    /// More prompts than texts; empty prompts; texts that may exceed the capacity; tokens that the model does not have;
    /// options out of range; those of [`Executor::run`].
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
        mut on_token: impl FnMut(usize, i64) -> bool,
    ) -> Result<Vec<Vec<i64>>> {
        let prompts: Vec<&[i64]> = prompts.iter().map(AsRef::as_ref).collect();
        self.check(&prompts, options)?;
        let start = |prompt: &&[i64]| Text {
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            rng: Pcg64Mcg::seed_from_u64(options.seed),
            is_complete: options.max_new_tokens == 0,
        };
        let mut texts: Vec<Text> = prompts.iter().map(start).collect();
        self.read_prompts(executor, &prompts)?;
        let logits = self.model.fetches[0].clone();
        let feeds =
            ["input_ids", "positions"].map(|name| (name, Meta::new(DType::I64, [self.capacity.texts, 1])));
        let Model { program, scope, .. } = &mut self.model;
        let mut session = executor.prepare(program, scope, &feeds, &[&logits])?;
        while texts.iter().any(|text| !text.is_complete) {
            let of_text = |text: &Text| match (text.is_complete, text.tokens.last()) {
                (false, Some(token)) => [*token, text.tokens.len() as i64 - 1],
                _ => [0, PADDING],
            };
            for (part, name) in ["input_ids", "positions"].into_iter().enumerate() {
                let feed = session.feed_mut::<i64>(name)?;
                feed.fill([0, PADDING][part]);
                feed.iter_mut().zip(&texts).for_each(|(feed, text)| *feed = of_text(text)[part]);
            }
            session.run(scope)?;
            let found = session.fetch(&logits)?.to_f64s();
            let words = found.len() / self.capacity.texts;
            for (row, text) in texts.iter_mut().enumerate().filter(|(_, text)| !text.is_complete) {
                let mut row_logits: Vec<f32> =
                    found[row * words..][..words].iter().map(|x| *x as f32).collect();
                options.process(&mut row_logits, &text.tokens, text.prompt);
                // 53 bits, as many as a number below 1 has.
                let at = (text.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let token = options.choose(&row_logits, at) as i64;
                text.tokens.push(token);
                let goes_on = on_token(row, token);
                let is_full = text.tokens.len() - text.prompt >= options.max_new_tokens;
                text.is_complete = !goes_on || is_full || options.eos_token_ids.contains(&token);
            }
        }
        Ok(texts.into_iter().map(|mut text| text.tokens.split_off(text.prompt)).collect())
    }

    /// Keeps the keys and values of all tokens of the prompts but the last ones, which begin the first step.
    fn read_prompts(&mut self, executor: &mut Executor, prompts: &[&[i64]]) -> Result<()> {
        let length = prompts.iter().map(|prompt| prompt.len() - 1).max().unwrap_or(0);
        if length == 0 {
            return Ok(());
        }
        let (mut ids, mut positions) = (vec![], vec![]);
        for row in 0..self.capacity.texts {
            let prompt = prompts.get(row).map_or(&[][..], |prompt| &prompt[..prompt.len() - 1]);
            for at in 0..length {
                ids.push(prompt.get(at).copied().unwrap_or(0));
                positions.push(if at < prompt.len() { at as i64 } else { PADDING });
            }
        }
        let dims = [self.capacity.texts, length];
        let (ids, positions) = (Tensor::from_vec(dims, ids)?, Tensor::from_vec(dims, positions)?);
        let Model { program, scope, .. } = &mut self.model;
        executor.run(program, scope, &[("input_ids", &ids), ("positions", &positions)], &[])?;
        Ok(())
    }

    fn check(&self, prompts: &[&[i64]], options: &GenerationOptions) -> Result<()> {
        let Capacity { texts, tokens } = self.capacity;
        let refuse = |text: String| Err(Error::new(ErrorKind::Shape, text));
        if prompts.len() > texts {
            return refuse(format!("{} prompts are more than the {texts} of the generator", prompts.len()));
        }
        if let Some(row) = prompts.iter().position(|prompt| prompt.is_empty()) {
            return refuse(format!("prompt {row} is empty"));
        }
        let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        if longest.saturating_add(options.max_new_tokens) > tokens {
            let new = options.max_new_tokens;
            return refuse(format!(
                "a prompt of {longest} tokens and {new} new ones exceed the capacity of {tokens}"
            ));
        }
        options.check()
    }
}

/// The options in the files of a model.
pub(crate) fn defaults(source: &Source) -> Result<GenerationOptions> {
    let plain = GenerationOptions::default();
    let own = source.object("generation_config.json")?;
    let keys = own.map_or_else(|| source.object("config.json").map(Option::unwrap_or_default), Ok)?;
    let number = |key: &str| keys.get(key).and_then(Value::as_f64);
    let count = |key: &str| keys.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let ids = |key: &str| match keys.get(key) {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_i64).collect(),
        Some(value) => value.as_i64().into_iter().collect(),
        None => vec![],
    };
    Ok(GenerationOptions {
        max_new_tokens: count("max_new_tokens").unwrap_or(plain.max_new_tokens),
        eos_token_ids: ids("eos_token_id"),
        repetition_penalty: number("repetition_penalty").unwrap_or(1.0) as f32,
        no_repeat_ngram_size: count("no_repeat_ngram_size").unwrap_or(0),
        min_new_tokens: count("min_new_tokens").unwrap_or(0),
        suppress_tokens: ids("suppress_tokens"),
        do_sample: keys.get("do_sample").and_then(Value::as_bool).unwrap_or(false),
        temperature: number("temperature").unwrap_or(1.0) as f32,
        top_k: count("top_k").unwrap_or(plain.top_k),
        top_p: number("top_p").unwrap_or(1.0) as f32,
        min_p: number("min_p").unwrap_or(0.0) as f32,
        seed: 0,
    })
}
