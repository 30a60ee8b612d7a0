//! The loader: batches of a data set, epoch by epoch.
//!
//! The position of a loader is two numbers. The thread that reads ahead has a position of its own, and none of its
//! state is saved. A saved state also has the fields and a hash of some examples.

mod reader;
mod sample;

use std::{fmt, sync::Arc};

use autobwd_core::{__private::internals::*, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Batch, Dataset, order::BatchTiling};
use reader::{BatchReader, ReadAhead, reporting_panics};
use sample::{DataSample, Fields};

/// The most batches that are read ahead: there is a place for each from the start.
const MAX_PREFETCH: usize = 1024;

/// The place of a batch: how many epochs and how many batches of the epoch come before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The number of epochs before it.
    pub epoch: u64,
    /// The number of batches of this epoch before it; after the last batch, the number of all.
    pub batch: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, batch {}", self.epoch, self.batch)
    }
}

/// Delivers the batches of a data set, epoch by epoch. [`Loader::builder`] makes one.
///
/// Equal options give equal batches: the order is a function of seed and epoch, and neither the number of batches that
/// are read ahead nor a resumed run changes it.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_data::{Loader, TensorDataset};
///
/// let data = || TensorDataset::new([("x", Tensor::from_vec([10], (0..10).collect::<Vec<i64>>()).unwrap())]);
/// let mut loader = Loader::builder(data()?).batch(4).shuffle(1).build()?;
/// let first = loader.next_batch()?.unwrap();
/// let state = loader.state();
/// let sizes: Vec<usize> = loader.epoch().map(|batch| batch.unwrap().len()).collect();
/// assert_eq!((first.len(), sizes), (4, vec![4, 2]));
///
/// // Another process goes on after the first batch.
/// let mut resumed = Loader::builder(data()?).batch(4).shuffle(1).build()?;
/// resumed.resume(&state)?;
/// assert_eq!(resumed.epoch().count(), 2);
/// assert_eq!(resumed.next_batch()?, loader.next_batch()?); // of the second epoch
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct Loader {
    reader: BatchReader,
    prefetch: usize,
    position: Position,
    /// The thread that reads ahead, from `position` on, once it is started.
    ahead: Option<ReadAhead>,
    /// The fields of the first batch.
    fields: Option<Fields>,
    /// The fingerprint of the data set, in hexadecimal digits.
    fingerprint: String,
    /// Read before the first batch, so that a data set which counts its reads delivers the same batches whether or not
    /// a state is taken.
    sample: Result<DataSample>,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Loader");
        text.field("tiling", &self.reader.tiling).field("seed", &self.reader.seed);
        text.field("prefetch", &self.prefetch).field("position", &self.position).finish_non_exhaustive()
    }
}

/// The options of a [`Loader`].
pub struct LoaderBuilder {
    dataset: Arc<dyn Dataset>,
    batch: usize,
    seed: Option<u64>,
    shard: (usize, usize),
    drop_last: bool,
    prefetch: usize,
}

impl fmt::Debug for LoaderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("LoaderBuilder");
        text.field("batch", &self.batch).field("seed", &self.seed).field("shard", &self.shard);
        text.field("drop_last", &self.drop_last).field("prefetch", &self.prefetch).finish_non_exhaustive()
    }
}

impl LoaderBuilder {
    /// Examples in a batch; 1 by default.
    #[must_use]
    pub fn batch(self, examples: usize) -> LoaderBuilder {
        LoaderBuilder { batch: examples, ..self }
    }

    /// Shuffles the examples, in each epoch differently. By default, they keep the order of the data set.
    #[must_use]
    pub fn shuffle(self, seed: u64) -> LoaderBuilder {
        LoaderBuilder { seed: Some(seed), ..self }
    }

    /// Delivers the part of one of `ranks` processes, whose other options must be the same. All ranks get the same
    /// number of batches, and no example twice: the `k`-th batches of all ranks are the `k`-th batch of a loader whose
    /// batch is `ranks` times as large, cut in the order of the ranks.
    #[must_use]
    pub fn shard(self, rank: usize, ranks: usize) -> LoaderBuilder {
        LoaderBuilder { shard: (rank, ranks), ..self }
    }

