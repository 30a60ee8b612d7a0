//! Records that are read and verified.

use std::{collections::BTreeMap, fmt, path::Path};

use autobwd_core::{ARITHMETIC_VERSION, Error, ErrorKind, Program, Result, Tensor};
use autobwd_exec::Executor;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::{
    digest::Digest,
    feed_source::{FeedFn, FeedSource},
    folder::{DATA, LINES, RecordFolder},
    history::History,
    phrases::steps,
    replay::Replay,
    sample_reader::SampleReader,
    state::StateNames,
    statement,
    verification::{SegmentOutcome, Segments, Verification, VerifiedSegment},
};

/// A record of a run, to be verified.
///
/// A verification replays the run, all of it or segments between checkpoints, on any machine with this version of the
/// [arithmetic](autobwd_core::ARITHMETIC_VERSION), and compares every recorded hash. [`RunRecord`] has an
/// example.
///
/// A verification shows that the program, the data and the changed values of the record lead to its checkpoints. The hashes
/// of the program and the data tell whether they are the promised ones, and a signature of `statement.json` who made the
/// record.
///
/// [`RunRecord`]: crate::RunRecord
pub struct RecordedRun {
    pub(crate) folder: RecordFolder,
    pub(crate) history: History,
    pub(crate) program: Program,
    pub(crate) startup: Vec<Program>,
}

impl fmt::Debug for RecordedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("RecordedRun");
        text.field("folder", &self.folder).field("steps", &self.steps()).finish_non_exhaustive()
    }
}

impl RecordedRun {
    /// Opens a record: reads its lines with their chain, and its programs. A line that is damaged ends it; the steps
    /// before the line can be verified, and the verification says what is damaged.
    ///
    /// # Errors
    /// A folder without a record; a damaged first line; a program that is missing or not the recorded one; another
    /// version of the schema or of the arithmetic; the errors of the file system.
    pub fn open(folder: impl AsRef<Path>) -> Result<RecordedRun> {
        let path = folder.as_ref();
        let folder = RecordFolder::new(path);
        if !folder.path(LINES).exists() {
            let text = format!("`{}` has no record: there is no `{LINES}` in it", path.display());
            return Err(Error::new(ErrorKind::Io, text));
        }
        let history = History::read(&folder, u64::MAX)?;
        let version = history.header.arithmetic;
        if version != ARITHMETIC_VERSION {
            let text = format!(
                "the record `{}` was computed with version {version} of the arithmetic, and this autobwd has version \
                 {ARITHMETIC_VERSION}: verify it with an autobwd of its version",
                path.display()
            );
            return Err(Error::new(ErrorKind::Checkpoint, text));
        }
        let program = folder.load_program(&history.header.program)?;
        let startup = history.header.startup.iter().map(|known| folder.load_program(known));
        Ok(RecordedRun { startup: startup.collect::<Result<_>>()?, folder, program, history })
    }

    /// The number of recorded steps.
    pub fn steps(&self) -> u64 {
        self.history.last_step()
    }

    /// Whether the record says that the run is complete.
    pub fn is_finished(&self) -> bool {
        self.history.is_finished
    }

    /// The program of a step.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The notes, by name.
    pub fn notes(&self) -> &BTreeMap<String, String> {
        &self.history.header.notes
    }

    /// The version of autobwd that made the record.
    pub fn library_version(&self) -> &str {
        &self.history.header.library
    }

    /// The steps with a hash of the state after them, and the hashes, in hexadecimal digits.
    pub fn states(&self) -> impl Iterator<Item = (u64, String)> {
        self.history.states.values().map(|state| (state.step, state.state.to_string()))
    }

    /// The steps with a checkpoint after them, and whether its file is in the folder.
    pub fn checkpoints(&self) -> impl Iterator<Item = (u64, bool)> {
        let checkpoints = self.history.checkpoints.values();
        checkpoints.map(|checkpoint| (checkpoint.step, self.folder.path(&checkpoint.file).exists()))
    }

    /// Whether the record has hashes of the data alone, so that [`verify_with`](RecordedRun::verify_with) needs them.
    pub fn needs_data(&self) -> bool {
        !self.history.header.stores_feeds
    }

    /// Checks the files of the record without a replay: the result has no segments.
    ///
    /// # Errors
    /// The errors of the file system. A record that is damaged is no error; the result says what is damaged or missing.
    pub fn check_files(&self) -> Result<Verification> {
        Ok(self.inspect()?.0)
    }

