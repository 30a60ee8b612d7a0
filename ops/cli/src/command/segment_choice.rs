//! The segments of a record that a command replays.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    num::NonZero,
};

use autobwd::exec::record::Segments;

/// The segments to replay: so many, with a seed or a random one, or all. The person who made the record must not know the
/// seed.
pub(super) fn segments(count: Option<NonZero<usize>>, seed: Option<u64>) -> Segments {
    match count {
        Some(count) => {
            let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
            Segments::Random { count: count.get(), seed }
        }
        None => Segments::All,
    }
}

/// The seed of a choice.
pub(super) fn seed(segments: Segments) -> Option<u64> {
    match segments {
        Segments::Random { seed, .. } => Some(seed),
        Segments::All => None,
    }
}
