//! Predicted classes and labels, and the fraction of equal ones.

use autobwd::{DType, Error, ErrorKind, Result, Tensor};

/// The label of samples that do not count, as in `cross_entropy`.
const IGNORED: i64 = -100;

fn refuse<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Shape, text))
}

/// The labels of a batch; `None` for one that is ignored.
pub(super) fn labels(labels: &Tensor) -> Result<Vec<Option<i64>>> {
    let found = integers(labels)?;
    Ok(found.into_iter().map(|label| Some(label).filter(|label| *label != IGNORED)).collect())
}

/// Integers of shape `[n]` or `[n, 1]`.
fn integers(x: &Tensor) -> Result<Vec<i64>> {
    if !matches!(x.dims(), [_] | [_, 1]) {
        return refuse(format!("classes of shape [n] or [n, 1] are needed, not {}", x.meta()));
    }
    match x.dtype() {
        DType::I32 => Ok(x.slice::<i32>()?.iter().map(|class| (*class).into()).collect()),
        _ => Ok(x.slice::<i64>()?.to_vec()),
    }
}

/// Floating point numbers, row by row.
pub(super) fn floats(x: &Tensor) -> Result<Vec<f64>> {
    match x.dtype().is_float() {
        true => Ok(x.to_f64s()),
        false => Ok(x.slice::<f64>()?.to_vec()),
    }
}

/// The predicted classes: integers of shape `[n]` or `[n, 1]` as they are, or the position of the largest of the scores
/// `[n, classes]`; of equal ones the first.
pub(super) fn predictions(x: &Tensor) -> Result<Vec<i64>> {
    if !x.dtype().is_float() {
        return integers(x);
    }
    let classes = match *x.dims() {
        [_, classes] if classes > 0 => classes,
        _ => return refuse(format!("scores of shape [n, classes] are needed, not {}", x.meta())),
    };
    let best = |row: &[f64]| {
        let better = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (1..row.len()).fold(0, better) as i64
    };
    Ok(floats(x)?.chunks(classes).map(best).collect())
}

/// Pairs of label and predicted class of the samples that are not ignored.
pub(super) fn pairs(predicted: &Tensor, given: &Tensor) -> Result<Vec<(i64, i64)>> {
    let (found, expected) = (predictions(predicted)?, labels(given)?);
    same_count(found.len(), expected.len())?;
    Ok(expected.into_iter().zip(found).filter_map(|(label, class)| Some((label?, class))).collect())
}

pub(super) fn same_count(predictions: usize, labels: usize) -> Result<()> {
    if predictions != labels {
        return refuse(format!("there are {predictions} predictions for {labels} labels"));
    }
    Ok(())
}

/// The fraction of samples whose predicted class is their label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassAccuracy {
    correct: u64,
    count: u64,
}

impl ClassAccuracy {
    /// No samples yet.
    pub fn new() -> ClassAccuracy {
        ClassAccuracy::default()
    }

    /// Adds a batch: scores `[n, classes]`, where the largest counts, or classes, int64 or int32 of shape `[n]` or
    /// `[n, 1]`; and labels of such a shape. Samples with label −100 do not count.
    ///
    /// # Errors
    /// Another dtype or shape.
    pub fn add(&mut self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        let pairs = pairs(predictions, labels)?;
        self.correct += pairs.iter().filter(|(label, class)| label == class).count() as u64;
        self.count += pairs.len() as u64;
        Ok(())
    }

    /// Adds the samples of another one.
    pub fn merge(&mut self, other: &ClassAccuracy) {
        self.correct += other.correct;
        self.count += other.count;
    }

    /// The accuracy, from 0 to 1; NaN without samples.
    pub fn value(&self) -> f64 {
        self.correct as f64 / self.count as f64
    }
}
