//! Trains a classifier of handwritten digits on several ranks.
//!
//! ```text
//! mpirun -n 2 cargo run --release -p autobwd-mpi --example digits -- [--seed N] [--epochs N] [--checkpoint FILE [--resume]] [--record DIR]
//! ```
//!
//! Each rank trains on its share of every batch, and gradients are averaged over all. Rank 0 prints the mean loss of
//! each epoch, and a JSON object with the accuracy on images that were not trained on. It saves a checkpoint after each
//! epoch, which all ranks read to go on: ranks have equal values, and each counts its own share of the data. With `--record`,
//! each rank records its run: `autobwd verify-run DIR/rank-0 DIR/rank-1` replays both together.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use autobwd::{
    Builder, DType, Error, ErrorKind, Executor, Feed, Result, Scope, Tensor,
    exec::{
        Checkpoint,
        record::{RecordOptions, RunRecord},
    },
    parallel::{Transport, all_reduce_sum, data_parallel, require_same_program, startup},
};
use autobwd_data::{Dataset, Loader, TensorDataset};
use autobwd_ops::{
    Math,
    nn::Linear,
    optim::{Adam, Optimizer},
};
use clap::Parser;
use flate2::read::GzDecoder;
use rand::{SeedableRng, seq::SliceRandom};
use rand_pcg::Pcg64Mcg;
use serde_json::json;

/// Pixels of an image.
const PIXELS: usize = 64;
/// Images trained on; the others are for the test.
const TRAINING: usize = 1437;
/// Images of a step, on all ranks together.
const BATCH: usize = 32;

/// Trains a classifier of handwritten digits on several ranks.
#[derive(Parser)]
struct Options {
    /// Seed of the order of images and of the initial weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Number of passes over the images
    #[arg(long, value_name = "N", default_value_t = 20)]
    epochs: usize,
    /// The file of checkpoints, saved after each epoch
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on with the checkpoint, if there is one
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// The folder of the records of all ranks, `rank-0` and so on, which must not have any
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    autobwd_mpi::run(|transport| train(&options, transport))
}

fn train(options: &Options, transport: Arc<dyn Transport>) -> Result<()> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    if !BATCH.is_multiple_of(ranks) {
        return Err(Error::new(
            ErrorKind::Rank,
            format!("{ranks} ranks do not divide a batch of {BATCH} images"),
        ));
    }
    let images = images()?;
    let mut order: Vec<usize> = (0..images.len()).collect();
    order.shuffle(&mut Pcg64Mcg::seed_from_u64(options.seed));
    let [training, test] = [&order[..TRAINING], &order[TRAINING..]].map(|part| images.batch(part));
    let (training, test) = (training?, test?);

    // Describe the network, once for all ranks.
    let net = Builder::new();
    let seed = i32::try_from(options.seed % 1000).unwrap_or(0);
    let linear = |inputs, outputs| Linear::builder(&net, inputs, outputs).seed(seed).build();
    let pixels = net.input("pixels", DType::F32, &[-1, PIXELS as i64]);
    let scores = linear(128, 10).forward(&linear(PIXELS, 128).forward(&pixels).relu());
    let answer = scores.argmax(1).name();
    let reader = net.program()?.clone();
    let loss = scores.mean_cross_entropy(&net.input("label", DType::I64, &[-1, 1]));
    let total = all_reduce_sum(&loss).name();
    Adam::new(0.004).minimize(&loss)?.complete()?;
    let step = data_parallel(&net.program()?, ranks, 1 << 22)?;
    require_same_program(&*transport, &step)?;

    // Train: one thread a rank, and the weights of rank 0 at the start.
    let (mut executor, mut scope) = (Executor::with_threads(1).with_transport(transport), Scope::new());
    let mut recorded = RecordOptions::new().note("rank", rank.to_string());
    for start in [net.startup().program()?.clone(), startup(&step, rank)?] {
        executor.run(&start, &mut scope, &[], &[])?;
        recorded = recorded.startup(&start);
    }
    let folder = options.record.as_ref().map(|folder| folder.join(format!("rank-{rank}")));
    let mut record = folder.map(|folder| RunRecord::create(folder, &step, &scope, recorded)).transpose()?;
    let training = TensorDataset::new(training.iter().map(|(name, field)| (name, field.clone())))?;
    let loader = Loader::builder(training).batch(BATCH / ranks).shuffle(options.seed).drop_last(true);
    let mut loader = loader.shard(rank, ranks).build()?;
    let mut first = 1;
    if let Some(path) = options.checkpoint.as_ref().filter(|path| options.resume && path.exists()) {
        let checkpoint = Checkpoint::load(path, &step, &mut scope)?;
        loader.resume(checkpoint.note("data")?)?;
        first += checkpoint.step() as usize;
        if rank == 0 {
            if let Some(warning) = checkpoint.warning() {
                eprintln!("warning: {warning}");
            }
            println!("resumed after epoch {}", first - 1);
        }
    }
    for epoch in first..=options.epochs {
        let (mut sum, mut steps) = (0.0, 0);
        for batch in loader.epoch() {
            let batch = batch?;
            let fields = [("pixels", batch.get("pixels")?), ("label", batch.get("label")?)];
            let feeds = fields.map(|(name, field)| (name, field as &dyn Feed));
            sum += executor.run(&step, &mut scope, &feeds, &[&total])?[0].item()? / ranks as f64;
            if let Some(record) = &mut record {
                record.step(&fields, &scope)?;
            }
            steps += 1;
        }
        if rank == 0 {
            println!("epoch {epoch}: loss {:.4}", sum / f64::from(steps));
            if let Some(path) = &options.checkpoint {
                let checkpoint = Checkpoint::new(epoch as u64).with_note("data", loader.state());
                checkpoint.save(path, &step, &scope)?;
            }
        }
    }

    if let Some(record) = record {
        record.finish(&scope)?;
    }

    // Test.
    if rank == 0 {
        let found = executor.run(&reader, &mut scope, &[("pixels", test.get("pixels")?)], &[&answer])?;
        let labels = test.get("label")?.to_f64s();
        let right = found[0].to_f64s().iter().zip(&labels).filter(|(found, label)| found == label).count();
        println!("{}", json!({ "accuracy": right as f64 / labels.len() as f64, "ranks": ranks }));
    }
    Ok(())
}

/// The images: `pixels` from 0 to 1, `[n, PIXELS]`, row by row, and `label`, the digit that each shows, `[n, 1]`.
fn images() -> Result<TensorDataset> {
    let invalid = |text: String| Error::new(ErrorKind::Format, text);
    let file = GzDecoder::new(&include_bytes!("../../../ops/examples/data/digits.csv.gz")[..]);
    let (mut pixels, mut labels) = (vec![], vec![]);
    for row in csv::ReaderBuilder::new().has_headers(false).from_reader(file).into_deserialize() {
        let row: Vec<u8> = row.map_err(|e| invalid(e.to_string()))?;
        let (Some(image), Some(label)) = (row.first_chunk::<PIXELS>(), row.get(PIXELS)) else {
            return Err(invalid(format!("a row of {} numbers", row.len())));
        };
        pixels.extend(image.map(|pixel| f32::from(pixel) / 16.0));
        labels.push(i64::from(*label));
    }
    let n = labels.len();
    TensorDataset::new([
        ("pixels", Tensor::from_vec([n, PIXELS], pixels)?),
        ("label", Tensor::from_vec([n, 1], labels)?),
    ])
}
