//! Texts from a generator.

use autobwd::{Executor, Result};

use super::{TextStream, Tokenizer, stream::StoppedText};
use crate::{GenerationOptions, Generator};

/// A text that is being continued.
struct Continuation<'a> {
    stream: TextStream<'a>,
    stopped: StoppedText<'a>,
    text: String,
}

impl Generator {
    /// As [`generate_with`](Generator::generate_with), for texts: returns what continues each prompt. A text ends before
    /// the first of the `stop` strings. Each new part is given to `on_text`, with the number of its text.
    ///
    /// ```
    /// use autobwd::Executor;
    /// use autobwd_models::{Generator, Pretrained, Tokenizer};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
    /// let tokenizer = Tokenizer::open(folder)?;
    /// let mut generator = Generator::new(&Pretrained::open(folder), 1, 64)?;
    /// let options = generator.defaults()?;
    /// let prompt = tokenizer.encode("the cat")?;
    /// let mut shown = String::new();
    /// let texts = generator.generate_texts(
    ///     &mut Executor::new(), &tokenizer, &[prompt], &options, &["\n".into()], |_, part| shown += part,
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
        mut on_text: impl FnMut(usize, &str),
    ) -> Result<Vec<String>> {
        let start = |_| Continuation {
            stream: tokenizer.stream(),
            stopped: StoppedText::new(stop),
            text: String::new(),
        };
        let mut texts: Vec<Continuation<'_>> = prompts.iter().map(start).collect();
        let mut failure = None;
        let mut give = |row: usize, text: &mut String, part: &str| {
            if !part.is_empty() {
                text.push_str(part);
                on_text(row, part);
            }
        };
        self.generate_with(executor, prompts, options, |row, token| {
            let Continuation { stream, stopped, text } = &mut texts[row];
            match stream.push(token) {
                Ok(part) => give(row, text, &stopped.push(&part)),
                Err(e) => failure = Some(e),
            }
            failure.is_none() && !stopped.is_stopped
        })?;
        if let Some(e) = failure {
            return Err(e);
        }
        let finished = texts.into_iter().enumerate().map(|(row, continuation)| {
            let Continuation { stream, mut stopped, mut text } = continuation;
            let part = stopped.push(&stream.finish()?);
            give(row, &mut text, &part);
            give(row, &mut text, &stopped.finish());
            Ok(text)
        });
        finished.collect()
    }
}
