//! Parts of data sets.

use std::sync::Arc;

use autobwd_core::Result;

use crate::{Batch, Dataset, dataset::no_example, fingerprint::Fingerprint, split::split};

/// Some examples of a data set.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_data::{Dataset, Subset, TensorDataset};
///
/// let x = Tensor::from_vec([10, 1], (0..10).map(|k| k as f32).collect())?;
/// let (train, test) = Subset::split(TensorDataset::new([("x", x)])?, 0.8, 7)?;
/// assert_eq!((train.len(), test.len()), (8, 2));
/// // Each example is in one of the parts.
/// let [mut all, others] = [&train, &test].map(|part| part.all().unwrap().get("x").unwrap().to_f64s());
/// all.extend(others);
/// all.sort_by(f64::total_cmp);
/// assert_eq!(all, (0..10).map(f64::from).collect::<Vec<_>>());
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Subset<D> {
    data: Arc<D>,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    /// The examples with these indices.
    ///
    /// # Errors
    /// An index that the data set does not have.
    pub fn new(data: Arc<D>, indices: Vec<usize>) -> Result<Subset<D>> {
        match indices.iter().find(|index| **index >= data.len()) {
            Some(index) => Err(no_example(*index, data.len())),
            None => Ok(Subset { data, indices }),
        }
    }

    /// Two parts: `fraction` of the examples, chosen by the seed, and the others. Each part keeps the order of the data
    /// set.
    ///
    /// # Errors
    /// A fraction that is not between 0 and 1, or that leaves a part without examples.
    pub fn split(data: D, fraction: f64, seed: u64) -> Result<(Subset<D>, Subset<D>)> {
        let (first, second) = split(&vec![(); data.len()], fraction, seed)?;
        let data = Arc::new(data);
        Ok((Subset { data: data.clone(), indices: first }, Subset { data, indices: second }))
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        let of_data = |index: &usize| {
            self.indices.get(*index).copied().ok_or_else(|| no_example(*index, self.indices.len()))
        };
        self.data.batch(&indices.iter().map(of_data).collect::<Result<Vec<_>>>()?)
    }

    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::default().number(self.data.fingerprint());
        self.indices.iter().fold(hash, |hash, index| hash.number(*index as u64)).finish()
    }
}
