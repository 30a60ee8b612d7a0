//! Examples to learn from: texts as tokens with labels.

use std::{collections::BTreeSet, path::Path};

use autobwd::{Error, ErrorKind, Result, tensor::read_file};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::Value;

use super::{Features, faults, loss::IGNORED};
use crate::{ChatMessage, Tokenizer};

/// The largest file of examples, in bytes.
const LARGEST_FILE: u64 = 1 << 32;

/// The largest number of classes.
const MOST_CLASSES: u64 = 1 << 16;

/// Something to learn: what a model reads, and what it is to find.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The tokens of the text; with an encoder and a decoder, those that the encoder reads.
    pub tokens: Vec<i64>,
    /// What the model reads instead of tokens: an image or a sound.
    pub features: Option<Features>,
    /// A label for each token: the token itself or its class, or −100 if it is not counted. For classifiers of texts and
    /// images, one class. For decoders that follow an encoder, the tokens to generate.
    pub labels: Vec<i64>,
}

impl Example {
    /// A text.
    pub fn text(tokens: Vec<i64>, labels: Vec<i64>) -> Example {
        Example { tokens, labels, features: None }
    }
}

/// What a line of JSON has.
#[derive(Clone, Debug, PartialEq)]
pub enum ExampleFormat {
    /// `messages`, a list of objects with the texts `role` and `content`: the tokens of the assistant are learned. Calls of
    /// tools are refused.
    Chat,
    /// A text, all of whose tokens are learned.
    Text {
        /// The name of its field.
        field: String,
    },
    /// A text, some of whose tokens are hidden and learned, for masked language models (Devlin et al., 2019): of these,
    /// 80 % are masked, 10 % become any token, and 10 % stay.
    Masked {
        /// The name of its field.
        field: String,
        /// The share of tokens that are hidden; at least one is.
        share: f64,
        /// The choice depends on it and on the text.
        seed: u64,
    },
    /// `prompt` and `completion`: the tokens of the completion are learned.
    Completion,
    /// `prompt`, which an encoder reads, and `completion`, which a decoder learns to generate from it.
    SourceAndTarget,
    /// A text with a class, by its number or its name.
    Classes {
        /// The name of the field of the text.
        field: String,
        /// The name of the field of the class.
        label: String,
        /// The names of the classes, in their order.
        names: Vec<String>,
    },
    /// A list of words, each with a class. The first token of a word has its class; others are not counted, as in the
    /// [example of transformers](https://github.com/huggingface/transformers/tree/main/examples/pytorch/token-classification).
    TokenClasses {
        /// The name of the field of the words.
        field: String,
        /// The name of the field of the classes.
        label: String,
        /// The names of the classes, in their order.
        names: Vec<String>,
    },
}

impl ExampleFormat {
    /// The format of a line by its fields: `messages`, `prompt` with `completion`, or `text`.
    ///
    /// # Errors
    /// Lines that are no objects, or have none of these.
    pub fn of_line(line: &str) -> Result<ExampleFormat> {
        let object = parse(line).map_err(refused)?;
        let has = |field: &str| object.get(field).is_some();
        match () {
            () if has("messages") => Ok(ExampleFormat::Chat),
            () if has("prompt") && has("completion") => Ok(ExampleFormat::Completion),
            () if has("text") => Ok(ExampleFormat::Text { field: "text".into() }),
            () => Err(refused("it has neither `messages`, nor `prompt` and `completion`, nor `text`".into())),
        }
    }

