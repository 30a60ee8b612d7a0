//! Checkpoints: the state of a training run in one file.

use std::{collections::BTreeMap, path::Path};

use autobwd_core::{
    __private::{internals::*, span, warn},
    ARITHMETIC_VERSION, Error, ErrorKind, Meta, OpDesc, Program, Result, Tensor, Var, VarKind,
    tensor::{load_tensors_with, save_tensors_with},
};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::{Scope, arithmetic};

/// The key of a checkpoint in the metadata of its safetensors file.
const KEY: &str = "autobwd.checkpoint";
/// The version of the format that is written and read.
const VERSION: u32 = 1;

/// The state of a training run: a step number and notes; a file of it also holds the values of a [`Scope`] and the
/// fingerprint of the program.
///
/// The scope has all that a step reads and changes: parameters, the state of the optimizer, the learning rate, running
/// statistics, and the counters from which the random numbers of a step follow. So a run that loads a checkpoint and
/// goes on is bit-identical to one that was never interrupted, on any number of threads. Random numbers that the
/// program does not make, and the position in the data, are the caller's: `Loader::state` of `autobwd-data` is a note.
/// A checkpoint of another [version of the arithmetic](ARITHMETIC_VERSION) loads, with a [warning](Checkpoint::warning).
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, exec::Checkpoint};
/// use autobwd_ops::{Init, Math, optim::{Adam, Optimizer}};
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F32, &[3], |w| Init::Normal(0.0, 1.0).emit(w, 7));
/// Adam::new(0.1).minimize(&(w.square() + w.sin()).mean())?.complete()?;
/// let (program, mut executor, mut scope) = (net.program()?, Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// executor.run(&program, &mut scope, &[], &[])?;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.checkpoint");
/// Checkpoint::new(1).with_note("author", "me").save(&path, &program, &scope)?;
///
/// let mut resumed = Scope::new();
/// let checkpoint = Checkpoint::load(&path, &program, &mut resumed)?;
/// assert_eq!((checkpoint.step(), checkpoint.note("author")?), (1, "me"));
/// assert_eq!(resumed.get("w")?, scope.get("w")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Files
///
/// A file is in safetensors format, so that [`Scope::load`] and other programs read its values. It is replaced as a
/// whole by [`write_atomically`](autobwd_core::tensor::write_atomically): if the process is killed, the disk is full or
/// the power fails, the path holds the last complete checkpoint. A temporary file that a killed process leaves is
/// removed when the next checkpoint is saved there. Equal states give equal files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    step: u64,
    notes: BTreeMap<String, String>,
    arithmetic: Option<u32>,
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint::new(0)
    }
}

/// What the metadata of a file hold, as JSON.
#[derive(Serialize, Deserialize)]
struct CheckpointJson {
    version: u32,
    /// The fingerprint of the program, in hexadecimal digits.
    program: String,
    /// Files from before the versions of the arithmetic have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arithmetic: Option<u32>,
    step: u64,
    notes: BTreeMap<String, String>,
    /// Whether values that the program does not write are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    changed_only: bool,
}

fn refuse(kind: ErrorKind, path: &Path, text: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("`{}`: {text}", path.display()))
}

impl Checkpoint {
    /// A checkpoint after this many steps of a run with this version of the arithmetic, without notes.
    pub fn new(step: u64) -> Checkpoint {
        Checkpoint { step, notes: BTreeMap::new(), arithmetic: Some(ARITHMETIC_VERSION) }
    }

    /// Adds a note, or replaces the one of this name.
    #[must_use]
    pub fn with_note(mut self, name: impl Into<String>, text: impl Into<String>) -> Checkpoint {
        self.notes.insert(name.into(), text.into());
        self
    }

    /// The number of steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The [version of the arithmetic](ARITHMETIC_VERSION) of the run that wrote it; `None` for files from before the
    /// versions.
    pub fn arithmetic(&self) -> Option<u32> {
        self.arithmetic
    }

    /// A sentence for the user if the run that wrote the checkpoint had another version of the arithmetic: a run that
    /// goes on with it need not have the bits of the unbroken one.
    pub fn warning(&self) -> Option<String> {
        arithmetic::warning("the checkpoint", self.arithmetic)
    }

