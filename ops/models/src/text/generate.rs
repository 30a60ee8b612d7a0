//! Texts from a generator.

use autobwd::{Executor, Result};

use super::{TextStream, Tokenizer, stream::StoppedText};
use crate::{GenerationOptions, Generator};

/// A text that is being continued.
struct Continuation<'a> {
    stream: TextStream<'a>,
    stopped: StoppedText<'a>,
    text: String,
    /// The number of its tokens.
    tokens: usize,
}

impl Generator {
    /// As [`generate_with`](Generator::generate_with), for texts: returns what continues each prompt. A text ends before
    /// the first of the `stop` strings. Each new part is given to `on_text`, with
    /// the number of its text and the number of its new tokens so far; all texts end when that returns `false`.
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
    ///     &mut Executor::new(), &tokenizer, &[prompt], &options, &["\n".into()], |_, _, part| { shown += part; true },
    /// )?;
    /// assert_eq!(texts, [shown]);
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
        mut on_text: impl FnMut(usize, usize, &str) -> bool,
    ) -> Result<Vec<String>> {
        let start = |_| Continuation {
            stream: tokenizer.stream(),
            stopped: StoppedText::new(stop),
            text: String::new(),
            tokens: 0,
        };
        let mut texts: Vec<Continuation<'_>> = prompts.iter().map(start).collect();
        let (mut failure, mut is_wanted) = (None, true);
        let mut give = |row: usize, continuation: &mut Continuation<'_>, part: &str| {
            continuation.text.push_str(part);
            is_wanted &= part.is_empty() || on_text(row, continuation.tokens, part);
            is_wanted
        };
        self.generate_with(executor, prompts, options, |row, token| {
            let continuation = &mut texts[row];
            continuation.tokens += 1;
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
        Ok(texts.into_iter().map(|continuation| continuation.text).collect())
    }
}
