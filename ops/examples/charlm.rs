//! Character-level language model of the founding documents of the United States.
//!
//! ```text
//! cargo run --release --example charlm -- [--seed N] [--checkpoint FILE [--resume]] [--record DIR] [--validate] [--device PLUGIN]
//! ```
//!
//! A GRU is trained on the first nine tenths of the text, by truncated backpropagation through time, and evaluated on
//! the last tenth, in bits per character. A bigram model is evaluated on the same text for comparison. Then the network
//! generates text. The last line is a JSON object with the results. With `--checkpoint`, the state of training is saved
//! after each epoch; with `--resume`, a killed run goes on with it and ends in the same bits.
//! With `--record`, the run is recorded, and `autobwd verify-run DIR` replays it: the state that a window hands to the next
//! one is fed, so it is data of the step.
//! With `--device`, programs run on the first device of a PJRT plugin.

use std::{io::Read, path::PathBuf, time::Instant};

use autobwd::{
    Builder, DType, Error, ErrorKind, Program, Result, Scope, Tensor,
    exec::{
        Checkpoint,
        record::{RecordOptions, RunRecord},
    },
};
use autobwd_data::Progress;
use autobwd_ops::{
    Math,
    nn::{Dropout, Embedding, Gru, Linear},
    optim::{Adam, Optimizer},
};
use autobwd_xla::Backend;
use clap::Parser;
use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::json;

// Chosen by `--validate`, without the held-out text.
const WIDTH: usize = 64;
const UNITS: usize = 256;
const DROPOUT: f32 = 0.4;
const LEARNING_RATE: f32 = 0.003;
const EPOCHS: usize = 40;
/// Batch size: positions of the text that are read in parallel.
const BATCH: usize = 32;
/// Length of a window in characters; gradients do not cross its border.
const WINDOW: usize = 64;
/// Steps between two checkpoints in a record.
const SAVED: u64 = 500;
/// Added to the count of each bigram.
const SMOOTHING: f64 = 0.05;
/// Number of characters to generate.
const SAMPLE: usize = 600;
/// Below 1, likely characters are generated more often than their probability.
const TEMPERATURE: f64 = 0.7;

/// Trains a character-level language model of the founding documents of the United States.
#[derive(Parser)]
struct Options {
    /// Seed of initial weights, positions of windows, and generated text
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The file of checkpoints, saved after each epoch
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on with the checkpoint, if there is one
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// The folder of a record of the training run, which must not have one unless the run is resumed
    #[arg(long, value_name = "DIR", conflicts_with = "device")]
    record: Option<PathBuf>,
    /// Ignore the held-out text; hold out the last tenth of the rest instead
    #[arg(long)]
    validate: bool,
    /// The PJRT plugin, a shared library, on whose first device to run, instead of the host
    #[arg(long, value_name = "PLUGIN")]
    device: Option<PathBuf>,
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("data/us-founding-documents.txt.gz")[..]).read_to_string(&mut text)?;
    let alphabet = Alphabet::of(&text);
    let mut ids = alphabet.ids(&text);
    if options.validate {
        ids.truncate(ids.len() * 9 / 10);
    }
    // A held-out character is predicted from the character before it.
    let training = &ids[..ids.len() * 9 / 10];
    let held_out = &ids[training.len() - 1..];

    let model = Model::new(alphabet.0.len(), &mut rng)?;
    let mut backend = Backend::open(options.device.as_deref())?;
    let start = Instant::now();
    let peak_bytes = model.train(&mut backend, training, &mut rng, &options)?;
    let train_seconds = start.elapsed().as_secs_f64();

    let bits = model.bits(&mut backend, held_out)?;
    let bigram_bits = bigram_bits(training, held_out, alphabet.0.len());
    println!("held out: {bits:.3} bits per character, {bigram_bits:.3} by pairs of characters\n");
    let written = model.write(&mut backend, &alphabet.ids("\n\nSection 1\n\n"), &mut rng)?;
    println!("{}\n", alphabet.text(&written).trim());
    let results = json!({
        "bits_per_character": bits,
        "bigram_bits_per_character": bigram_bits,
        "train_seconds": train_seconds,
        "peak_bytes": peak_bytes,
    });
    println!("{results}");
    Ok(())
}

/// The characters of a text, in order.
struct Alphabet(Vec<char>);

impl Alphabet {
    fn of(text: &str) -> Alphabet {
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        Alphabet(characters)
    }

    fn ids(&self, text: &str) -> Vec<i64> {
        text.chars().filter_map(|c| self.0.binary_search(&c).ok()).map(|id| id as i64).collect()
    }

