//! The training loop.

use std::{path::PathBuf, time::Instant};

use autobwd::{
    Error, ErrorKind, Result, Scope,
    exec::{
        Checkpoint,
        record::{RecordOptions, RunRecord},
    },
};
use autobwd_data::Progress;
use autobwd_xla::Backend;

use crate::{
    batches::{self, BATCH, EPOCHS},
    data::{self, Image},
    network::Network,
};

/// Steps between two hashes of the state in a record.
const HASHED: u64 = 10;
/// Steps between two checkpoints in a record.
const SAVED: u64 = 440;

/// The file of checkpoints.
pub(crate) struct CheckpointFile {
    pub(crate) path: PathBuf,
    /// Whether training goes on with the checkpoint in it, if there is one.
    pub(crate) resume: bool,
}

/// What is written during training.
#[derive(Default)]
pub(crate) struct TrainingFiles {
    pub(crate) checkpoint: Option<CheckpointFile>,
    /// The folder of a record, with the seed as a note.
    pub(crate) record: Option<(PathBuf, u64)>,
}

/// Results of training.
pub(crate) struct Trained {
    /// Epoch by epoch.
    pub(crate) epochs: Vec<Epoch>,
    /// Duration in seconds, including tests.
    pub(crate) seconds: f64,
    /// Memory of a step on the host in bytes, without the weights.
    pub(crate) peak_bytes: Option<usize>,
}

/// One pass over the training images.
pub(crate) struct Epoch {
    /// Mean loss of its batches.
    pub(crate) loss: f64,
    /// Test accuracy after it.
    pub(crate) accuracy: f64,
}

impl Trained {
    /// Final test accuracy.
    pub(crate) fn accuracy(&self) -> f64 {
        self.epochs.last().map_or(0.0, |e| e.accuracy)
    }
}

/// Initialises and trains the weights; prints a line for each epoch. `seed` is that of the order of images.
pub(crate) fn train(
    network: &Network,
    backend: &mut Backend,
    (images, test): (&[Image], &[Image]),
    seed: u64,
    files: &TrainingFiles,
) -> Result<Trained> {
    let file = files.checkpoint.as_ref();
    let mut loader = batches::loader(images, seed)?;
    let (mut step, mut epochs) = (0, vec![]);
    match file.filter(|file| file.resume && file.path.exists()) {
        Some(file) => {
            let mut values = Scope::new();
            let checkpoint = Checkpoint::load(&file.path, &network.training, &mut values)?;
            if let Some(warning) = checkpoint.warning() {
                eprintln!("warning: {warning}");
            }
            backend.set_values(&values)?;
            loader.resume(checkpoint.note("data")?)?;
            (step, epochs) = (checkpoint.step(), from_note(checkpoint.note("epochs")?)?);
            println!("resumed after epoch {}", epochs.len());
        }
        None => drop(backend.run(&network.startup, &[], &[])?),
    }
    let mut record = match (&files.record, &backend) {
        (Some((folder, seed)), Backend::Host(_, scope)) => Some(match step {
            0 => {
                let options = RecordOptions::new().every(HASHED).checkpoint_every(SAVED);
                let options = options.startup(&network.startup).note("seed", seed.to_string());
                RunRecord::create(folder, &network.training, scope, options)?
            }
            _ => RunRecord::resume(folder, &network.training, scope, step)?,
        }),
        _ => None,
    };

    let start = Instant::now();
    let progress = Progress::new(EPOCHS).resume_at(epochs.len() as u64);
    while loader.position().epoch < EPOCHS {
        let mut sum = 0.0;
        for batch in loader.epoch() {
            let batch = batch?;
            let feeds = [("pixels", batch.get("pixels")?), ("label", batch.get("label")?)];
            sum += backend.run(&network.training, &feeds, &[&network.loss])?[0].item()?;
            step += 1;
            if let (Some(record), Backend::Host(_, scope)) = (&mut record, &backend) {
                record.step(&feeds, scope)?;
            }
        }
        let loss = sum / loader.batches() as f64;
        let accuracy = network.reader.accuracy(backend, test)?;
        epochs.push(Epoch { loss, accuracy });
        progress.suspend(|| println!("epoch {:2}  loss {loss:.4}  accuracy {accuracy:.4}", epochs.len()));
        progress.advance();
        if let Some(file) = file {
            let checkpoint = Checkpoint::new(step).with_note("data", loader.state());
            let checkpoint = checkpoint.with_note("epochs", to_note(&epochs));
            checkpoint.save(&file.path, &network.training, &backend.values()?)?;
        }
    }
    drop(progress);
    if let (Some(record), Backend::Host(_, scope)) = (record, &backend) {
        record.finish(scope)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let peak_bytes = match backend {
        Backend::Host(executor, scope) => {
            let session =
                executor.prepare(&network.training, scope, &data::feeds(BATCH), &[&network.loss])?;
            Some(session.peak_bytes())
        }
        Backend::Device(..) => None,
    };
    Ok(Trained { epochs, seconds, peak_bytes })
}

/// Loss and accuracy of each epoch, as JSON.
fn to_note(epochs: &[Epoch]) -> String {
    serde_json::Value::from_iter(epochs.iter().map(|e| vec![e.loss, e.accuracy])).to_string()
}

fn from_note(note: &str) -> Result<Vec<Epoch>> {
    let epochs: Vec<(f64, f64)> = serde_json::from_str(note)
        .map_err(|e| Error::new(ErrorKind::Format, format!("the epochs of the checkpoint: {e}")))?;
    Ok(epochs.into_iter().map(|(loss, accuracy)| Epoch { loss, accuracy }).collect())
}
