//! External data: elements of tensors in files of the model's folder.

use std::{
    cell::Cell,
    io::{Seek, SeekFrom},
    path::{Component, Path, PathBuf},
};

use autobwd::{Error, ErrorKind, Result, tensor::open_file};
use autobwd_core::tensor::read_exactly;

use crate::proto;

/// The most bytes that are read for a model: a file of no size on disk may claim any length.
const LIMIT: u64 = 1 << 34;

/// Where tensors with external data have their elements.
pub(crate) struct ExternalData {
    /// The folder of the model, for models from files.
    folder: Option<PathBuf>,
    /// How many bytes may still be read.
    left: Cell<u64>,
}

impl ExternalData {
    /// Files in the folder of a model.
    pub(crate) fn next_to(model: &Path) -> ExternalData {
        ExternalData { folder: model.parent().map(Path::to_path_buf), left: Cell::new(LIMIT) }
    }

    /// No external data.
    pub(crate) fn none() -> ExternalData {
        ExternalData { folder: None, left: Cell::new(0) }
    }

    /// The `bytes` bytes that these entries describe.
    ///
    /// # Errors
    /// A file outside the folder of the model; a pipe or a device; a file that is too short; entries that make no sense;
    /// more than [`LIMIT`] bytes of the whole model.
    pub(crate) fn read(&self, entries: &[proto::StringStringEntryProto], bytes: usize) -> Result<Vec<u8>> {
        let refuse = |text: String| Error::new(ErrorKind::Format, text);
        let entry = |key: &str| entries.iter().find(|entry| entry.key() == key).map(|entry| entry.value());
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(refuse(format!("external data: {key} `{text}` is not a number"))),
            },
        };
        let location = entry("location").ok_or_else(|| refuse("external data without a location".into()))?;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        if length.is_some_and(|length| length != bytes as u64) {
            return Err(refuse(format!("external data in `{location}`: {bytes} bytes are needed")));
        }
        let path = self.path(location)?;
        let mut file = open_file(&path, u64::MAX)?;
        let size = file.metadata().map_err(|e| unreadable(&path, e))?.len();
        if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
            let text =
                format!("external data: `{location}` has {size} bytes, not {bytes} from byte {offset} on");
            return Err(refuse(text));
        }
        file.seek(SeekFrom::Start(offset)).map_err(|e| unreadable(&path, e))?;
        let left = self.left.get().checked_sub(bytes as u64);
        let left = left.ok_or_else(|| {
            refuse(format!(
                "external data in `{location}`: more than the {LIMIT} bytes that a model may have"
            ))
        })?;
        self.left.set(left);
        read_exactly(file, bytes as u64, &format!("`{}`", path.display()))
    }

    /// The path of a file in the folder of the model; symbolic links may not lead out of it.
    fn path(&self, location: &str) -> Result<PathBuf> {
        let outside = || {
            Error::new(
                ErrorKind::Format,
                format!("external data in `{location}`, outside the model's folder"),
            )
        };
        let folder = self.folder.as_deref().ok_or_else(|| {
            Error::new(
                ErrorKind::Format,
                format!("external data in `{location}`, but the model is not a file"),
            )
        })?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if !Path::new(location)
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        {
            return Err(outside());
        }
        let canonical = |path: &Path| path.canonicalize().map_err(|e| unreadable(path, e));
        let path = canonical(&folder.join(location))?;
        if !path.starts_with(canonical(folder)?) {
            return Err(outside());
        }
        Ok(path)
    }
}

/// The error of a file that cannot be read.
pub(crate) fn unreadable(path: &Path, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read `{}`: {e}", path.display())).caused_by(e)
}
