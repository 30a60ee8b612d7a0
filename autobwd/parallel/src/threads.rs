//! Ranks that are threads of one process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use autobwd_core::{__private::internals::*, Error, ErrorKind, Result, Transport};

use crate::run_options::{RunOptions, ended, run_rank};

/// The connection of a thread to the others.
struct ThreadTransport {
    rank: usize,
    /// By rank.
    to: Vec<Sender<Box<[u8]>>>,
    from: Vec<Mutex<Receiver<Box<[u8]>>>>,
    patience: Duration,
}

impl Transport for ThreadTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn transfer(&self, send: &[(usize, &[u8])], receive: &mut [(usize, &mut [u8])]) -> Result<()> {
        let ended = |rank: &usize| Error::new(ErrorKind::Rank, ended(*rank));
        for (to, message) in send {
            let sender = self.to.get(*to).ok_or_else(|| unknown(*to))?;
            sender.send((*message).into()).map_err(|_| ended(to))?;
        }
        for (from, memory) in receive {
            let receiver = self.from.get(*from).ok_or_else(|| unknown(*from))?;
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            let message = receiver.recv_timeout(self.patience).map_err(|e| match e {
                RecvTimeoutError::Disconnected => ended(from),
                RecvTimeoutError::Timeout => {
                    let text = format!("rank {from} has not answered within {:?}", self.patience);
                    Error::new(ErrorKind::Rank, text)
                }
            })?;
            if message.len() != memory.len() {
                let (given, expected) = (message.len(), memory.len());
                let text = format!(
                    "rank {from} has sent {given} bytes, not {expected}: its program or its data differ"
                );
                return Err(Error::new(ErrorKind::Rank, text));
            }
            memory.copy_from_slice(&message);
        }
        Ok(())
    }
}

fn unknown(rank: usize) -> Error {
    Error::internal(format!("there is no rank {rank}"))
}

/// Connections between `ranks` threads, which wait for each other for up to `patience`.
pub fn connect(ranks: usize, patience: Duration) -> Vec<Arc<dyn Transport>> {
    let mut to: Vec<Vec<_>> = (0..ranks).map(|_| vec![]).collect();
    let mut from: Vec<Vec<_>> = (0..ranks).map(|_| vec![]).collect();
    for senders in &mut to {
        for receivers in &mut from {
            let (sender, receiver) = channel();
            senders.push(sender);
            receivers.push(Mutex::new(receiver));
        }
    }
    let ends = to.into_iter().zip(from).enumerate();
    ends.map(|(rank, (to, from))| {
        Arc::new(ThreadTransport { rank, to, from, patience }) as Arc<dyn Transport>
    })
    .collect()
}

/// As [`run_with`], with the default options.
///
/// # Errors
/// As [`run_with`].
pub fn run<R: Send>(ranks: usize, work: impl Fn(Arc<dyn Transport>) -> Result<R> + Sync) -> Result<Vec<R>> {
    run_with(ranks, &RunOptions::default(), work)
}

/// Runs `work` on as many threads as there are ranks; returns its results in their order.
///
/// When one rank stops, ranks that wait for it fail; a wait times out after the deadline.
///
/// # Errors
/// The error of the first rank that failed by itself, with its number; a panic of a rank counts as an error. Otherwise
/// the error of a rank that waited for one that has ended, or for longer than the deadline.
pub fn run_with<R: Send>(
    ranks: usize,
    options: &RunOptions,
    work: impl Fn(Arc<dyn Transport>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let work = &work;
    let outcomes: Vec<_> = thread::scope(|scope| {
        // The transport is dropped with the work, which tells the others.
        let start = |transport| scope.spawn(move || run_rank(|| work(transport)));
        let threads: Vec<_> = connect(ranks, options.deadline).into_iter().map(start).collect();
        // Panics of the work are caught.
        let ended = |_| Err(Error::internal("the thread of a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(ended)).collect()
    });
    let mut failed = BTreeMap::new();
    let mut results = vec![];
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(result) => results.push(result),
            Err(e) => _ = failed.insert((e.kind() == ErrorKind::Rank, rank), e),
        }
    }
    match failed.pop_first() {
        None => Ok(results),
        Some(((_, rank), e)) => Err(Error::new(e.kind(), format!("rank {rank}: {e}"))),
    }
}
