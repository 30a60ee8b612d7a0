//! Interned variable names, in a hash table (`hashbrown`) and a table of gradient names.

use std::{
    hash::{BuildHasher, BuildHasherDefault},
    ops::Range,
};

use hashbrown::{HashTable, hash_table};
use rustc_hash::FxHasher;

/// The suffix of the name of a variable's gradient.
pub const GRAD: &str = "@GRAD";

/// Interned variable names. All texts share one string, so that a million names need few allocations.
///
/// `gradients` maps the number of `b` to the number of `b@GRAD`. Half the names of a program with gradients have that
/// form, and a look-up in a hash table of millions of names misses every cache.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTable {
    text: String,
    /// The end of each name, which is the start of the next.
    ends: Vec<usize>,
    /// All names except those in `gradients`.
    table: HashTable<NameEntry>,
    /// By number of `b`, which does not end with `@GRAD`: one more than the number of `b@GRAD`, or 0. A name `b@GRAD`
    /// that is older than `b` is in the table instead.
    gradients: Vec<u32>,
    /// Whether the table may contain such older names.
    older_gradients: bool,
}

/// A name in the table. Its hash is stored, so that the table can grow without reading the texts.
#[derive(Clone, Copy, Debug)]
struct NameEntry {
    hash: u32,
    index: u32,
}

impl NameEntry {
    /// The hash with its bits spread to where the table uses them.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// `b` for a name `b@GRAD`; `None` for gradients of gradients, which are in the table.
fn base_of(name: &str) -> Option<&str> {
    name.strip_suffix(GRAD).filter(|base| !base.ends_with(GRAD))
}

fn range(ends: &[usize], index: usize) -> Option<Range<usize>> {
    let end = *ends.get(index)?;
    Some(index.checked_sub(1).map_or(0, |before| ends[before])..end)
}

impl NameTable {
    /// The name with this number.
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.text.get(range(&self.ends, index)?)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of a name.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let Some(base) = base_of(name) else { return self.find_in_table(name) };
        let gradient = self.find_in_table(base).and_then(|base| self.gradient(base as usize));
        gradient.or_else(|| self.find_in_table(name).filter(|_| self.older_gradients))
    }

    fn find_in_table(&self, name: &str) -> Option<u32> {
        let wanted = NameEntry { hash: hash(name), index: 0 };
        let same = |e: &NameEntry| e.hash == wanted.hash && self.get(e.index as usize) == Some(name);
        self.table.find(wanted.spread(), same).map(|e| e.index)
    }

    fn gradient(&self, base: usize) -> Option<u32> {
        self.gradients.get(base)?.checked_sub(1)
    }

    /// The number of a name, which is added if it is new, and whether it was.
    pub(super) fn insert(&mut self, name: &str) -> (u32, bool) {
        if let Some(base) = base_of(name) {
            if let Some(base) = self.find_in_table(base) {
                return self.insert_gradient(base as usize);
            }
            self.older_gradients = true;
        }
        self.insert_in_table(name)
    }

    fn insert_in_table(&mut self, name: &str) -> (u32, bool) {
        let NameTable { text, ends, table, .. } = self;
        let new = NameEntry { hash: hash(name), index: ends.len() as u32 };
        let same = |e: &NameEntry| {
            let known = || text.get(range(ends, e.index as usize)?);
            e.hash == new.hash && known() == Some(name)
        };
        match table.entry(new.spread(), same, NameEntry::spread) {
            hash_table::Entry::Occupied(known) => (known.get().index, false),
            hash_table::Entry::Vacant(place) => {
                place.insert(new);
                text.push_str(name);
                ends.push(text.len());
                (new.index, true)
            }
        }
    }

    /// The number of the name `base@GRAD`, which is added if it is new, and whether it was.
    pub(super) fn insert_gradient(&mut self, base: usize) -> (u32, bool) {
        if let Some(known) = self.gradient(base) {
            return (known, false);
        }
        let own = range(&self.ends, base).filter(|own| !self.text[own.clone()].ends_with(GRAD));
        let Some(own) = own.filter(|_| !self.older_gradients) else {
            let name = [self.get(base).unwrap_or_default(), GRAD].concat();
            return self.insert_in_table(&name);
        };
        self.text.extend_from_within(own);
        self.text.push_str(GRAD);
        self.ends.push(self.text.len());
        if self.gradients.len() <= base {
            self.gradients.resize(base + 1, 0);
        }
        self.gradients[base] = self.ends.len() as u32;
        (self.ends.len() as u32 - 1, true)
    }

