//! Files of text and JSON, and errors about files.

use std::path::Path;

use autobwd::{Error, ErrorKind, Result};
use autobwd_core::tensor::read_file;
use serde_json::{Map, Value};

/// The largest file of text, such as a configuration, in bytes.
pub(crate) const LARGEST_TEXT: u64 = 64 << 20;

/// An error about a file.
pub(crate) fn refused(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Format, format!("`{}`: {why}", path.display()))
}

/// An object in a file of JSON.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let text = read_file(path, LARGEST_TEXT)?;
    match serde_json::from_slice(&text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(refused(path, "not an object")),
        Err(e) => Err(refused(path, format!("not JSON: {e}")).caused_by(e)),
    }
}
