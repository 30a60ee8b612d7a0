//! The training loop.

use std::time::Instant;

use autobwd::{Executor, Result, Scope};
use indicatif::ProgressBar;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use crate::{
    data::{Batch, Image},
    network::Network,
};

// Chosen by `--validate`, as described in network.rs.
pub(crate) const BATCH: usize = 32;
const EPOCHS: usize = 40;

/// Results of training.
pub(crate) struct Trained {
    /// Epoch by epoch.
    pub(crate) epochs: Vec<Epoch>,
    /// Duration in seconds, including tests.
    pub(crate) seconds: f64,
    /// Memory of a step in bytes, without the weights.
    pub(crate) peak_bytes: usize,
}

/// One pass over the training images.
pub(crate) struct Epoch {
    /// Mean loss of its batches.
    pub(crate) loss: f64,
    /// Test accuracy after it.
    pub(crate) accuracy: f64,
}

impl Trained {
    /// Final test accuracy.
    pub(crate) fn accuracy(&self) -> f64 {
        self.epochs.last().map_or(0.0, |e| e.accuracy)
    }
}

/// Initialises `scope` and trains the weights; prints a line for each epoch.
pub(crate) fn train(
    network: &Network,
    executor: &mut Executor,
    scope: &mut Scope,
    mut images: Vec<Image>,
    test: &[Image],
    rng: &mut Pcg64Mcg,
) -> Result<Trained> {
    executor.run(&network.startup, scope, &[], &[])?;

    // A session is a program bound to memory: running it step after step allocates nothing.
    let mut batch = Batch::zeros(BATCH)?;
    let mut session = executor.prepare(&network.training, scope, &batch.feeds(), &[&network.loss])?;

    let mut epochs = vec![];
    let start = Instant::now();
    let bar = ProgressBar::new(EPOCHS as u64); // on stderr, and only if that is a terminal
    for number in 1..=EPOCHS {
        images.shuffle(rng);
        // An incomplete batch is skipped; its images differ in each epoch.
        let batches = images.chunks_exact(BATCH);
        let count = batches.len();
        let mut sum = 0.0;
        for images in batches {
            batch.fill(images)?;
            session.feed("pixels", &batch.pixels)?;
            session.feed("label", &batch.labels)?;
            session.run(scope)?;
            sum += session.item(&network.loss)?;
        }
        let loss = sum / count as f64;
        let accuracy = network.reader.accuracy(executor, scope, test)?;
        bar.suspend(|| println!("epoch {number:2}  loss {loss:.4}  accuracy {accuracy:.4}"));
        bar.inc(1);
        epochs.push(Epoch { loss, accuracy });
    }
    bar.finish_and_clear();
    Ok(Trained { epochs, seconds: start.elapsed().as_secs_f64(), peak_bytes: session.peak_bytes() })
}
