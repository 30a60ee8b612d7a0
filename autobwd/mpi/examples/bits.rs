//! Checks that training on ranks is bit-identical to training in one process.
//!
//! ```text
//! mpirun -n 2 cargo run --release -p autobwd-mpi --example bits
//! ```
//!
//! Each rank trains small models on data of its own, with gradients that are exchanged in buckets of three sizes, and
//! with optimizer state in parts. The example checks that the result is bit-identical to one process that accumulates
//! the same batches. Rank 0 prints a JSON object for each model.

use std::{process::ExitCode, sync::Arc};

use autobwd::{Error, ErrorKind, Result, parallel::Transport};
use autobwd_ops::optim::{Adam, Momentum, Sgd};
use autobwd_tests::training_case::{TrainedValues, TrainingCase};
use serde_json::json;

fn main() -> ExitCode {
    autobwd_mpi::run(|transport| {
        let (adam, sgd) = (Adam::new(0.01), Sgd { rate: 0.1 });
        let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
        check("mlp", &TrainingCase::mlp(&adam)?, &transport)?;
        check("digits", &TrainingCase::digits(&momentum)?, &transport)?;
        check("lstm", &TrainingCase::lstm(&sgd)?, &transport)?;
        check("gpt", &TrainingCase::gpt(&adam, false)?, &transport)
    })
}

fn check(name: &str, model: &TrainingCase, transport: &Arc<dyn Transport>) -> Result<()> {
    let merged = model.merged(transport.ranks())?;
    for bucket_bytes in [0, 1000, 1 << 20] {
        let how = format!("`{name}` in buckets of {bucket_bytes} bytes");
        compare(&how, &model.train(transport.clone(), bucket_bytes)?, &merged)?;
    }
    let sharded = model.train_sharded(transport.clone())?;
    // Parts of optimizer state have other names.
    let whole: TrainedValues =
        merged.iter().filter(|(name, _)| sharded.iter().any(|(own, _)| own == name)).cloned().collect();
    let own = sharded.into_iter().filter(|(name, _)| !name.ends_with("@SHARD")).collect();
    compare(&format!("`{name}` with optimizer state in parts"), &own, &whole)?;
    if transport.rank() == 0 {
        println!(
            "{}",
            json!({ "model": name, "ranks": transport.ranks(), "values": merged.len(), "same_bits": true })
        );
    }
    Ok(())
}

fn compare(how: &str, found: &TrainedValues, merged: &TrainedValues) -> Result<()> {
    let different = found.iter().zip(merged).find(|(found, merged)| found != merged);
    let text = match different {
        _ if found.len() != merged.len() => format!("{} values, not {}", found.len(), merged.len()),
        Some(((name, _), _)) => format!("other bits of `{name}`"),
        None => return Ok(()),
    };
    Err(Error::new(ErrorKind::Rank, format!("{how}: {text} than one process")))
}