    /// The example in a line of JSON.
    ///
    /// # Errors
    /// Lines that do not have the fields of the format, or have no label that counts; those of the tokenizer.
    pub fn example(&self, line: &str, tokenizer: &Tokenizer) -> Result<Example> {
        let object = parse(line).map_err(refused)?;
        let text = |field: &str| text(&object, field);
        let example = match self {
            ExampleFormat::Text { field } => {
                let tokens = ended(tokenizer.encode(text(field)?)?, tokenizer);
                Example::text(tokens.clone(), tokens)
            }
            ExampleFormat::Masked { field, share, seed } => {
                let text = text(field)?;
                masked(tokenizer.encode(text)?, (*share, *seed), (text, tokenizer))?
            }
            ExampleFormat::Completion => {
                let mut tokens = tokenizer.encode(text("prompt")?)?;
                let mut labels = vec![IGNORED; tokens.len()];
                let completion = ended(tokenizer.encode_plain(text("completion")?)?, tokenizer);
                labels.extend(&completion);
                tokens.extend(completion);
                Example::text(tokens, labels)
            }
            ExampleFormat::SourceAndTarget => {
                let target = ended(tokenizer.encode(text("completion")?)?, tokenizer);
                Example::text(tokenizer.encode(text("prompt")?)?, target)
            }
            ExampleFormat::Chat => chat(&messages(&object)?, tokenizer)?,
            ExampleFormat::Classes { field, label, names } => {
                let class = class(given(&object, label)?, label, names)?;
                Example::text(tokenizer.encode(text(field)?)?, vec![class])
            }
            ExampleFormat::TokenClasses { field, label, names } => {
                let words = list(&object, field)?.iter().map(|word| {
                    word.as_str()
                        .ok_or_else(|| refused(format!("its `{field}` has {word}, which is no text")))
                });
                let words: Vec<&str> = words.collect::<Result<_>>()?;
                let classes = list(&object, label)?.iter().map(|value| class(value, label, names));
                let classes: Vec<i64> = classes.collect::<Result<_>>()?;
                if words.len() != classes.len() {
                    let text = format!("it has {} words and {} classes", words.len(), classes.len());
                    return Err(refused(text));
                }
                let (tokens, starts) = tokenizer.encode_words(&words)?;
                let class = |word: &Option<usize>| word.map_or(IGNORED, |word| classes[word]);
                Example::text(tokens, starts.iter().map(class).collect())
            }
        };
        match example.labels.iter().any(|label| *label != IGNORED) {
            true if !example.tokens.is_empty() => Ok(example),
            _ => Err(refused("it has no token to learn".into())),
        }
    }
}

/// The examples in a file of JSON lines. Without a format, the fields of the first line decide. Blank lines are left out.
///
/// # Errors
/// Those of the file system; one list of the lines that are no examples.
pub fn read_examples(
    path: impl AsRef<Path>,
    tokenizer: &Tokenizer,
    format: Option<&ExampleFormat>,
) -> Result<Vec<Example>> {
    let mut found = format.cloned();
    read_lines(path.as_ref(), |line| {
        let format = match &found {
            Some(format) => format,
            None => found.insert(ExampleFormat::of_line(line)?),
        };
        format.example(line, tokenizer)
    })
}

/// Reads the lines of a file that are not blank.
///
/// # Errors
/// Files that cannot be read; no lines; one list of the lines that are refused.
pub(super) fn read_lines<T>(path: &Path, mut read: impl FnMut(&str) -> Result<T>) -> Result<Vec<T>> {
    let file = |text: String| Error::new(ErrorKind::Format, format!("`{}`: {text}", path.display()));
    let bytes = read_file(path, LARGEST_FILE)?;
    let text = str::from_utf8(&bytes).map_err(|e| file(format!("not text: {e}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut items, mut faults) = (vec![], vec![]);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match read(line) {
            Ok(item) => items.push(item),
            Err(e) => faults.push(format!("line {}: {}", number + 1, e.message())),
        }
    }
    faults::require_none(faults, &format!("cannot read `{}`", path.display()))?;
    match items.is_empty() {
        true => Err(file("it has no examples".into())),
        false => Ok(items),
    }
}

pub(super) fn parse(line: &str) -> std::result::Result<Value, String> {
    match serde_json::from_str(line) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("it is no object".into()),
        Err(e) => Err(format!("it is no JSON: {e}")),
    }
}

pub(super) fn refused(text: String) -> Error {
    Error::new(ErrorKind::Format, text)
}

/// Tokens with the end of texts after them, if the tokenizer has one and did not add it.
fn ended(mut tokens: Vec<i64>, tokenizer: &Tokenizer) -> Vec<i64> {
    let end = tokenizer.eos_token_id().filter(|end| tokens.last() != Some(end));
    tokens.extend(end);
    tokens
}

pub(super) fn given<'a>(object: &'a Value, field: &str) -> Result<&'a Value> {
    object.get(field).ok_or_else(|| refused(format!("it has no field `{field}`")))
}

/// A text in a field.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> Result<&'a str> {
    given(object, field)?.as_str().ok_or_else(|| refused(format!("its `{field}` is no text")))
}

fn list<'a>(object: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    given(object, field)?.as_array().ok_or_else(|| refused(format!("its `{field}` is no list")))
}

/// The number of a class that is given by its number or its name.
pub(super) fn class(value: &Value, field: &str, names: &[String]) -> Result<i64> {
    let named = |name: &str| names.iter().position(|known| known == name).map(|class| class as i64);
    let class = value.as_i64().or_else(|| named(value.as_str()?));
    class
        .filter(|class| (0..names.len() as i64).contains(class))
        .ok_or_else(|| refused(format!("its `{field}` is {value}, no class; known are {}", names.join(", "))))
}