    fn text(&self, ids: &[i64]) -> String {
        ids.iter().map(|id| self.0[*id as usize]).collect()
    }
}

/// A network that predicts the next character.
struct Model {
    startup: Program,
    /// Inputs: `characters` and the initial `state`. Outputs: `scores` and the state `after`.
    reader: Program,
    scores: String,
    after: String,
    /// One training step; takes the next characters, `next`, as well.
    training: Program,
    loss: String,
}

impl Model {
    fn new(characters: usize, rng: &mut Pcg64Mcg) -> Result<Model> {
        let net = Builder::new();
        let x = net.input("characters", DType::I64, &[-1, -1]);
        let state = net.input("state", DType::F32, &[-1, UNITS as i64]);
        let table = Embedding::builder(&net, characters, WIDTH).seed(rng.random()).build();
        let gru = Gru::builder(&net, WIDTH, UNITS).seed(rng.random()).build();
        let out = Linear::builder(&net, UNITS, characters).seed(rng.random()).build();

        let (hidden, after) = gru.forward_with(&table.forward(&x), Some(&[state]), None);
        let scores = out.forward(&hidden);
        let reader = net.program()?.clone();

        let next = net.input("next", DType::I64, &[-1, -1, 1]);
        let kept = Dropout::new(&net, DROPOUT, rng.random()).forward(&hidden);
        let loss = out.forward(&kept).cross_entropy(&next).mean();
        Adam::new(LEARNING_RATE).minimize(&loss)?.complete()?;

        let (startup, training) = (net.startup().program()?.clone(), net.program()?.clone());
        let (scores, after, loss) = (scores.name(), after[0].name(), loss.name());
        Ok(Model { startup, reader, scores, after, training, loss })
    }

    /// Initialises and trains the weights. Returns the memory of a step on the host in bytes, without the weights.
    fn train(
        &self,
        backend: &mut Backend,
        ids: &[i64],
        rng: &mut Pcg64Mcg,
        options: &Options,
    ) -> Result<Option<usize>> {
        // Equal parts of the text make a batch; their start differs in each epoch.
        let starts: Vec<usize> = (0..EPOCHS).map(|_| rng.random_range(0..WINDOW)).collect();
        let data = format!("{} characters and seed {}", ids.len(), options.seed);
        let mut epoch = 0;
        match options.checkpoint.as_ref().filter(|path| options.resume && path.exists()) {
            Some(path) => {
                let mut values = Scope::new();
                let checkpoint = Checkpoint::load(path, &self.training, &mut values)?;
                if let Some(warning) = checkpoint.warning() {
                    eprintln!("warning: {warning}");
                }
                let saved = checkpoint.note("data")?;
                if saved != data {
                    let text = format!("`{}` is for {saved}, not {data}", path.display());
                    return Err(Error::new(ErrorKind::Checkpoint, text));
                }
                backend.set_values(&values)?;
                epoch = checkpoint.step() as usize;
                println!("resumed after epoch {epoch}");
            }
            None => drop(backend.run(&self.startup, &[], &[])?),
        }
        let part = |start: usize| (ids.len() - start - 1) / BATCH;
        let step = starts.iter().take(epoch).map(|start| part(*start) / WINDOW).sum::<usize>() as u64;
        let mut record = match (&options.record, &*backend) {
            (Some(folder), Backend::Host(_, scope)) if step == 0 => {
                let recorded = RecordOptions::new().checkpoint_every(SAVED).startup(&self.startup);
                Some(RunRecord::create(folder, &self.training, scope, recorded.note("data", &data))?)
            }
            (Some(folder), Backend::Host(_, scope)) => {
                Some(RunRecord::resume(folder, &self.training, scope, step)?)
            }
            _ => None,
        };
        let zeros = Tensor::zeros(DType::F32, &[BATCH, UNITS])?;
        let mut characters = Tensor::zeros(DType::I64, &[WINDOW, BATCH])?;
        let mut next = Tensor::zeros(DType::I64, &[WINDOW, BATCH, 1])?;

        let progress = Progress::new(EPOCHS as u64).resume_at(epoch as u64);
        for start in &starts[epoch.min(EPOCHS)..] {
            let (ids, part) = (&ids[*start..], part(*start));
            let mut state = zeros.clone();
            let mut sum = 0.0;
            for window in 0..part / WINDOW {
                let (now, then) = (characters.slice_mut::<i64>()?, next.slice_mut::<i64>()?);
                for (i, (now, then)) in now.iter_mut().zip(then).enumerate() {
                    let at = i % BATCH * part + window * WINDOW + i / BATCH;
                    (*now, *then) = (ids[at], ids[at + 1]);
                }
                let feeds = [("characters", &characters), ("next", &next), ("state", &state)];
                let mut fetched = backend.run(&self.training, &feeds, &[&self.loss, &self.after])?;
                if let (Some(record), Backend::Host(_, scope)) = (&mut record, &*backend) {
                    record.step(&feeds, scope)?;
                }
                // Gradients stop at the end of a window; the state is carried on.
                state = fetched.remove(1);
                sum += fetched[0].item()?;
            }
            epoch += 1;
            if let Some(path) = &options.checkpoint {
                let checkpoint = Checkpoint::new(epoch as u64).with_note("data", &data);
                checkpoint.save(path, &self.training, &backend.values()?)?;
            }
            let bits = sum / (part / WINDOW) as f64 / std::f64::consts::LN_2;
            if epoch % 5 == 0 {
                progress.suspend(|| println!("epoch {epoch:3}  bits per character {bits:.3}"));
            }
            progress.advance();
        }
        drop(progress);
        if let (Some(record), Backend::Host(_, scope)) = (record, &*backend) {
            record.finish(scope)?;
        }
        let feeds = [("characters", characters.meta()), ("next", next.meta()), ("state", zeros.meta())];
        Ok(match backend {
            Backend::Host(executor, scope) => {
                let session = executor.prepare(&self.training, scope, &feeds, &[&self.loss, &self.after])?;
                Some(session.peak_bytes())
            }
            Backend::Device(..) => None,
        })
    }