    /// Replaces a name, unless the new one exists, or one of both names belongs to a gradient or has one. Takes time
    /// linear in the length of all names. Returns whether it was replaced.
    pub(super) fn rename(&mut self, index: usize, name: &str) -> bool {
        let Some(own) = range(&self.ends, index) else { return false };
        let is_gradient = [name, &self.text[own.clone()]].iter().any(|name| name.ends_with(GRAD));
        let is_known = [name.to_string(), [name, GRAD].concat()].iter().any(|name| self.find(name).is_some());
        if is_gradient || is_known || self.gradient(index).is_some() {
            return false;
        }
        let old = NameEntry { hash: hash(&self.text[own.clone()]), index: index as u32 };
        if let Ok(entry) = self.table.find_entry(old.spread(), |entry| entry.index == old.index) {
            entry.remove();
        }
        self.text.replace_range(own.clone(), name);
        self.ends[index..].iter_mut().for_each(|end| *end = *end - own.len() + name.len());
        let new = NameEntry { hash: hash(name), ..old };
        self.table.insert_unique(new.spread(), new, NameEntry::spread);
        true
    }

    /// Removes all names except the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        self.table.retain(|e| (e.index as usize) < count);
        self.gradients.truncate(count);
        self.gradients.iter_mut().filter(|number| **number as usize > count).for_each(|number| *number = 0);
        self.ends.truncate(count);
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

fn hash(name: &str) -> u32 {
    (BuildHasherDefault::<FxHasher>::default().hash_one(name) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_stay() {
        let mut names = NameTable::default();
        let texts: Vec<String> = (0..1000).map(|i| format!("n{}", i % 600)).collect();
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(names.insert(text), ((i % 600) as u32, i < 600), "{text}");
        }
        assert_eq!(names.insert(""), (600, true));
        assert_eq!((names.get(0), names.get(600), names.get(601)), (Some("n0"), Some(""), None));
        assert_eq!((names.find("n599"), names.find("n600"), names.len()), (Some(599), None, 601));
        names.truncate(2);
        assert_eq!((names.get(1), names.get(2), names.find("n2"), names.len()), (Some("n1"), None, None, 2));
        assert_eq!((names.insert("n3"), names.insert("n1")), ((2, true), (1, false)));
    }
    #[test]
    fn names_are_replaced() {
        let mut names = NameTable::default();
        ["x", "mean_0", "y", "x@GRAD"].iter().for_each(|name| _ = names.insert(name));
        for (index, name) in [(1, "x"), (0, "z"), (2, "y@GRAD"), (3, "z"), (9, "z")] {
            assert!(!names.rename(index, name), "{index} {name}");
        }
        assert!(names.rename(1, "loss") && names.rename(2, "a longer name") && names.rename(2, ""));
        let all: Vec<_> = (0..4).map(|i| names.get(i).unwrap().to_string()).collect();
        assert_eq!(all, ["x", "loss", "", "x@GRAD"]);
        assert_eq!(
            ["mean_0", "y", "loss", "", "x@GRAD"].map(|name| names.find(name)),
            [None, None, Some(1), Some(2), Some(3)]
        );
        assert_eq!((names.insert("mean_0"), names.insert("loss@GRAD")), ((4, true), (5, true)));
    }
    #[test]
    fn gradients_are_found_whatever_came_first() {
        let mut names = NameTable::default();
        for (number, name) in ["w", "w@GRAD", "v@GRAD", "v", "w@GRAD@GRAD", "u", "@GRAD"].iter().enumerate() {
            assert_eq!(names.insert(name), (number as u32, true), "{name}");
        }
        // `v@GRAD` is older than `v`, so from then on the table also has new gradient names.
        for (base, gradient) in [(0, (1, false)), (3, (2, false)), (1, (4, false)), (5, (7, true))] {
            assert_eq!(names.insert_gradient(base), gradient);
        }
        for number in 0..names.len() {
            let name = names.get(number).unwrap().to_string();
            assert_eq!(
                (names.find(&name), names.insert(&name)),
                (Some(number as u32), (number as u32, false))
            );
        }
        names.truncate(1);
        assert_eq!(["w", "w@GRAD", "v@GRAD"].map(|name| names.find(name)), [Some(0), None, None]);
        assert_eq!((names.insert("w@GRAD"), names.insert_gradient(0)), ((1, true), (1, false)));
        assert_eq!(names.get(1), Some("w@GRAD"));
    }
}
