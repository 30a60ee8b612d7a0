//! Times of this and of another library in turn: a machine that slows down slows both.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use autobwd::Result;
use serde_json::Value;

use crate::{BenchResult, median, peak_gflops};

/// The rounds of a measurement.
pub const ROUNDS: usize = 5;
/// The most rounds that are tried.
pub const MOST_ROUNDS: usize = 15;

/// A process that measures another library when it is asked to: it answers each line with milliseconds.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the process; returns it, and the JSON line that it prints first.
    ///
    /// # Errors
    /// It cannot be started, or prints none.
    pub fn start(command: &mut Command) -> BenchResult<(Peer, Value)> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take().ok_or("no standard input")?;
        let answers = process.stdout.take().ok_or("no standard output")?;
        let mut peer = Peer { process, requests, answers: BufReader::new(answers) };
        let first = loop {
            let line = peer.line()?;
            if line.starts_with('{') {
                break serde_json::from_str(&line)?;
            }
        };
        Ok((peer, first))
    }

    fn line(&mut self) -> BenchResult<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err("the process of the other library has ended".into()),
            _ => Ok(line),
        }
    }

    fn ms(&mut self) -> BenchResult<f64> {
        writeln!(self.requests)?;
        self.requests.flush()?;
        Ok(self.line()?.trim().parse()?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Nothing depends on how it ends.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// Milliseconds here and there, and their ratio: the medians of rounds.
#[derive(Clone, Copy, Debug)]
pub struct InTurn {
    /// Milliseconds here.
    pub ours: f64,
    /// Milliseconds of the other library.
    pub theirs: f64,
    /// The median of the ratios of the rounds.
    pub ratio: f64,
    /// Whether each thread had a core of its own in these rounds, by the peak rate of the threads.
    pub own_cores: bool,
}

impl InTurn {
    /// Measures here, then there, [`ROUNDS`] times. Two processors of a virtual machine are one core from time to time,
    /// which slows a library more the nearer it comes to the peak: such rounds are repeated, up to [`MOST_ROUNDS`].
    ///
    /// # Errors
    /// Those of the measurements.
    pub fn measure(
        threads: usize,
        mut ours: impl FnMut() -> Result<f64>,
        peer: &mut Peer,
    ) -> BenchResult<InTurn> {
        let (mut on_own_cores, mut on_shared_cores) = (vec![], vec![]);
        while on_own_cores.len() < ROUNDS && on_own_cores.len() + on_shared_cores.len() < MOST_ROUNDS {
            let before = have_own_cores(threads);
            let round = (ours()?, peer.ms()?);
            let rounds =
                if before && have_own_cores(threads) { &mut on_own_cores } else { &mut on_shared_cores };
            rounds.push(round);
        }
        let own_cores = on_own_cores.len() == ROUNDS;
        if !own_cores {
            on_own_cores.append(&mut on_shared_cores);
        }
        let rounds = on_own_cores;
        let ratio = median(rounds.iter().map(|(ours, theirs)| ours / theirs).collect());
        let (ours, theirs) = rounds.into_iter().unzip();
        Ok(InTurn { ours: median(ours), theirs: median(theirs), ratio, own_cores })
    }
}

/// Whether threads are as fast together as cores are.
fn have_own_cores(threads: usize) -> bool {
    // Threads of libraries spin for some time after their work.
    thread::sleep(Duration::from_millis(20));
    let best = |threads| (0..3).map(|_| peak_gflops(threads)).fold(0.0, f64::max);
    threads == 1 || best(threads) > 0.8 * threads as f64 * best(1)
}
