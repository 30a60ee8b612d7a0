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
//! It needs Open MPI or MPICH with their headers, and libclang (Debian: `libopenmpi-dev openmpi-bin libclang-dev`). A run
//! of `mpirun` ends when one of its processes is killed; `mpirun` then names its rank.

use std::{
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use autobwd::{Error, ErrorKind, Result, parallel::Transport};
use mpi::{
    Threading,
    datatype::{Buffer, Equivalence},
    point_to_point::{Destination, Source},
    request::{LocalScope, Request, scope},
    topology::{Communicator, SimpleCommunicator},
};

/// How long a rank waits for another.
const PATIENCE: Duration = Duration::from_secs(60);

/// Messages are sent in parts of at most this many bytes: MPI counts with 32 bits.
const PART: usize = 1 << 30;

/// Tests of a request before a waiting rank lets others run: a few microseconds.
const SPINS: usize = 200;

/// A process of a run of `mpirun`.
#[derive(Debug)]
struct MpiTransport {
    rank: usize,
    ranks: usize,
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
                    received.push((*from, part.len(), process.immediate_receive_into(scope, part)));
                }
            }
            let mut sent = vec![];
            for (to, message) in send {
                let process = peer(*to)?;
                for part in message.chunks(PART) {
                    sent.push((*to, process.immediate_send(scope, part)));
                }
            }
            let start = Instant::now();
            let mut fits = Ok(());
            for (from, len, request) in received {
                let count = wait(&world, start, from, request);
                if count != len {
                    let text = format!(
                        "rank {from} has sent {count} bytes, not {len}: its program or its data differ"
                    );
                    fits = Err(Error::new(ErrorKind::Rank, text));
                }
            }
            for (to, request) in sent {
                wait(&world, start, to, request);
            }
            fits
        })
    }
}

/// Waits for the end of a message; returns its length in bytes. MPI cannot give memory back before, so if the other
/// rank does not answer, the run ends.
fn wait<'a, B: ?Sized + Buffer>(
    world: &SimpleCommunicator,
    start: Instant,
    other: usize,
    request: Request<'a, B, &LocalScope<'a>>,
) -> usize {
    let mut request = request;
    let mut spins = 0;
    loop {
        match request.test() {
            Ok(status) => return usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0),
            Err(again) => request = again,
        }
        spins += 1;
        if spins % SPINS == 0 {
            thread::yield_now();
            if start.elapsed() > PATIENCE {
                eprintln!("rank {}: rank {other} has not answered within {PATIENCE:?}", world.rank());
                world.abort(1);
            }
        }
    }
}

/// Runs the work of this process with its connection to the others. The `main` of a program ends with it.
///
/// An error of a rank is written to stderr, with its number, and ends all ranks; so does a rank that another one has
/// waited for longer than a minute.
pub fn run(work: impl FnOnce(Arc<dyn Transport>) -> Result<()>) -> ExitCode {
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        eprintln!("MPI runs in this process already, or cannot be started");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    let (rank, ranks) = (count(world.rank()), count(world.size()));
    if let Err(e) = work(Arc::new(MpiTransport { rank, ranks })) {
        eprintln!("rank {rank}: {e}");
        world.abort(1);
    }
    ExitCode::SUCCESS
}