    /// Checks the files, and lists the steps whose checkpoints are there and undamaged.
    fn inspect(&self) -> Result<(Verification, Vec<u64>)> {
        let mut verification = self.empty_verification();
        let checkpoints = self.undamaged_checkpoints(&mut verification)?;
        self.check_other_files(&mut verification)?;
        Ok((verification, checkpoints))
    }

    /// As [`inspect`](RecordedRun::inspect), for a replay without feeds from elsewhere.
    ///
    /// # Errors
    /// A record without its data; the errors of the file system.
    pub(crate) fn inspect_with_data(&self) -> Result<(Verification, Vec<u64>)> {
        self.require_data()?;
        self.inspect()
    }

    fn require_data(&self) -> Result<()> {
        if self.needs_data() {
            let text = "the record has hashes of its data alone: verify it with `RecordedRun::verify_with`";
            return Err(Error::new(ErrorKind::NoValue, text));
        }
        Ok(())
    }

    /// Replays segments of the run, and compares every recorded hash. The record is not changed.
    ///
    /// # Errors
    /// A record without its data; operators that are not linked; too little memory; a loop or a NaN that the executor
    /// does not allow; the errors of the file system. A record that is damaged or of another run is no error, but is refused.
    pub fn verify(&self, executor: &mut Executor, segments: Segments) -> Result<Verification> {
        self.require_data()?;
        self.verify_segments(executor, segments, None)
    }

    /// As [`verify`](RecordedRun::verify); `feeds` returns the feeds of a step, which are compared with their hashes.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    /// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord, Segments};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # Sgd { rate: 0.5 }.minimize(&(&w * net.input("x", DType::F32, &[2])).mean())?.complete()?;
    /// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// # let (program, folder) = (net.program()?.clone(), tempfile::tempdir()?);
    /// # let dir = folder.path().join("run");
    /// let data = |step: u64| Tensor::from_vec([2], vec![step as f32, 1.0]);
    /// let options = RecordOptions::new().data_elsewhere();
    /// let mut record = RunRecord::create(&dir, &program, &scope, options)?;
    /// for step in 1..=10 {
    ///     let x = data(step)?;
    ///     executor.run(&program, &mut scope, &[("x", &x)], &[])?;
    ///     record.step(&[("x", &x)], &scope)?;
    /// }
    /// record.finish(&scope)?;
    ///
    /// let feeds = |step| Ok(vec![("x".to_string(), data(step)?)]);
    /// let verification = RecordedRun::open(&dir)?.verify_with(&mut executor, Segments::All, feeds)?;
    /// assert!(verification.is_confirmed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there, and the errors of `feeds`.
    pub fn verify_with(
        &self,
        executor: &mut Executor,
        segments: Segments,
        mut feeds: impl FnMut(u64) -> Result<Vec<(String, Tensor)>>,
    ) -> Result<Verification> {
        self.verify_segments(executor, segments, Some(&mut feeds))
    }

    fn verify_segments(
        &self,
        executor: &mut Executor,
        segments: Segments,
        feeds: Option<&mut FeedFn<'_>>,
    ) -> Result<Verification> {
        let (mut verification, checkpoints) = self.inspect()?;
        let starts = self.starts(&checkpoints);
        let mut replay = self.replay(&checkpoints, feeds)?;
        for (after, last) in chosen_segments(&starts, self.last_hash(), segments) {
            let outcome = match starts.contains(&after) {
                true => replay.segment(executor, after, last)?,
                false => unverifiable_start(after),
            };
            verification.segments.push(VerifiedSegment { after, last, outcome });
        }
        Ok(verification)
    }

    fn empty_verification(&self) -> Verification {
        Verification {
            steps: self.steps(),
            is_finished: self.is_finished(),
            damages: self.history.damage.iter().cloned().collect(),
            warnings: vec![],
            segments: vec![],
        }
    }

