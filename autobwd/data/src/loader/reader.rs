//! Reading of batches, in the caller's thread or ahead of it.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread::{self, JoinHandle},
};

use autobwd_core::{Error, ErrorKind, Result, runtime::panics::catch_panic};

use super::Position;
use crate::{
    Batch, Dataset,
    order::{BatchTiling, shuffled},
};

/// Reads the batch at any position.
#[derive(Clone)]
pub(super) struct BatchReader {
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) tiling: BatchTiling,
    pub(super) seed: Option<u64>,
    /// The shuffled order of the epoch that was read last.
    order: Option<(u64, Vec<usize>)>,
}

impl BatchReader {
    pub(super) fn new(dataset: Arc<dyn Dataset>, tiling: BatchTiling, seed: Option<u64>) -> BatchReader {
        BatchReader { dataset, tiling, seed, order: None }
    }

    pub(super) fn read(&mut self, position: Position) -> Result<Batch> {
        let range = self.tiling.range(position.batch);
        let Some(seed) = self.seed else { return self.read_examples(&range.collect::<Vec<_>>(), position) };
        let order = match self.order.take().filter(|(epoch, _)| *epoch == position.epoch) {
            Some((_, order)) => order,
            None => shuffled(self.tiling.examples, seed, position.epoch),
        };
        let batch = self.read_examples(&order[range], position);
        self.order = Some((position.epoch, order));
        batch
    }

    /// Reads these examples; a panic of the data set is an error.
    fn read_examples(&self, examples: &[usize], position: Position) -> Result<Batch> {
        catch_panic(|| self.dataset.batch(examples)).unwrap_or_else(|panic| {
            let text = format!("the data set, at {position}, {panic}");
            Err(Error::new(ErrorKind::Panic, text))
        })
    }

    fn next(&self, position: Position) -> Position {
        match position.batch + 1 {
            batch if batch == self.tiling.batches() => {
                Position { epoch: position.epoch.saturating_add(1), batch: 0 }
            }
            batch => Position { batch, ..position },
        }
    }
}

/// A thread that reads batches ahead, epoch after epoch, until it is dropped.
pub(super) struct ReadAhead {
    /// `None` once the thread is to end.
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts to read at a position, at most `batches` batches ahead.
    pub(super) fn start(mut reader: BatchReader, from: Position, batches: usize) -> Result<ReadAhead> {
        // One more batch is in the hands of the thread.
        let (sender, receiver) = sync_channel(batches.saturating_sub(1));
        let read = move || {
            let mut position = from;
            while sender.send(reader.read(position)).is_ok() {
                position = reader.next(position);
            }
        };
        let thread = thread::Builder::new().name("autobwd-data".into()).spawn(read).map_err(|e| {
            let text = format!("cannot start a thread that reads ahead: {e}");
            Error::new(ErrorKind::Io, text).caused_by(e)
        })?;
        Ok(ReadAhead { batches: Some(receiver), thread: Some(thread) })
    }

    /// The next batch.
    pub(super) fn next(&mut self) -> Result<Batch> {
        let received = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        received.unwrap_or_else(|| Err(Error::internal("the thread that reads ahead has ended")))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        // Sending fails from now on.
        self.batches = None;
        // Panics of the data set are errors of its batches.
        _ = self.thread.take().map(JoinHandle::join);
    }
}
