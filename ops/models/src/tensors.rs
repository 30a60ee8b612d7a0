//! The tensors of a model's files, one by one.

use std::{collections::BTreeMap, path::Path};

use autobwd::{Meta, Result, Tensor};

use crate::file::refused;

/// Reads tensors one by one.
pub(crate) type TensorValues = Box<dyn Iterator<Item = Result<(String, Tensor)>>>;

/// The tensors of a model's files, by the names that programs give them.
pub(crate) struct TensorStream {
    /// The dtypes and dimensions of all.
    pub(crate) metas: BTreeMap<String, Meta>,
    pub(crate) values: TensorValues,
}

impl TensorStream {
    /// # Errors
    /// Two tensors of one name.
    pub(crate) fn new(
        path: &Path,
        metas: impl Iterator<Item = (String, Meta)>,
        values: impl Iterator<Item = Result<(String, Tensor)>> + 'static,
    ) -> Result<TensorStream> {
        let mut by_name = BTreeMap::new();
        for (name, meta) in metas {
            if by_name.contains_key(&name) {
                return Err(refused(path, format!("two tensors `{name}`")));
            }
            by_name.insert(name, meta);
        }
        Ok(TensorStream { metas: by_name, values: Box::new(values) })
    }

    /// The tensors under other names, without those that have none.
    pub(crate) fn renamed(self, rename: impl Fn(String) -> Option<String> + Copy + 'static) -> TensorStream {
        let metas = self.metas.into_iter().filter_map(|(name, meta)| Some((rename(name)?, meta))).collect();
        let values = self.values.filter_map(move |item| match item {
            Ok((name, value)) => rename(name).map(|name| Ok((name, value))),
            Err(e) => Some(Err(e)),
        });
        TensorStream { metas, values: Box::new(values) }
    }
}
