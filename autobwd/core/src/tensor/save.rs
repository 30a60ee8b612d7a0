//! Tensors in safetensors files.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    path::Path,
};

use safetensors::{
    Dtype, SafeTensorError, SafeTensors, View,
    tensor::{Metadata, TensorInfo},
};

use super::{
    DType, Tensor,
    file::{read_file, write_atomically},
};
use crate::{
    Error, ErrorKind, Result,
    checksum::{LEN, blank, checksum, is_checksum},
};

/// The limit of file sizes for writing and reading, in bytes.
const LIMIT: u64 = 1 << 34;

/// The key for metadata of a safetensors file.
const NOTES: &str = "__metadata__";

/// The key of a file's checksum in its metadata.
const CHECKSUM: &str = "autobwd.checksum";

type NamedTensors = Vec<(String, Tensor)>;

fn to_file_dtype(dtype: DType) -> Dtype {
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

/// Saves named tensors as a safetensors file. A failure leaves no partial file, and [`load_tensors`] accepts every file
/// that it writes.
///
/// The metadata of the file hold a checksum of all its bytes, `autobwd.checksum`, by which [`load_tensors`] notices
/// damage; other programs ignore it.
///
/// # Errors
/// A tensor called `__metadata__`, which the format reserves; two tensors of one name; more than 16 GiB; no memory for
/// the file; the errors of [`write_atomically`].
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
    let (mut names, mut sorted) = (HashSet::new(), vec![]);
    for (name, t) in tensors {
        if name == NOTES {
            return Err(refuse(format!(
                "the safetensors format reserves the name `{NOTES}`: rename the value"
            )));
        }
        if !names.insert(name) {
            return Err(refuse(format!("two tensors have the name `{name}`")));
        }
        sorted.push((name, t));
    }
    // The order of the format: the dtypes with the largest alignment first.
    sorted.sort_by(|(a, x), (b, y)| {
        to_file_dtype(y.dtype()).cmp(&to_file_dtype(x.dtype())).then_with(|| a.cmp(b))
    });
    let header = header(&sorted, metadata).map_err(format)?;
    let data = sorted.iter().fold(0_u64, |sum, (_, t)| sum.saturating_add(t.bytes().len() as u64));
    let size = data.saturating_add((8 + header.len()) as u64);
    if size > LIMIT {
        return Err(refuse(format!("{size} bytes are more than the limit of {LIMIT}")));
    }
    let mut bytes = Vec::new();
    let no_memory = |e| refuse(format!("no memory for {size} bytes")).caused_by(e);
    bytes.try_reserve_exact(size as usize).map_err(no_memory)?;
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header.as_bytes());
    sorted.iter().for_each(|(_, t)| bytes.extend(t.bytes()));
    // The reader finds all other faults of names and sizes.
    SafeTensors::read_metadata(&bytes).map_err(format)?;
    if let Some(range) = checksum_range(&bytes) {
        let checksum = checksum(&bytes, range.clone());
        bytes[range].copy_from_slice(checksum.as_bytes());
    }
    write_atomically(path, &bytes)
}

/// The header of a file, with a blank checksum.
fn header(
    tensors: &[(&str, &Tensor)],
    metadata: Option<(&str, String)>,
) -> std::result::Result<String, SafeTensorError> {
    let (mut infos, mut start) = (vec![], 0_usize);
    for (name, t) in tensors {
        let end = start.saturating_add(t.bytes().len());
        let (dtype, shape) = (to_file_dtype(t.dtype()), t.dims().to_vec());
        infos.push((name.to_string(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
        start = end;
    }
    // The library writes metadata in random order, but equal values give equal files.
    let tensors = serde_json::to_string(&Metadata::new(None, infos)?)?;
    let notes: BTreeMap<&str, String> = metadata.into_iter().chain([(CHECKSUM, blank())]).collect();
    let notes = serde_json::to_string(&BTreeMap::from([(NOTES, notes)]))?;
    let comma = if tensors == "{}" { "" } else { "," };
    let mut header = format!("{}{comma}{}", &notes[..notes.len() - 1], &tensors[1..]);
    // Data are aligned to 8 bytes.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    Ok(header)
}

/// Where the checksum of a file is. Quotes within names are escaped, so that no name can look like it.
fn checksum_range(file: &[u8]) -> Option<Range<usize>> {
    let before = format!("\"{CHECKSUM}\":\"");
    let header = file.get(8..)?;
    let len = u64::from_le_bytes(file[..8].try_into().ok()?);
    let header = &header[..usize::try_from(len).ok()?.min(header.len())];
    let at = header.windows(before.len()).position(|window| window == before.as_bytes())?;
    let start = 8 + at + before.len();
    (start + LEN <= file.len()).then_some(start..start + LEN)
}

/// Why the checksum in a file does not match its bytes. Files of other programs have none.
fn damage(file: &[u8], metadata: &HashMap<String, String>) -> Option<String> {
    // A checksum below another key is also damaged.
    let hidden = || metadata.iter().find(|(_, text)| is_checksum(text));
    let (key, stored) = metadata.get_key_value(CHECKSUM).or_else(hidden)?;
    match checksum_range(file).map(|range| checksum(file, range)) {
        Some(expected) if expected == *stored && key == CHECKSUM => None,
        Some(expected) if key == CHECKSUM => {
            Some(format!("its checksum is `{stored}`, but its bytes have the checksum `{expected}`"))
        }
        _ => Some(format!("its checksum is below the key `{key}` of its metadata, not `{CHECKSUM}`")),
    }
}

/// Reads all tensors of a safetensors file, sorted by name.
///
/// # Errors
/// The errors of the file system; a path that is no file; a file that is not in safetensors format, is truncated, is
/// larger than 16 GiB, holds an unsupported dtype, or differs from what was saved by a byte. Files of other programs
/// have no checksum, so that only damage to their headers is noticed.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    Ok(load_tensors_with(path, "")?.0)
}

/// As [`load_tensors`], with the text under a key of the file's metadata, if it is there.
///
/// # Errors
/// As there.
pub fn load_tensors_with(path: impl AsRef<Path>, key: &str) -> Result<(NamedTensors, Option<String>)> {
    let path = path.as_ref();
    let refuse = |why: String| Error::new(ErrorKind::Format, format!("`{}`: {why}", path.display()));
    let bytes = read_file(path, LIMIT)?;
    let incomplete = |e: safetensors::SafeTensorError| {
        refuse(format!("not a complete safetensors file: {e}")).caused_by(e)
    };
    let file = SafeTensors::deserialize(&bytes).map_err(incomplete)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(incomplete)?;
    let notes = header.metadata().as_ref();
    if let Some(damage) = notes.and_then(|notes| damage(&bytes, notes)) {
        return Err(refuse(format!(
            "not the file that was saved: {damage}; a program that changes a file must remove the entry"
        )));
    }
    let text = notes.and_then(|notes| notes.get(key)).cloned();
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
            let mut tensor = Tensor::zeros(dtype, view.shape()).map_err(|e| {
                Error::new(e.kind(), format!("`{}`: tensor `{name}`: {e}", path.display())).caused_by(e)
            })?;
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
