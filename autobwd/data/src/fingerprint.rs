//! Hashes of data that are the same on every machine and in every version (XXH3).

use xxhash_rust::xxh3::Xxh3;

use crate::Batch;

/// The hash of a sequence of numbers and byte strings.
#[derive(Default)]
pub(crate) struct Fingerprint(Xxh3);

impl Fingerprint {
    pub(crate) fn number(mut self, number: u64) -> Fingerprint {
        self.0.update(&number.to_le_bytes());
        self
    }

    /// Includes the length, so that the border between two strings counts.
    pub(crate) fn bytes(self, bytes: impl AsRef<[u8]>) -> Fingerprint {
        let mut with_length = self.number(bytes.as_ref().len() as u64);
        with_length.0.update(bytes.as_ref());
        with_length
    }

    /// Includes names, shapes, dtypes and elements of all fields.
    pub(crate) fn batch(self, batch: &Batch) -> Fingerprint {
        batch.iter().fold(self, |hash, (name, tensor)| {
            let dims = tensor.dims().iter().fold(hash.bytes(name), |hash, dim| hash.number(*dim as u64));
            dims.bytes(tensor.dtype().name()).bytes(tensor.bytes())
        })
    }

    pub(crate) fn finish(self) -> u64 {
        self.0.digest()
    }
}
