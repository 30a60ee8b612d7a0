//! Whether a shared library is whole: the loader maps a truncated file, and the process ends by a signal when it reads
//! beyond the end.

use std::{
    io::{Seek, SeekFrom},
    path::Path,
};

use autobwd::{Error, ErrorKind, Result, tensor::open_file};
use autobwd_core::tensor::read_exactly;

/// The sizes of the header of a file, and of the header of a segment, in the 64-bit format.
const HEADER: u64 = 64;
const SEGMENT: u64 = 56;

/// Rejects a file of the format ELF (64 bits, little-endian) that is shorter than its headers say. Other files pass: the
/// loader tells what they are.
///
/// # Errors
/// A path that is no regular file; a truncated file; errors of the file system.
pub(super) fn require_whole(path: &Path) -> Result<()> {
    let mut file = open_file(path, u64::MAX)?;
    let source = format!("`{}`", path.display());
    let failed =
        |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot read {source}: {e}")).caused_by(e);
    let size = file.metadata().map_err(failed)?.len();
    if size < HEADER {
        return Ok(());
    }
    let header = read_exactly(&mut file, HEADER, &source)?;
    if header[..6] != *b"\x7fELF\x02\x01" {
        return Ok(());
    }
    let truncated = |needed: Option<u64>| match needed {
        Some(needed) if needed <= size => Ok(()),
        Some(needed) => Err(format!("it is truncated: it has {size} bytes, and its headers need {needed}")),
        None => Err("its headers are damaged".to_string()),
    };
    let check = |needed: Option<u64>| {
        truncated(needed)
            .map_err(|why| Error::new(ErrorKind::Format, format!("{source} is not a PJRT plugin: {why}")))
    };
    let table = |start: usize, size: usize| {
        let bytes = short(&header, size) * short(&header, size + 2);
        (long(&header, start), bytes)
    };
    let (segments, sections) = (table(32, 54), table(40, 58));
    for (start, bytes) in [segments, sections] {
        check(start.checked_add(bytes))?;
    }
    if short(&header, 54) != SEGMENT {
        return check(None);
    }
    file.seek(SeekFrom::Start(segments.0)).map_err(failed)?;
    let segments = read_exactly(&mut file, segments.1, &source)?;
    let (segments, _) = segments.as_chunks::<{ SEGMENT as usize }>();
    segments.iter().try_for_each(|segment| check(long(segment, 8).checked_add(long(segment, 32))))
}

/// The number of two bytes at an offset.
fn short(bytes: &[u8], at: usize) -> u64 {
    u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The number of eight bytes at an offset.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{SEGMENT, require_whole};

    /// The headers of a library of one segment of `filesz` bytes from the start of the file.
    fn library(filesz: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64 + SEGMENT as usize];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (SEGMENT as u8, 1);
        bytes[64 + 32..64 + 40].copy_from_slice(&filesz.to_le_bytes());
        bytes
    }

    #[test]
    fn files_shorter_than_their_headers_say_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugin.so");
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            require_whole(&path).map_err(|e| e.to_string())
        };
        let whole = library(120);
        assert_eq!(check(&whole), Ok(()));
        assert_eq!(check(b"text"), Ok(()));
        let e = check(&library(121)).unwrap_err();
        assert!(e.contains("it is truncated: it has 120 bytes, and its headers need 121"), "{e}");
        for end in 64..whole.len() {
            check(&whole[..end]).unwrap_err();
        }
        check(&library(u64::MAX)).unwrap_err();
        let mut damaged = whole;
        damaged[54] = 1;
        check(&damaged).unwrap_err();
        // A section table beyond the end.
        let mut sections = library(120);
        (sections[40], sections[58], sections[60]) = (100, 64, 1);
        let e = check(&sections).unwrap_err();
        assert!(e.contains("its headers need 164"), "{e}");
        assert!(require_whole(folder.path()).unwrap_err().to_string().contains("it is a folder"));
    }
}
