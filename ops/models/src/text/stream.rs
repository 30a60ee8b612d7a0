//! Texts that come token by token.

use autobwd::Result;

use super::Tokenizer;

/// What stands for bytes that are no character.
const REPLACEMENT: char = '\u{FFFD}';

/// The text of tokens that come one by one: a character comes with the last of its tokens.
///
/// ```
/// use autobwd_models::Tokenizer;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
/// let tokenizer = Tokenizer::open(folder)?;
/// let mut stream = tokenizer.stream();
/// let mut text = String::new();
/// for token in tokenizer.encode("a café")? {
///     text += &stream.push(token)?;
/// }
/// assert_eq!(text + &stream.finish()?, "a café");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<i64>,
    /// Tokens before it are left out: some decoders drop the space before the first token that they see.
    context: usize,
    /// Tokens before it are given.
    given: usize,
}

impl Tokenizer {
    /// The text of tokens that come one by one.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, tokens: vec![], context: 0, given: 0 }
    }
}

impl TextStream<'_> {
    /// Adds a token, and returns the text that is complete with it, which may be empty.
    ///
    /// # Errors
    /// Those of [`Tokenizer::decode`].
    pub fn push(&mut self, token: i64) -> Result<String> {
        self.tokens.push(token);
        let text = self.rest()?;
        if text.ends_with(REPLACEMENT) || text.is_empty() {
            return Ok(String::new());
        }
        self.context = self.given;
        self.given = self.tokens.len();
        Ok(text)
    }

    /// The text of the last tokens, whose last character is not complete.
    ///
    /// # Errors
    /// Those of [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<String> {
        let rest = self.rest()?;
        (self.context, self.given) = (self.tokens.len(), self.tokens.len());
        Ok(rest)
    }

    fn rest(&self) -> Result<String> {
        let given = self.tokenizer.decode(&self.tokens[self.context..self.given])?;
        let all = self.tokenizer.decode(&self.tokens[self.context..])?;
        match all.strip_prefix(given.as_str()) {
            Some(rest) => Ok(rest.to_string()),
            // Bytes that are no character also change what came before them.
            None => self.tokenizer.decode(&self.tokens[self.given..]),
        }
    }
}

/// A text that ends before a stop string. Text that may be the start of one is held back.
#[derive(Debug)]
pub(super) struct StoppedText<'a> {
    stop: &'a [String],
    held: String,
    pub(super) is_stopped: bool,
}

impl<'a> StoppedText<'a> {
    pub(super) fn new(stop: &'a [String]) -> StoppedText<'a> {
        StoppedText { stop, held: String::new(), is_stopped: false }
    }

    /// Adds text, and returns what can be no part of a stop string.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.held += text;
        let stops = || self.stop.iter().filter(|stop| !stop.is_empty());
        if let Some(at) = stops().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.is_stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let starts = self.held.char_indices().map(|(at, _)| at);
        let may_stop = |at: &usize| stops().any(|stop| stop.starts_with(&self.held[*at..]));
        let end = starts.into_iter().find(may_stop).unwrap_or(self.held.len());
        let held = self.held.split_off(end);
        std::mem::replace(&mut self.held, held)
    }

    /// What was held back, if no stop string came.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
