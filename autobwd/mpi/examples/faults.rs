//! What happens to a run when one of its ranks fails, ends early or is late.
//!
//! ```text
//! mpirun -n 2 cargo run -p autobwd-mpi --example faults -- panic
//! ```
//!
//! Rank 1 does as it is told in its fifth exchange: `error`, `panic`, `end` (its work is done), `sleep` (for three
//! seconds), or `none`. `--deadline MILLISECONDS` is how long the others wait for it.

use std::{process::ExitCode, sync::Arc, thread, time::Duration};

use autobwd::{
    Error, ErrorKind, Result,
    parallel::{RunOptions, Transport},
};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, ValueEnum)]
enum Fault {
    None,
    Error,
    Panic,
    End,
    Sleep,
}

#[derive(Parser)]
struct Arguments {
    fault: Fault,
    #[arg(long, default_value_t = 60_000)]
    deadline: u64,
    /// Bytes of a message
    #[arg(long, default_value_t = 8)]
    bytes: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = RunOptions { deadline: Duration::from_millis(arguments.deadline) };
    autobwd_mpi::run_with(&options, |transport| work(&arguments, transport))
}

/// Sends numbers around the ring of ranks.
fn work(arguments: &Arguments, transport: Arc<dyn Transport>) -> Result<()> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let mut received = vec![0; arguments.bytes];
    for exchange in 0..10_u8 {
        if rank == 1 && exchange == 4 {
            match arguments.fault {
                Fault::None => {}
                Fault::Error => return Err(Error::new(ErrorKind::Data, "no batch")),
                Fault::Panic => panic!("no batch"),
                Fault::End => return Ok(()),
                Fault::Sleep => thread::sleep(Duration::from_secs(3)),
            }
        }
        let sent = vec![exchange; arguments.bytes];
        transport.transfer(&[(next, &sent)], &mut [(before, &mut received)])?;
        assert_eq!(received, sent);
    }
    println!("rank {rank} has ended");
    Ok(())
}
