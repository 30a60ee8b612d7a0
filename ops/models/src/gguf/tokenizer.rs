//! The tokenizer in the metadata of a file, as `tokenizer.json` and `tokenizer_config.json`.

use autobwd::Result;
use serde_json::{Map, Value, json};

use super::{Entry, Gguf, sentencepiece};
use crate::file::refused;

/// The types of tokens that have a role here.
const UNUSED: f64 = 5.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;

/// Ends of turns, by which llama.cpp ends texts if no key names one.
const TURN_ENDS: [&str; 3] = ["<|eot_id|>", "<|im_end|>", "<end_of_turn>"];

/// A way to cut texts before merges.
struct PreTokenizer {
    /// Its names under `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Regular expressions, whose matches are cut out one after the other.
    cuts: &'static [&'static str],
    /// Whether texts start with the token of their start unless the file says otherwise, and whether a piece that is a
    /// token is taken whole.
    is_llama3: bool,
    /// Whether equivalent sequences of characters are composed first.
    is_composed: bool,
}

/// The pre-tokenizers of llama.cpp (`llama-vocab.cpp`), in the form of the published tokenizers.
const PRE_TOKENIZERS: [PreTokenizer; 5] = [
    PreTokenizer { names: &["gpt-2", "gpt2"], cuts: &[GPT2], is_llama3: false, is_composed: false },
    PreTokenizer { names: &["smollm"], cuts: &[r"\p{N}", GPT2], is_llama3: false, is_composed: false },
    PreTokenizer {
        names: &["default"],
        cuts: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        is_llama3: false,
        is_composed: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cuts: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        is_llama3: true,
        is_composed: false,
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen"],
        cuts: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        is_llama3: false,
        is_composed: true,
    },
];

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The tokens of a file.
pub(super) struct Tokens<'a> {
    pub(super) gguf: &'a Gguf<'a>,
    pub(super) texts: &'a [String],
    /// The type of each token, if the file has them.
    kinds: Vec<f64>,
}

