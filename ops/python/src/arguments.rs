//! Arguments of several methods.

use std::collections::BTreeMap;

use autobwd_cli::parse_bytes;
use pyo3::{FromPyObject, PyResult};

use crate::error::raised;

/// Shapes of inputs by name.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// A number of bytes, or a text such as `64MB`.
#[derive(FromPyObject)]
pub(crate) enum Bytes {
    Number(usize),
    Text(String),
}

impl Bytes {
    pub(crate) fn get(&self) -> PyResult<usize> {
        match self {
            Bytes::Number(bytes) => Ok(*bytes),
            Bytes::Text(text) => parse_bytes(text).map_err(raised),
        }
    }
}
