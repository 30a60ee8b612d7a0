//! Finds the texts of a folder that are near to a question, by the vectors of a model such as all-MiniLM-L6-v2:
//! `cargo run --release -p autobwd-models --features text --example search -- MODEL FOLDER QUESTION`
//!
//! Prints a JSON line for each of the nearest paragraphs: the cosine of the angle between the vectors, the file, and the
//! text.

use std::{error::Error, fs, path::Path, process::ExitCode};

use autobwd::{Executor, Feed, Tensor};
use autobwd_models::{Pretrained, Tokenizer, mean_pooling};
use autobwd_ops::Model;
use serde_json::json;

/// Tokens of a text that count.
const LONGEST: usize = 256;
/// Texts in a run of the model.
const BATCH: usize = 16;
/// Paragraphs that are printed.
const SHOWN: usize = 5;

struct Encoder {
    model: Model,
    tokenizer: Tokenizer,
    executor: Executor,
    vectors: String,
}

impl Encoder {
    fn open(path: &str) -> autobwd::Result<Encoder> {
        let mut model = Pretrained::open(path).input("attention_mask").load()?;
        let net = model.builder();
        let vectors = mean_pooling(&net.expr(&model.fetches[0]), &net.expr("attention_mask")).name();
        model.program = net.program()?.clone();
        Ok(Encoder { model, tokenizer: Tokenizer::open(path)?, executor: Executor::new(), vectors })
    }

    /// A vector of length 1 for each text.
    fn encode(&mut self, texts: &[&str]) -> autobwd::Result<Vec<Vec<f32>>> {
        let rows =
            texts.iter().map(|text| self.tokenizer.encode(text)).collect::<autobwd::Result<Vec<_>>>()?;
        let length = rows.iter().map(Vec::len).max().unwrap_or(1).clamp(1, LONGEST);
        let (mut ids, mut mask) = (vec![], vec![]);
        for row in &rows {
            let token = |at: usize| row.get(at).copied();
            ids.extend((0..length).map(|at| token(at).unwrap_or(0)));
            mask.extend((0..length).map(|at| i64::from(token(at).is_some())));
        }
        let dims = [texts.len(), length];
        let (ids, mask) = (Tensor::from_vec(dims, ids)?, Tensor::from_vec(dims, mask)?);
        let feeds: [(&str, &dyn Feed); 2] = [("input_ids", &ids), ("attention_mask", &mask)];
        let Model { program, scope, .. } = &mut self.model;
        let found = self.executor.run(&*program, scope, &feeds, &[&self.vectors])?;
        let width = found[0].dims()[1];
        let unit = |vector: &[f32]| {
            let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            vector.iter().map(|x| x / norm).collect()
        };
        Ok(found[0].slice::<f32>()?.chunks(width).map(unit).collect())
    }
}

/// The paragraphs of all texts in a folder, with their files.
fn paragraphs(folder: &Path, found: &mut Vec<(String, String)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            paragraphs(&path, found)?;
        } else if let Ok(text) = fs::read_to_string(&path) {
            let parts = text.split("\n\n").map(str::trim).filter(|part| part.split_whitespace().count() > 4);
            found.extend(parts.map(|part| (path.display().to_string(), part.to_string())));
        }
    }
    Ok(())
}

fn run(model: &str, folder: &str, question: &str) -> Result<(), Box<dyn Error>> {
    let mut encoder = Encoder::open(model)?;
    let mut texts = vec![];
    paragraphs(Path::new(folder), &mut texts)?;
    let asked = encoder.encode(&[question])?.remove(0);
    // Texts of like length together, so that there is little padding.
    texts.sort_by_key(|(_, text)| text.len());
    let mut near: Vec<(f32, &(String, String))> = vec![];
    for (done, part) in texts.chunks(BATCH).enumerate() {
        eprint!("\r{} of {} paragraphs", done * BATCH, texts.len());
        let vectors = encoder.encode(&part.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>())?;
        let cosine = |vector: &Vec<f32>| vector.iter().zip(&asked).map(|(a, b)| a * b).sum();
        near.extend(vectors.iter().map(cosine).zip(part));
    }
    eprintln!();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (cosine, (file, text)) in near.iter().take(SHOWN) {
        println!("{}", json!({ "cosine": cosine, "file": file, "text": text }));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder, question] = &*arguments else {
        eprintln!("usage: search MODEL FOLDER QUESTION");
        return ExitCode::FAILURE;
    };
    match run(model, folder, question) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("search: {e}");
            ExitCode::FAILURE
        }
    }
}
