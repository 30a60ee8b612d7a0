//! The thread that hashes and writes.

use std::{
    fs::File,
    io::Write as _,
    path::PathBuf,
    sync::mpsc::{SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use autobwd_core::{Error, ErrorKind, Program, Result, Tensor};
use autobwd_exec::{Checkpoint, Scope};

use crate::{
    chain::Chain,
    digest::Digest,
    folder::{RecordFolder, checkpoint_file, fault},
    line::{CheckpointFile, Line, StepInputs},
    sample_store::{SampleStore, Stacking},
    state::{StateNames, state_hash},
};

/// Tensors by name.
pub(crate) type NamedTensors = Vec<(String, Tensor)>;

/// What the thread gets: steps, and what the state is after the last of them.
pub(crate) struct Batch {
    pub(crate) steps: Vec<StepTensors>,
    pub(crate) snapshot: Option<Snapshot>,
}

/// The inputs of a step.
pub(crate) struct StepTensors {
    pub(crate) step: u64,
    pub(crate) feeds: NamedTensors,
    pub(crate) set: NamedTensors,
}

/// A copy of the state after a step.
pub(crate) enum Snapshot {
    /// The values that are hashed.
    State(u64, NamedTensors),
    /// All values.
    Checkpoint(u64, Scope),
}

/// Writes the lines and the files of a record.
pub(crate) struct Recorder {
    pub(crate) folder: RecordFolder,
    pub(crate) program: Program,
    pub(crate) names: StateNames,
    pub(crate) lines: LineWriter,
    pub(crate) samples: SampleStore,
    /// The last step that has a hash of its state.
    pub(crate) hashed: Option<u64>,
    /// The last checkpoint.
    pub(crate) checkpoint: Option<CheckpointFile>,
}

/// The lines of a record, as a file.
pub(crate) struct LineWriter {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) chain: Chain,
}

impl LineWriter {
    /// Appends lines, in one write.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn append(&mut self, lines: &[Line]) -> Result<()> {
        let mut text = String::new();
        for line in lines {
            let object = serde_json::to_string(line).map_err(|e| {
                Error::new(
                    ErrorKind::Format,
                    format!("cannot write a line of `{}`: {e}", self.path.display()),
                )
            })?;
            text += &self.chain.append(&object);
        }
        self.file.write_all(text.as_bytes()).map_err(|e| fault("write", &self.path, e))
    }

    /// Waits until the lines are on their device.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| fault("write", &self.path, e))
    }
}

impl Recorder {
    /// Appends the lines of a batch, after its samples.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn append(&mut self, batch: Batch) -> Result<()> {
        let mut lines = vec![];
        for StepTensors { step, feeds, set } in batch.steps {
            let mut rows = |values: NamedTensors, stacking| {
                let rows =
                    values.iter().map(|(name, tensor)| self.samples.rows(name, tensor, stacking, &mut lines));
                rows.collect()
            };
            let (feeds, set) = (rows(feeds, Stacking::Feed), rows(set, Stacking::Value));
            lines.push(Line::Step(StepInputs { step, feeds, set }));
        }
        match batch.snapshot {
            None => {}
            Some(Snapshot::State(step, values)) => {
                let values = values.iter().map(|(name, value)| (name.as_str(), value));
                lines.push(Line::State(state_hash(step, values)?));
                self.hashed = Some(step);
            }
            Some(Snapshot::Checkpoint(step, scope)) => {
                if self.hashed != Some(step) {
                    lines.push(Line::State(state_hash(step, self.names.state(&scope))?));
                    self.hashed = Some(step);
                }
                self.write(&lines)?;
                lines.clear();
                self.save(step, &scope)?;
            }
        }
        self.write(&lines)
    }

    fn write(&mut self, lines: &[Line]) -> Result<()> {
        self.samples.write()?;
        self.lines.append(lines)
    }

    /// Saves a checkpoint, after all that it follows is on the device. If the line of the checkpoint is lost, a resumed
    /// run writes it again.
    fn save(&mut self, step: u64, scope: &Scope) -> Result<()> {
        self.samples.sync()?;
        self.lines.sync()?;
        let file = checkpoint_file(step);
        let path = self.folder.path(&file);
        Checkpoint::new(step).save(&path, &self.program, scope)?;
        let checkpoint = CheckpointFile { step, sha256: Digest::of_file(&path)?, file };
        self.checkpoint = Some(checkpoint.clone());
        self.lines.append(&[Line::Checkpoint(checkpoint)])
    }
}

/// A recorder in a thread of its own.
#[derive(Debug)]
pub(crate) struct RecorderThread {
    batches: SyncSender<Batch>,
    thread: JoinHandle<Result<Recorder>>,
}

impl RecorderThread {
    /// Starts the thread. One batch waits while another is written, so that at most three copies of a state exist.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(mut recorder: Recorder) -> Result<RecorderThread> {
        let (batches, received) = sync_channel(1);
        let work = move || {
            received.into_iter().try_for_each(|batch| recorder.append(batch))?;
            Ok(recorder)
        };
        let thread = thread::Builder::new().name("autobwd-record".into()).spawn(work).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot start the thread of a record: {e}")).caused_by(e)
        })?;
        Ok(RecorderThread { batches, thread })
    }

    /// Sends a batch; `false` if the thread has ended.
    pub(crate) fn send(&self, batch: Batch) -> bool {
        self.batches.send(batch).is_ok()
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// The first error of the thread.
    pub(crate) fn join(self) -> Result<Recorder> {
        drop(self.batches);
        let ended = || Error::new(ErrorKind::Panic, "the thread of a record has panicked");
        self.thread.join().map_err(|_| ended())?
    }
}
