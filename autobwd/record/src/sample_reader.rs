//! Reading of the samples of a record.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
};

use autobwd_core::{DType, Result, Tensor, tensor::open_file};

use crate::{
    digest::Digest,
    folder::{DATA, RecordFolder},
    history::{History, SampleTable},
    line::{Rows, Table, TableRows},
};

/// The largest file of samples, in bytes.
const LIMIT: u64 = 1 << 44;

/// The samples of a record, which are read and compared with their hashes when they are needed.
pub(crate) struct SampleReader<'a> {
    history: &'a History,
    file: File,
}

impl<'a> SampleReader<'a> {
    /// Opens the file of samples.
    ///
    /// # Errors
    /// The errors of the file system, with the path.
    pub(crate) fn open(folder: &RecordFolder, history: &'a History) -> Result<SampleReader<'a>> {
        Ok(SampleReader { history, file: open_file(folder.path(DATA), LIMIT)? })
    }

    /// The name and the tensor of rows of a table.
    ///
    /// # Errors
    /// Samples that are missing or have another hash: what differs. The outer error is of memory.
    pub(crate) fn read(&mut self, rows: &TableRows) -> Result<Result<(String, Tensor), String>> {
        let Some((known, mut tensor)) = tensor_of(self.history, rows)? else {
            return Ok(Err(format!("there is no table {}", rows.table)));
        };
        let name = &known.table.name;
        for (position, row) in rows.rows.as_slice().iter().enumerate() {
            let (row, start) = (*row as usize, position * known.size);
            let sample = tensor.bytes_mut().get_mut(start..start + known.size).unwrap_or_default();
            let (Some(offset), Some(digest)) = (known.offsets.get(row), known.digests.get(row)) else {
                return Ok(Err(format!("sample {row} of `{name}` is not in `{DATA}`")));
            };
            let read = self.file.seek(SeekFrom::Start(*offset)).and_then(|_| self.file.read_exact(sample));
            if let Err(e) = read {
                return Ok(Err(format!("cannot read sample {row} of `{name}` in `{DATA}`: {e}")));
            }
            if Digest::of([&*sample]) != *digest {
                return Ok(Err(format!(
                    "sample {row} of `{name}` in `{DATA}` has another hash than recorded"
                )));
            }
        }
        Ok(Ok((name.clone(), tensor)))
    }
}

/// The table of rows, and a tensor of their dtype and shape; `None` if there is no such table.
fn tensor_of<'a>(history: &'a History, rows: &TableRows) -> Result<Option<(&'a SampleTable, Tensor)>> {
    let Some(known) = history.tables.get(rows.table) else { return Ok(None) };
    let Some(dtype) = DType::from_name(&known.table.dtype) else { return Ok(None) };
    let dims = dims(&known.table, &rows.rows);
    Ok(Some((known, Tensor::zeros(dtype, &dims)?)))
}

/// The shape of the tensor of rows of a table.
fn dims(table: &Table, rows: &Rows) -> Vec<usize> {
    match rows {
        Rows::Row(_) => table.dims.clone(),
        Rows::Rows(rows) => [&[rows.len()], &table.dims[..]].concat(),
    }
}

/// How a given tensor differs from the recorded rows; `None` if it does not.
pub(crate) fn difference(history: &History, rows: &TableRows, given: &Tensor) -> Option<String> {
    let known = history.tables.get(rows.table)?;
    let name = &known.table.name;
    let dims = dims(&known.table, &rows.rows);
    if given.dtype().name() != known.table.dtype || given.dims() != dims {
        let (meta, dtype) = (given.meta(), &known.table.dtype);
        return Some(format!("`{name}` is {meta}, but {dtype} {dims:?} in the record"));
    }
    rows.rows.as_slice().iter().enumerate().find_map(|(position, row)| {
        let start = position * known.size;
        let sample = given.bytes().get(start..start + known.size).unwrap_or_default();
        let is_same = known.digests.get(*row as usize) == Some(&Digest::of([sample]));
        (!is_same).then(|| format!("row {position} of `{name}` has another hash than recorded"))
    })
}
