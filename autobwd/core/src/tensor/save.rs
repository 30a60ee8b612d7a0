//! Writing tensors to safetensors files.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use safetensors::{
    SafeTensorError,
    tensor::{Metadata, TensorInfo},
};

use super::{
    Tensor,
    file::write_parts_atomically,
    load::{CHECKSUM, Header, LIMIT, checksum_range, to_file_dtype},
};
use crate::{
    Error, ErrorKind, Result,
    checksum::{PartialChecksum, blank},
};

/// The key for metadata of a safetensors file.
const NOTES: &str = "__metadata__";

/// Saves named tensors as a safetensors file. A failure leaves no partial file, and [`load_tensors`](super::load_tensors) accepts every file
/// that it writes.
///
/// The metadata of the file hold a checksum of all its bytes, `autobwd.checksum`, by which [`load_tensors`](super::load_tensors) notices
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
    crate::__span!("save_tensors", path = %path.display());
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
