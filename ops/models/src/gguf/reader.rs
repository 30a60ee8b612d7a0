//! The header of a GGUF file: metadata, and where the tensors are. The layout is that of the specification in `ggml`,
//! versions 2 and 3:
//!
//! ```text
//! "GGUF", version: u32, tensors: u64, entries: u64
//! each entry: key, type: u32, value
//! each tensor: name, rank: u32, sizes: u64 each, innermost first, type: u32, offset: u64
//! the data, at a multiple of `general.alignment`
//! ```
//!
//! Numbers are little-endian. A text is its length, u64, and its bytes. An array is a type, a length and the elements.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use autobwd::{DType, Error, Meta, Result, tensor::open_file};
use serde_json::Value;

use super::blocks::{BlockType, Storage};
use crate::file::{LARGEST_TEXT, refused};

/// The largest file, in bytes.
pub(super) const LARGEST_FILE: u64 = 64 << 30;
/// The largest rank of a tensor.
const LARGEST_RANK: u32 = 4;
/// The types of texts and arrays in metadata.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// The header of a file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, Entry>,
    pub(super) tensors: Vec<TensorInfo>,
}

/// A value of the metadata.
#[derive(Debug)]
pub(super) enum Entry {
    One(Value),
    Texts(Vec<String>),
    /// Numbers of a type, as they are in the file: most arrays are never read.
    Numbers(u32, Vec<u8>),
}

/// A tensor of a file.
#[derive(Debug)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// The sizes, outermost first.
    pub(super) dims: Vec<usize>,
    pub(super) blocks: &'static BlockType,
    /// The position of its first byte in the file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl TensorInfo {
    /// Its dtype and dimensions once it is read.
    pub(super) fn meta(&self) -> Meta {
        let dtype = match self.blocks.storage {
            Storage::Plain(dtype) => dtype,
            Storage::Blocks(_) => DType::F32,
        };
        Meta::new(dtype, &self.dims[..])
    }
}

impl Entry {
    /// The value, unless this is an array.
    pub(super) fn one(&self) -> Option<&Value> {
        match self {
            Entry::One(value) => Some(value),
            _ => None,
        }
    }

    /// The numbers of an array.
    pub(super) fn numbers(&self) -> Option<Vec<f64>> {
        let Entry::Numbers(of, bytes) = self else { return None };
        let numbers = bytes.chunks_exact(size_of_number(*of)?);
        Some(numbers.map(|bytes| number(*of, bytes).as_f64().unwrap_or(f64::NAN)).collect())
    }
}

impl Header {
    /// Reads the header of a file, and requires that its tensors are in the file and do not overlap.
    pub(super) fn read(path: &Path) -> Result<Header> {
        let file = open_file(path, LARGEST_FILE)?;
        let size = file.metadata().map_or(0, |found| found.len());
        let mut bytes = Bytes { path, file: BufReader::new(file), at: 0, size };
        let (tensors, entries) = bytes.start()?;
        let mut header = Header { metadata: BTreeMap::new(), tensors: vec![] };
        for _ in 0..entries {
            let key = bytes.text()?;
            let entry = bytes.entry(&key)?;
            if header.metadata.contains_key(&key) {
                return Err(refused(path, format!("two values of `{key}`")));
            }
            header.metadata.insert(key, entry);
        }
        for _ in 0..tensors {
            header.tensors.push(bytes.tensor()?);
        }
        header.place(path, bytes.at, size)?;
        Ok(header)
    }

    /// Finds where the tensors are; their offsets count from the end of the header.
    fn place(&mut self, path: &Path, end: u64, size: u64) -> Result<()> {
        let alignment = match self.metadata.get("general.alignment") {
            None => 32,
            Some(entry) => entry
                .one()
                .and_then(Value::as_u64)
                .filter(|n| n.is_power_of_two())
                .ok_or_else(|| refused(path, "`general.alignment` is not a power of 2".to_string()))?,
        };
        let first = end.checked_next_multiple_of(alignment);
        for info in &mut self.tensors {
            let refuse = |why: &str| refused(path, format!("the tensor `{}` {why}", info.name));
            if !info.start.is_multiple_of(alignment) {
                return Err(refuse(&format!("is at no multiple of {alignment} bytes")));
            }
            let start = first.and_then(|first| first.checked_add(info.start));
            let end = start.and_then(|start| start.checked_add(info.bytes));
            info.start = match (start, end) {
                (Some(start), Some(end)) if end <= size => start,
                _ => return Err(refuse("is beyond the end of the file")),
            };
        }
        self.tensors.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
        let overlaps = |pair: &&[TensorInfo]| pair[0].start + pair[0].bytes > pair[1].start;
        match self.tensors.windows(2).find(overlaps) {
            Some(pair) => {
                Err(refused(path, format!("the tensors `{}` and `{}` overlap", pair[0].name, pair[1].name)))
            }
            None => Ok(()),
        }
    }
}

