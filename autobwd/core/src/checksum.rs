//! Checksums of saved files: 64-bit XXH3 hashes as text, `xxh3:` and 16 hexadecimal digits.
//!
//! A checksum stands in the metadata of a safetensors file, and in the last entry of a program.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

/// The start of a checksum, which tells it from other text.
pub(crate) const PREFIX: &str = "xxh3:";
/// Hexadecimal digits of a hash.
const DIGITS: usize = 16;

/// The length of a checksum, in bytes.
pub(crate) const LEN: usize = PREFIX.len() + DIGITS;

/// The checksum that stands in a file while its own checksum is computed.
pub(crate) fn blank() -> String {
    text(0)
}

/// Whether a text has the form of a checksum.
pub(crate) fn is_checksum(text: &str) -> bool {
    let digits = text.strip_prefix(PREFIX).map(str::as_bytes).unwrap_or_default();
    digits.len() == DIGITS && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// The checksum of a file whose checksum is at `range`.
pub(crate) fn checksum(file: &[u8], range: Range<usize>) -> String {
    PartialChecksum::of_start(file, range).finish()
}

/// The checksum of a file that comes part by part.
pub(crate) struct PartialChecksum(Xxh3);

impl PartialChecksum {
    /// The first part of a file, whose checksum is at `range` of it.
    pub(crate) fn of_start(start: &[u8], range: Range<usize>) -> PartialChecksum {
        let mut hash = Xxh3::new();
        hash.update(&start[..range.start]);
        hash.update(blank().as_bytes());
        hash.update(&start[range.end..]);
        PartialChecksum(hash)
    }

    /// The next part.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> String {
        text(self.0.digest())
    }
}

fn text(hash: u64) -> String {
    format!("{PREFIX}{hash:0DIGITS$x}")
}
