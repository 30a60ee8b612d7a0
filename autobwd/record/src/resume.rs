//! Records that a resumed run goes on with.

use std::{
    fs::File,
    io::{Seek as _, SeekFrom},
    path::Path,
};

use autobwd_core::{ARITHMETIC_VERSION, Error, ErrorKind, Program, Result};
use autobwd_exec::Scope;

use crate::{
    RunRecord,
    folder::{LINES, RecordFolder, fault, fingerprint},
    history::History,
    recorder::{LineWriter, Recorder},
    run_record::RecordPosition,
    sample_store::SampleStore,
    state::{StateNames, different_names, state_hash},
};

impl RunRecord {
    /// A record that goes on with the record of a run that was killed, after that many steps, with the values of the
    /// scope after these steps: of a [checkpoint](autobwd_exec::Checkpoint) of the run, or of a file
    /// `checkpoint-STEP.safetensors` of the record. Lines of later steps, which the killed run has made and the resumed
    /// run repeats, are removed; the others stay as they are. So a resumed run has the record of an unbroken one.
    ///
    /// ```
    /// use autobwd::exec::{Checkpoint, record::{RecordOptions, RunRecord}};
    /// # use autobwd::{Builder, DType, Executor, Scope};
    /// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # Sgd { rate: 0.5 }.minimize(&w.square().mean())?.complete()?;
    /// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// # let (program, folder) = (net.program()?.clone(), tempfile::tempdir()?);
    /// # let dir = folder.path().join("run");
    /// let options = RecordOptions::new().checkpoint_every(2);
    /// let mut record = RunRecord::create(&dir, &program, &scope, options)?;
    /// for _ in 1..=3 {
    ///     executor.run(&program, &mut scope, &[], &[])?;
    ///     record.step(&[], &scope)?;
    /// }
    /// drop(record); // The process is killed.
    ///
    /// let file = dir.join("checkpoint-2.safetensors");
    /// let checkpoint = Checkpoint::load(file, &program, &mut scope)?;
    /// let mut record = RunRecord::resume(&dir, &program, &scope, checkpoint.step())?;
    /// executor.run(&program, &mut scope, &[], &[])?;
    /// record.step(&[], &scope)?;
    /// assert_eq!(record.last_step(), 3);
    /// record.finish(&scope)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A folder without a record; a record that is finished, damaged, of another program or of another version of the
    /// arithmetic, or that has fewer steps; a scope with other values than the record has after the step; the errors of
    /// the file system. The record is then as it was.
    pub fn resume(
        folder: impl AsRef<Path>,
        program: &impl AsRef<Program>,
        scope: &Scope,
        step: u64,
    ) -> Result<RunRecord> {
        let (path, program) = (folder.as_ref(), program.as_ref());
        let folder = RecordFolder::new(path);
        let refuse = |kind, text: String| {
            Error::new(kind, format!("cannot go on with the record `{}`: {text}", path.display()))
        };
        check(&History::read(&folder, u64::MAX)?, program, step)
            .map_err(|text| refuse(ErrorKind::Checkpoint, text))?;
        let history = History::read(&folder, step)?;
        let names = StateNames::of_header(program, &history.header);
        if let Some(known) = history.states.get(&step) {
            let found = state_hash(step, names.state(scope))?;
            if let Some(name) = different_names(&known.values, &found.values).first() {
                let text = format!("`{name}` has another value in the scope than after step {step}");
                return Err(refuse(ErrorKind::Checkpoint, text));
            }
        }
        let lines = folder.path(LINES);
        let open = || {
            let mut file = File::options().write(true).open(&lines)?;
            file.set_len(history.bytes)?;
            file.seek(SeekFrom::End(0)).map(|_| file)
        };
        let file = open().map_err(|e| fault("write", &lines, e))?;
        let tables = history.tables.into_iter().map(|known| (known.table, known.digests));
        let stores_feeds = history.header.stores_feeds;
        let recorder = Recorder {
            samples: SampleStore::open(&folder, stores_feeds, tables, history.data_bytes)?,
            folder,
            program: program.clone(),
            names,
            lines: LineWriter { path: lines, file, chain: history.chain },
            hashed: history.states.last_key_value().map(|(step, _)| *step),
            checkpoint: history.checkpoints.into_values().next_back(),
        };
        let (every, checkpoint_every) = (history.header.every, history.header.checkpoint_every);
        let mut record =
            RunRecord::of_recorder(recorder, scope, RecordPosition { step, every, checkpoint_every })?;
        // The killed run may have ended before it hashed or saved the state.
        record.complete_step(scope)?;
        Ok(record)
    }
}

/// Why a run of the program cannot go on with a record.
fn check(history: &History, program: &Program, step: u64) -> Result<(), String> {
    let (header, last) = (&history.header, history.last_step());
    if let Some(damage) = &history.damage {
        return Err(damage.clone());
    }
    if history.is_finished {
        return Err("the run is finished".into());
    }
    if header.program.fingerprint != fingerprint(program) {
        return Err("it is the record of another program".into());
    }
    if header.arithmetic != ARITHMETIC_VERSION {
        let version = header.arithmetic;
        return Err(format!(
            "it was computed with version {version} of the arithmetic, and this autobwd has version \
             {ARITHMETIC_VERSION}"
        ));
    }
    match last < step {
        true => Err(format!("it has {last} steps, not {step}")),
        false => Ok(()),
    }
}
