//! Training in 16 bits, compared with training in float32.
//!
//! ```text
//! cargo run --release --example mixed_precision -- [--steps N] [--seeds N] [--model NAME]
//! ```
//!
//! Trains a convolutional network on handwritten digits (`lenet`), and a recurrent network (`charlm`) and a transformer
//! (`gpt`) on the founding documents of the United States, in float32, bfloat16 and float16, each from several seeds of
//! the initial weights and the data. Prints a JSON line for each run: the mean loss of the last tenth of its steps, and
//! the milliseconds of a step.

use std::{error::Error, io::Read, time::Instant};

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    nn::{Conv2d, Embedding, Gru, LayerNorm, Linear, MultiHeadAttention, Pool2d},
    optim::{Adam, Optimizer},
    positions,
};
use clap::Parser;
use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::json;

/// Characters of a window.
const WINDOW: usize = 32;
/// Examples of a batch.
const BATCH: usize = 16;
/// Pixels along each side of an image.
const SIDE: usize = 8;

/// Trains networks in float32 and in 16 bits.
#[derive(Parser)]
struct Options {
    /// Steps of each run
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: usize,
    /// Runs of each model in each dtype
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: u64,
    /// One of lenet, charlm and gpt, instead of all
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

/// Inputs and labels: the elements of each example.
struct Data {
    inputs: Vec<Vec<f32>>,
    labels: Vec<i64>,
    classes: usize,
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (digits, text) = (digits()?, text()?);
    for (name, data, build) in [
        ("lenet", &digits, lenet as fn(&Builder, usize, &mut Pcg64Mcg) -> Expr),
        ("charlm", &text, charlm),
        ("gpt", &text, gpt),
    ] {
        if options.model.as_ref().is_some_and(|model| model != name) {
            continue;
        }
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for seed in 0..options.seeds {
                let (loss, ms) = run(data, build, dtype, seed, options.steps)?;
                println!(
                    "{}",
                    json!({"model": name, "dtype": dtype.name(), "seed": seed, "loss": loss, "step_ms": ms})
                );
            }
        }
    }
    Ok(())
}

/// Trains a model. Returns the mean loss of the last tenth of the steps, and the median of the milliseconds of a step.
fn run(
    data: &Data,
    build: impl Fn(&Builder, usize, &mut Pcg64Mcg) -> Expr,
    dtype: DType,
    seed: u64,
    steps: usize,
) -> Result<(f64, f64)> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let net = Builder::new();
    let loss = build(&net, data.classes, &mut rng);
    let adam = Adam::new(0.002);
    match dtype {
        DType::F32 => adam.minimize(&loss)?.complete()?,
        dtype => adam.mixed_precision(dtype).minimize(&loss)?.complete()?,
    };
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (program, name) = (net.program()?.clone(), loss.name());
    let (mut losses, mut times) = (vec![], vec![]);
    for _ in 0..steps {
        let (x, y) = if data.inputs.is_empty() { windows(data, &mut rng)? } else { images(data, &mut rng)? };
        let start = Instant::now();
        losses.push(executor.run(&program, &mut scope, &[("x", &x), ("y", &y)], &[&name])?[0].item()?);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let last = &losses[losses.len() - losses.len().div_ceil(10)..];
    times.sort_by(f64::total_cmp);
    Ok((last.iter().sum::<f64>() / last.len() as f64, times[times.len() / 2]))
}

fn lenet(net: &Builder, classes: usize, rng: &mut Pcg64Mcg) -> Expr {
    let x = net.input("x", DType::F32, &[BATCH as i64, 1, SIDE as i64, SIDE as i64]);
    let y = net.input("y", DType::I64, &[BATCH as i64, 1]);
    let mut conv =
        |inputs, outputs| Conv2d::builder(net, inputs, outputs, 5).padding(2).seed(rng.random()).build();
    let (first, second) = (conv(1, 20), conv(20, 50));
    let x = Pool2d::max(2).stride(2).forward(&first.forward(&x).relu());
    let x = Pool2d::max(2).stride(2).forward(&second.forward(&x).relu()).flatten(1, -1);
    let x = Linear::builder(net, 200, 500).seed(rng.random()).build().forward(&x).relu();
    Linear::builder(net, 500, classes).seed(rng.random()).build().forward(&x).mean_cross_entropy(&y)
}

