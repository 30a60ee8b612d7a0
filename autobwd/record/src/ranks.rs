//! Records of the ranks of one run, which are replayed together.
//!
//! Collective operators of a rank wait for the others, so all ranks run a step at the same time, each on a thread of its
//! own. Samples are read and states are compared before and after it, on the caller's thread. After a refusal no rank
//! goes on: the others would wait for it.

use std::thread;

use autobwd_core::{Error, ErrorKind, Program, Result, Tensor};
use autobwd_exec::{Executor, Feed, Scope};

use crate::{
    recorded_run::{RecordedRun, chosen_segments, unverifiable_start},
    replay::{Failure, Replay, failure},
    verification::{SegmentOutcome, Segments, Verification, VerifiedSegment},
};

/// A rank that is replayed.
struct Rank<'a> {
    replay: Replay<'a, 'static>,
    executor: &'a mut Executor,
    scope: Scope,
    /// The last step whose state is confirmed.
    confirmed: u64,
}

/// What a rank runs.
struct Work<'a> {
    program: &'a Program,
    feeds: Vec<(String, Tensor)>,
}

impl<'a> Rank<'a> {
    /// What the rank runs in a step.
    fn prepare(&mut self, step: u64) -> Result<Work<'a>, Failure> {
        let missing = || Error::new(ErrorKind::Checkpoint, format!("there is no step {step}"));
        let inputs = self.replay.history.steps.get((step - 1) as usize).ok_or_else(missing)?;
        let feeds = self.replay.prepare(inputs, self.confirmed, &mut self.scope)?;
        Ok(Work { program: self.replay.program, feeds })
    }
}

impl Work<'_> {
    fn run(&self, executor: &mut Executor, scope: &mut Scope) -> Result<()> {
        let feeds = self.feeds.iter().map(|(name, value)| (name.as_str(), value as &dyn Feed));
        executor.run(self.program, scope, &feeds.collect::<Vec<_>>(), &[]).map(drop)
    }
}

impl RecordedRun {
    /// Verifies the records of all ranks of one run, in the order of the ranks; `executors` has the executor of each
    /// rank, with its transport. Programs with collective operators are replayed in this way.
    ///
    /// All records are replayed between checkpoints that all of them have. When the record of a rank is refused, the other
    /// ranks are not verified in that segment: their steps need the refused one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord, Segments};
    /// use autobwd::parallel::{data_parallel, startup, threads};
    /// use autobwd_ops::{Math, nn::Linear, optim::{Optimizer, Sgd}};
    ///
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 2]);
    /// let loss = Linear::builder(&net, 2, 1).build().forward(&x).square().mean();
    /// Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    /// let (init, step) = (net.startup().program()?.clone(), data_parallel(&net.program()?, 2, 1 << 20)?);
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// let dir = |rank: usize| folder.join(format!("rank-{rank}"));
    /// threads::run(2, |transport| {
    ///     let (rank, mut scope) = (transport.rank(), Scope::new());
    ///     let mut executor = Executor::with_threads(1).with_transport(transport);
    ///     let starts = [init.clone(), startup(&step, rank)?];
    ///     let mut options = RecordOptions::new();
    ///     for start in &starts {
    ///         executor.run(start, &mut scope, &[], &[])?;
    ///         options = options.startup(start);
    ///     }
    ///     let mut record = RunRecord::create(dir(rank), &step, &scope, options)?;
    ///     for batch in 0..10 {
    ///         let x = Tensor::from_vec([1, 2], vec![batch as f32, rank as f32])?;
    ///         executor.run(&step, &mut scope, &[("x", &x)], &[])?;
    ///         record.step(&[("x", &x)], &scope)?;
    ///     }
    ///     record.finish(&scope)
    /// })?;
    ///
    /// let runs = [RecordedRun::open(dir(0))?, RecordedRun::open(dir(1))?];
    /// let transports = threads::connect(2, Duration::from_secs(60)).into_iter();
    /// let executor = |transport| Executor::with_threads(1).with_transport(transport);
    /// let mut executors: Vec<Executor> = transports.map(executor).collect();
    /// let verifications = RecordedRun::verify_ranks(&runs, &mut executors, Segments::All)?;
    /// assert!(verifications.iter().all(|verification| verification.is_confirmed()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another number of executors; records with other numbers of startup programs; a rank that fails or that does not
    /// answer; the errors of [`verify`](RecordedRun::verify).
    pub fn verify_ranks(
        runs: &[RecordedRun],
        executors: &mut [Executor],
        segments: Segments,
    ) -> Result<Vec<Verification>> {
        if runs.len() != executors.len() {
            let text =
                format!("{} records of ranks need as many executors, not {}", runs.len(), executors.len());
            return Err(Error::new(ErrorKind::Rank, text));
        }
        let startups = |run: &RecordedRun| run.startup.len();
        if runs.windows(2).any(|pair| pair.first().map(startups) != pair.last().map(startups)) {
            let text =
                "the records of ranks need the same number of startup programs, which all ranks run together";
            return Err(Error::new(ErrorKind::Rank, text));
        }
        let inspected: Vec<(Verification, Vec<u64>)> =
            runs.iter().map(RecordedRun::inspect_with_data).collect::<Result<_>>()?;
        let (mut verifications, checkpoints): (Vec<_>, Vec<_>) = inspected.into_iter().unzip();
        let starts: Vec<Vec<u64>> =
            runs.iter().zip(&checkpoints).map(|(run, checkpoints)| run.starts(checkpoints)).collect();
        let is_common = |start: &u64| starts.iter().all(|starts| starts.contains(start));
        let common: Vec<u64> = starts.first().into_iter().flatten().copied().filter(is_common).collect();
        let hashed = runs.iter().map(RecordedRun::last_hash).min().unwrap_or(0);
        let mut ranks = vec![];
        for ((run, checkpoints), executor) in runs.iter().zip(&checkpoints).zip(executors) {
            let replay = run.replay(checkpoints, None)?;
            ranks.push(Rank { replay, executor, scope: Scope::new(), confirmed: 0 });
        }
        for (after, last) in chosen_segments(&common, hashed, segments) {
            let outcomes = match common.contains(&after) {
                true => replay_segment(&mut ranks, after, last)?,
                false => ranks.iter().map(|_| unverifiable_start(after)).collect(),
            };
            for (verification, outcome) in verifications.iter_mut().zip(outcomes) {
                verification.segments.push(VerifiedSegment { after, last, outcome });
            }
        }
        Ok(verifications)
    }
}

