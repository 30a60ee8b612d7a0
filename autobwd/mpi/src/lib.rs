//! Data-parallel training on MPI: ranks of a run of `mpirun` as ranks of a program.
//!
//! [`run`] is the `main` of each process. It connects the ranks, runs its work, and makes an error of one rank end all:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use autobwd::{Executor, Program, Scope, parallel::{data_parallel, require_same_program, startup}};
//!
//! fn main() -> ExitCode {
//!     autobwd_mpi::run(|transport| {
//!         let program = Program::load("training-program.json")?;
//!         let step = data_parallel(&program, transport.ranks(), 1 << 22)?;
//!         require_same_program(&*transport, &step)?;
//!         let (mut scope, rank) = (Scope::new(), transport.rank());
//!         scope.load("weights.safetensors")?;
//!         let mut executor = Executor::with_threads(1).with_transport(transport);
//!         executor.run(&startup(&step, rank)?, &mut scope, &[], &[])?;
//!         for _ in 0..100 {
//!             executor.run(&step, &mut scope, &[], &[])?;
//!         }
//!         Ok(())
//!     })
//! }
//! ```
//!
//! ```text
//! mpirun -n 2 cargo run --release -p autobwd-mpi --example digits
//! ```
//!
//! A rank waits for another one for a minute, or for the deadline of [`run_with`].
//!
//! It needs Open MPI or MPICH with their headers, and libclang (Debian: `libopenmpi-dev openmpi-bin libclang-dev`). A run
//! of `mpirun` ends when one of its processes is killed; `mpirun` then names its rank.

use std::{
    io::Write,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use autobwd::{
    Error, ErrorKind, Result,
    parallel::{RunOptions, Transport, ended, run_rank},
};
use mpi::{
    Threading,
    datatype::{Buffer, Equivalence},
    point_to_point::{Destination, Source},
    request::{LocalScope, Request, scope},
    topology::{Communicator, Rank, SimpleCommunicator},
};

/// The tag of messages.
const MESSAGE: i32 = 0;
/// The tag by which a rank tells that its work has ended.
const END: i32 = 1;

/// How long a rank waits for a message of a rank that has ended: it was sent before the end.
const GRACE: Duration = Duration::from_secs(1);

/// How often a rank that has ended looks whether the others have.
const POLL: Duration = Duration::from_millis(1);

/// Messages are sent in parts of at most this many bytes: MPI counts with 32 bits.
const PART: usize = 1 << 30;

/// Tests of a request before a waiting rank lets others run: a few microseconds.
const SPINS: usize = 200;

/// A process of a run of `mpirun`.
#[derive(Debug)]
struct MpiTransport {
    rank: usize,
    ranks: usize,
    deadline: Duration,
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn transfer(&self, send: &[(usize, &[u8])], receive: &mut [(usize, &mut [u8])]) -> Result<()> {
        let world = SimpleCommunicator::world();
        let peer = |rank: usize| match i32::try_from(rank) {
            Ok(number) if rank < self.ranks => Ok(world.process_at_rank(number)),
            _ => Err(Error::new(ErrorKind::Rank, format!("there is no rank {rank}"))),
        };
        // No request may be left when an error is returned.
        send.iter()
            .map(|(to, _)| *to)
            .chain(receive.iter().map(|(from, _)| *from))
            .try_for_each(|rank| peer(rank).map(drop))?;
        scope(|scope| {
            let mut received = vec![];
            for (from, memory) in receive {
                let process = peer(*from)?;
                for part in memory.chunks_mut(PART) {
                    received.push((
                        *from,
                        part.len(),
                        process.immediate_receive_into_with_tag(scope, part, MESSAGE),
                    ));
                }
            }
            let mut sent = vec![];
            for (to, message) in send {
                let process = peer(*to)?;
                for part in message.chunks(PART) {
                    sent.push((*to, process.immediate_send_with_tag(scope, part, MESSAGE)));
                }
            }
            let start = Instant::now();
            let mut fits = Ok(());
            for (from, len, request) in received {
                let count = self.wait(&world, start, from, request);
                if count != len {
                    let text = format!(
                        "rank {from} has sent {count} bytes, not {len}: its program or its data differ"
                    );
                    fits = Err(Error::new(ErrorKind::Rank, text));
                }
            }
            for (to, request) in sent {
                self.wait(&world, start, to, request);
            }
            fits
        })
    }
}

impl MpiTransport {
    /// Waits for the end of a message; returns its length in bytes. MPI cannot give memory back before, so if the other
    /// rank has ended or does not answer, the run ends.
    fn wait<'a, B: ?Sized + Buffer>(
        &self,
        world: &SimpleCommunicator,
        start: Instant,
        other: usize,
        request: Request<'a, B, &LocalScope<'a>>,
    ) -> usize {
        let mut request = request;
        let (mut spins, mut end) = (0, None);
        loop {
            match request.test() {
                Ok(status) => return usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0),
                Err(again) => request = again,
            }
            spins += 1;
            if spins % SPINS != 0 {
                continue;
            }
            thread::yield_now();
            if end.is_none() && has_ended(world, other) {
                end = Some(Instant::now());
            }
            if end.is_some_and(|end| end.elapsed() > GRACE) {
                fail(world, &ended(other));
            }
            if start.elapsed() > self.deadline {
                fail(world, &format!("rank {other} has not answered within {:?}", self.deadline));
            }
        }
    }

    /// Tells the others that the work of this rank has ended, and waits for their ends, however long they work.
    fn end(&self, world: &SimpleCommunicator) {
        let others = || {
            (0..self.ranks).filter(|other| *other != self.rank).filter_map(|other| Rank::try_from(other).ok())
        };
        for other in others() {
            // So short a message needs no receiver.
            world.process_at_rank(other).send_with_tag(&[0_u8], END);
        }
        for other in others() {
            while world.process_at_rank(other).immediate_probe_with_tag(END).is_none() {
                thread::sleep(POLL);
            }
            world.process_at_rank(other).receive_into_with_tag(&mut [0_u8], END);
        }
    }
}