/// The bytes of a header, from first to last.
struct Bytes<'a> {
    path: &'a Path,
    file: BufReader<File>,
    at: u64,
    size: u64,
}

impl Bytes<'_> {
    fn refused(&self, why: impl std::fmt::Display) -> Error {
        refused(self.path, why)
    }

    /// The next bytes. Memory is taken for bytes that the file has, and headers are not larger than a text.
    fn take(&mut self, count: u64) -> Result<Vec<u8>> {
        if count > self.size - self.at {
            return Err(self.refused("the file ends within its header"));
        }
        if count > LARGEST_TEXT.saturating_sub(self.at) {
            return Err(self.refused(format!("the header is longer than {LARGEST_TEXT} bytes")));
        }
        let mut bytes = vec![0; count as usize];
        self.file.read_exact(&mut bytes).map_err(|e| self.refused(&e).caused_by(e))?;
        self.at += count;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(self.take(4)?.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte)))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(self.take(8)?.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Result<String> {
        let count = self.u64()?;
        let at = self.at;
        let text = String::from_utf8(self.take(count)?);
        text.map_err(|e| self.refused(format!("the text at byte {at} is not UTF-8")).caused_by(e))
    }

    /// The numbers of tensors and of entries.
    fn start(&mut self) -> Result<(u64, u64)> {
        if self.size < 4 || self.take(4)? != *b"GGUF" {
            return Err(self.refused("not a GGUF file"));
        }
        match self.u32()? {
            2 | 3 => Ok((self.u64()?, self.u64()?)),
            version if matches!(version.swap_bytes(), 1..=3) => {
                Err(self.refused("the file is big-endian; only little-endian files are supported"))
            }
            version => Err(self.refused(format!("version {version} of GGUF; only 2 and 3 are supported"))),
        }
    }

    fn entry(&mut self, key: &str) -> Result<Entry> {
        let unknown = |bytes: &Self, of: u32| bytes.refused(format!("`{key}` is of unknown type {of}"));
        match self.u32()? {
            TEXT => Ok(Entry::One(self.text()?.into())),
            ARRAY => {
                let (of, count) = (self.u32()?, self.u64()?);
                if of == TEXT {
                    return (0..count).map(|_| self.text()).collect::<Result<_>>().map(Entry::Texts);
                }
                let size = size_of_number(of).ok_or_else(|| unknown(self, of))?;
                Ok(Entry::Numbers(of, self.take(count.saturating_mul(size as u64))?))
            }
            of => {
                let size = size_of_number(of).ok_or_else(|| unknown(self, of))?;
                match number(of, &self.take(size as u64)?) {
                    Value::Null => Err(self.refused(format!("`{key}` is not a finite number"))),
                    value => Ok(Entry::One(value)),
                }
            }
        }
    }

    /// A tensor, with its offset for its start.
    fn tensor(&mut self) -> Result<TensorInfo> {
        let name = self.text()?;
        let rank = self.u32()?;
        if !(1..=LARGEST_RANK).contains(&rank) {
            return Err(self.refused(format!("the tensor `{name}` has rank {rank}")));
        }
        let sizes = (0..rank).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        let (id, start) = (self.u32()?, self.u64()?);
        let blocks = BlockType::of(id).ok_or_else(|| {
            let known = BlockType::names();
            self.refused(format!("the tensor `{name}` is of type {id}; supported are {known}"))
        })?;
        let misshapen = || {
            self.refused(format!(
                "the tensor `{name}` has sizes {sizes:?}, innermost first, of {}",
                blocks.name
            ))
        };
        if !sizes[0].is_multiple_of(blocks.values as u64) || sizes.contains(&0) {
            return Err(misshapen());
        }
        let elements = sizes.iter().try_fold(1_u64, |n, size| n.checked_mul(*size));
        let bytes = elements.and_then(|n| (n / blocks.values as u64).checked_mul(blocks.bytes as u64));
        let dims: Option<Vec<usize>> = sizes.iter().rev().map(|size| usize::try_from(*size).ok()).collect();
        match bytes.zip(dims) {
            Some((bytes, dims)) => Ok(TensorInfo { name, dims, blocks, start, bytes }),
            None => Err(misshapen()),
        }
    }
}

/// The size of a number of a type, in bytes.
fn size_of_number(of: u32) -> Option<usize> {
    match of {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// A number of a type; null if it is not finite.
fn number(of: u32, bytes: &[u8]) -> Value {
    let unsigned = bytes.iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
    // The sign is that of the highest byte.
    let shift = 64 - 8 * bytes.len() as u32;
    let signed = ((unsigned << shift) as i64) >> shift;
    match of {
        1 | 3 | 5 | 11 => signed.into(),
        6 => f32::from_bits(unsigned as u32).into(),
        7 => (unsigned != 0).into(),
        12 => f64::from_bits(unsigned).into(),
        _ => unsigned.into(),
    }
}