/// Replays a segment on all ranks, up to its end or to the first refusal.
fn replay_segment(ranks: &mut [Rank<'_>], after: u64, last: u64) -> Result<Vec<SegmentOutcome>> {
    let mut results = start(ranks, after);
    let mut step = after;
    while step < last && results.iter().all(Result::is_ok) {
        step += 1;
        results = advance(ranks, step);
    }
    if results.iter().all(Result::is_ok) && last > after {
        let load = |rank: &Rank<'_>| match rank.replay.checkpoints.contains(&last) {
            true => rank.replay.load(last).map(drop),
            false => Ok(()),
        };
        results = ranks.iter().map(load).collect();
    }
    outcomes(results, step)
}

/// The outcomes of ranks, given their results up to a step.
fn outcomes(results: Vec<Result<(), Failure>>, step: u64) -> Result<Vec<SegmentOutcome>> {
    let refused = results.iter().position(|result| matches!(result, Err(Failure::Refused(_))));
    let unverified = |rank| SegmentOutcome::Unverifiable(format!("rank {rank} is refused at step {step}"));
    let outcome = |(rank, result)| match (result, refused) {
        (Err(Failure::Refused(refusal)), _) => Ok(SegmentOutcome::Refused(refusal)),
        // A rank that waits for a refused one fails because of it.
        (Err(Failure::Error(e)), Some(refused)) if e.kind() == ErrorKind::Rank => Ok(unverified(refused)),
        (Err(Failure::Error(e)), _) => Err(Error::new(e.kind(), format!("rank {rank}: {e}"))),
        (Ok(()), Some(refused)) => Ok(unverified(refused)),
        (Ok(()), None) => Ok(SegmentOutcome::Confirmed),
    };
    results.into_iter().enumerate().map(outcome).collect()
}

/// Gives all ranks their values after a step.
fn start(ranks: &mut [Rank<'_>], step: u64) -> Vec<Result<(), Failure>> {
    for rank in &mut *ranks {
        (rank.scope, rank.confirmed) = (Scope::new(), step);
    }
    let programs = ranks.first().map_or(0, |rank| rank.replay.startup.len());
    for index in (0..programs).filter(|_| step == 0) {
        let startup = ranks.iter().filter_map(|rank| rank.replay.startup.get(index));
        let work: Vec<Work<'_>> = startup.map(|program| Work { program, feeds: vec![] }).collect();
        let results = run_together(ranks, &work);
        if results.iter().any(Result::is_err) {
            let failed = |e| failure(0, 0, "a startup program", e);
            return results.into_iter().map(|result| result.map_err(failed)).collect();
        }
    }
    let begin = |rank: &mut Rank<'_>| {
        rank.scope = rank.replay.started(std::mem::take(&mut rank.scope), step)?;
        Ok(())
    };
    ranks.iter_mut().map(begin).collect()
}

/// Runs a step on all ranks, and compares their states with the recorded hashes.
fn advance(ranks: &mut [Rank<'_>], step: u64) -> Vec<Result<(), Failure>> {
    let mut work = vec![];
    let mut refusals = vec![];
    for rank in &mut *ranks {
        match rank.prepare(step) {
            Ok(prepared) => {
                work.push(prepared);
                refusals.push(Ok(()));
            }
            Err(failure) => refusals.push(Err(failure)),
        }
    }
    if work.len() < ranks.len() {
        return refusals;
    }
    let results = run_together(ranks, &work);
    let is_run = results.iter().all(Result::is_ok);
    let compare = |(rank, result): (&mut Rank<'_>, Result<()>)| {
        result.map_err(|e| failure(rank.confirmed, step, "the step", e))?;
        if let Some(known) = rank.replay.history.states.get(&step).filter(|_| is_run) {
            rank.replay.compare(known, rank.confirmed, &rank.scope, "after the step")?;
            rank.confirmed = step;
        }
        Ok(())
    };
    ranks.iter_mut().zip(results).map(compare).collect()
}

/// Runs what each rank has to run, on a thread for each.
fn run_together(ranks: &mut [Rank<'_>], work: &[Work<'_>]) -> Vec<Result<()>> {
    thread::scope(|threads| {
        let start = |(rank, work)| {
            let Rank { executor, scope, .. }: &mut Rank<'_> = rank;
            let work: &Work<'_> = work;
            threads.spawn(move || work.run(executor, scope))
        };
        let handles: Vec<_> = ranks.iter_mut().zip(work).map(start).collect();
        let panicked = |_| Err(Error::new(ErrorKind::Panic, "the thread of a rank panicked"));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(panicked)).collect()
    })
}
