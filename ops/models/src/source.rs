//! A published model: a folder in the layout of Hugging Face, or a file of GGUF, which answers as the folder would.

use std::path::{Path, PathBuf};

use autobwd::Result;
use autobwd_core::tensor::read_file;
use serde_json::{Map, Value};

use crate::{
    file::{LARGEST_TEXT, read_object, refused},
    folder, gguf,
    tensors::TensorStream,
};

/// Where a published model is.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: PathBuf,
}

impl Source {
    /// The model of a folder, or of a file whose name ends in `.gguf`. Nothing is read yet.
    pub(crate) fn open(path: &Path) -> Source {
        Source { path: path.into() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where a file is, for errors.
    pub(crate) fn path_of(&self, file: &str) -> PathBuf {
        if self.is_gguf() { self.path.clone() } else { self.path.join(file) }
    }

    fn is_gguf(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    }

    /// The object in a file of JSON, if there is such a file.
    pub(crate) fn object(&self, file: &str) -> Result<Option<Map<String, Value>>> {
        match self.is_gguf() {
            true => gguf::object(&self.path, file),
            false => self.existing(file).map(|path| read_object(&path)).transpose(),
        }
    }

    /// The text of a file, if there is such a file.
    pub(crate) fn text(&self, file: &str) -> Result<Option<String>> {
        if self.is_gguf() {
            return Ok(gguf::object(&self.path, file)?.map(|object| Value::Object(object).to_string()));
        }
        let Some(path) = self.existing(file) else { return Ok(None) };
        let text = String::from_utf8(read_file(&path, LARGEST_TEXT)?);
        text.map(Some).map_err(|e| refused(&path, "not UTF-8").caused_by(e))
    }

    fn existing(&self, file: &str) -> Option<PathBuf> {
        Some(self.path.join(file)).filter(|path| path.exists())
    }

    /// The tensors of the files. Their headers are read, and nothing else yet.
    pub(crate) fn tensors(&self) -> Result<TensorStream> {
        match self.is_gguf() {
            true => gguf::tensors(&self.path),
            false => folder::tensors(&self.path),
        }
    }
}
