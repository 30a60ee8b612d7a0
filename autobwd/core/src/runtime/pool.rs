//! A fixed thread pool without a queue, without allocation and with bounded spinning.
#![allow(unsafe_code)]

use std::{
    hint, mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use super::{
    owned_thread::OwnedThread,
    panics::{Catching, PartPanic},
    scratch::Scratch,
    transport::Transport,
    worker_spans::{self, WorkerSpan},
};
use crate::{Error, Result};

/// The number of elements in a unit of parallel work and of summation.
pub const CHUNK: usize = 1 << 16;

/// The limit of threads; few machines have more cores.
const MAX_THREADS: usize = 1024;

/// Rounds that a helper spins before it sleeps, some 50 µs: a longer spin would starve a busy neighbour, a shorter one
/// would sleep between the operators of one step.
const SPINS: usize = 20_000;

type JobFn<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A job, divided into parts that any worker may take.
#[derive(Clone, Copy)]
struct Job {
    work: &'static JobFn<'static>,
    parts: usize,
    workers: usize,
    /// The caller's setting.
    catching: Catching,
    /// Whether the caller records the spans of its workers.
    is_recorded: bool,
}

#[derive(Default)]
struct PoolState {
    /// Locked while a job uses the helpers.
    turn: Mutex<()>,
    /// The current job; a worker that takes it counts as active, under this lock.
    job: Mutex<Option<Job>>,
    /// The number of posted jobs, which helpers watch.
    posted: AtomicUsize,
    wake: Condvar,
    /// The next part to take.
    next: AtomicUsize,
    /// The number of helpers that have started.
    ready: AtomicUsize,
    /// The number of helpers at work. The job does not wait for a helper that wakes up late and finds nothing to do.
    active: AtomicUsize,
    /// The first panic in a part.
    panicked: Mutex<Option<PartPanic>>,
    /// The spans of a recorded job, with space for one of each worker.
    spans: Mutex<Vec<WorkerSpan>>,
    stop: AtomicBool,
}

impl PoolState {
    fn job(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn panicked(&self) -> MutexGuard<'_, Option<PartPanic>> {
        self.panicked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spans(&self) -> MutexGuard<'_, Vec<WorkerSpan>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runtime of a kernel: workers to share its work with, and scratch memory.
pub struct Cx {
    shared: Arc<PoolState>,
    helpers: Vec<OwnedThread>,
    pub(super) scratch: Scratch,
    transport: Option<Arc<dyn Transport>>,
}

impl Cx {
    /// A context with `threads` workers, the caller included: at least one, at most 1,024.
    pub fn new(threads: usize) -> Cx {
        let shared = Arc::new(PoolState::default());
        let helper = |worker: usize| {
            let shared = shared.clone();
            // If the system refuses a thread, the others do its work.
            OwnedThread::start(format!("autobwd-{worker}"), move || help(&shared, worker)).ok()
        };
        let helpers: Vec<_> = (1..threads.min(MAX_THREADS)).map_while(helper).collect();
        shared.spans().reserve_exact(1 + helpers.len());
        // Threads allocate their own data before the first run.
        while shared.ready.load(Ordering::Acquire) < helpers.len() {
            thread::yield_now();
        }
        Cx { shared, helpers, scratch: Scratch::default(), transport: None }
    }

    /// The same, as one of several ranks.
    pub fn with_transport(self, transport: Arc<dyn Transport>) -> Cx {
        let mut cx = self;
        cx.transport = Some(transport);
        cx
    }

    /// The connection to the other ranks of the run; `None` if there is one rank only.
    pub fn transport(&self) -> Option<&dyn Transport> {
        self.transport.as_deref()
    }

    /// The number of workers.
    pub fn threads(&self) -> usize {
        1 + self.helpers.len()
    }

    /// Runs `work(part, worker)` once for every part; at most `workers` of them at a time, with `worker` below that.
    /// Divide work into parts by its size, never by the number of workers.
    ///
    /// # Panics
    /// If `work` does, with the payload of the first part that panicked; parts that have not started by then do not
    /// run. All workers stay available for the next call.
    pub fn parts(&self, parts: usize, workers: usize, work: &JobFn<'_>) {
        if self.helpers.is_empty() || parts < 2 || workers < 2 {
            return (0..parts).for_each(|part| work(part, 0));
        }
        let shared = &*self.shared;
        let _turn = match shared.turn.try_lock() {
            Ok(turn) => turn,
            // An earlier call panicked; `FinishJob` has restored the state.
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            // The helpers are in use, or this is nested work: the caller does it all.
            Err(TryLockError::WouldBlock) => return (0..parts).for_each(|part| work(part, 0)),
        };
        // SAFETY: helpers use the reference while they are active; `FinishJob` removes the job and waits until none is,
        // before this stack frame ends, also when it unwinds.
        let work = unsafe { mem::transmute::<&JobFn<'_>, &'static JobFn<'static>>(work) };
        let (catching, is_recorded) = (Catching::current(), worker_spans::is_recording());
        let job = Job { work, parts, workers, catching, is_recorded };
        {
            let mut current = shared.job();
            shared.next.store(0, Ordering::Relaxed);
            *current = Some(job);
            shared.posted.fetch_add(1, Ordering::Release);
        }
        shared.wake.notify_all();
        struct FinishJob<'a>(&'a PoolState);
        impl Drop for FinishJob<'_> {
            fn drop(&mut self) {
                *self.0.job() = None;
                let mut spins = 0;
                while self.0.active.load(Ordering::Acquire) != 0 {
                    spins += 1;
                    if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
                }
            }
        }
        let finish = FinishJob(shared);
        take_parts(shared, job, 0);
        drop(finish);
        if is_recorded {
            worker_spans::record(shared.spans().drain(..));
        }
        let panicked = shared.panicked().take();
        if let Some(panic) = panicked {
            panic.resume();
        }
    }

    /// Runs `work(index, chunk)` for every chunk of `out`, distributed over the workers. Choose `chunk` elements large
    /// enough to be worth distributing, independent of the number of workers.
    pub fn chunks_mut<T: Send>(&self, out: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let (n, chunk, out) = (out.len(), chunk.max(1), SharedStart(out.as_mut_ptr()));
        self.parts(n.div_ceil(chunk), self.threads(), &|part, _| {
            let at = part * chunk;
            // SAFETY: within `out`, which is borrowed for the whole call, and disjoint from other parts.
            work(part, unsafe { out.slice(at, chunk.min(n - at)) });
        });
    }

    /// As [`chunks_mut`](Cx::chunks_mut), for work that may fail and needs additional memory: `work` gets its worker's
    /// share of `scratch`, which is divided evenly.
    ///
    /// # Errors
    /// The error of the first chunk whose work failed.
    pub fn try_chunks_mut<T: Send, S: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        scratch: &mut [S],
        work: impl Fn(usize, &mut [T], &mut [S]) -> Result<()> + Sync,
    ) -> Result<()> {
        self.try_zip_chunks_mut([(out, chunk)], scratch, |part, [out], scratch| work(part, out, scratch))
    }

    /// As [`try_chunks_mut`](Cx::try_chunks_mut), for several slices, each with the length of its chunks: `work` gets
    /// chunk number `part` of each, which is empty for a slice without more chunks.
    ///
    /// # Errors
    /// As [`try_chunks_mut`](Cx::try_chunks_mut).
    pub fn try_zip_chunks_mut<T: Send, S: Send, const N: usize>(
        &self,
        outs: [(&mut [T], usize); N],
        scratch: &mut [S],
        work: impl Fn(usize, [&mut [T]; N], &mut [S]) -> Result<()> + Sync,
    ) -> Result<()> {
        let outs = outs.map(|(out, chunk)| (out.len(), chunk.max(1), SharedStart(out.as_mut_ptr())));
        let parts = outs.iter().map(|(n, chunk, _)| n.div_ceil(*chunk)).max().unwrap_or(0);
        self.try_parts(parts, scratch, |part, scratch| {
            let chunks = outs.each_ref().map(|(n, chunk, out)| {
                let at = part.saturating_mul(*chunk).min(*n);
                // SAFETY: as in `chunks_mut`.
                unsafe { out.slice(at, (*chunk).min(n - at)) }
            });
            work(part, chunks, scratch)
        })
    }

    /// Runs `work` once for every part, with an equal share of `scratch` for each worker.
    ///
    /// # Errors
    /// The error of the first part that fails.
    pub(super) fn try_parts<S: Send>(
        &self,
        parts: usize,
        scratch: &mut [S],
        work: impl Fn(usize, &mut [S]) -> Result<()> + Sync,
    ) -> Result<()> {
        let (share, scratch) = (scratch.len() / self.threads(), SharedStart(scratch.as_mut_ptr()));
        let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
        self.parts(parts, self.threads(), &|part, worker| {
            // SAFETY: `worker` is below the number of workers, and a worker does one part at a time.
            let scratch = unsafe { scratch.slice(worker * share, share) };
            if let Err(e) = work(part, scratch) {
                record_first_failure(&failed, part, e);
            }
        });
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), |(_, e)| Err(e))
    }
}

