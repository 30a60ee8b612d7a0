//! Tensors in files, as safetensors.

use std::{fs, io::Write, path::Path};

use safetensors::{Dtype, SafeTensors, View, tensor::TensorView};

use super::{DType, Tensor};
use crate::{Error, ErrorKind, Result};

/// The largest file that is read.
const LIMIT: u64 = 1 << 34;

fn io(path: &Path, doing: &str, e: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {doing} `{}`: {e}", path.display()))
}

/// Temporary files are private; what they become is not.
#[cfg(unix)]
fn like_any_file<'a, 'b, 'c>(builder: &'a mut tempfile::Builder<'b, 'c>) -> &'a tempfile::Builder<'b, 'c> {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(fs::Permissions::from_mode(0o666))
}
#[cfg(not(unix))]
fn like_any_file<'a, 'b, 'c>(builder: &'a mut tempfile::Builder<'b, 'c>) -> &'a tempfile::Builder<'b, 'c> {
    builder
}

/// Writes a file beside its final place and renames it, so that it is never there in half.
///
/// # Errors
/// The file system's, naming the path.
pub fn write_beside(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The temporary file's own name says nothing to anybody: only the kind of error is passed on.
    let mut file = like_any_file(&mut tempfile::Builder::new())
        .tempfile_in(folder)
        .map_err(|e| io(path, "write", e.kind()))?;
    file.write_all(bytes).and_then(|()| file.flush()).map_err(|e| io(path, "write", e.kind()))?;
    file.persist(path).map_err(|e| io(path, "write", e.error.kind()))?;
    Ok(())
}

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

/// Saves named tensors as a safetensors file; never half of it.
///
/// # Errors
/// The file system's, naming the path.
pub fn save_tensors<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    let format = |e: safetensors::SafeTensorError| Error::new(ErrorKind::Format, format!("cannot save: {e}"));
    let views = tensors
        .into_iter()
        .map(|(name, t)| {
            Ok((
                name,
                TensorView::new(to_file_dtype(t.dtype()), t.dims().to_vec(), t.bytes()).map_err(format)?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    let bytes = safetensors::serialize(views, None).map_err(format)?;
    write_beside(path, &bytes)
}

/// Reads all tensors of a safetensors file, sorted by name.
///
/// # Errors
/// The file system's; a file that is no safetensors file, is cut short, is larger than 16 GiB, or holds a dtype that
/// there is no counterpart for.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    let path = path.as_ref();
    let size = fs::metadata(path).map_err(|e| io(path, "read", e))?.len();
    let refuse = |why: String| Error::new(ErrorKind::Format, format!("`{}`: {why}", path.display()));
    if size > LIMIT {
        return Err(refuse(format!("{size} bytes are more than the {LIMIT} that are read")));
    }
    let bytes = fs::read(path).map_err(|e| io(path, "read", e))?;
    let file =
        SafeTensors::deserialize(&bytes).map_err(|e| refuse(format!("not a whole safetensors file: {e}")))?;
    let mut tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let dtype = from_file_dtype(view.dtype()).ok_or_else(|| {
                refuse(format!("tensor `{name}` holds {:?}, which autobwd has not", view.dtype()))
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
    Ok(tensors)
}
