//! Reading of batches, in the caller's thread or ahead of it.

use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
};

use autobwd_core::{
    Error, ErrorKind, Result,
    runtime::{OwnedThread, panics::catch_panic},
};

use super::Position;
use crate::{
    Batch, Dataset,
    order::{BatchTiling, shuffled},
};

/// Uses a data set; a panic of it is an error, in any thread.
pub(super) fn reporting_panics<T>(
    dataset: &dyn Dataset,
    work: impl FnOnce(&dyn Dataset) -> Result<T>,
    place: impl fmt::Display,
) -> Result<T> {
    catch_panic(|| work(dataset))
        .unwrap_or_else(|panic| Err(Error::new(ErrorKind::Panic, format!("the data set, {place}, {panic}"))))
}

/// Reads the batch at any position.
#[derive(Clone)]
pub(super) struct BatchReader {
    dataset: Arc<dyn Dataset>,
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
        let Some(seed) = self.seed else { return self.examples(&range.collect::<Vec<_>>(), position) };
        let order = match self.order.take().filter(|(epoch, _)| *epoch == position.epoch) {
            Some((_, order)) => order,
            None => shuffled(self.tiling.examples, seed, position.epoch),
        };
        let batch = self.examples(&order[range], position);
        self.order = Some((position.epoch, order));
        batch
    }

    /// The examples with these indices.
    fn examples(&self, indices: &[usize], position: Position) -> Result<Batch> {
        let place = format_args!("at {position}");
        let batch = reporting_panics(&*self.dataset, |dataset| dataset.batch(indices), place)?;
        if batch.len() != indices.len() {
            let (asked, given) = (indices.len(), batch.len());
            let text = format!("the data set has returned {given} examples at {position}, not {asked}");
            return Err(Error::new(ErrorKind::Data, text));
        }
        Ok(batch)
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
    thread: Option<OwnedThread>,
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
        let thread = OwnedThread::start("autobwd-data".into(), read).map_err(|e| {
            let text = format!("cannot start a thread that reads ahead: {e}");
            Error::new(ErrorKind::Io, text).caused_by(e)
        })?;
        Ok(ReadAhead { batches: Some(receiver), thread: Some(thread) })
    }

    /// The next batch; `None` if the thread is not there, as in a forked child.
    pub(super) fn next(&mut self) -> Option<Result<Batch>> {
        self.thread.as_ref().filter(|thread| thread.is_here())?;
        self.batches.as_ref()?.recv().ok()
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        // Sending fails from now on.
        self.batches = None;
        // Panics of the data set are caught.
        let _ = self.thread.take().map(OwnedThread::join);
    }
}
