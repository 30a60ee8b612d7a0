//! The bytes of a file as a buffer to decode messages from; a chunk of them is in memory at a time.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use autobwd::{Result, tensor::open_file};
use prost::bytes::Buf;

use crate::external::unreadable;

/// Bytes of a chunk.
const CHUNK: usize = 1 << 16;

/// The unread bytes of a file. After an error, which [`finish`](FileBuf::finish) returns, they are zeros, since a buffer
/// has the length that it had.
pub(crate) struct FileBuf {
    path: PathBuf,
    file: File,
    /// Bytes from the start of the chunk to the end of the file.
    left: u64,
    chunk: Vec<u8>,
    /// The first unread byte of the chunk.
    at: usize,
    error: Option<io::Error>,
}

impl FileBuf {
    /// Opens a file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`open_file`].
    pub(crate) fn open(path: &Path, limit: u64) -> Result<FileBuf> {
        let file = open_file(path, limit)?;
        let left = file.metadata().map_err(|e| unreadable(path, e))?.len();
        let mut buf = FileBuf { path: path.into(), file, left, chunk: vec![], at: 0, error: None };
        buf.fill();
        Ok(buf)
    }

    /// Reports what went wrong.
    ///
    /// # Errors
    /// Errors of the file system; a file that became shorter.
    pub(crate) fn finish(self) -> Result<()> {
        self.error.map_or(Ok(()), |e| Err(unreadable(&self.path, e)))
    }

    /// Reads the next chunk.
    fn fill(&mut self) {
        self.chunk.clear();
        self.chunk.resize(self.left.min(CHUNK as u64) as usize, 0);
        self.at = 0;
        if self.error.is_none() {
            self.error = self.file.read_exact(&mut self.chunk).err();
        }
    }
}

impl Buf for FileBuf {
    fn remaining(&self) -> usize {
        self.left as usize - self.at
    }

    fn chunk(&self) -> &[u8] {
        &self.chunk[self.at..]
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining(), "a buffer cannot advance beyond its end");
        while count > 0 {
            let step = count.min(self.chunk.len() - self.at);
            (self.at, count) = (self.at + step, count - step);
            if self.at == self.chunk.len() {
                self.left -= self.chunk.len() as u64;
                self.fill();
            }
        }
    }
}
