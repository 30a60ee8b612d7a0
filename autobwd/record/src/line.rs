//! The lines of a record.

use std::collections::{BTreeMap, BTreeSet};

use autobwd_core::{DType, Meta};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The schema of a record. A new version removes a key or changes its meaning; keys may be added to this one.
pub(crate) const SCHEMA: &str = "autobwd.record/1";

/// A line of `record.jsonl`, without its chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Line {
    Header(Header),
    Table(Table),
    Samples(Samples),
    Step(StepInputs),
    State(StateHash),
    Checkpoint(CheckpointFile),
    End(EndOfRun),
}

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) schema: String,
    /// The version of autobwd.
    pub(crate) library: String,
    /// The version of the arithmetic.
    pub(crate) arithmetic: u32,
    pub(crate) program: ProgramFile,
    /// The programs that make the values before the first step, in the order of their runs.
    pub(crate) startup: Vec<ProgramFile>,
    /// The steps between two hashes of the state.
    pub(crate) every: u64,
    /// The steps between two checkpoints.
    pub(crate) checkpoint_every: u64,
    /// Whether feeds are in `data.bin`; otherwise the record has their hashes.
    pub(crate) stores_feeds: bool,
    pub(crate) notes: BTreeMap<String, String>,
    /// Small values that the program reads and does not write.
    pub(crate) settings: BTreeSet<String>,
    /// Large values that the program reads and does not write, which are in no state.
    pub(crate) constants: BTreeMap<String, Digest>,
}

/// A program in a file of the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramFile {
    pub(crate) file: String,
    /// In hexadecimal digits.
    pub(crate) fingerprint: String,
    pub(crate) sha256: Digest,
}

/// A table of samples, each of one name, dtype and shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The number of tables before it.
    pub(crate) table: usize,
    /// The feed, or the value of the scope.
    pub(crate) name: String,
    pub(crate) dtype: String,
    /// The shape of a sample.
    pub(crate) dims: Vec<usize>,
    /// Whether the samples are in `data.bin`.
    pub(crate) stored: bool,
}

impl Table {
    /// The dtype and shape of a sample; `None` for a dtype that does not exist.
    pub(crate) fn meta(&self) -> Option<Meta> {
        Some(Meta::new(DType::from_name(&self.dtype)?, &self.dims[..]))
    }
}

/// New samples of a table, in the order of `data.bin`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Samples {
    pub(crate) table: usize,
    pub(crate) sha256: Vec<Digest>,
}

/// What goes into a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StepInputs {
    pub(crate) step: u64,
    pub(crate) feeds: Vec<TableRows>,
    /// Values of the scope that the caller has changed before the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<TableRows>,
}

/// A tensor, by its samples in a table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TableRows {
    pub(crate) table: usize,
    #[serde(flatten)]
    pub(crate) rows: Rows,
}

/// Positions in a table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rows {
    /// The tensor is a sample.
    Row(u64),
    /// The tensor is a stack of samples, along a first dimension.
    Rows(Vec<u64>),
}

impl Rows {
    pub(crate) fn as_slice(&self) -> &[u64] {
        match self {
            Rows::Row(row) => std::slice::from_ref(row),
            Rows::Rows(rows) => rows,
        }
    }
}

/// The hash of the state after a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StateHash {
    pub(crate) step: u64,
    pub(crate) state: Digest,
    /// The start of the digest of each value.
    pub(crate) values: BTreeMap<String, String>,
}

/// A checkpoint after a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CheckpointFile {
    pub(crate) step: u64,
    pub(crate) file: String,
    pub(crate) sha256: Digest,
}

/// The last line of a finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndOfRun {
    pub(crate) steps: u64,
}
