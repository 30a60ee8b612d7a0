//! Trains classifiers of 2-D points in eager mode.
//!
//! ```text
//! cargo run --release --example tape -- [--seed N] [--points N] [--epochs N] [--out DIR] [simple diagonal …]
//! ```
//!
//! A network with two hidden layers learns each of the six point sets of MiniTorch. No program is described:
//! expressions are computed as `Network::forward` runs, and `minimize` runs the backward pass over their tape. Prints
//! the loss and the number of correct points during training and a JSON object for each set at the end, and draws each
//! set with the learned decision boundary.

mod pictures;
mod points;

use std::{error::Error, path::PathBuf, time::Instant};

use autobwd::{Builder, Expr, Result, Tensor, tensor::write_atomically};
use autobwd_data::Progress;
use autobwd_ops::{
    Init, Math,
    nn::Linear,
    optim::{Adam, Optimizer},
};
use clap::Parser;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde_json::json;

use points::{Point, SETS};

/// Neurons in a hidden layer.
const WIDTH: usize = 16;
const RATE: f32 = 0.02;

/// Trains classifiers of 2-D points in eager mode.
#[derive(Parser)]
struct Options {
    /// Seed of points and initial weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Number of points in a set
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..))]
    points: u16,
    /// Number of passes over all points
    #[arg(long, value_name = "N", default_value_t = 2000)]
    epochs: u64,
    /// Where pictures are written
    #[arg(long, value_name = "DIR", default_value = "target/tape")]
    out: PathBuf,
    /// Names of point sets; all by default
    #[arg(value_parser = SETS.map(|(name, _)| name))]
    sets: Vec<String>,
}

/// Maps the coordinates of a point to the logit of the second class.
struct Network(Linear, Linear, Linear);

impl Network {
    fn new(tape: &Builder, seed: u64) -> Network {
        let linear = |inputs, outputs, number: u64| {
            let seed = (seed as i32).wrapping_mul(3).wrapping_add(number as i32 + 1);
            Linear::builder(tape, inputs, outputs).init(Init::KaimingUniform).seed(seed).build()
        };
        Network(linear(2, WIDTH, 0), linear(WIDTH, WIDTH, 1), linear(WIDTH, 1, 2))
    }

    fn forward(&self, x: &Expr) -> Expr {
        let hidden = self.1.forward(&self.0.forward(x).relu()).relu();
        self.2.forward(&hidden)
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let options = Options::parse();
    std::fs::create_dir_all(&options.out)?;
    let wanted = |name: &str| options.sets.is_empty() || options.sets.iter().any(|set| set == name);
    for (name, set) in SETS.into_iter().filter(|(name, _)| wanted(name)) {
        let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
        let points = set(usize::from(options.points), &mut rng);
        let start = Instant::now();
        let tape = autobwd::tape::eager_with_threads(1);
        let network = Network::new(&tape, options.seed);
        let loss = train(&tape, &network, name, &points, options.epochs)?;
        let seconds = start.elapsed().as_secs_f64();
        let accuracy = right(&tape, &network, &points)? as f64 / points.len() as f64;
        let file = options.out.join(format!("{name}.svg"));
        write_atomically(
            &file,
            pictures::boundary(name, &points, |grid| odds(&tape, &network, grid))?.as_bytes(),
        )?;
        let results = json!({ "set": name, "loss": loss, "accuracy": accuracy, "train_seconds": seconds });
        println!("{results}");
    }
    Ok(())
}

/// Trains on all points in one batch, for `epochs` steps; returns the last loss.
fn train(tape: &Builder, network: &Network, name: &str, points: &[Point], epochs: u64) -> Result<f64> {
    let kinds = points.iter().map(|point| f32::from(u8::from(point.second))).collect();
    let (x, y) = (coordinates(tape, points)?, tape.constant(Tensor::from_vec([points.len(), 1], kinds)?));
    let optimizer = Adam::new(RATE);
    let progress = Progress::new(epochs);
    let mut last = f64::NAN;
    for epoch in 0..epochs {
        let loss = network.forward(&x).sigmoid_cross_entropy(&y).mean();
        optimizer.minimize(&loss)?.complete()?;
        last = loss.item()?;
        if epoch % 10 == 9 {
            let right = right(tape, network, points)?;
            progress.show(format!("{name}: loss {last:.4}, {right} of {} right", points.len()));
        }
        progress.advance();
    }
    Ok(last)
}

/// Number of points classified correctly.
fn right(tape: &Builder, network: &Network, points: &[Point]) -> Result<usize> {
    let odds = odds(tape, network, points)?;
    Ok(points.iter().zip(odds).filter(|(point, odds)| (*odds > 0.0) == point.second).count())
}

/// Logits of the second class.
fn odds(tape: &Builder, network: &Network, points: &[Point]) -> Result<Vec<f64>> {
    let x = coordinates(tape, points)?;
    // Inference needs no tape.
    tape.no_grad(|| Ok(network.forward(&x).tensor()?.to_f64s()))
}

fn coordinates(tape: &Builder, points: &[Point]) -> Result<Expr> {
    let all = points.iter().flat_map(|point| [point.x, point.y]).collect();
    Ok(tape.constant(Tensor::from_vec([points.len(), 2], all)?))
}