/// The inputs of a model of text, `[batch, window]`: characters, and the characters after them.
fn characters(net: &Builder) -> [Expr; 2] {
    let dims = [BATCH as i64, WINDOW as i64];
    [net.input("x", DType::I64, &dims), net.input("y", DType::I64, &[dims[0], dims[1], 1])]
}

fn charlm(net: &Builder, classes: usize, rng: &mut Pcg64Mcg) -> Expr {
    let [x, y] = characters(net);
    let x = Embedding::builder(net, classes, 64).seed(rng.random()).build().forward(&x);
    let (hidden, _) = Gru::builder(net, 64, 128).seed(rng.random()).build().forward(&x.transpose(&[1, 0, 2]));
    let scores = Linear::builder(net, 128, classes).seed(rng.random()).build().forward(&hidden);
    scores.transpose(&[1, 0, 2]).mean_cross_entropy(&y)
}

fn gpt(net: &Builder, classes: usize, rng: &mut Pcg64Mcg) -> Expr {
    const WIDTH: usize = 64;
    let [x, y] = characters(net);
    let table = Embedding::builder(net, classes, WIDTH).seed(rng.random()).build();
    let places = Embedding::builder(net, WINDOW, WIDTH).seed(rng.random()).build();
    let place = positions(net, &(WINDOW as i64).into());
    let mut x = table.forward(&x) + places.forward(&place);
    for _ in 0..2 {
        let normed = LayerNorm::builder(net, WIDTH).build().forward(&x);
        let attention = MultiHeadAttention::builder(net, WIDTH, 4).causal().seed(rng.random()).build();
        x = &x + &attention.forward(&normed);
        let normed = LayerNorm::builder(net, WIDTH).build().forward(&x);
        let hidden =
            Linear::builder(net, WIDTH, 4 * WIDTH).seed(rng.random()).build().forward(&normed).gelu(false);
        x = &x + &Linear::builder(net, 4 * WIDTH, WIDTH).seed(rng.random()).build().forward(&hidden);
    }
    let normed = LayerNorm::builder(net, WIDTH).build().forward(&x);
    Linear::builder(net, WIDTH, classes).seed(rng.random()).build().forward(&normed).mean_cross_entropy(&y)
}

fn digits() -> std::result::Result<Data, Box<dyn Error>> {
    let file = GzDecoder::new(&include_bytes!("data/digits.csv.gz")[..]);
    let mut data = Data { inputs: vec![], labels: vec![], classes: 10 };
    for row in csv::ReaderBuilder::new().has_headers(false).from_reader(file).into_deserialize() {
        let row: Vec<u8> = row?;
        let (pixels, label) = row.split_at(SIDE * SIDE);
        data.inputs.push(pixels.iter().map(|pixel| f32::from(*pixel) / 16.0).collect());
        data.labels.push(label[0].into());
    }
    Ok(data)
}

fn text() -> std::result::Result<Data, Box<dyn Error>> {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("data/us-founding-documents.txt.gz")[..]).read_to_string(&mut text)?;
    let mut alphabet: Vec<char> = text.chars().collect();
    alphabet.sort_unstable();
    alphabet.dedup();
    let labels = text.chars().filter_map(|c| alphabet.binary_search(&c).ok()).map(|id| id as i64).collect();
    Ok(Data { inputs: vec![], labels, classes: alphabet.len() })
}

fn images(data: &Data, rng: &mut Pcg64Mcg) -> Result<(Tensor, Tensor)> {
    let (mut x, mut y) = (vec![], vec![]);
    for _ in 0..BATCH {
        let i = rng.random_range(0..data.labels.len());
        x.extend_from_slice(&data.inputs[i]);
        y.push(data.labels[i]);
    }
    Ok((Tensor::from_vec([BATCH, 1, SIDE, SIDE], x)?, Tensor::from_vec([BATCH, 1], y)?))
}

fn windows(data: &Data, rng: &mut Pcg64Mcg) -> Result<(Tensor, Tensor)> {
    let (mut x, mut y) = (vec![], vec![]);
    for _ in 0..BATCH {
        let i = rng.random_range(0..data.labels.len() - WINDOW);
        x.extend_from_slice(&data.labels[i..][..WINDOW]);
        y.extend_from_slice(&data.labels[i + 1..][..WINDOW]);
    }
    Ok((Tensor::from_vec([BATCH, WINDOW], x)?, Tensor::from_vec([BATCH, WINDOW, 1], y)?))
}
