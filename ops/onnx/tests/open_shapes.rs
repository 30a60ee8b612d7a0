//! Programs with unknown dimensions, written for any size and read again for some.

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor, gradients};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Math, Model,
    nn::{BatchNorm, Conv2d, LayerNorm, Linear, MultiHeadAttention, Pool2d},
    optim::{Optimizer, Sgd},
};

/// The program with its parameters.
fn model(net: &Builder, feeds: &[&str], fetches: Vec<String>) -> Result<Model> {
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let program = net.program()?.clone();
    Ok(Model { program, feeds: feeds.iter().map(|name| (*name).into()).collect(), fetches, scope })
}

fn numbers(dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7 % 11) as f32 * 0.2 - 1.0).collect())
}

fn labels(dims: &[usize], classes: usize) -> Result<Tensor> {
    Tensor::from_vec(dims, (0..dims.iter().product()).map(|i: usize| (i * 5 % classes) as i64).collect())
}

/// Compares results with those of the written model, for inputs of each size.
fn assert_same(model: &mut Model, inputs: &[Vec<Tensor>]) -> Result<()> {
    let bytes = to_bytes(model)?;
    let mut executor = Executor::with_threads(1);
    for inputs in inputs {
        let shapes = model.feeds.iter().zip(inputs);
        let shapes = shapes.map(|(name, input)| (name.clone(), input.dims().to_vec())).collect();
        let mut read = from_bytes(&bytes, &LoadOptions { shapes, ..LoadOptions::default() })?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let (results, expected) = (read.run(&mut executor, &inputs)?, model.run(&mut executor, &inputs)?);
        for ((result, expected), name) in results.iter().zip(&expected).zip(&model.fetches) {
            assert_eq!(result.dims(), expected.dims(), "`{name}`");
            // Some gradients are 0 but for rounding.
            let largest = expected.to_f64s().iter().fold(1e-2, |m: f64, x| m.max(x.abs()));
            for (x, y) in result.to_f64s().iter().zip(expected.to_f64s()) {
                assert!((x - y).abs() <= 1e-5 * largest, "`{name}`: {x} is not {y}");
            }
        }
    }
    Ok(())
}

/// A recogniser of lines of text: images `[batch, 1, 8, width]` to classes for each column.
fn recogniser(net: &Builder) -> Expr {
    let x = net.input("x", DType::F32, &[-1, 1, 8, -1]);
    let conv = Conv2d::builder(net, 1, 6, 3).padding(1).bias(None).seed(1).build().forward(&x);
    let conv = BatchNorm::builder(net, 6).build().forward(&conv).relu().max_pool2d(2, 2);
    let conv = Conv2d::builder(net, 6, 4, 3).padding(1).stride(2).seed(2).build().forward(&conv).relu();
    let columns = conv.reshape(&[0, 8, -1]).transpose(&[0, 2, 1]);
    let norm = LayerNorm::builder(net, 8).build();
    let attention = MultiHeadAttention::builder(net, 8, 2).seed(3).build();
    let columns = &columns + attention.forward(&norm.forward(&columns));
    let columns = LayerNorm::builder(net, 8).build().forward(&columns);
    Linear::builder(net, 8, 5).seed(4).build().forward(&columns)
}

#[test]
fn a_text_recogniser_takes_images_of_any_number_and_width() -> Result<()> {
    let net = Builder::new();
    let classes = recogniser(&net).softmax(-1);
    let mut model = model(&net, &["x"], vec![classes.name()])?;
    assert_same(&mut model, &[vec![numbers(&[1, 1, 8, 16])?], vec![numbers(&[3, 1, 8, 29])?]])
}

#[test]
fn gradients_of_a_text_recogniser_are_written_for_any_size() -> Result<()> {
    let net = Builder::new();
    let loss = recogniser(&net).square().mean();
    let mut program = net.program()?.clone();
    let parameters: Vec<String> = program.parameters().map(|var| program.name(var).to_string()).collect();
    let wanted: Vec<&str> = parameters.iter().map(String::as_str).collect();
    let found = gradients(&mut program, &[&loss.name()], &wanted, &Default::default())?;
    assert_eq!(found.pairs.len(), wanted.len());
    let fetches = found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
    let scope = model(&net, &[], vec![])?.scope;
    let mut model = Model { program, feeds: vec!["x".into()], fetches, scope };
    assert_same(&mut model, &[vec![numbers(&[1, 1, 8, 16])?], vec![numbers(&[3, 1, 8, 30])?]])
}

#[test]
fn a_training_step_of_a_perceptron_takes_any_batch() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 4]), net.input("y", DType::I64, &[-1, 1]));
    let hidden = Linear::builder(&net, 4, 6).seed(1).build().forward(&x).tanh();
    let loss = Linear::builder(&net, 6, 3).seed(2).build().forward(&hidden).mean_cross_entropy(&y);
    let mut fetches: Vec<String> = vec![loss.name()];
    fetches.extend(step(&loss)?);
    let inputs = |n: usize| Ok::<_, autobwd::Error>(vec![numbers(&[n, 4])?, labels(&[n, 1], 3)?]);
    let mut model = model(&net, &["x", "y"], fetches)?;
    assert_same(&mut model, &[inputs(2)?])?;
    assert_same(&mut model, &[inputs(7)?])
}

#[test]
fn a_training_step_of_a_convolutional_net_takes_any_batch() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 2, 9, 9]), net.input("y", DType::I64, &[-1, 1]));
    let conv = Conv2d::builder(&net, 2, 4, 3).padding(1).stride(2).bias(None).seed(1).build().forward(&x);
    let conv = BatchNorm::builder(&net, 4).build().forward(&conv).relu().max_pool2d(2, 2);
    let conv = Conv2d::builder(&net, 4, 4, 3).padding(1).groups(2).seed(2).build().forward(&conv);
    let conv = Pool2d::average(3).stride(1).padding(1).forward(&conv);
    let scores = Linear::builder(&net, 16, 3).seed(3).build().forward(&conv.flatten(1, -1));
    let loss = scores.mean_cross_entropy(&y);
    let mut fetches: Vec<String> = vec![loss.name()];
    fetches.extend(step(&loss)?);
    let inputs = |n: usize| Ok::<_, autobwd::Error>(vec![numbers(&[n, 2, 9, 9])?, labels(&[n, 1], 3)?]);
    let mut model = model(&net, &["x", "y"], fetches)?;
    assert_same(&mut model, &[inputs(2)?])?;
    assert_same(&mut model, &[inputs(5)?])
}

/// Appends a step of gradient descent; the names of the gradients.
fn step(loss: &Expr) -> Result<Vec<String>> {
    let updates = Sgd { rate: 0.1 }.minimize(loss)?.complete()?;
    Ok(updates.iter().map(|(_, gradient)| gradient.name()).collect())
}
