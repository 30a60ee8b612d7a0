//! The tokenizer in the metadata of a file, as `tokenizer.json` and `tokenizer_config.json`.

use autobwd::Result;
use serde_json::{Map, Value, json};

use super::{
    Entry, Gguf, sentencepiece,
    tokens::{CONTROL, Tokens},
};
use crate::file::refused;

/// The type of tokens that are rows of padding.
const UNUSED: f64 = 5.0;

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

/// `tokenizer.json`, if the file has tokens.
///
/// # Errors
/// A kind of tokenizer, a pre-tokenizer, or merges that are not supported.
pub(super) fn tokenizer(gguf: &Gguf) -> Result<Option<Map<String, Value>>> {
    let Some(tokens) = Tokens::of(gguf) else { return Ok(None) };
    tokens.require_consistent()?;
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
            return Err(refused(&gguf.path, text));
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
        refused(&gguf.path, format!("the pre-tokenizer is `{name}`; supported are {names}"))
    })?;
    let Some(Entry::Texts(merges)) = gguf.entry("tokenizer.ggml.merges") else {
        return Err(refused(&gguf.path, "no texts `tokenizer.ggml.merges`"));
    };
    // A space is written as another character.
    let pairs = merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok(json!([left, right])),
        _ => Err(refused(&gguf.path, format!("the merge `{merge}` is not of two tokens"))),
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
pub(super) fn tokenizer_config(gguf: &Gguf) -> Map<String, Value> {
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
pub(super) fn generation_config(gguf: &Gguf) -> Option<Map<String, Value>> {
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
