use std::hash::{BuildHasher, BuildHasherDefault};

use hashbrown::HashTable;
use rustc_hash::FxHasher;

/// Names as numbers: all texts in one string, so that a million of them are no million allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    text: String,
    /// Where each name ends; it starts where the one before ends.
    ends: Vec<usize>,
    table: HashTable<Entry>,
}

/// A name in the table. Its hash is kept, so that the table can grow without a look at the texts.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    index: u32,
}

impl Entry {
    /// The hash with its bits where the table wants them.
    fn spread(self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Names {
    /// The name with that number.
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start..end)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of a name.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let wanted = Entry { hash: hash(name), index: 0 };
        let same = |e: &Entry| e.hash == wanted.hash && self.get(e.index as usize) == Some(name);
        self.table.find(wanted.spread(), same).map(|e| e.index)
    }

    /// The number of a name, and whether it is new.
    pub(super) fn insert(&mut self, name: &str) -> (u32, bool) {
        if let Some(index) = self.find(name) {
            return (index, false);
        }
        let new = Entry { hash: hash(name), index: self.ends.len() as u32 };
        self.text.push_str(name);
        self.ends.push(self.text.len());
        self.table.insert_unique(new.spread(), new, |e| e.spread());
        (new.index, true)
    }

    /// Forgets all names but the first so many.
    pub(super) fn truncate(&mut self, count: usize) {
        self.table.retain(|e| (e.index as usize) < count);
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
        let mut names = Names::default();
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
}
