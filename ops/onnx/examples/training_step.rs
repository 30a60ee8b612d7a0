//! Writes a whole training step — network, gradients, Adam — as a model of standard ONNX operators:
//! `cargo run -p autobwd-onnx --example training_step -- step.onnx`, then `python ops/onnx/examples/train.py step.onnx`
//! trains with ONNX Runtime.

use std::error::Error;

use autobwd::{Builder, DType, Executor, Scope};
use autobwd_ops::{
    Math, Model,
    nn::Linear,
    optim::{Adam, Optimizer},
};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: training_step FILE")?;
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[32, 2]), net.input("y", DType::I64, &[32, 1]));
    let hidden = Linear::builder(&net, 2, 16).seed(1).build().forward(&x).tanh();
    let loss = Linear::builder(&net, 16, 2).seed(2).build().forward(&hidden).cross_entropy(&y).mean();
    Adam::new(0.01).minimize(&loss)?.complete()?;
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let model = Model {
        program: net.program()?.clone(),
        feeds: vec!["x".into(), "y".into()],
        fetches: vec![loss.name()],
        scope,
    };
    autobwd_onnx::save(&model, &path)?;
    println!("wrote `{path}`, with inputs x and y and output {}", loss.name());
    Ok(())
}
