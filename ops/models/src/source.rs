//! Where a published model comes from.

use std::path::{Path, PathBuf};

use autobwd::Result;
use autobwd_core::tensor::read_file;
use serde_json::{Map, Value};

use crate::folder::{LARGEST_TEXT, read_object, refused};

/// A folder with a published model.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: PathBuf,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Source {
        Source { path: path.into() }
    }

    /// An object in a file of JSON, if there is that file.
    pub(crate) fn object(&self, file: &str) -> Result<Option<Map<String, Value>>> {
        let path = self.path.join(file);
        path.exists().then(|| read_object(&path)).transpose()
    }

    /// A file of text, if there is one.
    pub(crate) fn text(&self, file: &str) -> Result<Option<String>> {
        let path = self.path.join(file);
        if !path.exists() {
            return Ok(None);
        }
        let text = String::from_utf8(read_file(&path, LARGEST_TEXT)?);
        text.map(Some).map_err(|e| refused(&path, "not text").caused_by(e))
    }
}
