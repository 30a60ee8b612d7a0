//! Examples in memory.

use autobwd_core::{Result, Tensor};

use crate::{Batch, Dataset, dataset::no_example, fingerprint::Fingerprint};

/// Examples in memory: tensors by field name, whose first dimension counts the examples.
///
/// ```
/// use autobwd::{Tensor, ndarray::array};
/// use autobwd_data::{Dataset, TensorDataset};
///
/// let x = Tensor::try_from(array![[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
/// let y = Tensor::from_vec([3], vec![0_i64, 1, 0])?;
/// let data = TensorDataset::new([("x", x), ("y", y)])?;
/// let batch = data.batch(&[2, 0])?;
/// assert_eq!(batch.get("x")?.slice::<f32>()?, [5.0, 6.0, 1.0, 2.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// The arrays of a NumPy file are `TensorDataset::new(load_npz("train.npz")?)`.
#[derive(Clone, Debug)]
pub struct TensorDataset {
    all: Batch,
    fingerprint: u64,
}

impl TensorDataset {
    /// A data set of these fields.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn new<N: Into<String>>(fields: impl IntoIterator<Item = (N, Tensor)>) -> Result<TensorDataset> {
        let all = Batch::new(fields)?;
        let hash = Fingerprint::default().batch(&all);
        Ok(TensorDataset { all, fingerprint: hash.finish() })
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.all.len()
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        if let Some(index) = indices.iter().find(|index| **index >= self.len()) {
            return Err(no_example(*index, self.len()));
        }
        let rows = |(name, from): (&str, &Tensor)| {
            let mut dims = from.dims().to_vec();
            dims[0] = indices.len();
            let mut to = Tensor::zeros(from.dtype(), &dims)?;
            let row = from.bytes().len() / self.len().max(1);
            if row > 0 {
                for (to, index) in to.bytes_mut().chunks_exact_mut(row).zip(indices) {
                    to.copy_from_slice(&from.bytes()[index * row..][..row]);
                }
            }
            Ok((name.to_string(), to))
        };
        Batch::new(self.all.iter().map(rows).collect::<Result<Vec<_>>>()?)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
