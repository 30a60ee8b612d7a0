//! The replay of segments of a recorded run.

use autobwd_core::{Error, ErrorKind, Program, Result, Tensor};
use autobwd_exec::{Checkpoint, Executor, Feed, Scope};

use crate::{
    feed_source::FeedSource,
    folder::{RecordFolder, checkpoint_file},
    history::History,
    line::{StateHash, StepInputs},
    state::{StateNames, different_names, state_hash},
    verification::{Refusal, SegmentOutcome},
};

/// Runs steps again.
pub(crate) struct Replay<'a, 'f> {
    pub(crate) folder: &'a RecordFolder,
    pub(crate) history: &'a History,
    pub(crate) program: &'a Program,
    pub(crate) startup: &'a [Program],
    pub(crate) names: StateNames,
    /// The steps whose checkpoints can be loaded.
    pub(crate) checkpoints: &'a [u64],
    pub(crate) feeds: FeedSource<'a, 'f>,
}

/// What a replay does not confirm.
pub(crate) enum Failure {
    Refused(Refusal),
    /// The replay itself fails.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Error(e)
    }
}

impl Failure {
    /// The failure as an error of a replay that needs every step.
    pub(crate) fn into_error(self, folder: &RecordFolder) -> Error {
        match self {
            Failure::Error(e) => e,
            Failure::Refused(refusal) => {
                let text = format!("cannot replay `{}`: {refusal}", folder.path("").display());
                Error::new(ErrorKind::Checkpoint, text)
            }
        }
    }
}

/// An error of a replay: of this binary, machine or executor, or of the record.
pub(crate) fn failure(after: u64, step: u64, doing: &str, e: Error) -> Failure {
    match e.kind() {
        ErrorKind::UnknownOp
        | ErrorKind::NoOps
        | ErrorKind::OutOfMemory
        | ErrorKind::Endless
        | ErrorKind::NotFinite
        | ErrorKind::Rank => Failure::Error(e),
        _ => refused(after, step, format!("{doing} fails: {e}")),
    }
}

fn refused(after: u64, step: u64, text: String) -> Failure {
    Failure::Refused(Refusal { after, step, values: vec![], text })
}

impl Replay<'_, '_> {
    /// Replays the steps after a checkpoint, or after the startup programs, up to a step.
    ///
    /// # Errors
    /// Operators that are not linked; too little memory; limits of the executor; the errors of the caller's feeds.
    pub(crate) fn segment(
        &mut self,
        executor: &mut Executor,
        after: u64,
        last: u64,
    ) -> Result<SegmentOutcome> {
        match self.replay(executor, after, last) {
            Ok(()) => Ok(SegmentOutcome::Confirmed),
            Err(Failure::Refused(refusal)) => Ok(SegmentOutcome::Refused(refusal)),
            Err(Failure::Error(e)) => Err(e),
        }
    }

    fn replay(&mut self, executor: &mut Executor, after: u64, last: u64) -> Result<(), Failure> {
        let mut scope = self.start(executor, after)?;
        let mut confirmed = after;
        let steps = self.history.steps.iter().skip(after as usize).take((last - after) as usize);
        for inputs in steps {
            let step = inputs.step;
            self.step(executor, inputs, confirmed, &mut scope)?;
            if let Some(known) = self.history.states.get(&step) {
                self.compare(known, confirmed, &scope, "after the step")?;
                confirmed = step;
            }
        }
        if last > after && self.checkpoints.contains(&last) {
            self.load(last)?;
        }
        Ok(())
    }

    /// The values after a step.
    pub(crate) fn start(&self, executor: &mut Executor, step: u64) -> Result<Scope, Failure> {
        let mut scope = Scope::new();
        for program in self.startup.iter().filter(|_| step == 0) {
            let run = executor.run(program, &mut scope, &[], &[]);
            run.map_err(|e| failure(0, 0, "a startup program", e))?;
        }
        self.started(scope, step)
    }

    /// The values after a step, given the values that the startup programs have made.
    pub(crate) fn started(&self, scope: Scope, step: u64) -> Result<Scope, Failure> {
        if step > 0 || self.startup.is_empty() {
            return self.load(step);
        }
        if let Some(known) = self.history.states.get(&0) {
            self.compare(known, 0, &scope, "after the startup programs")?;
        }
        // The checkpoint also has values that the startup programs do not make.
        match self.checkpoints.contains(&0) {
            true => self.load(0),
            false => Ok(scope),
        }
    }

    /// Loads a checkpoint, and compares it with the hash of its state.
    pub(crate) fn load(&self, step: u64) -> Result<Scope, Failure> {
        let (mut scope, file) = (Scope::new(), checkpoint_file(step));
        let loaded = Checkpoint::load(self.folder.path(&file), self.program, &mut scope);
        let loaded = loaded.map_err(|e| failure(step, step, "loading the checkpoint", e))?;
        if loaded.step() != step {
            return Err(refused(step, step, format!("`{file}` is the checkpoint of step {}", loaded.step())));
        }
        if let Some(known) = self.history.states.get(&step) {
            self.compare(known, step, &scope, &format!("in `{file}`"))?;
        }
        Ok(scope)
    }

    /// Runs a step.
    pub(crate) fn step(
        &mut self,
        executor: &mut Executor,
        inputs: &StepInputs,
        confirmed: u64,
        scope: &mut Scope,
    ) -> Result<(), Failure> {
        let feeds = self.prepare(inputs, confirmed, scope)?;
        let feeds: Vec<(&str, &dyn Feed)> =
            feeds.iter().map(|(name, value)| (name.as_str(), value as &dyn Feed)).collect();
        let run = executor.run(self.program, scope, &feeds, &[]);
        run.map(drop).map_err(|e| failure(confirmed, inputs.step, "the step", e))
    }

    /// Changes the values that were changed before a step, and reads the feeds of the step.
    pub(crate) fn prepare(
        &mut self,
        inputs: &StepInputs,
        confirmed: u64,
        scope: &mut Scope,
    ) -> Result<Vec<(String, Tensor)>, Failure> {
        let refuse = |text| refused(confirmed, inputs.step, text);
        for rows in &inputs.set {
            let (name, value) = self.feeds.samples.read(rows)?.map_err(refuse)?;
            scope.set(&name, value);
        }
        self.feeds.of_step(self.history, inputs)?.map_err(refuse)
    }

    /// Compares a state with its recorded hash, and the values that the program only reads.
    pub(crate) fn compare(
        &self,
        known: &StateHash,
        confirmed: u64,
        scope: &Scope,
        place: &str,
    ) -> Result<(), Failure> {
        let found = state_hash(known.step, self.names.state(scope))?;
        let mut values = different_names(&known.values, &found.values);
        values.extend(different_names(&self.history.header.constants, &self.names.constants(scope)?));
        if values.is_empty() && found.state == known.state {
            return Ok(());
        }
        let text = match &values[..] {
            [] => format!("the hash of the state {place} is another"),
            [name] => format!("`{name}` {place} has another hash"),
            [name, rest @ ..] => {
                format!("`{name}` {place} has another hash, and {} other values", rest.len())
            }
        };
        Err(Failure::Refused(Refusal { after: confirmed, step: known.step, values, text }))
    }
}
