//! Reading tensors of safetensors files.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{BufReader, Read},
    ops::Range,
    path::{Path, PathBuf},
};

use safetensors::{
    Dtype, SafeTensorError,
    tensor::{Metadata, TensorInfo},
};

use super::{
    DType, Meta, Tensor,
    file::{failure, open_file},
};
use crate::{
    Error, ErrorKind, Result,
    checksum::{LEN, PartialChecksum, is_checksum},
};

/// The limit of file sizes for writing and reading, in bytes.
pub(super) const LIMIT: u64 = 1 << 34;

/// The key of a file's checksum in its metadata.
pub(super) const CHECKSUM: &str = "autobwd.checksum";

type NamedTensors = Vec<(String, Tensor)>;

pub(super) fn to_file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn from_file_dtype(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|d| to_file_dtype(*d) == dtype)
}

/// The largest header of the format, in bytes.
const HEADER_LIMIT: u64 = 100_000_000;

/// What a file says about its tensors.
pub(super) struct Header {
    /// The length of the header, and the header.
    pub(super) start: Vec<u8>,
    /// In the order of their elements.
    tensors: Vec<(String, TensorInfo)>,
    notes: HashMap<String, String>,
}

impl Header {
    /// Reads the start of a file of `size` bytes.
    ///
    /// # Errors
    /// Errors of the file; another format.
    fn read(mut file: impl Read, size: u64) -> std::result::Result<Header, SafeTensorError> {
        let mut start = vec![0; 8];
        if size < 8 {
            return Err(SafeTensorError::HeaderTooSmall);
        }
        file.read_exact(&mut start)?;
        let len = start.iter().rev().fold(0, |len, byte| len << 8 | u64::from(*byte));
        if len > HEADER_LIMIT {
            return Err(SafeTensorError::HeaderTooLarge);
        }
        if len > size - 8 {
            return Err(SafeTensorError::InvalidHeaderLength);
        }
        start.resize(8 + len as usize, 0);
        file.read_exact(&mut start[8..])?;
        Header::parse(start, size)
    }

    /// The start of a file of `size` bytes, whose tensors follow each other up to its end.
    pub(super) fn parse(start: Vec<u8>, size: u64) -> std::result::Result<Header, SafeTensorError> {
        let metadata: Metadata =
            serde_json::from_slice(&start[8..]).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
        let notes = metadata.metadata().clone().unwrap_or_default();
        let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone()));
        let mut tensors: Vec<(String, TensorInfo)> = tensors.collect();
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let mut end = 0;
        for (name, info) in &tensors {
            let (first, next) = info.data_offsets;
            if first != end || next < first {
                return Err(SafeTensorError::InvalidOffset(name.clone()));
            }
            let elements = info.shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
            let bits = elements.and_then(|n| n.checked_mul(info.dtype.bitsize()));
            if bits.ok_or(SafeTensorError::ValidationOverflow)?.div_ceil(8) != next - first {
                return Err(SafeTensorError::TensorInvalidInfo);
            }
            end = next;
        }
        if (start.len() as u64).checked_add(end as u64) != Some(size) {
            return Err(SafeTensorError::MetadataIncompleteBuffer);
        }
        Ok(Header { start, tensors, notes })
    }

    /// The checksum that stands in the file and is to be compared; files of other programs have none.
    ///
    /// # Errors
    /// A checksum at the wrong place.
    fn checksum(&self) -> std::result::Result<Option<(String, PartialChecksum)>, String> {
        // A checksum below another key is also damaged.
        let hidden = || self.notes.iter().find(|(_, text)| is_checksum(text));
        let Some((key, stored)) = self.notes.get_key_value(CHECKSUM).or_else(hidden) else { return Ok(None) };
        match checksum_range(&self.start) {
            Some(range) if key == CHECKSUM => {
                Ok(Some((stored.clone(), PartialChecksum::of_start(&self.start, range))))
            }
            _ => Err(format!("its checksum is below the key `{key}` of its metadata, not `{CHECKSUM}`")),
        }
    }
}

/// Where the checksum of a file is, by the start of the file. Quotes within names are escaped, so that no name can look
/// like it.
pub(super) fn checksum_range(start: &[u8]) -> Option<Range<usize>> {
    let before = format!("\"{CHECKSUM}\":\"");
    let header = start.get(8..)?;
    let at = header.windows(before.len()).position(|window| window == before.as_bytes())?;
    let first = 8 + at + before.len();
    (first + LEN <= start.len()).then_some(first..first + LEN)
}

/// Reads all tensors of a safetensors file, sorted by name. No second copy of them is in memory meanwhile.
///
/// # Errors
/// Those of [`TensorReader::open`] and of its items.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    Ok(load_tensors_with(path, "")?.0)
}

/// As [`load_tensors`], with the text under a key of the file's metadata, if it is there.
///
/// # Errors
/// As there.
pub fn load_tensors_with(path: impl AsRef<Path>, key: &str) -> Result<(NamedTensors, Option<String>)> {
    let path = path.as_ref();
    crate::__span!("load_tensors", path = %path.display());
    let mut reader = TensorReader::open(path)?;
    let mut tensors = reader.by_ref().collect::<Result<NamedTensors>>()?;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((tensors, reader.metadata(key).map(String::from)))
}