/// The names of classes that a file of JSON lines has in a field, a class or a list of classes: sorted texts; or `0`, `1`, … up to
/// the largest of numbers.
///
/// # Errors
/// Files that cannot be read; one list of the lines without a class.
pub fn class_names_of(path: impl AsRef<Path>, field: &str) -> Result<Vec<String>> {
    let (mut texts, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    read_lines(path.as_ref(), |line| {
        let object = parse(line).map_err(refused)?;
        let value = given(&object, field)?;
        for class in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
            let number = class.as_u64().filter(|number| *number < MOST_CLASSES);
            match (class.as_str(), number) {
                (Some(text), _) => _ = texts.insert(text.to_string()),
                (None, Some(number)) => _ = numbers.insert(number),
                (None, None) => return Err(refused(format!("its `{field}` is {class}, no class"))),
            }
        }
        Ok(())
    })?;
    if !texts.is_empty() && !numbers.is_empty() {
        let path = path.as_ref().display();
        return Err(refused(format!("`{path}`: some classes in `{field}` are texts, others numbers")));
    }
    let numbers = numbers.last().map_or(0, |last| last + 1);
    Ok(texts.into_iter().chain((0..numbers).map(|number| number.to_string())).collect())
}

fn messages(object: &Value) -> Result<Vec<ChatMessage>> {
    let is_given = |object: &Value, key: &str| object.get(key).is_some_and(|value| !value.is_null());
    if is_given(object, "tools") {
        return Err(refused("it has `tools`, which are not supported".into()));
    }
    let list = object.get("messages").and_then(Value::as_array);
    let list = list.ok_or_else(|| refused("it has no list `messages`".into()))?;
    let message = |message: &Value| {
        if is_given(message, "tool_calls") {
            return Err(refused("a message has `tool_calls`, which are not supported".into()));
        }
        let text = |field: &str| message.get(field).and_then(Value::as_str);
        let both = text("role").zip(text("content"));
        let (role, content) =
            both.ok_or_else(|| refused(format!("a message has no texts `role` and `content`: {message}")))?;
        Ok(ChatMessage::new(role, content))
    };
    list.iter().map(message).collect()
}

/// A text, some of whose tokens are hidden.
fn masked(
    mut tokens: Vec<i64>,
    (share, seed): (f64, u64),
    (text, tokenizer): (&str, &Tokenizer),
) -> Result<Example> {
    if !(share > 0.0 && share <= 1.0) {
        return Err(refused(format!(
            "the share of hidden tokens is {share}, not a number above 0 and at most 1"
        )));
    }
    let mask = tokenizer.mask_token_id();
    let mask =
        mask.ok_or_else(|| refused("the tokenizer has no `mask_token`: its model is no masked one".into()))?;
    // FNV-1a: the same on every machine.
    let hash = text.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut rng = Pcg64Mcg::seed_from_u64(hash);
    let mut draw = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let words: Vec<usize> = (0..tokens.len()).filter(|at| !tokenizer.has_role(tokens[*at])).collect();
    let mut hidden: Vec<usize> = words.iter().copied().filter(|_| draw() < share).collect();
    if hidden.is_empty() && !words.is_empty() {
        hidden.push(words[(draw() * words.len() as f64) as usize]);
    }
    let mut labels = vec![IGNORED; tokens.len()];
    for at in hidden {
        labels[at] = tokens[at];
        let (kind, other) = (draw(), draw());
        if kind < 0.8 {
            tokens[at] = mask;
        } else if kind < 0.9 {
            tokens[at] = (other * (tokenizer.largest_id() + 1) as f64) as i64;
        }
    }
    Ok(Example::text(tokens, labels))
}

/// A conversation, in which what the assistant says is learned.
fn chat(messages: &[ChatMessage], tokenizer: &Tokenizer) -> Result<Example> {
    let whole = tokenizer.render_chat(messages, false)?;
    let mut answers = vec![];
    for (i, message) in messages.iter().enumerate().filter(|(_, message)| message.role == "assistant") {
        let before = tokenizer.render_chat(&messages[..i], true)?;
        let after = tokenizer.render_chat(&messages[..=i], false)?;
        if !(whole.starts_with(&after) && after.starts_with(&before)) {
            let text =
                format!("the chat template changes what comes before the answer `{}`", message.content);
            return Err(refused(text));
        }
        answers.push(before.len()..after.len());
    }
    let (tokens, starts) = tokenizer.encode_with_starts(&whole)?;
    let label = |(token, start): (&i64, &usize)| match answers.iter().any(|answer| answer.contains(start)) {
        true => *token,
        false => IGNORED,
    };
    let labels = tokens.iter().zip(&starts).map(label).collect();
    Ok(Example::text(tokens, labels))
}
