//! The batches of a training run.

use autobwd::Result;
use autobwd_data::Loader;

use crate::data::{self, Image};

// Chosen by `--validate`, as described in network.rs.
pub(crate) const BATCH: usize = 32;
pub(crate) const EPOCHS: u64 = 40;

/// The batches of all epochs. `seed` is the seed of the order of images.
pub(crate) fn loader(images: &[Image], seed: u64) -> Result<Loader> {
    // An incomplete batch is skipped; its images differ in each epoch. Images in memory need no thread to read them.
    let dataset = data::dataset(images)?;
    Loader::builder(dataset).batch(BATCH).shuffle(seed).drop_last(true).prefetch(0).build()
}
