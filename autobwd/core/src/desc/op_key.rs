//! Operator keys: type, slots and attributes of an operator as numbers, for look-ups of prepared operators.

use std::hash::{Hash, Hasher};

use super::{Attr, OpDesc, Slots};
use crate::Meta;

/// The key of an operator, without its variables: equal keys mean the same operator.
#[derive(Clone, Debug, Default, Eq)]
pub struct OpKey {
    first: [u64; FIRST],
    rest: Vec<u64>,
    count: usize,
    /// A hash of all words, whose information is in few bits; a hash function spreads them.
    mixed: u64,
}

/// The number of words stored without an allocation.
const FIRST: usize = 12;

impl OpKey {
    #[inline]
    pub(crate) fn put(&mut self, word: u64) {
        self.mixed = self.mixed.rotate_left(23) ^ word;
        match self.first.get_mut(self.count) {
            Some(at) => *at = word,
            None => self.rest.push(word),
        }
        self.count += 1;
    }

    /// Adds a text from source code by address; an equal text elsewhere may have another key.
    #[inline]
    pub(crate) fn name(&mut self, name: &'static str) {
        self.put(name.as_ptr().addr() as u64);
        self.put(name.len() as u64);
    }

    pub(crate) fn list<T>(&mut self, list: &[T], mut each: impl FnMut(&mut OpKey, &T)) {
        self.put(list.len() as u64);
        list.iter().for_each(|x| each(self, x));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.list(text.as_bytes(), |words, byte| words.put(u64::from(*byte)));
    }

    pub(crate) fn attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Bool(x) => self.put(u64::from(*x)),
            Attr::I32(x) => self.put(*x as u64),
            Attr::I64(x) => self.put(*x as u64),
            Attr::F32(x) => self.put(u64::from(x.to_bits())),
            Attr::F64(x) => self.put(x.to_bits()),
            Attr::Str(x) => self.text(x),
            Attr::Bools(x) => self.list(x, |words, x| words.put(u64::from(*x))),
            Attr::I32s(x) => self.list(x, |words, x| words.put(*x as u64)),
            Attr::I64s(x) => self.list(x, |words, x| words.put(*x as u64)),
            Attr::F32s(x) => self.list(x, |words, x| words.put(u64::from(x.to_bits()))),
            Attr::F64s(x) => self.list(x, |words, x| words.put(x.to_bits())),
            Attr::Strs(x) => self.list(x, |words, x| words.text(x)),
            Attr::Block(x) => self.put(x.index() as u64),
            Attr::Blocks(x) => self.list(x, |words, x| words.put(x.index() as u64)),
        }
    }

    /// Adds the type of an input.
    #[inline(always)]
    pub fn meta(&mut self, meta: &Meta) {
        let rows = u64::from(meta.rows.is_some());
        self.put(meta.dtype.code() as u64 | rows << 32 | (meta.dims.len() as u64) << 33);
        for dim in &meta.dims[..] {
            self.put(dim.key());
        }
        if let Some(dim) = meta.rows {
            self.put(dim.key());
        }
    }

    /// Adds an element of a constant.
    pub fn element(&mut self, element: f64) {
        self.put(element.to_bits());
    }

    /// The key of a description, in which variables are numbered in order of occurrence.
    pub fn of(desc: &OpDesc) -> OpKey {
        let mut words = OpKey::default();
        // No other key starts with 0.
        words.put(0);
        words.name(desc.ty.as_str());
        let mut slots = |slots: &Slots| {
            for (name, args) in slots.iter() {
                words.name(name.as_str());
                words.list(args, |words, var| words.put(var.index() as u64));
            }
        };
        slots(&desc.inputs);
        slots(&desc.outputs);
        for (name, attr) in desc.attrs.iter() {
            words.name(name.as_str());
            words.attr(attr);
        }
        words
    }
}

impl PartialEq for OpKey {
    #[inline]
    fn eq(&self, other: &OpKey) -> bool {
        // Word by word: loads that are wider than the preceding stores would stall, and so would a call for an empty
        // list.
        let first = || (0..self.count.min(FIRST)).all(|i| self.first[i] == other.first[i]);
        self.count == other.count && first() && (self.count <= FIRST || self.rest == other.rest)
    }
}

impl Hash for OpKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed);
    }
}
