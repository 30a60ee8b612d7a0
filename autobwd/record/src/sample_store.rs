//! The samples of a run, each stored once, by its digest.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::File,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{Seek as _, SeekFrom, Write as _},
    path::PathBuf,
};

use autobwd_core::{Result, Tensor};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::{
    digest::Digest,
    folder::{DATA, RecordFolder, fault},
    line::{Line, Rows, Samples, Table, TableRows},
};

/// Whether a tensor is one sample or a stack of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stacking {
    /// A feed, which is a stack unless it has rank 0.
    Feed,
    /// A value of the scope, which is one sample.
    Value,
}

/// Tables of samples, and the file of those that are stored.
#[derive(Debug)]
pub(crate) struct SampleStore {
    path: PathBuf,
    file: File,
    /// Whether feeds are stored; values of the scope always are.
    stores_feeds: bool,
    tables: Vec<OpenTable>,
    /// Bytes that the file lacks.
    unwritten: Vec<u8>,
    /// The seed of the fast hashes, random so that no samples can be made whose hashes are equal.
    seed: u64,
}

#[derive(Debug)]
struct OpenTable {
    table: Table,
    rows: HashMap<Digest, u64>,
    /// The same rows by a fast hash, as far as this process has met them: most samples of a run come again.
    met: HashMap<u128, u64>,
}

impl OpenTable {
    /// The row of a sample, and its digest if it is new.
    fn row(&mut self, sample: &[u8], seed: u64) -> (u64, Option<Digest>) {
        let fast = xxh3_128_with_seed(sample, seed);
        if let Some(row) = self.met.get(&fast) {
            return (*row, None);
        }
        let (digest, next) = (Digest::of([sample]), self.rows.len() as u64);
        let (row, new) = match self.rows.entry(digest) {
            Entry::Occupied(known) => (*known.get(), None),
            Entry::Vacant(vacant) => (*vacant.insert(next), Some(digest)),
        };
        self.met.insert(fast, row);
        (row, new)
    }
}

impl SampleStore {
    /// Opens the file for samples after the samples of these tables, which take the first `bytes` of it.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn open(
        folder: &RecordFolder,
        stores_feeds: bool,
        tables: impl IntoIterator<Item = (Table, Vec<Digest>)>,
        bytes: u64,
    ) -> Result<SampleStore> {
        let path = folder.path(DATA);
        let open = || {
            let mut file = File::options().write(true).create(true).truncate(false).open(&path)?;
            file.set_len(bytes)?;
            file.seek(SeekFrom::End(0)).map(|_| file)
        };
        let file = open().map_err(|e| fault("write", &path, e))?;
        let tables = tables.into_iter().map(|(table, digests)| {
            let rows = digests.into_iter().zip(0..).collect();
            OpenTable { table, rows, met: HashMap::new() }
        });
        let seed = RandomState::new().build_hasher().finish();
        Ok(SampleStore { file, stores_feeds, tables: tables.collect(), unwritten: vec![], path, seed })
    }

    /// The rows of a tensor in its table. Lines of a new table and of new samples are appended to `lines`.
    pub(crate) fn rows(
        &mut self,
        name: &str,
        tensor: &Tensor,
        stacking: Stacking,
        lines: &mut Vec<Line>,
    ) -> TableRows {
        let (count, dims) = match (stacking, tensor.dims()) {
            (Stacking::Feed, [count, dims @ ..]) => (Some(*count), dims),
            (_, dims) => (None, dims),
        };
        let stored = self.stores_feeds || stacking == Stacking::Value;
        let index = self.table(name, tensor, dims, stored, lines);
        let (bytes, size) = (tensor.bytes(), dims.iter().product::<usize>() * tensor.dtype().size());
        let sample = |k: usize| bytes.get(k * size..(k + 1) * size).unwrap_or_default();
        let (mut rows, mut new) = (vec![], vec![]);
        if let Some(open) = self.tables.get_mut(index) {
            for sample in (0..count.unwrap_or(1)).map(sample) {
                let (row, digest) = open.row(sample, self.seed);
                rows.push(row);
                if digest.is_some() && stored {
                    self.unwritten.extend(sample);
                }
                new.extend(digest);
            }
        }
        if !new.is_empty() {
            lines.push(Line::Samples(Samples { table: index, sha256: new }));
        }
        let rows = match (count, &rows[..]) {
            (None, [row]) => Rows::Row(*row),
            _ => Rows::Rows(rows),
        };
        TableRows { table: index, rows }
    }

    /// The table of such samples.
    fn table(
        &mut self,
        name: &str,
        tensor: &Tensor,
        dims: &[usize],
        stored: bool,
        lines: &mut Vec<Line>,
    ) -> usize {
        let dtype = tensor.dtype().name();
        let is_same = |OpenTable { table, .. }: &OpenTable| {
            table.name == name && table.dtype == dtype && table.dims == dims && table.stored == stored
        };
        if let Some(known) = self.tables.iter().position(is_same) {
            return known;
        }
        let index = self.tables.len();
        let table = Table { table: index, name: name.into(), dtype: dtype.into(), dims: dims.into(), stored };
        lines.push(Line::Table(table.clone()));
        self.tables.push(OpenTable { table, rows: HashMap::new(), met: HashMap::new() });
        index
    }

    /// Writes new samples to the file.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn write(&mut self) -> Result<()> {
        let written = self.file.write_all(&self.unwritten);
        self.unwritten.clear();
        written.map_err(|e| fault("write", &self.path, e))
    }

    /// Waits until the file is on its device.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| fault("write", &self.path, e))
    }
}
