//! The files of a record.

use std::path::{Path, PathBuf};

use autobwd_core::{Error, ErrorKind, Program, Result};

use crate::{digest::Digest, line::ProgramFile};

/// The lines.
pub(crate) const LINES: &str = "record.jsonl";
/// The samples.
pub(crate) const DATA: &str = "data.bin";
/// The program of a step.
pub(crate) const PROGRAM: &str = "program.json";
/// The in-toto statement.
pub(crate) const STATEMENT: &str = "statement.json";

/// The folder of a record.
#[derive(Clone, Debug)]
pub(crate) struct RecordFolder(PathBuf);

impl RecordFolder {
    pub(crate) fn new(path: &Path) -> RecordFolder {
        RecordFolder(path.into())
    }

    /// The path of a file of the record.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Saves a program, and describes its file.
    ///
    /// # Errors
    /// The errors of [`Program::save`].
    pub(crate) fn save_program(&self, file: String, program: &Program) -> Result<ProgramFile> {
        let path = self.path(&file);
        program.save(&path)?;
        Ok(ProgramFile { file, fingerprint: fingerprint(program), sha256: Digest::of_file(&path)? })
    }

    /// Loads a program.
    ///
    /// # Errors
    /// A file with another digest; a program with another fingerprint; the errors of [`Program::load`].
    pub(crate) fn load_program(&self, known: &ProgramFile) -> Result<Program> {
        let path = self.path(&known.file);
        let refuse = |text: &str| Error::new(ErrorKind::Checkpoint, format!("`{}` {text}", path.display()));
        if Digest::of_file(&path)? != known.sha256 {
            return Err(refuse("is not the file that was recorded: its SHA-256 is another"));
        }
        let program = Program::load(&path)?;
        match fingerprint(&program) == known.fingerprint {
            true => Ok(program),
            false => Err(refuse("is another program than the recorded one: its fingerprint differs")),
        }
    }
}

/// The name of the file of a startup program.
pub(crate) fn startup_file(index: usize) -> String {
    format!("startup-{index}.json")
}

/// The name of the checkpoint after a step.
pub(crate) fn checkpoint_file(step: u64) -> String {
    format!("checkpoint-{step}.safetensors")
}

/// The fingerprint of a program, in hexadecimal digits.
pub(crate) fn fingerprint(program: &Program) -> String {
    format!("{:016x}", program.fingerprint())
}

/// The error of a file that cannot be read or written.
pub(crate) fn fault(doing: &str, path: &Path, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {doing} `{}`: {e}", path.display())).caused_by(e)
}
