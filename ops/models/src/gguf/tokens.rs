//! The tokens in the metadata of a file.

use autobwd::Result;
use serde_json::{Map, Value, json};

use super::{Entry, Gguf};
use crate::file::refused;

/// The types of tokens that are cut out of texts first.
pub(super) const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;

/// The tokens of a file.
pub(super) struct Tokens<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) texts: &'a [String],
    /// The type of each token, if the file has them.
    kinds: Vec<f64>,
}

impl<'a> Tokens<'a> {
    pub(super) fn of(gguf: &'a Gguf) -> Option<Tokens<'a>> {
        let Some(Entry::Texts(texts)) = gguf.entry("tokenizer.ggml.tokens") else { return None };
        let kinds = gguf.entry("tokenizer.ggml.token_type").and_then(Entry::numbers).unwrap_or_default();
        Some(Tokens { gguf, texts, kinds })
    }

    /// # Errors
    /// Another number of types than of tokens; a role of a token that there is not.
    pub(super) fn require_consistent(&self) -> Result<()> {
        let (gguf, count) = (self.gguf, self.texts.len());
        if gguf.entry("tokenizer.ggml.token_type").is_some() && self.kinds.len() != count {
            let kinds = self.kinds.len();
            return Err(refused(
                &gguf.path,
                format!("`tokenizer.ggml.token_type` has {kinds} numbers for {count} tokens"),
            ));
        }
        for name in ["bos", "eos", "eot", "unknown", "padding"] {
            let key = format!("tokenizer.ggml.{name}_token_id");
            if let Some(value) = gguf.value(&key).filter(|_| self.role(name).is_none()) {
                return Err(refused(
                    &gguf.path,
                    format!("`{key}` is {value}, which is none of the {count} tokens"),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn is_kind(&self, id: usize, kind: f64) -> bool {
        self.kinds.get(id) == Some(&kind)
    }

    /// The number of a token under a key, and its text.
    pub(super) fn role(&self, name: &str) -> Option<(usize, &'a str)> {
        let id = self.gguf.value(&format!("tokenizer.ggml.{name}_token_id"))?.as_u64()?;
        let id = usize::try_from(id).ok()?;
        Some((id, self.texts.get(id)?))
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        self.gguf.value(&format!("tokenizer.ggml.{name}")).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Tokens that are cut out of texts first: those of control, and those that users have defined.
    pub(super) fn added(&self) -> Vec<Value> {
        let is_added = |(id, text): &(usize, &String)| {
            let is_own = self.is_kind(*id, USER_DEFINED) && !is_spaces(text);
            (self.is_kind(*id, CONTROL) || is_own) && !text.is_empty()
        };
        let added = |(id, text): (usize, &String)| {
            json!({
                "id": id, "content": text, "special": self.is_kind(id, CONTROL),
                "normalized": false, "single_word": false, "lstrip": false, "rstrip": false,
            })
        };
        self.texts.iter().enumerate().filter(is_added).map(added).collect()
    }

    /// The start and the end of texts.
    pub(super) fn template(&self, starts: bool) -> Value {
        let starts = self.flag("add_bos_token", starts).then(|| self.role("bos")).flatten();
        let ends = self.flag("add_eos_token", false).then(|| self.role("eos")).flatten();
        if starts.or(ends).is_none() {
            return Value::Null;
        }
        let special = |role: Option<(usize, &str)>, part: usize| {
            role.map(|(_, text)| json!({ "SpecialToken": { "id": text, "type_id": part } }))
        };
        let sequence = |name: &str, part: usize| {
            let text = Some(json!({ "Sequence": { "id": name, "type_id": part } }));
            [special(starts, part), text, special(ends, part)].into_iter().flatten().collect::<Vec<_>>()
        };
        let tokens = [starts, ends].into_iter().flatten();
        let tokens =
            tokens.map(|(id, text)| (text.into(), json!({ "id": text, "ids": [id], "tokens": [text] })));
        let [single, second] = [sequence("A", 0), sequence("B", 1)];
        let pair = [&*single, &*second].concat();
        json!({
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": tokens.collect::<Map<_, _>>(),
        })
    }
}

/// Whether a token is several spaces, which Gemma's files write as such; they are no tokens that users have defined.
pub(super) fn is_spaces(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte == b' ')
}