    /// Cross entropy of a text in bits per character, without the first one.
    fn bits(&self, backend: &mut Backend, ids: &[i64]) -> Result<f64> {
        let (now, next) = (&ids[..ids.len() - 1], &ids[1..]);
        let (scores, _) = self.read(backend, now, &Tensor::zeros(DType::F32, &[1, UNITS])?)?;
        let scores = scores.slice::<f32>()?;
        let rows = scores.chunks(scores.len() / next.len());
        let bits =
            rows.zip(next).map(|(scores, next)| -libm::log2(probabilities(scores, 1.0)[*next as usize]));
        Ok(bits.sum::<f64>() / next.len() as f64)
    }

    /// Generates text that continues these characters.
    fn write(&self, backend: &mut Backend, start: &[i64], rng: &mut Pcg64Mcg) -> Result<Vec<i64>> {
        let mut written = start.to_vec();
        let mut state = Tensor::zeros(DType::F32, &[1, UNITS])?;
        let mut read = 0;
        while written.len() < SAMPLE {
            let (scores, after) = self.read(backend, &written[read..], &state)?;
            let scores = scores.slice::<f32>()?;
            let last = &scores[scores.len() / (written.len() - read) * (written.len() - read - 1)..];
            let mut chance: f64 = rng.random();
            let chosen = probabilities(last, TEMPERATURE).iter().position(|p| {
                chance -= p;
                chance < 0.0
            });
            (state, read) = (after, written.len());
            written.push(chosen.unwrap_or(0) as i64);
        }
        Ok(written)
    }

    /// Scores after each of these characters, and the state after the last.
    fn read(&self, backend: &mut Backend, ids: &[i64], state: &Tensor) -> Result<(Tensor, Tensor)> {
        let characters = Tensor::from_vec([ids.len(), 1], ids.to_vec())?;
        let feeds = [("characters", &characters), ("state", state)];
        let mut fetched = backend.run(&self.reader, &feeds, &[&self.scores, &self.after])?;
        let after = fetched.remove(1);
        Ok((fetched.remove(0), after))
    }
}

/// Softmax of scores divided by a temperature.
fn probabilities(scores: &[f32], temperature: f64) -> Vec<f64> {
    let max = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<f64> = scores.iter().map(|s| libm::exp(f64::from(s - max) / temperature)).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

/// Cross entropy of the bigram model in bits per character.
fn bigram_bits(training: &[i64], held_out: &[i64], characters: usize) -> f64 {
    let mut counts = vec![vec![SMOOTHING; characters]; characters];
    for pair in training.windows(2) {
        counts[pair[0] as usize][pair[1] as usize] += 1.0;
    }
    let bits = held_out.windows(2).map(|pair| {
        let counts = &counts[pair[0] as usize];
        -libm::log2(counts[pair[1] as usize] / counts.iter().sum::<f64>())
    });
    bits.sum::<f64>() / (held_out.len() - 1) as f64
}
