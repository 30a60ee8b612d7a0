//! The chain of digests that binds each line of a record to all lines before it.

use crate::digest::Digest;

/// The key of the chain, which is the last of a line.
const KEY: &str = ",\"chain\":\"";
/// The end of a line after its digest.
const END: &str = "\"}";
/// The hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// The chain up to a line.
///
/// The digest of a line is the SHA-256 of the digest before it, as text, and of the JSON object of the line without its
/// last key, `chain`. The first line follows an empty text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Chain(Option<Digest>);

impl Chain {
    /// The digest of the last line.
    pub(crate) fn last(&self) -> Option<Digest> {
        self.0
    }

    /// A JSON object as the next line.
    pub(crate) fn append(&mut self, object: &str) -> String {
        let digest = self.next(object);
        self.0 = Some(digest);
        format!("{}{KEY}{digest}{END}\n", object.strip_suffix('}').unwrap_or(object))
    }

    /// The JSON object of the next line, which is given with its newline.
    ///
    /// # Errors
    /// A line without a chain, or with the chain of other lines: what is wrong with it.
    pub(crate) fn follow(&mut self, line: &[u8]) -> Result<String, String> {
        let parsed = parse(line).ok_or("it does not end with the key `chain` and a digest of 64 digits")?;
        let digest = self.next(&parsed.object);
        if digest.to_string() != parsed.digest {
            return Err("its chain does not follow from its text and the lines before it".into());
        }
        self.0 = Some(digest);
        Ok(parsed.object)
    }

    fn next(&self, object: &str) -> Digest {
        let before = self.0.map_or_else(String::new, |digest| digest.to_string());
        Digest::of([before.as_bytes(), object.as_bytes()])
    }
}

/// A line, taken apart.
struct ChainedObject<'a> {
    object: String,
    digest: &'a str,
}

fn parse(line: &[u8]) -> Option<ChainedObject<'_>> {
    let text = str::from_utf8(line).ok()?.strip_suffix('\n')?.strip_suffix(END)?;
    let (before, digest) = text.split_at_checked(text.len().checked_sub(DIGITS)?)?;
    Some(ChainedObject { object: format!("{}}}", before.strip_suffix(KEY)?), digest })
}
