//! The threads that run the model, and the queue of requests in front of them.

use std::{
    io, iter,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use autobwd::{Error, ErrorKind, Result};
use axum::body::Bytes;
use tokio::sync::oneshot;

use crate::served_model::ServedModel;

/// A request that waits for a worker.
struct Job {
    body: Bytes,
    /// Closed if the client has gone or waited too long.
    answer: oneshot::Sender<Result<Vec<u8>>>,
}

/// The threads of a model.
#[derive(Clone, Debug)]
pub(crate) struct Workers {
    queue: SyncSender<Job>,
}

impl Workers {
    /// Starts `count` threads, which end when the workers are dropped. `waiting` requests wait at most; a thread takes up
    /// to `batch` of them.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(
        model: &ServedModel,
        count: usize,
        waiting: usize,
        batch: usize,
    ) -> io::Result<Workers> {
        let (queue, jobs) = sync_channel(waiting);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..count {
            let (mut model, jobs) = (model.clone(), jobs.clone());
            thread::Builder::new().name("predictor".into()).spawn(move || {
                while let Some(jobs) = take(&jobs, batch) {
                    let bodies: Vec<&[u8]> = jobs.iter().map(|job| &*job.body).collect();
                    let answers = model.answer(&bodies);
                    for (job, answer) in jobs.into_iter().zip(answers) {
                        // The client may have gone.
                        _ = job.answer.send(answer);
                    }
                }
            })?;
        }
        Ok(Workers { queue })
    }

    /// The answer to a request, from the first thread that is free; `None` if too many requests wait.
    pub(crate) async fn answer(&self, body: Bytes) -> Option<Result<Vec<u8>>> {
        let (answer, answered) = oneshot::channel();
        let ended = || Error::new(ErrorKind::Internal, "the threads of the model have ended");
        match self.queue.try_send(Job { body, answer }) {
            Ok(()) => Some(answered.await.unwrap_or_else(|_| Err(ended()))),
            Err(TrySendError::Full(_)) => None,
            Err(TrySendError::Disconnected(_)) => Some(Err(ended())),
        }
    }
}

/// Waits for a request, and takes up to `limit` that wait; `None` when no more can arrive.
fn take(jobs: &Mutex<Receiver<Job>>, limit: usize) -> Option<Vec<Job>> {
    let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
    let first = jobs.recv().ok()?;
    let taken = iter::once(first).chain(jobs.try_iter()).take(limit);
    Some(taken.filter(|job| !job.answer.is_closed()).collect())
}