impl<'a> Tokens<'a> {
    fn of(gguf: &'a Gguf<'a>) -> Option<Tokens<'a>> {
        let Some(Entry::Texts(texts)) = gguf.entry("tokenizer.ggml.tokens") else { return None };
        let kinds = gguf.entry("tokenizer.ggml.token_type").and_then(Entry::numbers).unwrap_or_default();
        Some(Tokens { gguf, texts, kinds })
    }

    pub(super) fn is_kind(&self, id: usize, kind: f64) -> bool {
        self.kinds.get(id) == Some(&kind)
    }

    /// The number of a token under a key, and its text.
    fn role(&self, name: &str) -> Option<(usize, &'a str)> {
        let id = self.gguf.value(&format!("tokenizer.ggml.{name}_token_id"))?.as_u64()?;
        let id = usize::try_from(id).ok()?;
        Some((id, self.texts.get(id)?))
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.gguf.value(&format!("tokenizer.ggml.{name}")).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Tokens that are cut out of texts first: those of control, and those that users have defined.
    fn added(&self) -> Vec<Value> {
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
    fn template(&self, starts: bool) -> Value {
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

/// `tokenizer.json`, if the file has tokens.
///
/// # Errors
/// A kind of tokenizer, a pre-tokenizer, or merges that are not supported.
pub(super) fn tokenizer(gguf: &Gguf<'_>) -> Result<Option<Map<String, Value>>> {
    let Some(tokens) = Tokens::of(gguf) else { return Ok(None) };
    let mut file = match gguf.value("tokenizer.ggml.model").and_then(Value::as_str).unwrap_or("") {
        "gpt2" => byte_level(&tokens)?,
        "llama" => {
            let has_prefix = tokens.flag("add_space_prefix", true);
            let mut file =
                sentencepiece::parts(&tokens, tokens.role("unknown").map(|(_, text)| text), has_prefix)?;
            file.insert("post_processor".into(), tokens.template(true));
            file
        }
        other => {
            let text = format!("the tokenizer is `{other}`; supported are `gpt2` and `llama`");
            return Err(refused(gguf.path, text));
        }
    };
    file.insert("version".into(), "1.0".into());
    file.insert("added_tokens".into(), tokens.added().into());
    Ok(Some(file))
}

/// Merges of bytes, which are written as characters.
fn byte_level(tokens: &Tokens<'_>) -> Result<Map<String, Value>> {
    let gguf = tokens.gguf;
    let name = gguf.value("tokenizer.ggml.pre").and_then(Value::as_str).unwrap_or("default");
    let known = PRE_TOKENIZERS.iter().find(|known| known.names.contains(&name));
    let pre = known.ok_or_else(|| {
        let names = PRE_TOKENIZERS.iter().flat_map(|known| known.names).map(|name| format!("`{name}`"));
        let names = names.collect::<Vec<_>>().join(", ");
        refused(gguf.path, format!("the pre-tokenizer is `{name}`; supported are {names}"))
    })?;
    let Some(Entry::Texts(merges)) = gguf.entry("tokenizer.ggml.merges") else {
        return Err(refused(gguf.path, "no texts `tokenizer.ggml.merges`"));
    };
    // A space is written as another character.
    let pairs = merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok(json!([left, right])),
        _ => Err(refused(gguf.path, format!("the merge `{merge}` is not of two tokens"))),
    });
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    // The rows of padding have names that no text should give.
    let used = tokens.texts.iter().enumerate().filter(|(id, _)| !tokens.is_kind(*id, UNUSED));
    let vocabulary: Map<String, Value> = used.map(|(id, text)| (text.clone(), id.into())).collect();
    let cut = |regex: &&str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let cuts: Vec<Value> = pre.cuts.iter().map(cut).chain([bytes.clone()]).collect();
    let file = json!({
        "normalizer": if pre.is_composed { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": cuts },
        "post_processor": tokens.template(pre.is_llama3),
        "decoder": bytes,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": pairs,
            "ignore_merges": pre.is_llama3,
        },
    });
    Ok(file.as_object().cloned().unwrap_or_default())
}

/// `tokenizer_config.json`: the roles of tokens, and the template of chats.
pub(super) fn tokenizer_config(gguf: &Gguf<'_>) -> Map<String, Value> {
    let mut config = Map::new();
    let tokens = Tokens::of(gguf);
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")] {
        if let Some((_, text)) = tokens.as_ref().and_then(|tokens| tokens.role(name)) {
            config.insert(format!("{key}_token"), text.into());
        }
    }
    for (key, known) in [
        ("chat_template", "tokenizer.chat_template"),
        ("add_bos_token", "tokenizer.ggml.add_bos_token"),
        ("add_eos_token", "tokenizer.ggml.add_eos_token"),
    ] {
        if let Some(value) = gguf.value(known) {
            config.insert(key.into(), value.clone());
        }
    }
    config
}

/// `generation_config.json`: the tokens that end texts, of any of the keys for them, or ends of turns by their text.
pub(super) fn generation_config(gguf: &Gguf<'_>) -> Option<Map<String, Value>> {
    let id = |name: &str| gguf.value(&format!("tokenizer.ggml.{name}_token_id"))?.as_u64();
    let mut ends: Vec<u64> = ["eos", "eot", "eom"].into_iter().filter_map(id).collect();
    if let (None, Some(tokens)) = (id("eot"), Tokens::of(gguf)) {
        let turns = tokens
            .texts
            .iter()
            .enumerate()
            .filter(|(id, text)| TURN_ENDS.contains(&text.as_str()) && tokens.is_kind(*id, CONTROL));
        ends.extend(turns.map(|(id, _)| id as u64));
    }
    ends.sort_unstable();
    ends.dedup();
    (!ends.is_empty()).then(|| Map::from_iter([("eos_token_id".into(), ends.into())]))
}
