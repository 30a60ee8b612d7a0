//! Tensors in safetensors files.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
};

use safetensors::{Dtype, SafeTensors, View, tensor::TensorView};

use super::{
    DType, Tensor,
    file::{failure, write_atomically},
};
use crate::{Error, ErrorKind, Result};

/// The limit of file sizes for writing and reading, in bytes.
const LIMIT: u64 = 1 << 34;

/// The key for metadata of a safetensors file.
const NOTES: &str = "__metadata__";

type NamedTensors = Vec<(String, Tensor)>;

fn to_file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn from_file_dtype(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|d| to_file_dtype(*d) == dtype)
}

/// Saves named tensors as a safetensors file. A failure leaves no partial file, and [`load_tensors`] accepts every file
/// that it writes.
///
/// # Errors
/// A tensor called `__metadata__`, which the format reserves; two tensors of one name; more than 16 GiB; those of
/// [`write_atomically`].
pub fn save_tensors<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    save_tensors_with(path, tensors, None)
}

/// As [`save_tensors`], with a text under a key of the file's metadata.
///
/// # Errors
/// As there.
pub fn save_tensors_with<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: Option<(&str, String)>,
) -> Result<()> {
    let path = path.as_ref();
    let refuse =
        |why: String| Error::new(ErrorKind::Format, format!("cannot save to `{}`: {why}", path.display()));
    let format = |e: safetensors::SafeTensorError| refuse(e.to_string()).caused_by(e);
    let (mut names, mut views) = (HashSet::new(), vec![]);
    for (name, t) in tensors {
        if name == NOTES {
            return Err(refuse(format!(
                "the safetensors format reserves the name `{NOTES}`: rename the value"
            )));
        }
        if !names.insert(name) {
            return Err(refuse(format!("two tensors have the name `{name}`")));
        }
        let view = TensorView::new(to_file_dtype(t.dtype()), t.dims().to_vec(), t.bytes());
        views.push((name, view.map_err(format)?));
    }
    let metadata = metadata.map(|(key, text)| HashMap::from([(key.into(), text)]));
    let bytes = safetensors::serialize(views, metadata).map_err(format)?;
    if bytes.len() as u64 > LIMIT {
        return Err(refuse(format!("{} bytes are more than the limit of {LIMIT}", bytes.len())));
    }
    // The reader finds all other faults of names and sizes.
    SafeTensors::read_metadata(&bytes).map_err(format)?;
    write_atomically(path, &bytes)
}

/// Reads all tensors of a safetensors file, sorted by name.
///
/// # Errors
/// Those of the file system; a file that is not in safetensors format, is truncated, is larger than 16 GiB, or holds an
/// unsupported dtype.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    Ok(load_tensors_with(path, "")?.0)
}

/// As [`load_tensors`], with the text under a key of the file's metadata, if it is there.
///
/// # Errors
/// As there.
pub fn load_tensors_with(path: impl AsRef<Path>, key: &str) -> Result<(NamedTensors, Option<String>)> {
    let path = path.as_ref();
    let size = fs::metadata(path).map_err(|e| failure(path, "read", &e).caused_by(e))?.len();
    let refuse = |why: String| Error::new(ErrorKind::Format, format!("`{}`: {why}", path.display()));
    if size > LIMIT {
        return Err(refuse(format!("{size} bytes are more than the limit of {LIMIT}")));
    }
    let bytes = fs::read(path).map_err(|e| failure(path, "read", &e).caused_by(e))?;
    let incomplete = |e: safetensors::SafeTensorError| {
        refuse(format!("not a complete safetensors file: {e}")).caused_by(e)
    };
    let file = SafeTensors::deserialize(&bytes).map_err(incomplete)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(incomplete)?;
    let text = header.metadata().as_ref().and_then(|metadata| metadata.get(key)).cloned();
    let mut tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let dtype = from_file_dtype(view.dtype()).ok_or_else(|| {
                refuse(format!(
                    "tensor `{name}` has dtype {:?}, which autobwd does not support",
                    view.dtype()
                ))
            })?;
            let mut tensor = Tensor::zeros(dtype, view.shape())?;
            if view.data_len() != tensor.bytes().len() {
                return Err(refuse(format!("tensor `{name}` has the wrong number of bytes")));
            }
            tensor.bytes_mut().copy_from_slice(view.data());
            Ok((name, tensor))
        })
        .collect::<Result<Vec<_>>>()?;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((tensors, text))
}
