//! Which training digits hurt which test digits, exactly.
//!
//! ```text
//! cargo run --release --example leave_one_out -- [--training N] [--test N] [--seed N] [--threads N] [--out DIR]
//! ```
//!
//! Trains a softmax regression on images of digits, and again without each of the images: the change of a test digit's loss
//! is what the missing image did to it. Runs have no noise, so even small changes are real. Influence functions
//! (P. W. Koh, P. Liang, "Understanding Black-box Predictions via Influence Functions", 2017) approximate the same change
//! by one Newton step from the trained weights, `gᵀ H⁻¹ gᵢ / n`, with the gradients `g` of a test digit and `gᵢ` of the
//! image, and the Hessian `H` of the loss.
//!
//! The output folder gets `influence.svg`, exact changes by approximate ones, and `hurt.svg`: test digits, each with the
//! training digits that raise its loss most. The last line is a JSON object with the results.

#[allow(dead_code)] // The example `digits` reads batches, too.
#[path = "../digits/data.rs"]
mod data;
mod influence;
mod pictures;
mod regression;

use std::{error::Error, fs, path::PathBuf, time::Instant};

use autobwd::{Executor, tensor::write_atomically};
use clap::Parser;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde_json::json;

use data::Image;
use influence::influences;
use regression::{Digits, Training};

/// Retrains a classifier of digits without each of its images.
#[derive(Parser)]
struct Options {
    /// The number of training images
    #[arg(long, value_name = "N", default_value_t = 600)]
    training: usize,
    /// The number of test images
    #[arg(long, value_name = "N", default_value_t = 100)]
    test: usize,
    /// The seed of the choice of images
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The number of threads; results do not depend on it
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Where files are written
    #[arg(long, value_name = "DIR", default_value = "target/leave_one_out")]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    fs::create_dir_all(&options.out)?;
    let (training, test) = images(&options)?;
    let (digits, tests) = (Digits::new(&training)?, Digits::new(&test)?);
    let mut executor = Executor::with_threads(options.threads);

    // Train with all images, and once more without each.
    let mut run = Training::new(&mut executor, digits.len())?;
    let all = run.losses_without(&mut executor, None, &digits, &tests)?;
    let (start, mut exact) = (Instant::now(), vec![]);
    for image in 0..digits.len() {
        let losses = run.losses_without(&mut executor, Some(image), &digits, &tests)?;
        exact.push(losses.iter().zip(&all).map(|(loss, all)| loss - all).collect::<Vec<f64>>());
    }
    let seconds = start.elapsed().as_secs_f64();

    // Approximate the same changes.
    run.losses_without(&mut executor, None, &digits, &tests)?;
    let start = Instant::now();
    let approximate = influences(&mut executor, run.scope(), &digits, &tests)?;
    let influence_seconds = start.elapsed().as_secs_f64();

    // Draw them.
    let out = |file: &str| options.out.join(file);
    write_atomically(out("influence.svg"), pictures::scatter(&exact, &approximate)?.as_bytes())?;
    write_atomically(out("hurt.svg"), pictures::harmful(&training, &test, &exact)?.as_bytes())?;
    let results = json!({
        "retrainings": digits.len(),
        "retrainings_per_minute": (60.0 * digits.len() as f64 / seconds).round(),
        "influence_seconds": influence_seconds,
        "correlation": correlation(&exact.concat(), &approximate.concat()),
    });
    println!("{results}");
    Ok(())
}

/// The images for training and for the test.
fn images(options: &Options) -> Result<(Vec<Image>, Vec<Image>), Box<dyn Error>> {
    let (all, needed) = (data::read()?, options.training + options.test);
    if options.training == 0 || options.test == 0 || needed > all.len() {
        let text = format!("at least one image each is needed, and at most {} together", all.len());
        return Err(text.into());
    }
    let (training, mut test) = data::split(all, options.training, &mut Pcg64Mcg::seed_from_u64(options.seed));
    test.truncate(options.test);
    Ok((training, test))
}

/// Pearson's correlation of two lists.
fn correlation(x: &[f64], y: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.sum::<f64>();
    let xy = sum(&mut x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)));
    let xx = sum(&mut x.iter().map(|x| (x - mean_x) * (x - mean_x)));
    let yy = sum(&mut y.iter().map(|y| (y - mean_y) * (y - mean_y)));
    xy / (xx * yy).sqrt()
}