    /// The note of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn note(&self, name: &str) -> Result<&str> {
        let missing = || Error::new(ErrorKind::Checkpoint, format!("the checkpoint has no note `{name}`"));
        self.notes.get(name).map(String::as_str).ok_or_else(missing)
    }

    /// Saves the checkpoint with all values of the scope, for a run of this program.
    ///
    /// # Errors
    /// A parameter that the scope lacks; the errors of [`Scope::save`].
    pub fn save(&self, path: impl AsRef<Path>, program: &impl AsRef<Program>, scope: &Scope) -> Result<()> {
        self.save_values(path.as_ref(), program.as_ref(), scope, false)
    }

    /// Saves the checkpoint with the values of the scope that the program writes, for a run of this program whose other
    /// values, such as frozen weights, come from elsewhere: a scope that has them loads it.
    ///
    /// # Errors
    /// As [`save`](Checkpoint::save).
    pub fn save_changed(
        &self,
        path: impl AsRef<Path>,
        program: &impl AsRef<Program>,
        scope: &Scope,
    ) -> Result<()> {
        self.save_values(path.as_ref(), program.as_ref(), scope, true)
    }

    fn save_values(&self, path: &Path, program: &Program, scope: &Scope, changed_only: bool) -> Result<()> {
        span!("save_checkpoint", step = self.step);
        for name in program.parameters().map(|var| program.name(var)) {
            if scope.meta(name).is_none() {
                let text = format!(
                    "cannot save a checkpoint: the scope has no parameter `{name}`; run the start-up program"
                );
                return Err(Error::new(ErrorKind::NoValue, text));
            }
        }
        let metadata = CheckpointJson {
            version: VERSION,
            program: hexadecimal(program.fingerprint()),
            arithmetic: self.arithmetic,
            step: self.step,
            notes: self.notes.clone(),
            changed_only,
        };
        let metadata = serde_json::to_string(&metadata).map_err(Error::internal)?;
        let written: FxHashSet<Var> = program.root().ops.iter().flat_map(OpDesc::writes).collect();
        let is_written = |name: &str| program.find(name).is_some_and(|var| written.contains(&var));
        let values = scope.iter().filter(|(name, _)| !changed_only || is_written(name));
        save_tensors_with(path, values, Some((KEY, metadata)))
    }

    /// Reads a checkpoint for this program, and sets the values of the scope, all or none.
    ///
    /// # Errors
    /// The errors of the file system; a truncated file; a file that is no checkpoint, or one of a later version; a
    /// checkpoint of another program: the message names the first parameter that is missing or has another shape, if
    /// there is one.
    pub fn load(
        path: impl AsRef<Path>,
        program: &impl AsRef<Program>,
        scope: &mut Scope,
    ) -> Result<Checkpoint> {
        span!("load_checkpoint");
        let (path, program) = (path.as_ref(), program.as_ref());
        let (values, metadata) = load_tensors_with(path, KEY)?;
        let format = |text: String| refuse(ErrorKind::Format, path, text);
        let Some(metadata) = metadata else {
            return Err(format(
                "not a checkpoint: the file has values alone, which `Scope::load` reads".into(),
            ));
        };
        let metadata: CheckpointJson = serde_json::from_str(&metadata)
            .map_err(|e| format(format!("not a checkpoint: {e}")).caused_by(e))?;
        if metadata.version != VERSION {
            let version = metadata.version;
            return Err(format(format!(
                "version {version} of the format; this autobwd reads version {VERSION}"
            )));
        }
        let is_same = metadata.program == hexadecimal(program.fingerprint());
        let elsewhere = |name: &str| scope.meta(name).filter(|_| metadata.changed_only);
        if let Some(text) = difference(program, &values, elsewhere, is_same) {
            return Err(refuse(
                ErrorKind::Checkpoint,
                path,
                format!("a checkpoint of another program: {text}"),
            ));
        }
        values.into_iter().for_each(|(name, value)| scope.set(&name, value));
        let CheckpointJson { step, notes, arithmetic, .. } = metadata;
        let checkpoint = Checkpoint { step, notes, arithmetic };
        warn!(checkpoint.warning());
        Ok(checkpoint)
    }
}

fn hexadecimal(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// The first difference between the variables that a program keeps and the values of a file, sorted by name. If the
/// fingerprint is the program's, the file may lack variables that the program has not written, and may have values of
/// other programs that run with the same scope. `elsewhere` finds values that the file need not have.
fn difference(
    program: &Program,
    values: &[(String, Tensor)],
    elsewhere: impl Fn(&str) -> Option<Meta>,
    is_same: bool,
) -> Option<String> {
    let find = |name: &str| match values.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
        Ok(at) => Some(values[at].1.meta()),
        Err(_) => elsewhere(name),
    };
    let kept =
        program.root().vars.iter().filter(|(_, desc)| desc.persistable && desc.kind == VarKind::Tensor);
    for (var, desc) in kept {
        let name = program.name(*var);
        let kind = if desc.parameter { "parameter" } else { "variable" };
        match find(name) {
            None if desc.parameter || !is_same => {
                return Some(format!("it has no {kind} `{name}`, {} in this program", desc.meta()));
            }
            Some(meta) if !desc.allows(&meta) => {
                return Some(format!("its {kind} `{name}` is {meta}, but {} in this program", desc.meta()));
            }
            _ => {}
        }
    }
    if is_same {
        return None;
    }
    let is_unknown =
        |name: &&str| program.find(name).is_none_or(|var| !program.root().vars.contains_key(&var));
    let unknown = values.iter().map(|(name, _)| name.as_str()).find(is_unknown);
    Some(match unknown {
        Some(name) => format!("it has `{name}`, which this program does not know"),
        None => "it has the variables of this program, but other operators or attributes".into(),
    })
}
