//! The metadata of an architecture.

use std::{cell::RefCell, collections::BTreeSet};

use autobwd::Result;
use autobwd_core::__private::Obstacles;
use serde_json::Value;

use super::{Entry, Gguf};

/// The keys of an architecture. A key that nothing has read may change the computation, and is refused.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    read: RefCell<BTreeSet<String>>,
    obstacles: RefCell<Obstacles>,
}

impl<'a> Keys<'a> {
    pub(super) fn of(gguf: &'a Gguf) -> Keys<'a> {
        Keys { gguf, read: RefCell::default(), obstacles: RefCell::default() }
    }

    /// The value of a key; a list, of one value a layer, is none.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        let key = self.gguf.architecture.key(name);
        let value = self.gguf.value(&key);
        if value.is_some() {
            self.read.borrow_mut().insert(key);
        }
        value
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        let value = self.value(name)?;
        let number = value.as_f64();
        if number.is_none() {
            self.refuse(format!("`{}` is {value}, not a number", self.gguf.architecture.key(name)));
        }
        number
    }

    pub(super) fn refuse(&self, what: String) {
        self.obstacles.borrow_mut().add("", what);
    }

    /// Refuses another value of a key than the supported one.
    pub(super) fn require(&self, name: &str, supported: &Value) {
        let value =
            self.value(name).filter(|value| *value != supported && value.as_f64() != supported.as_f64());
        if let Some(value) = value {
            let key = self.gguf.architecture.key(name);
            self.refuse(format!("`{key}` is {value}; only {supported} is supported"));
        }
    }

    /// All obstacles, with the keys that nothing has read.
    pub(super) fn finish(self) -> Result<()> {
        let prefix = self.gguf.architecture.key("");
        for (key, entry) in &self.gguf.header.metadata {
            if key.starts_with(&prefix) && !self.read.borrow().contains(key) {
                self.refuse(match entry {
                    Entry::One(value) => format!("`{key}` is {value}, which is not supported"),
                    _ => format!("`{key}` is a list, which is not supported"),
                });
            }
        }
        self.obstacles.into_inner().require_none(&format!("cannot load `{}`", self.gguf.path.display()))
    }
}
