//! Times at which workers have parts of jobs, for traces.

use std::{cell::RefCell, time::Instant};

/// When a worker took parts of a job, one after another.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSpan {
    /// Its number; number 0 is the thread whose job it is.
    pub worker: usize,
    /// The number of its parts.
    pub parts: usize,
    /// When it took the first one.
    pub start: Instant,
    /// When it had finished the last one.
    pub end: Instant,
}

thread_local! {
    /// The spans of this thread's jobs, while it records them.
    static RECORDED: RefCell<Option<Vec<WorkerSpan>>> = const { RefCell::new(None) };
}

/// Runs work that shares jobs with other workers, and returns the first spans of these jobs, at most `limit`. The spans of
/// a job come together; a job that one worker does alone has none.
pub fn record_worker_spans<T>(limit: usize, work: impl FnOnce() -> T) -> (T, Vec<WorkerSpan>) {
    struct StopRecording;
    impl Drop for StopRecording {
        fn drop(&mut self) {
            RECORDED.take();
        }
    }
    // Kernels do not allocate.
    RECORDED.set(Some(Vec::with_capacity(limit)));
    let _stop = StopRecording;
    let outcome = work();
    (outcome, RECORDED.take().unwrap_or_default())
}

/// Whether this thread records the spans of its jobs.
pub(super) fn is_recording() -> bool {
    RECORDED.try_with(|recorded| recorded.borrow().is_some()).unwrap_or(false)
}

/// Records the spans of a job, as far as there is room.
pub(super) fn record(spans: impl Iterator<Item = WorkerSpan>) {
    RECORDED.with_borrow_mut(|recorded| {
        if let Some(recorded) = recorded {
            let room = recorded.capacity() - recorded.len();
            recorded.extend(spans.take(room));
        }
    });
}
