//! Event files, which TensorBoard reads.
//!
//! A file is a sequence of records: the length of the data in 8 bytes, a checksum of these, the data, a checksum of the
//! data (TensorFlow, "record_writer.h"). The data of a record is a message `Event` of protocol buffers (TensorFlow,
//! "event.proto").

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use autobwd_core::{Error, ErrorKind, Result};

/// The wire types of protocol buffers.
const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const BYTES: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// Writes scalars by step.
#[derive(Debug)]
pub(super) struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// A new file in a folder, which is made if it is missing. TensorBoard reads all files of a folder as one run.
    pub(super) fn create(folder: &Path) -> Result<EventFile> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("events.out.tfevents.{}.{}.autobwd", now.as_nanos(), process::id());
        let path = folder.join(name);
        let file = fs::create_dir_all(folder).and_then(|()| File::create_new(&path));
        let file = file.map_err(|e| unwritable(&path, e))?;
        let mut events = EventFile { file, path };
        let mut event = vec![];
        number(&mut event, 1, now.as_secs_f64());
        bytes(&mut event, 3, b"brain.Event:2");
        events.append(&event)?;
        Ok(events)
    }

    /// Writes numbers of a step, by tag.
    pub(super) fn scalars<'a>(
        &mut self,
        step: u64,
        numbers: impl Iterator<Item = (String, f64)> + 'a,
    ) -> Result<()> {
        let (mut event, mut summary) = (vec![], vec![]);
        for (tag, x) in numbers {
            let mut value = vec![];
            bytes(&mut value, 1, tag.as_bytes());
            key(&mut value, 2, FOUR_BYTES);
            value.extend((x as f32).to_le_bytes());
            bytes(&mut summary, 1, &value);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        number(&mut event, 1, now.as_secs_f64());
        key(&mut event, 2, VARINT);
        varint(&mut event, step);
        bytes(&mut event, 5, &summary);
        self.append(&event)
    }

    /// Appends a record by one write.
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let checksums = [masked_crc32c(&length), masked_crc32c(data)].map(u32::to_le_bytes);
        let record = [&length[..], &checksums[0], data, &checksums[1]].concat();
        self.file.write_all(&record).map_err(|e| unwritable(&self.path, e))
    }
}

fn unwritable(path: &Path, e: io::Error) -> Error {
    let text = format!("cannot write the events `{}`: {e}", path.display());
    Error::new(ErrorKind::Io, text).caused_by(e)
}

fn varint(out: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        out.push(x as u8 | 0x80);
        x >>= 7;
    }
    out.push(x as u8);
}

/// The number and the wire type of a field.
fn key(out: &mut Vec<u8>, field: u8, wire_type: u8) {
    out.push(field << 3 | wire_type);
}

fn number(out: &mut Vec<u8>, field: u8, x: f64) {
    key(out, field, EIGHT_BYTES);
    out.extend(x.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    key(out, field, BYTES);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// The checksum CRC-32C (Castagnoli), rotated and shifted, as records contain it.
fn masked_crc32c(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_format() {
        // RFC 3720, B.4: 32 zeros, and the numbers from 0 to 31.
        let unmasked = |data: &[u8]| masked_crc32c(data).wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked(&[0; 32]), 0x8a91_36aa);
        assert_eq!(unmasked(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn large_numbers_take_several_bytes() {
        let mut out = vec![];
        varint(&mut out, 300);
        assert_eq!(out, [0xac, 2]);
    }
}
