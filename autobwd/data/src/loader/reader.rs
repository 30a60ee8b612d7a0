//! Reading of batches, in the caller's thread or ahead of it.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread::{self, JoinHandle},
};

use autobwd_core::{Error, ErrorKind, Result};

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
        let Some(seed) = self.seed else { return self.dataset.batch(&range.collect::<Vec<_>>()) };
        let order = match self.order.take().filter(|(epoch, _)| *epoch == position.epoch) {
            Some((_, order)) => order,
            None => shuffled(self.tiling.examples, seed, position.epoch),
        };
        let (_, order) = self.order.insert((position.epoch, order));
        self.dataset.batch(&order[range])
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

    /// The next batch; the message of a panic in the thread.
    pub(super) fn next(&mut self) -> Result<Result<Batch>, String> {
        let received = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        received.ok_or_else(|| self.end().unwrap_or_else(|| "without a message".into()))
    }

    /// Ends the thread. Returns the message if it has panicked.
    fn end(&mut self) -> Option<String> {
        // Sending fails from now on.
        self.batches = None;
        let panic = self.thread.take()?.join().err()?;
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned())
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.end();
    }
}
