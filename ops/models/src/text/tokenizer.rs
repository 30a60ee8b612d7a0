//! Texts as tokens.

use std::path::Path;

use autobwd::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::{ChatMessage, chat::ChatTemplate};
use crate::source::Source;

/// The tokens that a configuration names, by their keys.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// The tokenizer of a published model, and the template of its conversations: `tokenizer.json`, `tokenizer_config.json`
/// and `chat_template.jinja`.
///
/// ```
/// use autobwd_models::{ChatMessage, Tokenizer};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
/// let tokenizer = Tokenizer::open(folder)?;
/// let tokens = tokenizer.encode("the cat sat on the mat")?;
/// assert_eq!(tokenizer.decode(&tokens)?, "the cat sat on the mat");
///
/// let prompt = tokenizer.render_chat(&[ChatMessage::new("user", "hello")], true)?;
/// assert_eq!(prompt, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    tokenizer: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
    /// The texts of tokens with a role.
    roles: Map<String, Value>,
    path: String,
}

impl Tokenizer {
    /// Reads the tokenizer of a model's folder or of its file of GGUF.
    ///
    /// # Errors
    /// Files that cannot be read; a folder without `tokenizer.json`.
    pub fn open(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let source = Source::open(path.as_ref());
        let shown = path.as_ref().display().to_string();
        let Some(tokenizer) = source.object("tokenizer.json")? else {
            let text = format!(
                "`{shown}` has no `tokenizer.json`; other files of tokenizers are converted by \
                 `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers"
            );
            return Err(Error::new(ErrorKind::Io, text));
        };
        let refused = |e: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Format, format!("`{shown}`: `tokenizer.json` is no tokenizer: {e}"))
        };
        let tokenizer = Value::Object(tokenizer);
        let mut tokenizer: tokenizers::Tokenizer =
            caught(|| serde_json::from_value(tokenizer))?.map_err(|e| refused(&e))?;
        // Users say how long texts may be.
        tokenizer.with_truncation(None).map_err(|e| refused(&e))?.with_padding(None);
        let config = source.object("tokenizer_config.json")?.unwrap_or_default();
        // A token is a text, or an object with its text.
        let role = |key: &str| {
            let value = config.get(key)?;
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.to_string(), Value::from(text)))
        };
        let roles: Map<String, Value> = ROLES.iter().filter_map(|key| role(key)).collect();
        let template = source.text("chat_template.jinja")?.or_else(|| default_template(&config));
        let template = template.map(|source| ChatTemplate::new(source, roles.clone()));
        Ok(Tokenizer { tokenizer, template, roles, path: shown })
    }

    /// The tokens of a text, with the special tokens that the model expects around it.
    ///
    /// # Errors
    /// Texts that the tokenizer cannot encode.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>> {
        Ok(ids(&self.encoding(text, true)?))
    }

    /// The tokens of a text that has its special tokens in itself, such as a rendered conversation, or continues another.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_plain(&self, text: &str) -> Result<Vec<i64>> {
        Ok(ids(&self.encoding(text, false)?))
    }

    /// As [`encode_plain`](Tokenizer::encode_plain), with the place in the text where each token starts, in bytes.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_with_starts(&self, text: &str) -> Result<(Vec<i64>, Vec<usize>)> {
        let encoding = self.encoding(text, false)?;
        Ok((ids(&encoding), encoding.get_offsets().iter().map(|(start, _)| *start).collect()))
    }

    /// The tokens of two texts in one row, and the number of the text of each token, as BERT takes them.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<i64>, Vec<i64>)> {
        let encoding = self.encoding((first, second), true)?;
        Ok((ids(&encoding), encoding.get_type_ids().iter().map(|id| i64::from(*id)).collect()))
    }

    /// The tokens of words, with special tokens, and the number of the word that begins with each of them.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_words(&self, words: &[&str]) -> Result<(Vec<i64>, Vec<Option<usize>>)> {
        let encoding = self.encoding(tokenizers::InputSequence::from(words), true)?;
        let mut last = None;
        let begun = |word: &Option<u32>| {
            let begins = *word != last;
            last = *word;
            word.filter(|_| begins).map(|word| word as usize)
        };
        Ok((ids(&encoding), encoding.get_word_ids().iter().map(begun).collect()))
    }

    fn encoding<'a>(
        &self,
        text: impl Into<tokenizers::EncodeInput<'a>>,
        add_special_tokens: bool,
    ) -> Result<tokenizers::Encoding> {
        caught(|| self.tokenizer.encode(text.into(), add_special_tokens))?.map_err(|e| self.refused(&e))
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// Negative tokens.
    pub fn decode(&self, tokens: &[i64]) -> Result<String> {
        let id = |token: &i64| {
            u32::try_from(*token)
                .map_err(|_| self.refused(&format_args!("a token is {token}, not a number from 0")))
        };
        let tokens: Vec<u32> = tokens.iter().map(id).collect::<Result<_>>()?;
        caught(|| self.tokenizer.decode(&tokens, true))?.map_err(|e| self.refused(&e))
    }

    /// The number of a token by its text.
    pub fn token_id(&self, token: &str) -> Option<i64> {
        self.tokenizer.token_to_id(token).map(i64::from)
    }

    /// The token that ends a text, if the configuration names one.
    pub fn eos_token_id(&self) -> Option<i64> {
        self.role("eos_token")
    }

    /// The token that stands for a hidden one, if the configuration names one.
    pub fn mask_token_id(&self) -> Option<i64> {
        self.role("mask_token")
    }

    fn role(&self, key: &str) -> Option<i64> {
        self.token_id(self.roles.get(key)?.as_str()?)
    }

    /// Whether the configuration gives a token a role.
    pub fn has_role(&self, token: i64) -> bool {
        self.roles.keys().any(|key| self.role(key) == Some(token))
    }

    /// The largest number of a token: the embedding of the model has more rows.
    pub fn largest_id(&self) -> i64 {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, i64::from)
    }

    /// A conversation as one text, by the template of the model; with the beginning of an answer, if that is asked for.
    /// Its special tokens are in the text: [`encode_plain`](Tokenizer::encode_plain) encodes it.
    ///
    /// # Errors
    /// A model without template; a template that refuses the conversation.
    pub fn render_chat(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String> {
        let missing = || {
            let text = format!(
                "`{}` has no chat template: neither `chat_template.jinja` nor `chat_template` in \
                 `tokenizer_config.json`",
                self.path
            );
            Error::new(ErrorKind::Format, text)
        };
        self.template.as_ref().ok_or_else(missing)?.render(messages, add_generation_prompt)
    }

    fn refused(&self, e: &dyn std::fmt::Display) -> Error {
        Error::new(ErrorKind::Format, format!("the tokenizer of `{}`: {e}", self.path))
    }
}

/// The template in a configuration: a text, or the one named `default` in a list.
fn default_template(config: &Map<String, Value>) -> Option<String> {
    let template = config.get("chat_template")?;
    let of_list = || {
        let default = template.as_array()?.iter().find(|entry| entry["name"] == "default")?;
        default["template"].as_str()
    };
    template.as_str().or_else(of_list).map(String::from)
}

fn ids(encoding: &tokenizers::Encoding) -> Vec<i64> {
    encoding.get_ids().iter().map(|id| i64::from(*id)).collect()
}

/// The result of a function of the library, for which files that contradict themselves may be a panic.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
        .map_err(|_| Error::new(ErrorKind::Format, "the file of the tokenizer contradicts itself"))
}
