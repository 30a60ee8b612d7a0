//! Text as windows of numbered tokens.

use std::path::Path;

use autobwd_core::{Error, ErrorKind, Result, Tensor, tensor::read_file};

use crate::{Batch, Dataset, fingerprint::Fingerprint};

/// The largest file that is read, in bytes.
const LIMIT: u64 = 1 << 32;

/// The tokens that a text consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextUnit {
    /// Bytes; each is its own id, 0 to 255.
    Byte,
    /// Characters; an id is the position of a character in the sorted [`vocabulary`](TextWindows::vocabulary).
    Character,
}

/// A text for language models: each example is a window of token ids, `x`, and the tokens that follow each of them,
/// `y`.
///
/// `x` is int64 `[n, length]`, `y` is int64 `[n, length, 1]`, as `cross_entropy` takes labels.
///
/// ```
/// use autobwd_data::{Dataset, TextUnit, TextWindows};
///
/// let text = TextWindows::new("abcabca", TextUnit::Character, 3)?;
/// assert_eq!((text.len(), text.vocabulary()), (2, &['a', 'b', 'c'][..]));
/// let batch = text.batch(&[1])?;
/// assert_eq!(batch.get("x")?.slice::<i64>()?, [0, 1, 2]);
/// assert_eq!(batch.get("y")?.slice::<i64>()?, [1, 2, 0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextWindows {
    ids: Vec<u32>,
    vocabulary: Vec<char>,
    length: usize,
    stride: usize,
    /// The hash of the text.
    text: u64,
    fields: [String; 2],
}

impl TextWindows {
    /// Windows of `length` tokens, one after the other. Tokens at the end that fill no window are left out.
    ///
    /// # Errors
    /// A text that is not UTF-8, for characters; windows of length 0, or too long for the text.
    pub fn new(text: impl AsRef<[u8]>, unit: TextUnit, length: usize) -> Result<TextWindows> {
        let text = text.as_ref();
        let mut vocabulary = vec![];
        let ids: Vec<u32> = match unit {
            TextUnit::Byte => text.iter().copied().map(u32::from).collect(),
            TextUnit::Character => {
                let characters = str::from_utf8(text).map_err(|e| {
                    let text = format!(
                        "the text is not UTF-8 after byte {}: `TextUnit::Byte` takes any",
                        e.valid_up_to()
                    );
                    Error::new(ErrorKind::Format, text).caused_by(e)
                })?;
                vocabulary = characters.chars().collect();
                vocabulary.sort_unstable();
                vocabulary.dedup();
                characters
                    .chars()
                    .filter_map(|c| vocabulary.binary_search(&c).ok())
                    .map(|id| id as u32)
                    .collect()
            }
        };
        let refuse = |text: String| Err(Error::new(ErrorKind::Data, text));
        if length == 0 {
            return refuse("a window needs at least 1 token, not 0".into());
        }
        if ids.len() <= length {
            let n = ids.len();
            return refuse(format!(
                "a text of {n} tokens is too short for a window of {length} and the next token"
            ));
        }
        let hash = Fingerprint::default().number(vocabulary.len() as u64).bytes(text).finish();
        let fields = ["x", "y"].map(String::from);
        Ok(TextWindows { ids, vocabulary, length, stride: length, text: hash, fields })
    }

    /// As [`new`](TextWindows::new), from a file.
    ///
    /// # Errors
    /// Failures of the file system; the errors of [`new`](TextWindows::new), with the path; a file of more than 4 GiB.
    pub fn read(path: impl AsRef<Path>, unit: TextUnit, length: usize) -> Result<TextWindows> {
        let path = path.as_ref();
        let text = read_file(path, LIMIT)?;
        TextWindows::new(text, unit, length)
            .map_err(|e| Error::new(e.kind(), format!("`{}`: {e}", path.display())).caused_by(e))
    }

    /// Starts a window every `tokens` tokens, at least 1, so that windows overlap or leave gaps.
    #[must_use]
    pub fn stride(self, tokens: usize) -> TextWindows {
        TextWindows { stride: tokens.max(1), ..self }
    }

    /// The names of the fields, `x` and `y` by default.
    #[must_use]
    pub fn fields(self, x: &str, y: &str) -> TextWindows {
        TextWindows { fields: [x, y].map(String::from), ..self }
    }

    /// The characters by id; empty for bytes.
    pub fn vocabulary(&self) -> &[char] {
        &self.vocabulary
    }
}

impl Dataset for TextWindows {
    fn len(&self) -> usize {
        (self.ids.len() - 1 - self.length) / self.stride + 1
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        let windows = |offset: usize| {
            let mut ids = Vec::with_capacity(indices.len() * self.length);
            for index in indices {
                let start = index.saturating_mul(self.stride).saturating_add(offset);
                let window = self.ids.get(start..start.saturating_add(self.length)).ok_or_else(|| {
                    let text = format!("there is no window {index}: the text has {}", self.len());
                    Error::new(ErrorKind::NoValue, text)
                })?;
                ids.extend(window.iter().copied().map(i64::from));
            }
            Ok::<_, Error>(ids)
        };
        let (n, [x, y]) = (indices.len(), &self.fields);
        let now = Tensor::from_vec([n, self.length], windows(0)?)?;
        Batch::new([(x, now), (y, Tensor::from_vec([n, self.length, 1], windows(1)?)?)])
    }

    fn fingerprint(&self) -> u64 {
        Fingerprint::default()
            .number(self.text)
            .number(self.length as u64)
            .number(self.stride as u64)
            .finish()
    }
}
