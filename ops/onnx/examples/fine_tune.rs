//! Trains a classifier of images further, on generated images: those of class 1 are bright on the left.
//!
//! ```sh
//! pip download rapidocr-onnxruntime==1.4.4 --no-deps -d target && unzip -q target/rapidocr_onnxruntime-*.whl -d target/rapidocr
//! cargo run --release -p autobwd-onnx --example fine_tune -- target/rapidocr/rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx
//! ```

use std::process::ExitCode;

use autobwd::{DType, Error, ErrorKind, Executor, Feed, Result, Tensor};
use autobwd_ops::{
    Math, Model,
    optim::{Optimizer, Sgd},
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Images of a step, and their height and width.
const BATCH: usize = 16;
const SIZE: [usize; 2] = [48, 192];
const STEPS: usize = 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let path = std::env::args().nth(1);
    let path =
        path.ok_or_else(|| Error::new(ErrorKind::Io, "give the path of a classifier, an .onnx file"))?;
    let mut model = autobwd_onnx::load(path)?;
    let trained = model.train(&[])?;
    println!("{} parameters are trained", trained.len());

    let net = model.builder();
    let labels = net.input("labels", DType::I64, &[-1, 1]);
    let loss = net.expr(&scores(&model)?).mean_cross_entropy(&labels);
    Sgd { rate: 0.02 }.minimize(&loss)?.complete()?;
    let mut executor = Executor::new();
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;

    let program = net.program()?;
    let mut random = Pcg64::seed_from_u64(1);
    for step in 1..=STEPS {
        let (images, labels) = batch(&mut random)?;
        let feeds: [(&str, &dyn Feed); 2] = [(&model.feeds[0], &images), ("labels", &labels)];
        let fetched = executor.run(&program, &mut model.scope, &feeds, &[&loss.name()])?;
        println!("step {step}: loss {:.4}", fetched[0].item()?);
    }
    Ok(())
}

/// What the last softmax reads: cross-entropy is computed from it with less rounding.
fn scores(model: &Model) -> Result<String> {
    let softmax = model.program.root().ops.iter().rev().find(|op| &*op.ty == "softmax");
    let read = softmax.and_then(|op| op.reads().next()).map(|var| model.program.name(var).to_string());
    read.ok_or_else(|| Error::new(ErrorKind::Program, "the model does not end with a softmax"))
}

/// Images, `[n, 3, height, width]` from −1 to 1, and their labels.
fn batch(random: &mut Pcg64) -> Result<(Tensor, Tensor)> {
    let ([height, width], mut pixels, mut labels) = (SIZE, vec![], vec![]);
    for _ in 0..BATCH {
        let label = i64::from(random.random::<bool>());
        for _ in 0..3 * height {
            for x in 0..width {
                let bright = if (x < width / 2) == (label == 1) { 0.5 } else { -0.5 };
                pixels.push(bright + random.random_range(-0.5..0.5_f32));
            }
        }
        labels.push(label);
    }
    Ok((Tensor::from_vec([BATCH, 3, height, width], pixels)?, Tensor::from_vec([BATCH, 1], labels)?))
}
