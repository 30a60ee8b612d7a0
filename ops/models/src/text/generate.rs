//! Texts from a generator.

use autobwd::{Executor, Result};

use super::{TextStream, Tokenizer, stream::StoppedText};
use crate::{GenerationOptions, Generator};

/// A text that a model has continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedText {
    /// The new text.
    pub text: String,
    /// The new tokens, with those that end the text and those of a stop string.
    pub tokens: Vec<i64>,
}

/// A text that is being continued.
struct Continuation<'a> {
    stream: TextStream<'a>,
    stopped: StoppedText<'a>,
    text: String,
}

impl GenerationOptions {
    /// The options, with the end of texts that the tokenizer names if they name none.
    ///
    /// ```
    /// use autobwd_models::{GenerationOptions, Tokenizer};
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
    /// let tokenizer = Tokenizer::open(folder)?;
    /// let options = GenerationOptions::default().with_end_of(&tokenizer);
    /// assert_eq!(options.eos_token_ids, Vec::from_iter(tokenizer.eos_token_id()));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[must_use]
    pub fn with_end_of(mut self, tokenizer: &Tokenizer) -> GenerationOptions {
        if self.eos_token_ids.is_empty() {
            self.eos_token_ids.extend(tokenizer.eos_token_id());
        }
        self
    }
}

impl Generator {
    /// As [`generate_with`](Generator::generate_with), for texts: returns what continues each prompt. A text ends before
    /// the first of the `stop` strings. Each new part is given to `on_text`, with the number of its text; all texts end
    /// when that returns `false`.
    ///
    /// ```
    /// use autobwd::Executor;
    /// use autobwd_models::{Generator, Pretrained, Tokenizer};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
    /// let tokenizer = Tokenizer::open(folder)?;
    /// let pretrained = Pretrained::open(folder);
    /// let mut generator = Generator::new(&pretrained, 1, 64)?;
    /// let options = pretrained.generation_options()?;
    /// let prompt = tokenizer.encode("the cat")?;
    /// let mut shown = String::new();
    /// let texts = generator.generate_texts(
    ///     &mut Executor::new(), &tokenizer, &[prompt], &options, &["\n".into()], |_, part| { shown += part; true },
    /// )?;
    /// assert_eq!(texts[0].text, shown);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`generate`](Generator::generate) and of [`Tokenizer::decode`].
    pub fn generate_texts(
        &mut self,
        executor: &mut Executor,
        tokenizer: &Tokenizer,
        prompts: &[impl AsRef<[i64]>],
        options: &GenerationOptions,
        stop: &[String],
        on_text: impl FnMut(usize, &str) -> bool,
    ) -> Result<Vec<GeneratedText>> {
        texts(tokenizer, prompts.len(), stop, on_text, |on_token| {
            self.generate_with(executor, prompts, options, on_token)
        })
    }
}

/// So many texts of the tokens that `generate` gives to its argument and returns.
pub(super) fn texts(
    tokenizer: &Tokenizer,
    count: usize,
    stop: &[String],
    mut on_text: impl FnMut(usize, &str) -> bool,
    generate: impl FnOnce(&mut dyn FnMut(usize, i64) -> bool) -> Result<Vec<Vec<i64>>>,
) -> Result<Vec<GeneratedText>> {
    let start =
        || Continuation { stream: tokenizer.stream(), stopped: StoppedText::new(stop), text: String::new() };
    let mut texts: Vec<Continuation<'_>> = std::iter::repeat_with(start).take(count).collect();
    let (mut failure, mut is_wanted) = (None, true);
    let mut give = |row: usize, continuation: &mut Continuation<'_>, part: &str| {
        continuation.text.push_str(part);
        is_wanted &= part.is_empty() || on_text(row, part);
        is_wanted
    };
    let tokens = generate(&mut |row, token| {
        let continuation = &mut texts[row];
        let part = match continuation.stream.push(token) {
            Ok(part) => continuation.stopped.push(&part),
            Err(e) => {
                failure = Some(e);
                return false;
            }
        };
        give(row, continuation, &part) && !continuation.stopped.is_stopped
    })?;
    if let Some(e) = failure {
        return Err(e);
    }
    for (row, continuation) in texts.iter_mut().enumerate() {
        let part = continuation.stream.finish()?;
        let part = continuation.stopped.push(&part) + &continuation.stopped.finish();
        give(row, continuation, &part);
    }
    let text = |(continuation, tokens): (Continuation<'_>, Vec<i64>)| GeneratedText {
        text: continuation.text,
        tokens,
    };
    Ok(texts.into_iter().zip(tokens).map(text).collect())
}
