//! Interned names of operator types, slots and attributes.

use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use rustc_hash::FxHashSet;

/// An operator type, slot or attribute name. Most come from source code, so they are `'static` and free to copy. The
/// few that come from files are interned and never freed.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct Name(&'static str);

impl Name {
    /// Interns this text.
    pub fn new(text: &str) -> Name {
        static FOREIGN: Mutex<Option<FxHashSet<&'static str>>> = Mutex::new(None);
        let mut names = FOREIGN.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_default();
        if let Some(known) = names.get(text) {
            return Name(known);
        }
        let kept: &'static str = Box::leak(text.into());
        names.insert(kept);
        Name(kept)
    }

    /// The text.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}
impl From<&'static str> for Name {
    fn from(text: &'static str) -> Name {
        Name(text)
    }
}
impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        self.0
    }
}
impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        *self == *other.0
    }
}
impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), other.as_bytes());
        // Names mostly come from the same line of source code; different names of one length mostly differ at the
        // start.
        own.len() == other.len()
            && (own.as_ptr() == other.as_ptr() || (own.first() == other.first() && own == other))
    }
}
impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state)
    }
}
impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
