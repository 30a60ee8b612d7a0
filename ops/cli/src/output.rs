//! Files that a command writes: checked before the work, and reported after all of them are written.

use std::{
    fs,
    path::{Path, PathBuf},
};

use autobwd::tensor::check_writable;

use crate::{
    program_file::STANDARD,
    terminal::{CommandFailure, CommandResult},
};

/// Refuses files that cannot be written, and two results for one file, before a command does its work. A file has the
/// name of its option.
pub(crate) fn check_outputs<'a>(
    files: impl IntoIterator<Item = (&'static str, Option<&'a Path>)>,
) -> CommandResult {
    let mut known: Vec<(&str, PathBuf)> = vec![];
    let named = files.into_iter().filter_map(|(option, path)| Some((option, path?)));
    for (option, path) in named.filter(|(_, path)| *path != Path::new(STANDARD)) {
        check_writable(path)?;
        // Devices and pipes take any number of results.
        let is_device = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let target = target(path);
        if let Some((other, _)) = known.iter().find(|(_, known)| !is_device && *known == target) {
            let text = format!("{other} and {option} name one file, `{}`: give each its own", path.display());
            return Err(CommandFailure::Unreadable(text));
        }
        known.push((option, target));
    }
    Ok(())
}

/// Makes a folder for results, if it is not there.
pub(crate) fn make_folder(folder: &Path) -> CommandResult {
    fs::create_dir_all(folder)
        .map_err(|e| CommandFailure::Failed(format!("cannot make the folder `{}`: {e}", folder.display())))
}

/// The path without links, also of a file that is not there yet.
fn target(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = || Some(fs::canonicalize(folder).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(new).unwrap_or_else(|| path.to_path_buf())
}

/// The outcome of several results: a failure of one is reported after the others are written.
#[derive(Debug, Default)]
pub(crate) struct CommandOutcome {
    failure: Option<CommandFailure>,
}

impl CommandOutcome {
    /// Adds the outcome of one result.
    pub(crate) fn add(&mut self, result: CommandResult) {
        let Err(failure) = result else { return };
        // A reader that has closed standard output is no failure, so that it hides none.
        if matches!(self.failure, None | Some(CommandFailure::Closed)) {
            self.failure = Some(failure);
        }
    }

    /// Whether all results are written so far.
    pub(crate) fn is_success(&self) -> bool {
        self.failure.is_none()
    }

    /// The first failure.
    pub(crate) fn finish(self) -> CommandResult {
        self.failure.map_or(Ok(()), Err)
    }
}