/// Reads the tensors of a safetensors file one by one, in their order there, so that a program need not hold them
/// together.
///
/// The items are an iterator. After the last tensor, the bytes of the file are compared with its checksum, if it has one
/// of [`save_tensors`](super::save_tensors): for a damaged file, the last item is an error. The iterator ends after an error.
///
/// ```
/// use autobwd::{DType, Result, Tensor, tensor::{TensorReader, save_tensors}};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("weights.safetensors");
/// let [w, b] = [Tensor::zeros(DType::F32, &[2, 3])?, Tensor::zeros(DType::F32, &[3])?];
/// save_tensors(&path, [("w", &w), ("b", &b)])?;
///
/// let reader = TensorReader::open(&path)?;
/// let elements: usize = reader.metas().filter_map(|(_, meta)| meta.dims.numel().get()).sum();
/// assert_eq!(elements, 9);
/// let read: Vec<(String, Tensor)> = reader.collect::<Result<_>>()?;
/// assert_eq!(read, [("b".to_string(), b), ("w".to_string(), w)]);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct TensorReader {
    path: PathBuf,
    file: BufReader<File>,
    notes: HashMap<String, String>,
    /// In the order of the file.
    metas: Vec<(String, Meta)>,
    /// The number of tensors that are read.
    read: usize,
    /// The checksum in the file, and that of the bytes so far.
    checksum: Option<(String, PartialChecksum)>,
}

impl TensorReader {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The errors of the file system; a path that is no file; a file that is not in safetensors format, is truncated, is
    /// larger than 16 GiB, or holds an unsupported dtype. The items are errors if memory runs out, and if the file differs
    /// from what was saved by a byte. Files of other programs have no checksum, so that only damage to their headers is
    /// noticed.
    pub fn open(path: impl AsRef<Path>) -> Result<TensorReader> {
        let path = path.as_ref();
        let file = open_file(path, LIMIT)?;
        let size = file.metadata().map_err(|e| failure(path, "read", &e).caused_by(e))?.len();
        let mut file = BufReader::new(file);
        let header = Header::read(&mut file, size)
            .map_err(|e| refused(path, format!("not a complete safetensors file: {e}")).caused_by(e))?;
        let checksum = header.checksum().map_err(|damage| damaged(path, &damage))?;
        let metas = header.tensors.into_iter().map(|(name, info)| match from_file_dtype(info.dtype) {
            Some(dtype) => Ok((name, Meta::new(dtype, &info.shape[..]))),
            None => {
                let dtype = info.dtype;
                let why = format!("tensor `{name}` has dtype {dtype:?}, which autobwd does not support");
                Err(refused(path, why))
            }
        });
        let metas = metas.collect::<Result<_>>()?;
        Ok(TensorReader { path: path.into(), file, notes: header.notes, metas, read: 0, checksum })
    }

    /// The names of all tensors with their dtypes and dimensions, in the order of the file.
    pub fn metas(&self) -> impl ExactSizeIterator<Item = (&str, &Meta)> {
        self.metas.iter().map(|(name, meta)| (name.as_str(), meta))
    }

    /// The text under a key of the file's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.notes.get(key).map(String::as_str)
    }

    fn tensor(&mut self) -> Result<Option<(String, Tensor)>> {
        let path = &self.path;
        let Some((name, meta)) = self.metas.get(self.read) else {
            return self.require_checksum().map(|()| None);
        };
        self.read += 1;
        let dims: Vec<usize> = meta.dims.iter().filter_map(|dim| dim.get()).collect();
        let mut tensor = Tensor::zeros(meta.dtype, &dims).map_err(|e| {
            Error::new(e.kind(), format!("`{}`: tensor `{name}`: {e}", path.display())).caused_by(e)
        })?;
        self.file.read_exact(tensor.bytes_mut()).map_err(|e| failure(path, "read", &e).caused_by(e))?;
        if let Some((_, checksum)) = &mut self.checksum {
            checksum.update(tensor.bytes());
        }
        Ok(Some((name.clone(), tensor)))
    }

    /// Compares the checksum of all bytes, once.
    fn require_checksum(&mut self) -> Result<()> {
        let Some((stored, checksum)) = self.checksum.take() else { return Ok(()) };
        let expected = checksum.finish();
        match stored == expected {
            true => Ok(()),
            false => {
                let damage =
                    format!("its checksum is `{stored}`, but its bytes have the checksum `{expected}`");
                Err(damaged(&self.path, &damage))
            }
        }
    }
}

impl Iterator for TensorReader {
    type Item = Result<(String, Tensor)>;

    fn next(&mut self) -> Option<Result<(String, Tensor)>> {
        let item = self.tensor();
        if item.is_err() {
            (self.read, self.checksum) = (self.metas.len(), None);
        }
        item.transpose()
    }
}

impl fmt::Debug for TensorReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorReader")
            .field("path", &self.path)
            .field("tensors", &self.metas.len())
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}

fn refused(path: &Path, why: String) -> Error {
    Error::new(ErrorKind::Format, format!("`{}`: {why}", path.display()))
}

fn damaged(path: &Path, damage: &str) -> Error {
    let why =
        format!("not the file that was saved: {damage}; a program that changes a file must remove the entry");
    refused(path, why)
}