/// Keeps the error of the part with the lowest number.
#[cold]
fn record_first_failure(failed: &Mutex<Option<(usize, Error)>>, part: usize, error: Error) {
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    if failed.as_ref().is_none_or(|(first, _)| part < *first) {
        *failed = Some((part, error));
    }
}

/// The start of a slice that workers share.
pub(super) struct SharedStart<T>(pub(super) *mut T);
// SAFETY: the pointer is only used for disjoint parts.
unsafe impl<T: Send> Sync for SharedStart<T> {}
impl<T> SharedStart<T> {
    /// # Safety
    /// These elements are within the slice, and nothing else uses them meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// Runs parts until none is left. After a panic in a part, its payload is stored and no further part starts.
fn take_parts(shared: &PoolState, job: Job, worker: usize) {
    if worker >= job.workers {
        return;
    }
    let start = job.is_recorded.then(Instant::now);
    let run = || {
        let mut taken = 0;
        loop {
            let part = shared.next.fetch_add(1, Ordering::Relaxed);
            if part >= job.parts {
                return taken;
            }
            (job.work)(part, worker);
            taken += 1;
        }
    };
    match (job.catching.part(run), start) {
        (Ok(parts @ 1..), Some(start)) => {
            shared.spans().push(WorkerSpan { worker, parts, start, end: Instant::now() });
        }
        (Ok(_), _) => {}
        (Err(panic), _) => {
            shared.next.store(job.parts, Ordering::Relaxed);
            shared.panicked().get_or_insert(panic);
        }
    }
}

fn help(shared: &PoolState, worker: usize) {
    super::gemm::reserve();
    shared.ready.fetch_add(1, Ordering::Release);
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.posted.load(Ordering::Acquire) == seen && spins < SPINS {
            hint::spin_loop();
            spins += 1;
        }
        let mut job = shared.job();
        while shared.posted.load(Ordering::Acquire) == seen && !shared.stop.load(Ordering::Acquire) {
            job = shared.wake.wait(job).unwrap_or_else(PoisonError::into_inner);
        }
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        seen = shared.posted.load(Ordering::Acquire);
        let Some(current) = *job else { continue };
        shared.active.fetch_add(1, Ordering::Relaxed);
        drop(job);
        take_parts(shared, current, worker);
        shared.active.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Cx {
    fn drop(&mut self) {
        if !self.helpers.iter().all(OwnedThread::is_here) {
            // A forked child: it has no helpers, and one of them may have held a lock at the fork.
            return;
        }
        {
            let _job = self.shared.job();
            self.shared.stop.store(true, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // Panics of helpers are caught.
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;
    use crate::runtime::{panics::catch_panic_silently, worker_spans::record_worker_spans};

    #[test]
    fn every_part_runs_once_with_a_worker_of_its_own() {
        for threads in [1, 2, 3, 7] {
            let cx = Cx::new(threads);
            for parts in [0, 1, 2, 5, 100] {
                let runs: Vec<_> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                let active: Vec<_> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                cx.parts(parts, threads, &|part, worker| {
                    assert!(!active[worker].swap(true, Ordering::SeqCst));
                    runs[part].fetch_add(1, Ordering::SeqCst);
                    active[worker].store(false, Ordering::SeqCst);
                });
                assert!(runs.iter().all(|r| r.load(Ordering::SeqCst) == 1));
            }
        }
    }

    #[test]
    fn recorded_jobs_have_the_spans_of_their_workers() {
        let (cx, meeting) = (Cx::new(2), std::sync::Barrier::new(2));
        let share = |_, _| _ = meeting.wait();
        cx.parts(2, 2, &share);
        let (_, spans) = record_worker_spans(3, || {
            cx.parts(2, 2, &share);
            // A worker does this alone.
            cx.parts(1, 2, &|_, _| ());
            cx.parts(2, 2, &share);
        });
        let mut workers: Vec<_> = spans[..2].iter().map(|span| span.worker).collect();
        workers.sort_unstable();
        assert_eq!((workers, spans.len(), spans.capacity()), (vec![0, 1], 3, 3));
        assert!(spans.iter().all(|span| span.parts == 1 && span.start <= span.end));
        // The two of a job meet within their parts, and the next job starts after it.
        assert!(spans[0].start <= spans[1].end && spans[1].start <= spans[0].end);
        assert!(spans[..2].iter().all(|span| span.end <= spans[2].start));
        let (caught, spans) = record_worker_spans(2, || {
            catch_panic_silently(|| {
                cx.parts(2, 2, &|part, _| {
                    if part == 0 {
                        panic!("part 0")
                    }
                })
            })
        });
        assert!(caught.is_err() && spans.len() <= 1);
        cx.parts(2, 2, &share);
        assert_eq!(cx.shared.spans().len(), 0);
    }

    #[test]
    fn work_that_is_not_shared_is_not_posted() {
        let cx = Cx::new(2);
        let posted = || cx.shared.posted.load(Ordering::SeqCst);
        let nothing = |_, _| ();
        cx.parts(0, 2, &nothing);
        cx.parts(1, 2, &nothing);
        cx.parts(8, 1, &nothing);
        cx.chunks_mut(&mut [0; CHUNK], CHUNK, |_, out| out.fill(1));
        assert_eq!(posted(), 0);
        cx.parts(2, 2, &nothing);
        assert_eq!(posted(), 1);
    }

    #[test]
    fn panic_in_a_part_reaches_the_caller_and_leaves_all_workers_usable() {
        let cx = Cx::new(2);
        let meeting = std::sync::Barrier::new(2);
        for panics in [&[0][..], &[1], &[0, 1]] {
            let run = || {
                cx.parts(2, 2, &|part, _| {
                    // Each worker has one of the parts.
                    meeting.wait();
                    if panics.contains(&part) {
                        panic!("part {part}");
                    }
                });
            };
            let payload = panic::catch_unwind(panic::AssertUnwindSafe(run)).unwrap_err();
            let text = payload.downcast_ref::<String>().expect("what the part panicked with");
            assert!(panics.iter().any(|part| *text == format!("part {part}")), "{text}");
            // Would deadlock if one worker had both parts.
            cx.parts(2, 2, &|_, _| {
                meeting.wait();
            });
        }
    }

    #[test]
    fn panic_of_a_helper_has_its_place_and_is_as_silent_as_one_of_the_caller() {
        let (cx, meeting) = (Cx::new(2), std::sync::Barrier::new(2));
        let caller = std::thread::current().id();
        let line = AtomicUsize::new(0);
        let caught = catch_panic_silently(|| {
            cx.parts(2, 2, &|_, _| {
                meeting.wait();
                if std::thread::current().id() != caller {
                    assert!(Catching::current().is_silent);
                    line.store(line!() as usize + 1, Ordering::SeqCst);
                    panic!("a helper");
                }
            });
        });
        let expected = format!("panicked at {}:{}: a helper", file!(), line.into_inner());
        assert_eq!(caught.unwrap_err().to_string(), expected);
    }

    #[test]
    fn workers_have_scratch_of_their_own_and_the_first_failure_counts() {
        for threads in [1, 2, 3] {
            let cx = Cx::new(threads);
            let (mut out, mut scratch) = (vec![0; 100], vec![0; 7 * threads + 1]);
            let result = cx.try_chunks_mut(&mut out, 3, &mut scratch, |i, out, mine| {
                assert_eq!(mine.len(), (7 * threads + 1) / threads);
                mine.fill(i);
                std::thread::yield_now();
                assert!(mine.iter().all(|x| *x == i));
                out.fill(i);
                if i % 5 == 4 { Err(Error::data(format!("chunk {i}"))) } else { Ok(()) }
            });
            assert_eq!(result.unwrap_err().message(), "chunk 4");
            assert!(out.iter().enumerate().all(|(i, x)| *x == i / 3));
        }
    }

    /// A child has no helpers, but the memory that describes them.
    #[cfg(unix)]
    #[test]
    fn forked_child_works_alone_and_drops_the_pool() {
        unsafe extern "C" {
            fn fork() -> i32;
            fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
            fn _exit(status: i32) -> !;
        }
        let cx = Cx::new(4);
        // SAFETY: functions of POSIX; the child only computes, and ends without a destructor of its parent.
        let child = unsafe { fork() };
        if child == 0 {
            let work = move || {
                let sum = AtomicUsize::new(0);
                cx.parts(10, 4, &|part, _| _ = sum.fetch_add(part, Ordering::SeqCst));
                assert_eq!(sum.into_inner(), 45);
                drop(cx);
            };
            let outcome = panic::catch_unwind(panic::AssertUnwindSafe(work));
            // SAFETY: as above.
            unsafe { _exit(i32::from(outcome.is_err())) }
        }
        let mut status = -1;
        // SAFETY: as above; `status` lives.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child panicked");
        cx.parts(10, 4, &|_, _| ());
    }

    #[test]
    fn chunks_of_several_slices_belong_together() -> Result<()> {
        for threads in [1, 2, 3] {
            let cx = Cx::new(threads);
            let (mut x, mut y, mut none) = (vec![0; 10], vec![0; 4], vec![]);
            let outs = [(&mut x[..], 3), (&mut y, 1), (&mut none, 7)];
            cx.try_zip_chunks_mut(outs, &mut [0; 0], |i, [x, y, none], _| {
                assert!(none.is_empty());
                x.fill(i + 1);
                y.fill(x.len());
                Ok(())
            })?;
            assert_eq!((x, y), (vec![1, 1, 1, 2, 2, 2, 3, 3, 3, 4], vec![3, 3, 3, 1]));
            let (mut long, mut short) = ([0; 5], [0; 2]);
            cx.try_zip_chunks_mut([(&mut long[..], 1), (&mut short, 2)], &mut [0; 0], |i, [_, short], _| {
                assert_eq!(short.len(), if i == 0 { 2 } else { 0 });
                Ok(())
            })?;
        }
        Ok(())
    }
}
