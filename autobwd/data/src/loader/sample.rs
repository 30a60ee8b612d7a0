//! What is known of the content of a data set: its fields, and a hash of some examples.

use autobwd_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::{Batch, Dataset, fingerprint::Fingerprint};

/// The number of examples that are compared, evenly spaced, with the first and the last.
const EXAMPLES: usize = 8;

/// Name and dtype of each field, in the order of the data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn of(batch: &Batch) -> Fields {
        Fields(batch.iter().map(|(name, tensor)| (name.into(), tensor.dtype().name().into())).collect())
    }

    /// Refuses a batch with other fields.
    pub(super) fn check(&self, batch: &Batch) -> Result<()> {
        let found = Fields::of(batch);
        if found == *self {
            return Ok(());
        }
        let text = format!("the data set has returned fields {found}; the first batch had {self}");
        Err(Error::new(ErrorKind::Data, text))
    }
}

impl std::fmt::Display for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields: Vec<String> = self.0.iter().map(|(name, dtype)| format!("`{name}` ({dtype})")).collect();
        f.write_str(&fields.join(", "))
    }
}

/// The fields of a data set, and the hash of some examples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DataSample {
    pub(super) fields: Fields,
    /// In hexadecimal digits; `None` if the data set changes its examples at random.
    pub(super) hash: Option<String>,
}

impl DataSample {
    /// Reads the examples twice, to see whether they stay the same.
    pub(super) fn read(dataset: &dyn Dataset) -> Result<DataSample> {
        let last = dataset.len().saturating_sub(1);
        let mut indices: Vec<usize> =
            (0..EXAMPLES).map(|k| (last as u128 * k as u128 / (EXAMPLES as u128 - 1)) as usize).collect();
        indices.dedup();
        let [first, second] = [dataset.batch(&indices)?, dataset.batch(&indices)?];
        let hash = |batch: &Batch| Fingerprint::default().batch(batch).finish();
        let hash = Some(hash(&first)).filter(|first| *first == hash(&second));
        Ok(DataSample { fields: Fields::of(&first), hash: hash.map(|hash| format!("{hash:016x}")) })
    }
}
