//! Tensors in safetensors files.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::{self, BufReader, Read},
    ops::Range,
    path::Path,
};

use safetensors::{
    Dtype, SafeTensorError,
    tensor::{Metadata, TensorInfo},
};

use super::{
    DType, Tensor,
    file::{failure, open_file, write_parts_atomically},
};
use crate::{
    Error, ErrorKind, Result,
    checksum::{LEN, PartialChecksum, blank, is_checksum},
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
/// A tensor called `__metadata__`, which the format reserves; two tensors of one name; more than 16 GiB; the errors of
/// [`write_atomically`](super::write_atomically).
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
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend(header.as_bytes());
    // The reader finds all other faults of names and sizes.
    let mut start = Header::parse(start, size).map_err(format)?.start;
    if let Some(range) = checksum_range(&start) {
        let mut checksum = PartialChecksum::of_start(&start, range.clone());
        sorted.iter().for_each(|(_, t)| checksum.update(t.bytes()));
        start[range].copy_from_slice(checksum.finish().as_bytes());
    }
    // Without a copy of the tensors.
    write_parts_atomically(path, [&start[..]].into_iter().chain(sorted.iter().map(|(_, t)| t.bytes())))
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

/// The largest header of the format, in bytes.
const HEADER_LIMIT: u64 = 100_000_000;

/// What a file says about its tensors.
struct Header {
    /// The length of the header, and the header.
    start: Vec<u8>,
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
    fn parse(start: Vec<u8>, size: u64) -> std::result::Result<Header, SafeTensorError> {
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
    fn checksum(&self) -> std::result::Result<Option<(&str, PartialChecksum)>, String> {
        // A checksum below another key is also damaged.
        let hidden = || self.notes.iter().find(|(_, text)| is_checksum(text));
        let Some((key, stored)) = self.notes.get_key_value(CHECKSUM).or_else(hidden) else { return Ok(None) };
        match checksum_range(&self.start) {
            Some(range) if key == CHECKSUM => {
                Ok(Some((stored, PartialChecksum::of_start(&self.start, range))))
            }
            _ => Err(format!("its checksum is below the key `{key}` of its metadata, not `{CHECKSUM}`")),
        }
    }
}

/// Where the checksum of a file is, by the start of the file. Quotes within names are escaped, so that no name can look
/// like it.
fn checksum_range(start: &[u8]) -> Option<Range<usize>> {
    let before = format!("\"{CHECKSUM}\":\"");
    let header = start.get(8..)?;
    let at = header.windows(before.len()).position(|window| window == before.as_bytes())?;
    let first = 8 + at + before.len();
    (first + LEN <= start.len()).then_some(first..first + LEN)
}

/// Reads all tensors of a safetensors file, sorted by name. No second copy of them is in memory meanwhile.
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
    let unreadable = |e: io::Error| failure(path, "read", &e).caused_by(e);
    let file = open_file(path, LIMIT)?;
    let size = file.metadata().map_err(unreadable)?.len();
    let mut file = BufReader::new(file);
    let header = Header::read(&mut file, size)
        .map_err(|e| refuse(format!("not a complete safetensors file: {e}")).caused_by(e))?;
    let damaged = |damage: String| {
        refuse(format!(
            "not the file that was saved: {damage}; a program that changes a file must remove the entry"
        ))
    };
    let mut checksum = header.checksum().map_err(damaged)?;
    let mut tensors = vec![];
    for (name, info) in &header.tensors {
        let unsupported =
            || refuse(format!("tensor `{name}` has dtype {:?}, which autobwd does not support", info.dtype));
        let dtype = from_file_dtype(info.dtype).ok_or_else(unsupported)?;
        let mut tensor = Tensor::zeros(dtype, &info.shape).map_err(|e| {
            Error::new(e.kind(), format!("`{}`: tensor `{name}`: {e}", path.display())).caused_by(e)
        })?;
        file.read_exact(tensor.bytes_mut()).map_err(unreadable)?;
        if let Some((_, checksum)) = &mut checksum {
            checksum.update(tensor.bytes());
        }
        tensors.push((name.clone(), tensor));
    }
    if let Some((stored, checksum)) = checksum {
        let expected = checksum.finish();
        if stored != expected {
            let damage = format!("its checksum is `{stored}`, but its bytes have the checksum `{expected}`");
            return Err(damaged(damage));
        }
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((tensors, header.notes.get(key).cloned()))
}