    /// Whether examples at the end of an epoch that do not fill a batch on every rank are left out. By default they
    /// make a last, smaller batch, divided evenly among the ranks; only if there are fewer of them than ranks, they are
    /// also left out.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> LoaderBuilder {
        LoaderBuilder { drop_last, ..self }
    }

    /// How many batches a thread reads ahead, 2 by default, at most 1,024; 0 for no thread.
    #[must_use]
    pub fn prefetch(self, batches: usize) -> LoaderBuilder {
        LoaderBuilder { prefetch: batches.min(MAX_PREFETCH), ..self }
    }

    /// The loader, at the start of the first epoch. It reads up to 8 examples twice, for [`Loader::state`].
    ///
    /// # Errors
    /// Batches of 0 examples; a rank that is not below `ranks`; too few examples for one batch; a panic of the data set
    /// in [`len`](Dataset::len) or [`fingerprint`](Dataset::fingerprint).
    pub fn build(self) -> Result<Loader> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Data, text));
        let measure = |dataset: &dyn Dataset| Ok((dataset.len(), dataset.fingerprint()));
        let (examples, fingerprint) =
            reporting_panics(&*self.dataset, measure, "while its length and fingerprint were computed")?;
        let (batch, (rank, ranks)) = (self.batch, self.shard);
        if batch == 0 {
            return refuse("a batch needs at least 1 example, not 0".into());
        }
        if rank >= ranks {
            return refuse(format!("there is no rank {rank} among {ranks}: ranks count from 0"));
        }
        let tiling = BatchTiling { examples, batch, rank, ranks, drop_last: self.drop_last };
        if tiling.batches() == 0 {
            let least = if self.drop_last { batch.saturating_mul(ranks) } else { ranks };
            let text = format!("a data set of {examples} examples has no batch: at least {least} are needed");
            return refuse(text);
        }
        let sample = reporting_panics(&*self.dataset, DataSample::read, "while a sample was read");
        Ok(Loader {
            reader: BatchReader::new(self.dataset, tiling, self.seed),
            prefetch: self.prefetch,
            position: Position::default(),
            ahead: None,
            fields: None,
            fingerprint: format!("{fingerprint:016x}"),
            sample,
        })
    }
}

/// A position, and all that gives it its meaning. The rank is left out: all ranks are at the same position.
#[derive(Deserialize)]
struct LoaderState {
    position: Position,
    /// The number of examples.
    examples: usize,
    /// The fingerprint of the data set, in hexadecimal digits.
    data: String,
    batch: usize,
    seed: Option<u64>,
    ranks: usize,
    drop_last: bool,
    #[serde(default)]
    sample: Option<DataSample>,
}

impl Loader {
    /// A loader of this data set, with one example a batch, in the order of the data set.
    pub fn builder(dataset: impl Dataset + 'static) -> LoaderBuilder {
        let dataset = Arc::new(dataset);
        LoaderBuilder { dataset, batch: 1, seed: None, shard: (0, 1), drop_last: false, prefetch: 2 }
    }

    /// The number of batches in an epoch.
    pub fn batches(&self) -> usize {
        self.reader.tiling.batches()
    }

