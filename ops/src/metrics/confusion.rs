//! The confusion matrix, with precision, recall and F1.

use std::fmt;

use autobwd::{Error, ErrorKind, Result, Tensor};

use super::classes::pairs;

/// For every label and every class, the number of samples with that label that were predicted as that class.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_ops::metrics::ConfusionMatrix;
/// let mut matrix = ConfusionMatrix::new(2);
/// let (predicted, labels) = (vec![0_i64, 1, 1, 1], vec![0_i64, 1, 0, 1]);
/// matrix.add(&Tensor::from_vec([4], predicted)?, &Tensor::from_vec([4], labels)?)?;
/// assert_eq!((matrix.count(0, 1), matrix.accuracy(), matrix.f1(1)), (1, 0.75, 0.8));
/// assert_eq!(matrix.to_string(), "label \\ class  0  1\n            0  1  1\n            1  0  2\n");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// Row by row, one for each label.
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// No samples yet, of so many classes.
    pub fn new(classes: usize) -> ConfusionMatrix {
        ConfusionMatrix { classes, counts: vec![0; classes.saturating_mul(classes)] }
    }

    /// Adds a batch, as [`ClassAccuracy::add`](super::ClassAccuracy::add).
    ///
    /// # Errors
    /// Another dtype or shape; a label or a predicted class that is not below the number of classes. No sample of the
    /// batch counts then.
    pub fn add(&mut self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        let place = |(label, class): (i64, i64)| {
            let index = |x: i64| usize::try_from(x).ok().filter(|x| *x < self.classes);
            let outside = || {
                let text = format!("label {label}, predicted as {class}: there are {} classes", self.classes);
                Error::new(ErrorKind::Data, text)
            };
            Ok(index(label).ok_or_else(outside)? * self.classes + index(class).ok_or_else(outside)?)
        };
        let places: Vec<usize> = pairs(predictions, labels)?.into_iter().map(place).collect::<Result<_>>()?;
        places.into_iter().for_each(|place| self.counts[place] += 1);
        Ok(())
    }

    /// Adds the samples of another matrix.
    ///
    /// # Errors
    /// Another number of classes.
    pub fn merge(&mut self, other: &ConfusionMatrix) -> Result<()> {
        if self.classes != other.classes {
            let text = format!("matrices of {} and {} classes cannot be merged", self.classes, other.classes);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        Ok(())
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of samples with that label that were predicted as that class; 0 for classes that do not exist.
    pub fn count(&self, label: usize, class: usize) -> u64 {
        let exists = label < self.classes && class < self.classes;
        if exists { self.counts[label * self.classes + class] } else { 0 }
    }

    fn sum(&self, pairs: impl Fn(usize) -> (usize, usize)) -> u64 {
        (0..self.classes).map(pairs).map(|(label, class)| self.count(label, class)).sum()
    }

    /// The fraction of samples whose predicted class is their label; NaN without samples.
    pub fn accuracy(&self) -> f64 {
        self.sum(|class| (class, class)) as f64 / self.counts.iter().sum::<u64>() as f64
    }

    /// The fraction of the samples predicted as a class that have its label; 0 if there are none, as in scikit-learn.
    pub fn precision(&self, class: usize) -> f64 {
        ratio(self.count(class, class), self.sum(|label| (label, class)))
    }

    /// The fraction of the samples with a label that were predicted as that class; 0 if there are none.
    pub fn recall(&self, class: usize) -> f64 {
        ratio(self.count(class, class), self.sum(|predicted| (class, predicted)))
    }

    /// F1, the harmonic mean of precision and recall; 0 if both are.
    pub fn f1(&self, class: usize) -> f64 {
        let both = self.sum(|label| (label, class)) + self.sum(|predicted| (class, predicted));
        ratio(2 * self.count(class, class), both)
    }

    /// The mean of [`f1`](ConfusionMatrix::f1) over all classes; NaN without classes.
    pub fn macro_f1(&self) -> f64 {
        (0..self.classes).map(|class| self.f1(class)).sum::<f64>() / self.classes as f64
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl fmt::Display for ConfusionMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let corner = "label \\ class";
        let digits = |count: u64| count.to_string().len();
        let most = self.counts.iter().copied().max().unwrap_or(0).max(self.classes.saturating_sub(1) as u64);
        let width = digits(most) + 2;
        write!(f, "{corner}")?;
        (0..self.classes).try_for_each(|class| write!(f, "{class:width$}"))?;
        writeln!(f)?;
        for label in 0..self.classes {
            write!(f, "{label:first$}", first = corner.len())?;
            (0..self.classes).try_for_each(|class| write!(f, "{:width$}", self.count(label, class)))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
