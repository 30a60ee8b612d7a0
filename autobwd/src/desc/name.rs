use std::{
    fmt,
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use rustc_hash::FxHashSet;

/// An operator type, slot or attribute name. These come from source code, so they are `'static` and free to copy; the
/// few that come from files are kept once each, for good.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(&'static str);

impl Name {
    /// The name with that text.
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
impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}
impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
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
