//! The trait of data sets, and batches of examples.

use std::sync::Arc;

use autobwd_core::{__private::did_you_mean, Error, ErrorKind, Result, Tensor};
use autobwd_exec::Feed;

/// A numbered list of examples.
///
/// ```
/// use autobwd::{Result, Tensor};
/// use autobwd_data::{Batch, Dataset, Loader};
///
/// /// The numbers below 10 and their squares.
/// struct Squares;
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         10
///     }
///     fn batch(&self, indices: &[usize]) -> Result<Batch> {
///         let column = |f: fn(f32) -> f32| {
///             Tensor::from_vec([indices.len(), 1], indices.iter().map(|i| f(*i as f32)).collect())
///         };
///         Batch::new([("x", column(|x| x)?), ("y", column(|x| x * x)?)])
///     }
///     fn fingerprint(&self) -> u64 {
///         1
///     }
/// }
/// let mut loader = Loader::builder(Squares).batch(4).build()?;
/// let batch = loader.next_batch()?.unwrap();
/// assert_eq!(batch.get("y")?.slice::<f32>()?, [0.0, 1.0, 4.0, 9.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// The number of examples.
    fn len(&self) -> usize;

    /// Whether there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The examples with these indices, each below [`len`](Dataset::len), in this order, always with the same fields and
    /// dtypes. A loader calls it from a thread of its own if it reads ahead; it makes an error of a panic.
    ///
    /// # Errors
    /// Examples that cannot be read; the message names the file.
    fn batch(&self, indices: &[usize]) -> Result<Batch>;

    /// All examples as one batch, such as the data of an evaluation.
    ///
    /// # Errors
    /// The errors of [`batch`](Dataset::batch).
    fn all(&self) -> Result<Batch> {
        self.batch(&(0..self.len()).collect::<Vec<_>>())
    }

    /// A hash of the content, by which a resumed run notices changed data. It is the same in all processes. A loader
    /// also compares the number of examples, the fields, and some examples.
    fn fingerprint(&self) -> u64;
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        (**self).batch(indices)
    }

    fn fingerprint(&self) -> u64 {
        (**self).fingerprint()
    }
}

/// Some examples: tensors by field name. The first dimension of every tensor counts the examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    fields: Vec<(String, Tensor)>,
    len: usize,
}

impl Batch {
    /// A batch of these fields.
    ///
    /// # Errors
    /// No fields; two fields of one name; tensors of rank 0 or with different first dimensions.
    pub fn new<N: Into<String>>(fields: impl IntoIterator<Item = (N, Tensor)>) -> Result<Batch> {
        let fields: Vec<(String, Tensor)> = fields.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let refuse = |text: String| Err(Error::new(ErrorKind::Shape, text));
        let Some((first, tensor)) = fields.first() else {
            return refuse("examples need at least one field".into());
        };
        let len = tensor.dims().first().copied().unwrap_or_default();
        for (i, (name, tensor)) in fields.iter().enumerate() {
            match tensor.dims() {
                [] => {
                    return refuse(format!(
                        "field `{name}` is a scalar: its first dimension must count examples"
                    ));
                }
                [n, ..] if *n != len => {
                    return refuse(format!("field `{name}` has {n} examples, but `{first}` has {len}"));
                }
                _ if fields[..i].iter().any(|(other, _)| other == name) => {
                    return refuse(format!("two fields have the name `{name}`"));
                }
                _ => {}
            }
        }
        Ok(Batch { fields, len })
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no examples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A field.
    ///
    /// # Errors
    /// An unknown name; similar names are suggested.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let field = self.fields.iter().find(|(known, _)| known == name);
        field.map(|(_, tensor)| tensor).ok_or_else(|| {
            let hint = did_you_mean(name, self.fields.iter().map(|(known, _)| known.as_str()));
            Error::new(ErrorKind::NoValue, format!("the batch has no field `{name}`{hint}"))
        })
    }

    /// The fields as feeds of a program: what `Executor::run` takes.
    pub fn feeds(&self) -> Vec<(&str, &dyn Feed)> {
        self.iter().map(|(name, tensor)| (name, tensor as &dyn Feed)).collect()
    }

    /// Names and tensors, in the order of the data set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.into_iter()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = (&'a str, &'a Tensor);
    type IntoIter =
        std::iter::Map<std::slice::Iter<'a, (String, Tensor)>, fn(&'a (String, Tensor)) -> Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.fields.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

/// The error of an index that a data set does not have.
pub(crate) fn no_example(index: usize, len: usize) -> Error {
    Error::new(ErrorKind::NoValue, format!("there is no example {index}: the data set has {len}"))
}
