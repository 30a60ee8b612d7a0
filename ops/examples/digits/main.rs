//! Trains a classifier of handwritten digits.
//!
//! ```text
//! cargo run --release --example digits -- [--seed N] [--optimizer SPEC] [--out DIR] [--checkpoint FILE [--resume]] [--record DIR] [--validate] [--device PLUGIN]
//! ```
//!
//! Describes a small network, trains it on 1,437 images of 8 × 8 pixels and tests it on 360 others. Each epoch prints
//! its mean loss and the test accuracy after it; the last line is a JSON object with the results. Files in the output
//! folder:
//!
//! - `program.txt`, `program.json`: the inference program, as text and for loading;
//! - `training-program.txt`, `training-program.json`: the training program with its backward pass and updates;
//! - `training-program.html`: a page of it, with the memory plan of a step;
//! - `weights.safetensors`: trained weights and optimizer state;
//! - `learning-curve.svg`: loss and test accuracy by epoch;
//! - `misread.svg`: misclassified test images.
//!
//! With `--checkpoint`, the state of training is saved after each epoch; with `--resume`, a killed run goes on with it and
//! ends in the same bits. With `--record`, the run is recorded, and `autobwd verify-run DIR` replays it. With `--device`, training runs on the first device of a PJRT plugin, a GPU's or a TPU's say.
//!
//! Finally, program and weights are loaded from these files and tested again.

mod batches;
mod data;
mod inference;
mod network;
mod pictures;
mod training;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use autobwd::{ErrorKind, Program, Scope, tensor::write_atomically, viewer::Page};
use autobwd_ops::optim::OptimizerSpec;
use autobwd_xla::Backend;
use clap::Parser;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::json;

use data::Image;
use network::{Network, Reader};
use training::{CheckpointFile, TrainingFiles};

/// With `--validate`: number of images to train with; the other training images are for validation.
const TRAINING_BEFORE_VALIDATION: usize = 1150;

/// Trains a classifier of handwritten digits.
#[derive(Parser)]
struct Options {
    /// Seed of the train/test split, initial weights and order of training
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The optimizer, with its learning rate and options
    #[arg(long, value_name = "SPEC", default_value = network::OPTIMIZER)]
    optimizer: OptimizerSpec,
    /// Where files are written
    #[arg(long, value_name = "DIR", default_value = "target/digits")]
    out: PathBuf,
    /// The file of checkpoints, saved after each epoch
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on with the checkpoint, if there is one
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// The folder of a record of the training run, which must not have one unless the run is resumed
    #[arg(long, value_name = "DIR", conflicts_with = "device")]
    record: Option<PathBuf>,
    /// Hold out a part of the training images, print the accuracy on it and stop
    #[arg(long)]
    validate: bool,
    /// The PJRT plugin, a shared library, on whose first device to train, instead of the host
    #[arg(long, value_name = "PLUGIN")]
    device: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let out = |file: &str| options.out.join(file);
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
    let (training, test) = data::split(data::read()?, data::TRAINING, &mut rng);
    let mut backend = Backend::open(options.device.as_deref())?;
    if options.validate {
        return validate(training, &mut rng, &mut backend, &options.optimizer);
    }

    // Describe the network, and write it before training, so that an output folder without write access fails early.
    let network = Network::new(&mut rng, &options.optimizer)?;
    create_folder(&options.out)?;
    write_atomically(out("program.txt"), network.reader.program.to_string().as_bytes())?;
    network.reader.program.save(out("program.json"))?;
    write_atomically(out("training-program.txt"), network.training.to_string().as_bytes())?;
    network.training.save(out("training-program.json"))?;
    let page = Page::new(&network.training).title("A training step of digits");
    let page = page.feeds(&data::feeds(batches::BATCH)).to_html()?;
    write_atomically(out("training-program.html"), page.as_bytes())?;

    // Train it.
    let files = TrainingFiles {
        checkpoint: options.checkpoint.map(|path| CheckpointFile { path, resume: options.resume }),
        record: options.record.map(|folder| (folder, options.seed)),
    };
    let images = (&training[..], &test[..]);
    let trained = training::train(&network, &mut backend, images, rng.random(), &files)?;
    backend.values()?.save(out("weights.safetensors"))?;

    // Draw the results.
    let answers = network.reader.read(&mut backend, &test)?;
    write_atomically(out("learning-curve.svg"), pictures::learning_curve(&trained.epochs)?.as_bytes())?;
    write_atomically(out("misread.svg"), pictures::misread(&test, &answers)?.as_bytes())?;

    // Load program and weights from the files.
    let program = Program::load(out("program.json"))?;
    let reader = Reader { program, ..network.reader };
    let mut weights = Scope::new();
    weights.load(out("weights.safetensors"))?;
    backend.set_values(&weights)?;
    let reloaded = reader.accuracy(&mut backend, &test)?;

    let results = json!({
        "test_accuracy": trained.accuracy(),
        "reloaded_test_accuracy": reloaded,
        "train_seconds": trained.seconds,
        "peak_bytes": trained.peak_bytes,
    });
    println!("{results}");
    Ok(())
}

/// Creates the output folder, unless it is there.
fn create_folder(path: &Path) -> autobwd::Result<()> {
    let cannot = |e| format!("cannot create `{}`: {e}", path.display());
    fs::create_dir_all(path).map_err(|e| autobwd::Error::new(ErrorKind::Io, cannot(e)))
}

/// Cross-validation on the training images, for choosing layers, rate and epochs.
fn validate(
    images: Vec<Image>,
    rng: &mut Pcg64Mcg,
    backend: &mut Backend,
    optimizer: &OptimizerSpec,
) -> Result<(), Box<dyn Error>> {
    let (training, validation) = data::split(images, TRAINING_BEFORE_VALIDATION, rng);
    let network = Network::new(rng, optimizer)?;
    let images = (&training[..], &validation[..]);
    let trained = training::train(&network, backend, images, rng.random(), &TrainingFiles::default())?;
    println!("{}", json!({ "validation_accuracy": trained.accuracy(), "train_seconds": trained.seconds }));
    Ok(())
}
