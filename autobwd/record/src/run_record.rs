//! The record of a run that is being made.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    path::Path,
};

use autobwd_core::{ARITHMETIC_VERSION, Error, ErrorKind, Program, Result, Tensor};
use autobwd_exec::Scope;

use crate::{
    chain::Chain,
    folder::{LINES, PROGRAM, RecordFolder, fault, startup_file},
    line::{EndOfRun, Header, Line, SCHEMA},
    recorder::{Batch, LineWriter, NamedTensors, Recorder, RecorderThread, Snapshot, StepTensors},
    sample_store::SampleStore,
    state::StateNames,
    statement,
};

/// The steps between two hashes of the state, unless the options say another number.
const EVERY: u64 = 10;
/// The steps between two checkpoints, unless the options say another number.
const CHECKPOINT_EVERY: u64 = 100;
/// The bytes of inputs that wait for the thread.
const PENDING: usize = 1 << 20;

/// What a record contains besides the steps.
///
/// ```
/// use autobwd::exec::record::RecordOptions;
/// let options = RecordOptions::new().every(100).checkpoint_every(1000).note("seed", "7");
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct RecordOptions {
    every: u64,
    checkpoint_every: u64,
    stores_data: bool,
    startup: Vec<Program>,
    notes: BTreeMap<String, String>,
}

impl Default for RecordOptions {
    fn default() -> RecordOptions {
        RecordOptions::new()
    }
}

impl RecordOptions {
    /// A hash of the state every 10 steps, a checkpoint every 100 steps, the data in the record, no notes.
    pub fn new() -> RecordOptions {
        RecordOptions {
            every: EVERY,
            checkpoint_every: CHECKPOINT_EVERY,
            stores_data: true,
            startup: vec![],
            notes: BTreeMap::new(),
        }
    }

    /// Sets the number of steps between two hashes of the state, at least 1. A refusal names a step exactly if it is 1.
    #[must_use]
    pub fn every(self, steps: u64) -> RecordOptions {
        RecordOptions { every: steps.max(1), ..self }
    }

    /// Sets the number of steps between two checkpoints, at least 1. Segments between checkpoints are replayed alone.
    #[must_use]
    pub fn checkpoint_every(self, steps: u64) -> RecordOptions {
        RecordOptions { checkpoint_every: steps.max(1), ..self }
    }

    /// Records hashes of the data alone: verification then takes the feeds from elsewhere
    /// ([`verify_with`](crate::RecordedRun::verify_with)).
    #[must_use]
    pub fn data_elsewhere(self) -> RecordOptions {
        RecordOptions { stores_data: false, ..self }
    }

    /// Adds a program that has made the values of the scope, starting with an empty scope or after the programs added
    /// before it: verification runs these programs and compares the values.
    #[must_use]
    pub fn startup(mut self, program: &impl AsRef<Program>) -> RecordOptions {
        self.startup.push(program.as_ref().clone());
        self
    }

    /// Adds a note, such as a seed, or replaces the note of this name.
    #[must_use]
    pub fn note(mut self, name: impl Into<String>, text: impl Into<String>) -> RecordOptions {
        self.notes.insert(name.into(), text.into());
        self
    }
}

