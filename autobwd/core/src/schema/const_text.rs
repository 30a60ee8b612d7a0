//! Text built during constant evaluation: names, and messages of compile-time checks.

use super::{AttrDef, SlotDef, const_for::const_for};

/// Text of at most `N` bytes. [`add`](ConstText::add) drops the excess.
#[derive(Clone, Copy)]
pub(crate) struct ConstText<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> ConstText<N> {
    pub(crate) const EMPTY: ConstText<N> = ConstText { bytes: [0; N], len: 0 };

    /// The concatenation of these texts, which must fit.
    pub(crate) const fn of(pieces: &[&str]) -> ConstText<N> {
        let (mut text, mut len) = (ConstText::EMPTY, 0);
        const_for!(piece in pieces => {
            text = text.add(piece);
            len += piece.len();
        });
        assert!(len <= N, "a name is too long");
        text
    }

    pub(crate) const fn add(mut self, text: &str) -> ConstText<N> {
        let text = text.as_bytes();
        let mut i = 0;
        while i < text.len() && self.len < N {
            self.bytes[self.len] = text[i];
            self.len += 1;
            i += 1;
        }
        self
    }

    pub(crate) const fn number(self, n: u32) -> ConstText<N> {
        let text = if n >= 10 { self.number(n / 10) } else { self };
        let digit = [b'0' + (n % 10) as u8];
        match core::str::from_utf8(&digit) {
            Ok(digit) => text.add(digit),
            Err(_) => text,
        }
    }

    /// Names of slots, separated by commas.
    pub(crate) const fn names(mut self, slots: &[SlotDef]) -> ConstText<N> {
        const_for!(i, slot in slots => {
            self = self.add(if i > 0 { ", " } else { "" }).add(slot.name);
        });
        self
    }

    /// Names of the fields of slots, separated by commas.
    pub(crate) const fn fields(mut self, slots: &[SlotDef]) -> ConstText<N> {
        const_for!(i, slot in slots => {
            self = self.add(if i > 0 { ", " } else { "" }).add(slot.field);
        });
        self
    }

    /// `; did you mean `…`?`, if a similar name was found.
    pub(crate) const fn did_you_mean(self, nearest: Nearest) -> ConstText<N> {
        if nearest.distance > 2 {
            return self;
        }
        self.add("; did you mean `").add(nearest.prefix).add(nearest.name).add(nearest.suffix).add("`?")
    }

    pub(crate) const fn as_str(&self) -> &str {
        let mut len = self.len;
        loop {
            match core::str::from_utf8(self.bytes.split_at(len).0) {
                Ok(text) => return text,
                // The text was cut within a character.
                Err(_) => len -= 1,
            }
        }
    }
}

/// Whether `whole` is `head` followed by `tail`.
pub(crate) const fn is_joined(whole: &str, head: &str, tail: &str) -> bool {
    let (whole, head, tail) = (whole.as_bytes(), head.as_bytes(), tail.as_bytes());
    if whole.len() != head.len() + tail.len() {
        return false;
    }
    let mut i = 0;
    while i < whole.len() {
        let expected = if i < head.len() { head[i] } else { tail[i - head.len()] };
        if whole[i] != expected {
            return false;
        }
        i += 1;
    }
    true
}

/// The most similar name so far: `prefix`, `name` and `suffix`, with its edit distance.
#[derive(Clone, Copy)]
pub(crate) struct Nearest {
    prefix: &'static str,
    name: &'static str,
    suffix: &'static str,
    distance: usize,
}

impl Nearest {
    pub(crate) const NONE: Nearest = Nearest { prefix: "", name: "", suffix: "", distance: usize::MAX };

    /// The nearer of this name and another.
    const fn or(self, written: &str, [prefix, name, suffix]: [&'static str; 3]) -> Nearest {
        let whole = ConstText::<64>::EMPTY.add(prefix).add(name).add(suffix);
        let distance = edit_distance(written, whole.as_str());
        if distance < self.distance { Nearest { prefix, name, suffix, distance } } else { self }
    }

    /// Compares fields of these slots, with a prefix.
    pub(crate) const fn or_field(
        mut self,
        written: &str,
        prefix: &'static str,
        slots: &[SlotDef],
    ) -> Nearest {
        const_for!(slot in slots => { self = self.or(written, [prefix, slot.field, ""]); });
        self
    }

    /// Compares names of these slots, with a suffix.
    pub(crate) const fn or_slot(mut self, written: &str, slots: &[SlotDef], suffix: &'static str) -> Nearest {
        const_for!(slot in slots => { self = self.or(written, ["", slot.name, suffix]); });
        self
    }

    /// Compares fields of these attributes.
    pub(crate) const fn or_attr(mut self, written: &str, attrs: &[AttrDef]) -> Nearest {
        const_for!(attr in attrs => { self = self.or(written, ["", attr.field, ""]); });
        self
    }
}

/// Damerau-Levenshtein distance in bytes (a swap of neighbours is one edit); the maximum for names longer than 32
/// bytes.
const fn edit_distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 32;
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() > LONGEST || b.len() > LONGEST {
        return usize::MAX;
    }
    let mut distances = [[0; LONGEST + 1]; LONGEST + 1];
    let mut i = 0;
    while i <= a.len() {
        let mut j = 0;
        while j <= b.len() {
            distances[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = distances[i - 1][j - 1] + (a[i - 1] != b[j - 1]) as usize;
                let mut least = least(replaced, least(distances[i - 1][j], distances[i][j - 1]) + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = self::least(least, distances[i - 2][j - 2] + 1);
                }
                least
            };
            j += 1;
        }
        i += 1;
    }
    distances[a.len()][b.len()]
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::{ConstText, edit_distance, is_joined};

    #[test]
    fn text_is_cut_between_characters() {
        let text = ConstText::<4>::EMPTY.add("abc").add("é");
        assert_eq!(text.as_str(), "abc");
        assert_eq!(ConstText::<16>::EMPTY.add("line ").number(1024).as_str(), "line 1024");
        assert!(is_joined("Out@GRAD", "Out", "@GRAD") && !is_joined("Out", "Out", "@GRAD"));
    }

    #[test]
    fn distances_count_edits() {
        for (a, b, distance) in [("dout", "dout", 0), ("duot", "dout", 1), ("out", "dout", 1), ("", "abc", 3)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }
}