/// Whether another rank has told that its work has ended.
fn has_ended(world: &SimpleCommunicator, other: usize) -> bool {
    Rank::try_from(other)
        .is_ok_and(|other| world.process_at_rank(other).immediate_probe_with_tag(END).is_some())
}

/// Ends all ranks.
fn fail(world: &SimpleCommunicator, text: &str) -> ! {
    // One write, or messages of other processes may come between its parts.
    let text = format!("rank {}: {text}\n", world.rank());
    _ = std::io::stderr().write_all(text.as_bytes());
    world.abort(1)
}

/// As [`run_with`], with the default options.
pub fn run(work: impl FnOnce(Arc<dyn Transport>) -> Result<()>) -> ExitCode {
    run_with(&RunOptions::default(), work)
}

/// Runs the work of this process with its connection to the others. The `main` of a program ends with it.
///
/// An error or a panic of a rank is written to stderr, with its number, and ends all ranks; so does a rank that waits for
/// one whose work has ended, or for longer than the deadline.
///
/// ```no_run
/// use std::{process::ExitCode, time::Duration};
/// use autobwd::parallel::RunOptions;
///
/// fn main() -> ExitCode {
///     // Rank 0 may evaluate the model for an hour while the others wait for it.
///     let options = RunOptions { deadline: Duration::from_secs(3600) };
///     autobwd_mpi::run_with(&options, |transport| {
///         println!("rank {} of {}", transport.rank(), transport.ranks());
///         Ok(())
///     })
/// }
/// ```
pub fn run_with(options: &RunOptions, work: impl FnOnce(Arc<dyn Transport>) -> Result<()>) -> ExitCode {
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        eprintln!("MPI runs in this process already, or cannot be started");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    let (rank, ranks) = (count(world.rank()), count(world.size()));
    let transport = || MpiTransport { rank, ranks, deadline: options.deadline };
    // Unwinding would end in the end of MPI, which waits for all ranks.
    match run_rank(|| work(Arc::new(transport()))) {
        Ok(()) => transport().end(&world),
        Err(e) => fail(&world, &e.to_string()),
    }
    ExitCode::SUCCESS
}