    /// The next batch of the epoch; `None` at its end, where the next epoch begins.
    ///
    /// # Errors
    /// A batch that cannot be read, a panic of the data set, another number of examples than was asked for, or other
    /// fields or dtypes than the first batch has; the following call delivers the batch after it.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        if self.position.batch == self.batches() {
            self.position = Position { epoch: self.position.epoch.saturating_add(1), batch: 0 };
            return Ok(None);
        }
        let batch = match self.prefetch {
            0 => self.reader.read(self.position),
            batches => self.read_ahead(batches),
        };
        self.position.batch += 1;
        let batch = batch?;
        match &self.fields {
            Some(fields) => fields.check(&batch)?,
            None => self.fields = Some(Fields::of(&batch)),
        }
        Ok(Some(batch))
    }

    fn read_ahead(&mut self, batches: usize) -> Result<Batch> {
        let running = self.ahead.take().and_then(|mut ahead| Some((ahead.next()?, ahead)));
        let (batch, ahead) = match running {
            Some(running) => running,
            None => {
                let mut ahead = ReadAhead::start(self.reader.clone(), self.position, batches)?;
                let batch = ahead.next();
                (batch.ok_or_else(|| Error::internal("the thread that reads ahead has ended"))?, ahead)
            }
        };
        self.ahead = Some(ahead);
        batch
    }

    /// The remaining batches of the epoch, as [`next_batch`](Loader::next_batch) delivers them.
    pub fn epoch(&mut self) -> impl Iterator<Item = Result<Batch>> + '_ {
        let mut has_ended = false;
        std::iter::from_fn(move || {
            if has_ended {
                return None;
            }
            let batch = self.next_batch().transpose();
            has_ended = batch.is_none();
            batch
        })
    }

    /// The position of the next batch to be delivered, however many are read ahead. After the last batch of an epoch,
    /// it is the end of that epoch until [`next_batch`](Loader::next_batch) has returned `None`.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Continues at another position.
    ///
    /// # Errors
    /// A position after the end of its epoch.
    pub fn seek(&mut self, position: Position) -> Result<()> {
        if position.batch > self.batches() {
            let text = format!("there is no position {position}: an epoch has {} batches", self.batches());
            return Err(Error::new(ErrorKind::Data, text));
        }
        self.ahead = None;
        self.position = position;
        Ok(())
    }

    /// The position as text for a checkpoint, with what it refers to: number and fields of the examples, fingerprint of
    /// the data set, a hash of up to 8 evenly spaced examples, batch size, seed and number of ranks. Examples that change
    /// at random, or that could not be read when the loader was built, are left out.
    pub fn state(&self) -> String {
        let (tiling, position) = (self.reader.tiling, self.position);
        let state = json!({
            "position": { "epoch": position.epoch, "batch": position.batch },
            "examples": tiling.examples,
            "data": self.fingerprint,
            "batch": tiling.batch,
            "seed": self.reader.seed,
            "ranks": tiling.ranks,
            "drop_last": tiling.drop_last,
            "sample": self.sample.as_ref().ok(),
        });
        state.to_string()
    }

    /// Continues at the position of a [`state`](Loader::state), also one of another rank.
    ///
    /// # Errors
    /// A text that is no state; data that have changed or cannot be read, and another batch size, seed or number of
    /// ranks, for which the position would mean other examples.
    pub fn resume(&mut self, state: &str) -> Result<()> {
        let state: LoaderState = serde_json::from_str(state).map_err(|e| {
            let text = format!("not the state of a loader: {e}");
            Error::new(ErrorKind::Format, text).caused_by(e)
        })?;
        let tiling = self.reader.tiling;
        let refuse = |text: String| Err(Error::new(ErrorKind::Checkpoint, text));
        if state.examples != tiling.examples {
            let (then, now) = (state.examples, tiling.examples);
            return refuse(format!("the data have changed: there were {then} examples, and there are {now}"));
        }
        let now = state.sample.as_ref().map(|_| self.sample.as_ref()).transpose().map_err(Clone::clone)?;
        if let (Some(then), Some(now)) = (&state.sample, now)
            && then.fields != now.fields
        {
            let (then, now) = (&then.fields, &now.fields);
            return refuse(format!("the data have changed: the fields were {then}, and are {now}"));
        }
        let hash = |sample: Option<&DataSample>| sample.and_then(|sample| sample.hash.clone());
        let hashes = hash(state.sample.as_ref()).zip(hash(now));
        if state.data != self.fingerprint || hashes.is_some_and(|(then, now)| then != now) {
            let text =
                format!("the data have changed: other content or order of {} examples", tiling.examples);
            return refuse(text);
        }
        let seed = |seed: Option<u64>| seed.map_or("none".into(), |seed| seed.to_string());
        let options = [
            ("batch size", state.batch.to_string(), tiling.batch.to_string()),
            ("seed", seed(state.seed), seed(self.reader.seed)),
            ("number of ranks", state.ranks.to_string(), tiling.ranks.to_string()),
            ("`drop_last`", state.drop_last.to_string(), tiling.drop_last.to_string()),
        ];
        if let Some((option, then, now)) = options.iter().find(|(_, then, now)| then != now) {
            return refuse(format!("the state belongs to another loader: its {option} is {then}, not {now}"));
        }
        self.seek(state.position)
    }
}
