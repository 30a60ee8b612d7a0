//! The configuration of a published model: `config.json`.

use std::cell::RefCell;

use autobwd::Result;
use autobwd_core::__private::Obstacles;
use serde_json::{Map, Value};

/// The largest size in a configuration: dimensions and numbers of layers beyond it are no model's.
const LARGEST: u64 = 1 << 24;

/// The largest size of a head: rotary embeddings have constants for each element.
const LARGEST_HEAD: usize = 1 << 12;

/// A configuration, whose keys are read with the defaults of their family. What cannot be honoured is collected.
#[derive(Debug)]
pub(crate) struct Config {
    keys: Map<String, Value>,
    obstacles: RefCell<Obstacles>,
}

impl Config {
    pub(crate) fn new(keys: Map<String, Value>) -> Config {
        Config { keys, obstacles: RefCell::default() }
    }

    /// Something in the way, for the list of the error.
    pub(crate) fn refuse(&self, what: impl Into<String>) {
        self.obstacles.borrow_mut().add("", what);
    }

    /// # Errors
    /// All obstacles.
    pub(crate) fn require_no_obstacles(&self, failed: &str) -> Result<()> {
        self.obstacles.borrow().require_none(failed)
    }

    /// The value of a key that is there and not null.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key is absent or has a value: null switches off what has a default.
    pub(crate) fn allows(&self, key: &str) -> bool {
        self.keys.get(key).is_none_or(|value| !value.is_null())
    }

    /// A value that is read, if the key is there; others are refused.
    pub(crate) fn read<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let found = read(value);
        if found.is_none() {
            self.refuse(format!("`{key}` is {value}, not {what}"));
        }
        found
    }

    /// A size, if the key is there.
    pub(crate) fn some_size(&self, key: &str) -> Option<usize> {
        let size = |value: &Value| value.as_u64().filter(|n| (1..=LARGEST).contains(n)).map(|n| n as usize);
        self.read(key, &format!("a number from 1 to {LARGEST}"), size)
    }

    pub(crate) fn size(&self, key: &str, default: usize) -> usize {
        self.some_size(key).unwrap_or(default)
    }

    pub(crate) fn number(&self, key: &str, default: f64) -> f64 {
        let finite = |value: &Value| value.as_f64().filter(|x| x.is_finite());
        self.read(key, "a number", finite).unwrap_or(default)
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> bool {
        self.read(key, "true or false", Value::as_bool).unwrap_or(default)
    }

    pub(crate) fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.read(key, "a text", Value::as_str).unwrap_or(default)
    }

    /// The texts of a list, one for each of `count` layers, if the key is there.
    pub(crate) fn texts(&self, key: &str, count: usize) -> Option<Vec<&str>> {
        let texts = |value: &'_ Value| -> Option<usize> {
            let list =
                value.as_array().filter(|list| list.len() == count && list.iter().all(Value::is_string))?;
            Some(list.len())
        };
        self.read(key, &format!("a list of {count} texts"), texts)?;
        let list = self.value(key).and_then(Value::as_array);
        list.map(|list| list.iter().filter_map(Value::as_str).collect())
    }

    /// Refuses another value of a key than the supported one, which an absent key has.
    pub(crate) fn require(&self, key: &str, supported: &Value) {
        if let Some(value) = self.value(key).filter(|value| *value != supported) {
            self.refuse(format!("`{key}` is {value}; only {supported} is supported"));
        }
    }

    /// The size of a head: `width` divided by `heads`.
    pub(crate) fn share(&self, width: usize, heads: usize) -> usize {
        if !width.is_multiple_of(heads) {
            self.refuse(format!("a width of {width} is not divisible by {heads} heads"));
        }
        self.head_size((width / heads).max(1))
    }

    /// A size of heads, which is refused if it is no model's.
    pub(crate) fn head_size(&self, size: usize) -> usize {
        if size > LARGEST_HEAD {
            self.refuse(format!("heads of {size} elements are larger than {LARGEST_HEAD}"));
        }
        size.min(LARGEST_HEAD)
    }

    /// The head of the model: `BertForMaskedLM` in `architectures`.
    pub(crate) fn architecture(&self, default: &'static str) -> &str {
        let first = self.value("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        first.unwrap_or(default)
    }

    /// The number of classes of a head.
    pub(crate) fn classes(&self) -> usize {
        let labels = self.value("id2label").and_then(Value::as_object).map(Map::len);
        labels.filter(|n| *n > 0).unwrap_or_else(|| self.size("num_labels", 2))
    }

    /// The names of the classes of a head, in their order: `id2label`.
    pub(crate) fn class_names(&self) -> Option<Vec<String>> {
        let labels = self.value("id2label").and_then(Value::as_object)?;
        let name = |class: usize| labels.get(&class.to_string())?.as_str().map(String::from);
        (0..labels.len()).map(name).collect::<Option<Vec<String>>>().filter(|names| !names.is_empty())
    }

    /// The part of the configuration under a key.
    pub(crate) fn part(&self, key: &str) -> Option<&Map<String, Value>> {
        self.read(key, "an object", Value::as_object)
    }
}
