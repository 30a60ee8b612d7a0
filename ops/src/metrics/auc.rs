//! The area under the receiver operating characteristic.

use autobwd::{Error, ErrorKind, Result, Tensor};

use super::classes::{floats, labels, same_count};

/// The area under the ROC curve of a binary classifier: the probability that a positive sample has a higher score than a
/// negative one, where equal scores count half (Hanley and McNeil, 1982). It is exact and keeps all scores.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_ops::metrics::Auc;
/// let mut auc = Auc::new();
/// let scores = Tensor::from_vec([4], vec![0.1_f32, 0.4, 0.35, 0.8])?;
/// auc.add(&scores, &Tensor::from_vec([4], vec![0_i64, 0, 1, 1])?)?;
/// assert_eq!(auc.value(), 0.75);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auc {
    /// Scores, and whether the sample is positive.
    samples: Vec<(f64, bool)>,
}

impl Auc {
    /// No samples yet.
    pub fn new() -> Auc {
        Auc::default()
    }

    /// Adds a batch: floating point scores of the positive class, `[n]`, `[n, 1]`, or the second column of `[n, 2]`; and
    /// labels 0 and 1, int64 or int32 of shape `[n]` or `[n, 1]`. Samples with label −100 do not count.
    ///
    /// # Errors
    /// Another dtype or shape; another label; a score that is NaN. No sample of the batch counts then.
    pub fn add(&mut self, scores: &Tensor, given: &Tensor) -> Result<()> {
        let columns = match scores.dims() {
            [_] | [_, 1] => 1,
            [_, 2] => 2,
            _ => {
                let text = format!("scores of shape [n], [n, 1] or [n, 2] are needed, not {}", scores.meta());
                return Err(Error::new(ErrorKind::Shape, text));
            }
        };
        let (values, labels) = (floats(scores)?, labels(given)?);
        let values: Vec<f64> = values.chunks(columns).map(|row| row[columns - 1]).collect();
        same_count(values.len(), labels.len())?;
        let mut samples = vec![];
        for (score, label) in values.into_iter().zip(labels) {
            let Some(label) = label else { continue };
            if score.is_nan() || !(0..=1).contains(&label) {
                let text =
                    format!("a score {score} with label {label}: numbers and labels 0 and 1 are needed");
                return Err(Error::new(ErrorKind::Data, text));
            }
            samples.push((score, label == 1));
        }
        self.samples.extend(samples);
        Ok(())
    }

    /// Adds the samples of another one.
    pub fn merge(&mut self, other: &Auc) {
        self.samples.extend(&other.samples);
    }

    /// The area, from 0 to 1; NaN without positive or without negative samples.
    pub fn value(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let positives = sorted.iter().filter(|(_, positive)| *positive).count() as f64;
        let negatives = sorted.len() as f64 - positives;
        // Pairs of a positive sample and a negative one with a lower score.
        let (mut pairs, mut below) = (0.0, 0.0);
        for equal in sorted.chunk_by(|a, b| a.0 == b.0) {
            let own = equal.iter().filter(|(_, positive)| *positive).count() as f64;
            let others = equal.len() as f64 - own;
            pairs += own * (below + others / 2.0);
            below += others;
        }
        pairs / (positives * negatives)
    }
}
