//! Teaches a ViT the digits from 0 to 9 on 1,437 images, and classifies 360 others:
//! `cargo run --release -p autobwd-models --features images,tuning --example image_digits -- MODEL FOLDER`
//!
//! The model gets a new head for the ten classes. Images, lines of JSON and the result are written into the folder; the
//! command does the same with these: `autobwd tune MODEL FOLDER/learned.jsonl --image file --labels digit --new-head -o …`.
//! Prints a JSON line for each epoch, and one with the share of right answers.

use std::{error::Error, fs, path::Path, process::ExitCode};

use autobwd::{Executor, Tensor};
use autobwd_models::{FineTuning, ImageProcessor, Pretrained, class_names_of, read_images};
use flate2::read::GzDecoder;
use image::{GrayImage, Luma};
use serde_json::json;

/// Pixels along each side of an image.
const SIDE: usize = 8;
/// The largest value of a pixel.
const INK: u8 = 16;
/// Images that are not learned: every fifth.
const HELD_OUT: usize = 5;

/// Writes all images, and two files of lines with their paths and digits. Returns the paths of these files.
fn write_images(folder: &Path) -> Result<[String; 2], Box<dyn Error>> {
    fs::create_dir_all(folder.join("images"))?;
    let data = GzDecoder::new(&include_bytes!("../../examples/data/digits.csv.gz")[..]);
    let mut lines = [String::new(), String::new()];
    let rows = csv::ReaderBuilder::new().has_headers(false).from_reader(data).into_deserialize();
    for (number, row) in rows.enumerate() {
        let row: Vec<u8> = row?;
        let file = format!("images/{number}.png");
        let pixel = |x: u32, y: u32| Luma([u8::MAX / INK * row[y as usize * SIDE + x as usize].min(INK)]);
        GrayImage::from_fn(SIDE as u32, SIDE as u32, pixel).save(folder.join(&file))?;
        let part = &mut lines[usize::from(number % HELD_OUT == 0)];
        *part += &format!("{}\n", json!({ "file": file, "digit": row[SIDE * SIDE].to_string() }));
    }
    let mut paths = [String::new(), String::new()];
    for ((path, name), text) in paths.iter_mut().zip(["learned.jsonl", "held-out.jsonl"]).zip(lines) {
        fs::write(folder.join(name), text)?;
        *path = folder.join(name).display().to_string();
    }
    Ok(paths)
}

/// The share of the examples that the model classifies as they are labelled.
fn accuracy(folder: &Path, processor: &ImageProcessor, lines: &str) -> Result<f64, Box<dyn Error>> {
    let pretrained = Pretrained::open(folder);
    let mut model = pretrained.load()?;
    let mut executor = Executor::new();
    let names = class_names_of(lines, "digit")?;
    let (mut right, mut count) = (0, 0);
    for line in fs::read_to_string(lines)?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        let text = |field: &str| line[field].as_str().unwrap_or_default();
        let path = Path::new(lines).with_file_name(text("file"));
        let pixels: Tensor = processor.pixel_values(path)?;
        let logits = model.run_named(&mut executor, &[("pixel_values", &pixels)])?.swap_remove(0).1;
        let logits = logits.slice::<f32>()?;
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        right +=
            usize::from(best.and_then(|best| names.get(best)).map(String::as_str) == Some(text("digit")));
        count += 1;
    }
    Ok(f64::from(right as u32) / f64::from(count.max(1)))
}

fn run(model: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let [learned, held_out] = write_images(folder)?;
    let processor = ImageProcessor::open(model)?;
    let names = class_names_of(&learned, "digit")?;
    let [learned, evaluated] =
        [&learned, &held_out].map(|lines| read_images(lines, ["file", "digit"], &names, &processor));
    let tuning = FineTuning { epochs: 10, batch: 32, learning_rate: 2e-3, ..FineTuning::default() };
    let mut run = tuning.prepare(&Pretrained::open(model).classes(&names), learned?, evaluated?)?;
    eprint!("{}", run.summary());
    let of_epoch = run.summary().steps / tuning.epochs;
    while let Some(report) = run.step()? {
        eprint!("\rstep {} of {}, loss {:.3} ", report.step, run.summary().steps, report.loss);
        if report.step.is_multiple_of(of_epoch) {
            eprintln!();
            let evaluation = run.evaluate()?;
            println!(
                "{}",
                json!({ "epoch": report.step / of_epoch, "loss": report.loss, "held_out_loss": evaluation })
            );
        }
    }
    let result = folder.join("model");
    fs::create_dir_all(&result)?;
    run.save(&result)?;
    let accuracy = accuracy(&result, &processor, &held_out)?;
    println!("{}", json!({ "accuracy": accuracy, "model": result }));
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder] = &*arguments else {
        eprintln!("usage: image_digits MODEL FOLDER");
        return ExitCode::FAILURE;
    };
    match run(model, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("image_digits: {e}");
            ExitCode::FAILURE
        }
    }
}
