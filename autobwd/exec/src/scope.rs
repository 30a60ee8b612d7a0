//! The scope: named values that outlive a run.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use indexmap::IndexMap;

use autobwd_core::{
    Element, Error, ErrorKind, Meta, Result, Tensor,
    error::did_you_mean,
    tensor::{Place, load_tensors, save_tensors},
};

/// The values kept between runs: parameters, optimizer states, statistics.
///
/// ```
/// use autobwd::{Scope, Tensor};
/// let mut scope = Scope::new();
/// scope.set("w", Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
/// scope.slice_mut::<f32>("w")?[0] = 3.0;
/// assert_eq!(scope.get("w")?.slice::<f32>()?, [3.0, 2.0]);
/// assert_eq!(scope.get("v").unwrap_err().to_string(), "the scope has no `v`; did you mean `w`?");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct Scope {
    values: IndexMap<String, Tensor>,
    /// New for every scope, and whenever the memory of a value is replaced, because sessions hold addresses.
    stamp: u64,
}

fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Default for Scope {
    fn default() -> Scope {
        Scope::new()
    }
}

impl Clone for Scope {
    fn clone(&self) -> Scope {
        Scope { values: self.values.clone(), stamp: next_stamp() }
    }
}

impl Scope {
    /// An empty scope.
    pub fn new() -> Scope {
        Scope { values: IndexMap::new(), stamp: next_stamp() }
    }

    /// The value of that name.
    ///
    /// # Errors
    /// An unknown name; similar names are suggested.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.values.get(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let hint = did_you_mean(name, self.values.keys().map(String::as_str));
        Error::new(ErrorKind::NoValue, format!("the scope has no `{name}`{hint}"))
    }

    /// The elements of a value, mutably.
    ///
    /// # Errors
    /// An unknown name; another dtype.
    pub fn slice_mut<T: Element>(&mut self, name: &str) -> Result<&mut [T]> {
        if !self.values.contains_key(name) {
            return Err(self.unknown(name));
        }
        // The look-up above succeeded; `slice_mut` rejects another dtype.
        self.values.get_mut(name).map_or(Ok(&mut [][..]), |t| t.slice_mut())
    }

    /// Sets a value. Sessions stay valid if dtype and shape are unchanged.
    pub fn set(&mut self, name: &str, value: Tensor) {
        match self.values.get_mut(name) {
            Some(old) if old.dtype() == value.dtype() && old.dims() == value.dims() => {
                old.bytes_mut().copy_from_slice(value.bytes());
            }
            Some(old) => {
                *old = value;
                self.stamp = next_stamp();
            }
            None => {
                self.values.insert(name.into(), value);
            }
        }
    }

    /// Names and values, in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Saves all values as a safetensors file, atomically.
    ///
    /// # Errors
    /// The file system's, naming the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save_tensors(path, self.iter())
    }

    /// Sets the values of a safetensors file, all or none.
    ///
    /// # Errors
    /// As [`load_tensors`](autobwd_core::tensor::load_tensors).
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        for (name, value) in load_tensors(path)? {
            self.set(&name, value);
        }
        Ok(())
    }

    /// Removes all values but the first so many.
    pub(super) fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }

    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    #[doc(hidden)]
    pub fn meta(&self, name: &str) -> Option<Meta> {
        self.values.get(name).map(Tensor::meta)
    }

    /// The memory of a value, allocated if necessary.
    pub(super) fn place(&mut self, name: &str, meta: &Meta) -> Result<Place> {
        if !self.values.contains_key(name) {
            let dims = meta
                .dims
                .known()
                .ok_or_else(|| Error::internal("a value of the scope with unknown shape"))?;
            self.set(name, Tensor::zeros(meta.dtype, &dims)?);
        }
        let Some(tensor) = self.values.get_mut(name) else { return Err(self.unknown(name)) };
        if tensor.meta().bytes() != meta.bytes() {
            return Err(Error::internal(format!("`{name}` is in the scope with another size")));
        }
        let bytes = tensor.bytes().len();
        tensor.memory()?.place(0, bytes)
    }
}