/// Writes the record of a run: what goes into each step, hashes of the state, and checkpoints.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord, Segments};
/// use autobwd_ops::{Math, nn::Linear, optim::{Adam, Optimizer}};
///
/// let net = Builder::new();
/// let (x, y) = (net.input("x", DType::F32, &[-1, 2]), net.input("y", DType::F32, &[-1, 1]));
/// let loss = Linear::builder(&net, 2, 1).build().forward(&x).square_error(&y).mean();
/// Adam::new(0.1).minimize(&loss)?.complete()?;
/// let (startup, program) = (net.startup().program()?.clone(), net.program()?.clone());
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&startup, &mut scope, &[], &[])?;
///
/// # let folder = tempfile::tempdir()?;
/// # let dir = folder.path().join("run");
/// let options = RecordOptions::new().startup(&startup).note("author", "me");
/// let mut record = RunRecord::create(&dir, &program, &scope, options)?;
/// for step in 1..=20 {
///     let x = Tensor::from_vec([1, 2], vec![step as f32, 1.0])?;
///     let y = Tensor::from_vec([1, 1], vec![2.0_f32])?;
///     executor.run(&program, &mut scope, &[("x", &x), ("y", &y)], &[])?;
///     record.step(&[("x", &x), ("y", &y)], &scope)?;
/// }
/// record.finish(&scope)?;
///
/// let verification = RecordedRun::open(&dir)?.verify(&mut executor, Segments::All)?;
/// assert!(verification.is_confirmed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The caller must not change values that the program writes. Small values that the program only reads, such as a
/// learning rate, may change between steps: the record contains the change.
///
/// # Costs
///
/// A thread of the record hashes and writes. [`step`](RunRecord::step) copies the feeds, for each hash also the values
/// that the program writes, and for each checkpoint all values of the scope; it waits for the thread if two copies of
/// the state are not yet written.
///
/// The thread gets the steps up to a hash of the state together. A record that is dropped before
/// [`finish`](RunRecord::finish), or whose process is killed, can be verified up to its last hash, and
/// [`resume`](RunRecord::resume) goes on with it.
pub struct RunRecord {
    names: StateNames,
    /// The small values that the program only reads, as they were in the last step.
    settings: NamedTensors,
    every: u64,
    checkpoint_every: u64,
    last_step: u64,
    /// Steps that the thread has not got, and their bytes.
    pending: Vec<StepTensors>,
    pending_bytes: usize,
    /// The last steps with a hash of the state and with a checkpoint that the thread has got.
    hashed: Option<u64>,
    saved: Option<u64>,
    /// `None` after a failure.
    thread: Option<RecorderThread>,
}

impl fmt::Debug for RunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("RunRecord");
        text.field("last_step", &self.last_step).field("every", &self.every);
        text.field("checkpoint_every", &self.checkpoint_every).finish_non_exhaustive()
    }
}

/// Where a record goes on.
pub(crate) struct RecordPosition {
    pub(crate) step: u64,
    pub(crate) every: u64,
    pub(crate) checkpoint_every: u64,
}

impl RunRecord {
    /// Makes the record of a run that starts with these values, in a new folder or in one without a record. The
    /// startup program has run, and no session of the program is prepared yet: it would add zeros for values that the
    /// program writes first, which a replay of the startup program lacks.
    ///
    /// # Errors
    /// A folder that has a record; a parameter that the scope lacks; the errors of the file system.
    pub fn create(
        folder: impl AsRef<Path>,
        program: &impl AsRef<Program>,
        scope: &Scope,
        options: RecordOptions,
    ) -> Result<RunRecord> {
        let (path, program) = (folder.as_ref(), program.as_ref());
        program.parameters().try_for_each(|var| scope.get(program.name(var)).map(drop))?;
        fs::create_dir_all(path).map_err(|e| fault("create the folder", path, e))?;
        let (folder, names) = (RecordFolder::new(path), StateNames::of(program, scope));
        let lines = folder.path(LINES);
        let file =
            File::options().write(true).create_new(true).open(&lines).map_err(|e| match lines.exists() {
                true => {
                    let text = format!(
                        "`{}` has a record, which is never rewritten: give another folder",
                        path.display()
                    );
                    Error::new(ErrorKind::Io, text)
                }
                false => fault("write", &lines, e),
            })?;
        let RecordOptions { every, checkpoint_every, stores_data, startup, notes } = options;
        let startup = startup.iter().enumerate();
        let header = Header {
            schema: SCHEMA.into(),
            library: env!("CARGO_PKG_VERSION").into(),
            arithmetic: ARITHMETIC_VERSION,
            program: folder.save_program(PROGRAM.into(), program)?,
            startup: startup
                .map(|(index, program)| folder.save_program(startup_file(index), program))
                .collect::<Result<_>>()?,
            every,
            checkpoint_every,
            stores_feeds: stores_data,
            notes,
            settings: names.settings.clone(),
            constants: names.constants(scope)?,
        };
        let mut lines = LineWriter { path: lines, file, chain: Chain::default() };
        lines.append(&[Line::Header(header)])?;
        let recorder = Recorder {
            samples: SampleStore::open(&folder, stores_data, [], 0)?,
            folder,
            program: program.clone(),
            names,
            lines,
            hashed: None,
            checkpoint: None,
        };
        let mut record =
            RunRecord::of_recorder(recorder, scope, RecordPosition { step: 0, every, checkpoint_every })?;
        record.complete_step(scope)?;
        Ok(record)
    }

