//! Tokenizers of SentencePiece with merges, whose files have scores of tokens instead of the merges.

use std::collections::HashMap;

use autobwd::Result;
use serde_json::{Map, Value, json};

use super::{
    Entry,
    tokens::{Tokens, is_spaces},
};
use crate::file::refused;

/// The character for a space.
const SPACE: &str = "▁";
/// The type of tokens that merges give.
const NORMAL: f64 = 1.0;
/// The longest token that merges give, in bytes, so that the time to find merges is bounded.
const LONGEST: usize = 256;

/// The parts of `tokenizer.json` besides those of special tokens.
pub(super) fn parts(
    tokens: &Tokens<'_>,
    unknown: Option<&str>,
    has_prefix: bool,
) -> Result<Map<String, Value>> {
    let texts = spelled(tokens);
    let vocabulary: Map<String, Value> =
        texts.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let has_bytes = vocabulary.contains_key("<0x00>");
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let prefix = json!({ "type": "Prepend", "prepend": SPACE });
    let [mut first, mut last] = [vec![], vec![]];
    if has_prefix {
        first.push(prefix);
        last.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    first.push(spaces);
    let decoders = [
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    let decoders: Vec<Value> = decoders.into_iter().chain(last).collect();
    let file = json!({
        "normalizer": { "type": "Sequence", "normalizers": first },
        "pre_tokenizer": null,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": merges(tokens, &texts)?,
            "unk_token": unknown.or(texts.first().map(String::as_str)),
            "fuse_unk": true,
            "byte_fallback": has_bytes,
        },
    });
    Ok(file.as_object().cloned().unwrap_or_default())
}

/// The texts of tokens. Files of Gemma write several spaces as such.
fn spelled(tokens: &Tokens<'_>) -> Vec<String> {
    let spelled = |text: &String| match is_spaces(text) {
        true => SPACE.repeat(text.len()),
        false => text.clone(),
    };
    tokens.texts.iter().map(spelled).collect()
}

/// All merges of two tokens to a third one, the best first: by scores, or by numbers for Gemma, whose scores have another
/// order than its merges.
fn merges(tokens: &Tokens<'_>, texts: &[String]) -> Result<Vec<Value>> {
    let gguf = tokens.gguf;
    let scores = match (gguf.architecture.is_gemma(), gguf.entry("tokenizer.ggml.scores")) {
        (true, _) => vec![],
        (false, scores) => {
            let scores = scores.and_then(Entry::numbers).filter(|scores| scores.len() == texts.len());
            scores.ok_or_else(|| refused(&gguf.path, "no score for each token, `tokenizer.ggml.scores`"))?
        }
    };
    let is_normal = |id: usize| tokens.is_kind(id, NORMAL) || is_spaces(&tokens.texts[id]);
    let normal: HashMap<&str, usize> = texts
        .iter()
        .enumerate()
        .filter(|(id, text)| text.len() <= LONGEST && is_normal(*id))
        .map(|(id, text)| (text.as_str(), id))
        .collect();
    let mut ranked = vec![];
    for (text, id) in &normal {
        let ends = text.char_indices().map(|(at, _)| at).skip(1);
        let pairs = ends.map(|at| text.split_at(at));
        let known = pairs.filter(|(left, right)| normal.contains_key(left) && normal.contains_key(right));
        ranked.extend(known.map(|pair| (scores.get(*id).copied().unwrap_or(0.0), *id, pair)));
    }
    ranked.sort_by(|(a, first, left), (b, second, right)| {
        b.total_cmp(a).then(first.cmp(second)).then(left.cmp(right))
    });
    Ok(ranked.into_iter().map(|(_, _, (left, right))| json!([left, right])).collect())
}
