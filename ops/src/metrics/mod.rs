//! Metrics: accumulators over the batches of an epoch, in plain Rust.
//!
//! ```
//! use autobwd::Tensor;
//! use autobwd_ops::metrics::{Auc, ClassAccuracy, ConfusionMatrix, RunningMean};
//! let scores = Tensor::from_vec([3, 2], vec![0.9_f32, 0.1, 0.2, 0.8, 0.6, 0.4])?;
//! let labels = Tensor::from_vec([3, 1], vec![0_i64, 1, 1])?;
//! let (mut loss, mut accuracy) = (RunningMean::new(), ClassAccuracy::new());
//! let (mut matrix, mut auc) = (ConfusionMatrix::new(2), Auc::new());
//! // For every batch:
//! loss.add(0.75, 3);
//! accuracy.add(&scores, &labels)?;
//! matrix.add(&scores, &labels)?;
//! auc.add(&scores, &labels)?;
//! // At the end of the epoch:
//! assert_eq!((loss.value(), accuracy.value()), (0.75, 2.0 / 3.0));
//! assert_eq!((matrix.precision(1), matrix.recall(1)), (1.0, 0.5));
//! assert_eq!(auc.value(), 1.0);
//! # Ok::<(), autobwd::Error>(())
//! ```

mod auc;
mod classes;
mod confusion;

pub use auc::Auc;
pub use classes::ClassAccuracy;
pub use confusion::ConfusionMatrix;

/// The mean of a number over all samples, from its means over batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunningMean {
    sum: f64,
    count: u64,
}

impl RunningMean {
    /// No samples yet.
    pub fn new() -> RunningMean {
        RunningMean::default()
    }

    /// Adds the mean of a batch of so many samples.
    pub fn add(&mut self, mean: f64, samples: u64) {
        self.sum += mean * samples as f64;
        self.count += samples;
    }

    /// Adds the samples of another one.
    pub fn merge(&mut self, other: &RunningMean) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean over all samples; NaN without any.
    pub fn value(&self) -> f64 {
        self.sum / self.count as f64
    }
}