    /// A record that goes on with the next step.
    pub(crate) fn of_recorder(
        recorder: Recorder,
        scope: &Scope,
        position: RecordPosition,
    ) -> Result<RunRecord> {
        let names = recorder.names.clone();
        let RecordPosition { step, every, checkpoint_every } = position;
        let copy = |name: &String| Some((name.clone(), scope.find(name)?.clone()));
        Ok(RunRecord {
            settings: names.settings.iter().filter_map(copy).collect(),
            names,
            every,
            checkpoint_every,
            last_step: step,
            pending: vec![],
            pending_bytes: 0,
            hashed: recorder.hashed,
            saved: recorder.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
            thread: Some(RecorderThread::start(recorder)?),
        })
    }

    /// The number of the last recorded step; 0 before the first one.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Records the next step after it has run: what was fed, and the values after it.
    ///
    /// # Errors
    /// A record that could not be written, by this step or an earlier one. No further step is recorded then.
    pub fn step(&mut self, feeds: &[(&str, &Tensor)], scope: &Scope) -> Result<()> {
        if self.thread.is_none() {
            return Err(ended());
        }
        let feeds: NamedTensors =
            feeds.iter().map(|(name, value)| (name.to_string(), (*value).clone())).collect();
        let mut set = vec![];
        for (name, known) in &mut self.settings {
            if let Some(value) = scope.find(name)
                && (value.bytes() != known.bytes() || value.meta() != known.meta())
            {
                *known = value.clone();
                set.push((name.clone(), value.clone()));
            }
        }
        self.last_step += 1;
        self.pending_bytes += feeds.iter().map(|(_, value)| value.bytes().len()).sum::<usize>();
        self.pending.push(StepTensors { step: self.last_step, feeds, set });
        self.complete_step(scope)
    }

    /// Sends what is due after the last step.
    pub(crate) fn complete_step(&mut self, scope: &Scope) -> Result<()> {
        let step = self.last_step;
        if step.is_multiple_of(self.checkpoint_every) && self.saved != Some(step) {
            self.send_checkpoint(scope)
        } else if step.is_multiple_of(self.every) && self.hashed != Some(step) {
            self.hashed = Some(step);
            let copy = |(name, value): (&str, &Tensor)| (name.to_string(), value.clone());
            self.send(Some(Snapshot::State(step, self.names.state(scope).map(copy).collect())))
        } else if self.pending_bytes >= PENDING {
            self.send(None)
        } else {
            Ok(())
        }
    }

    fn send_checkpoint(&mut self, scope: &Scope) -> Result<()> {
        (self.hashed, self.saved) = (Some(self.last_step), Some(self.last_step));
        self.send(Some(Snapshot::Checkpoint(self.last_step, scope.clone())))
    }

    fn send(&mut self, snapshot: Option<Snapshot>) -> Result<()> {
        self.pending_bytes = 0;
        let batch = Batch { steps: std::mem::take(&mut self.pending), snapshot };
        match &self.thread {
            Some(thread) if thread.send(batch) => Ok(()),
            // The thread has ended because of an error, which it returns.
            _ => self.end().map(drop),
        }
    }

    /// Ends the thread.
    fn end(&mut self) -> Result<Recorder> {
        self.thread.take().ok_or_else(ended)?.join()
    }

    /// Ends the record of a run that is complete: writes the last checkpoint, the last line, and `statement.json`.
    ///
    /// # Errors
    /// As [`step`](RunRecord::step).
    pub fn finish(mut self, scope: &Scope) -> Result<()> {
        if self.saved != Some(self.last_step) {
            self.send_checkpoint(scope)?;
        }
        let mut recorder = self.end()?;
        recorder.lines.append(&[Line::End(EndOfRun { steps: self.last_step })])?;
        recorder.lines.sync()?;
        statement::write(&recorder.folder)
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Io, "the record ended when it could not be written; make another record")
}

impl Drop for RunRecord {
    fn drop(&mut self) {
        // A record without its end is valid, and a drop cannot fail.
        if !self.pending.is_empty() {
            _ = self.send(None);
        }
        _ = self.end();
    }
}