    /// A replay that starts from these checkpoints.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn replay<'a, 'f>(
        &'a self,
        checkpoints: &'a [u64],
        feeds: Option<&'a mut FeedFn<'f>>,
    ) -> Result<Replay<'a, 'f>> {
        let samples = SampleReader::open(&self.folder, &self.history)?;
        Ok(Replay {
            folder: &self.folder,
            history: &self.history,
            program: &self.program,
            startup: &self.startup,
            names: StateNames::of_header(&self.program, &self.history.header),
            checkpoints,
            feeds: FeedSource { samples, elsewhere: feeds },
        })
    }

    /// The steps whose checkpoints can be loaded, for a replay of a record with its data.
    ///
    /// # Errors
    /// A record without its data; the errors of the file system.
    pub(crate) fn loadable_checkpoints(&self) -> Result<Vec<u64>> {
        if self.needs_data() {
            let text = "the record has hashes of its data alone: record the run without `RecordOptions::data_elsewhere`";
            return Err(Error::new(ErrorKind::NoValue, text));
        }
        self.undamaged_checkpoints(&mut self.empty_verification())
    }

    /// The steps whose checkpoints are there and undamaged.
    fn undamaged_checkpoints(&self, verification: &mut Verification) -> Result<Vec<u64>> {
        let mut undamaged = vec![];
        for checkpoint in self.history.checkpoints.values() {
            let (file, step) = (&checkpoint.file, checkpoint.step);
            let path = self.folder.path(file);
            if !path.exists() {
                verification
                    .warnings
                    .push(format!("`{file}` is missing: no segment starts after step {step}"));
            } else if Digest::of_file(&path)? != checkpoint.sha256 {
                let text = format!("`{file}`, of step {step}, has another SHA-256 than recorded");
                verification.damages.push(text);
            } else {
                undamaged.push(step);
            }
        }
        Ok(undamaged)
    }

    /// Checks the other files, and what no hash covers.
    fn check_other_files(&self, verification: &mut Verification) -> Result<()> {
        let History { data_bytes, is_finished, is_torn, .. } = &self.history;
        if self.history.damage.is_none() {
            verification.damages.extend(statement::damage(&self.folder, &self.history)?);
        }
        let path = self.folder.path(DATA);
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        if *is_finished && bytes != *data_bytes {
            let text = format!("`{DATA}` has {bytes} bytes, but {data_bytes} in the record");
            verification.damages.push(text);
        }
        let hashed = self.last_hash();
        if hashed < self.steps() {
            let unhashed = steps(hashed + 1, self.steps());
            verification.warnings.push(format!("there is no hash of the state after {unhashed}"));
        }
        if *is_torn {
            verification.warnings.push(format!("the last line of `{LINES}` is incomplete"));
        }
        if !is_finished {
            verification.warnings.push("the record has no end: the run was not finished".into());
        }
        Ok(())
    }

    /// The last step with a hash of its state.
    pub(crate) fn last_hash(&self) -> u64 {
        self.history.states.last_key_value().map_or(0, |(step, _)| *step)
    }

    /// The steps after which a replay can start.
    pub(crate) fn starts(&self, checkpoints: &[u64]) -> Vec<u64> {
        let mut starts = checkpoints.to_vec();
        if !self.startup.is_empty() && starts.first() != Some(&0) && self.history.states.contains_key(&0) {
            starts.insert(0, 0);
        }
        starts
    }
}

/// The segments between these starts, up to the last step with a hash: all, or some that are chosen at random.
pub(crate) fn chosen_segments(starts: &[u64], hashed: u64, segments: Segments) -> Vec<(u64, u64)> {
    let mut bounds: Vec<u64> = starts.iter().copied().filter(|start| *start <= hashed).collect();
    if bounds.first() != Some(&0) {
        bounds.insert(0, 0);
    }
    if bounds.last() != Some(&hashed) {
        bounds.push(hashed);
    }
    let mut chosen = match bounds[..] {
        [only] => vec![(only, only)],
        _ => bounds.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?))).collect(),
    };
    if let Segments::Random { count, seed } = segments {
        choose(&mut chosen, count, seed);
    }
    chosen
}

/// The outcome of a segment whose start is missing.
pub(crate) fn unverifiable_start(after: u64) -> SegmentOutcome {
    SegmentOutcome::Unverifiable(format!("there is no checkpoint of step {after}"))
}

/// Keeps so many segments, in their order (Fisher and Yates's algorithm).
fn choose(segments: &mut Vec<(u64, u64)>, count: usize, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let all = segments.len();
    for first in 0..count.min(all) {
        let others = (all - first) as u128;
        segments.swap(first, first + ((u128::from(rng.next_u64()) * others) >> 64) as usize);
    }
    segments.truncate(count);
    segments.sort_unstable();
}
