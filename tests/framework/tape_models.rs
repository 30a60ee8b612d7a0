//! Models on the eager tape: trained like programs, and traced.

use std::panic::{self, AssertUnwindSafe};

use autobwd::{
    Arg, Backward, Builder, ErrorKind, Executor, Expr, Feed, Result, Scope, Tensor, append_backward, emit,
    tape::trace,
};
use autobwd_ops::{
    Init, Math, concat,
    nn::{BatchNorm, Conv2d, Dropout, Embedding, LayerNorm, Linear, MultiHeadAttention, Pool2d},
    optim::{Adam, Momentum, Optimizer, Sgd},
    shape::Assign,
};

use crate::support::{
    nets::bits,
    tape::{leaf, numbers, tape},
};

/// The parts of one model, for programs and tapes.
struct Model(Linear, Linear);

impl Model {
    fn new(net: &Builder) -> Model {
        Model(
            Linear::builder(net, 3, 5).seed(1).build(),
            Linear::builder(net, 5, 2).init(Init::KaimingUniform).seed(2).build(),
        )
    }

    fn loss(&self, x: &Expr, y: &Expr) -> Expr {
        let hidden = self.0.forward(x).tanh() * 1.5;
        self.1.forward(&hidden).relu().square_error(y).mean()
    }
}

/// Trains a model as a program and on the tape, with the same data: losses and all kept variables are the same to the
/// bit.
fn train_both_ways<M>(
    optimizer: &dyn Optimizer,
    data: impl Fn(usize) -> Vec<(&'static str, Tensor)>,
    new: impl Fn(&Builder) -> M,
    loss: impl Fn(&M, &[Expr]) -> Expr,
) -> Result<Vec<String>> {
    let net = Builder::new();
    let mut inputs = vec![];
    for (name, tensor) in data(0) {
        let dims: Vec<i64> = tensor.dims().iter().map(|n| *n as i64).collect();
        inputs.push(net.input(name, tensor.dtype(), &dims));
    }
    let of_program = loss(&new(&net), &inputs);
    optimizer.minimize(&of_program)?.complete()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;

    let tape = tape();
    let model = new(&tape);
    for step in 0..5 {
        let data = data(step);
        let feeds: Vec<(&str, &dyn Feed)> = data.iter().map(|(name, tensor)| (*name, tensor as _)).collect();
        let fetched = executor.run(&net.program()?, &mut scope, &feeds, &[&of_program.name()])?;
        let inputs: Vec<Expr> = data.iter().map(|(_, tensor)| tape.constant(tensor.clone())).collect();
        let loss = loss(&model, &inputs);
        assert_eq!(bits(&loss.tensor()?), bits(&fetched[0]), "step {step}");
        optimizer.minimize(&loss)?.complete()?;
    }
    // Only programs keep the learning rate.
    let kept: Vec<String> = scope.iter().map(|(name, _)| name.to_string()).collect();
    let kept: Vec<String> = kept.into_iter().filter(|name| !name.starts_with("learning_rate")).collect();
    for name in &kept {
        assert_eq!(bits(&tape.expr(name).tensor()?), bits(scope.get(name)?), "{name}");
    }
    Ok(kept)
}

#[test]
fn model_written_once_trains_both_ways_to_the_same_bits() -> Result<()> {
    let optimizers: [Box<dyn Optimizer>; 3] = [
        Box::new(Sgd { rate: 0.1 }),
        Box::new(Momentum { rate: 0.1, momentum: 0.9, nesterov: true, lazy: false }),
        Box::new(Adam::new(0.05)),
    ];
    // Four parameters, with one or four state values for each.
    for (optimizer, expected) in optimizers.into_iter().zip([4, 8, 20]) {
        let data = |step| vec![("x", numbers(&[4, 3], step)), ("y", numbers(&[4, 2], step + 1))];
        let kept = train_both_ways(&*optimizer, data, Model::new, |model, x| model.loss(&x[0], &x[1]))?;
        assert_eq!(kept.len(), expected, "{kept:?}");
    }
    Ok(())
}

/// Layers with state, random numbers or sparse gradients.
struct Layers {
    table: Embedding,
    attention: MultiHeadAttention,
    images: Conv2d,
    batch: BatchNorm,
    row: LayerNorm,
    dropout: Dropout,
    out: Linear,
}

impl Layers {
    fn new(net: &Builder, sparse: bool) -> Layers {
        let table = Embedding::builder(net, 7, 6).seed(1);
        Layers {
            table: if sparse { table.sparse() } else { table }.build(),
            attention: MultiHeadAttention::builder(net, 6, 2).seed(2).build(),
            images: Conv2d::builder(net, 1, 2, 3).padding(1).seed(3).build(),
            batch: BatchNorm::builder(net, 2).build(),
            row: LayerNorm::builder(net, 18).build(),
            dropout: Dropout::new(net, 0.3, 4),
            out: Linear::builder(net, 24, 1).seed(5).build(),
        }
    }

    fn loss(&self, words: &Expr, x: &Expr, y: &Expr) -> Expr {
        let seen = self.attention.forward(&self.table.forward(words)).mean_over(&[1]);
        let h = self.batch.forward(&self.images.forward(x)).gelu(true);
        let h = self.row.forward(&Pool2d::average(2).forward(&h).reshape(&[0, -1]));
        let h = concat(&[&seen, &self.dropout.forward(&h)], 1);
        self.out.forward(&h).square_error(y).mean()
    }
}

#[test]
fn layers_train_both_ways_to_the_same_bits() -> Result<()> {
    let data = |step: usize| {
        let words = (0..20).map(|i| ((i * i + step) % 7) as i64).collect();
        let words = Tensor::from_vec([4, 5], words).unwrap();
        vec![("words", words), ("x", numbers(&[4, 1, 6, 6], step)), ("y", numbers(&[4, 1], step + 1))]
    };
    let optimizers: [Box<dyn Optimizer>; 2] =
        [Box::new(Sgd { rate: 0.1 }), Box::new(Adam { lazy: true, ..Adam::new(0.05) })];
    for (optimizer, sparse) in optimizers.iter().flat_map(|o| [(o, false), (o, true)]) {
        let new = |net: &Builder| Layers::new(net, sparse);
        let kept = train_both_ways(&**optimizer, data, new, |layers, x| layers.loss(&x[0], &x[1], &x[2]))?;
        for name in ["embedding_0.w", "batch_norm_0.mean", "batch_norm_0.variance", "dropout_0.seed"] {
            assert!(kept.iter().any(|own| own == name), "{name} is not in {kept:?}");
        }
    }
    Ok(())
}

#[test]
fn traced_step_of_training_is_a_program_of_it() -> Result<()> {
    let tape = tape();
    let model = Model::new(&tape);
    let (x, y) = (tape.constant(numbers(&[4, 3], 0)), tape.constant(numbers(&[4, 2], 1)));
    let adam = Adam::new(0.1);
    adam.minimize(&model.loss(&x, &y))?.complete()?;
    let mut traced = trace(&tape, &[("x", &x), ("y", &y)], || {
        let loss = model.loss(&x, &y);
        adam.minimize(&loss)?.complete()?;
        Ok(vec![loss])
    })?;
    let text = traced.program.to_string();
    let expected = ["matmul_v2(X=x, Y=linear_0.w", "ParamOut=linear_0.w", "LearningRate=constant_0"];
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    autobwd::verify(&traced.program)?;
    let mut executor = Executor::new();
    for step in 0..4 {
        let (x, y) = (numbers(&[4, 3], step), numbers(&[4, 2], step + 1));
        // The traced step has been done already.
        let loss = match step {
            0 => traced.values[0].clone(),
            _ => {
                let loss = model.loss(&tape.constant(x.clone()), &tape.constant(y.clone()));
                adam.minimize(&loss)?.complete()?;
                loss
            }
        };
        let outputs: Vec<&str> = traced.outputs.iter().map(String::as_str).collect();
        let fetched = executor.run(&traced.program, &mut traced.scope, &[("x", &x), ("y", &y)], &outputs)?;
        assert_eq!(fetched[0], loss.tensor()?);
    }
    for parameter in tape.parameters() {
        assert_eq!(&parameter.tensor()?, traced.scope.get(&parameter.name())?, "{parameter}");
    }
    Ok(())
}

#[test]
fn traced_functions_are_differentiable() -> Result<()> {
    let tape = tape();
    let (x, w) = (leaf(&tape, "x", 2.0), leaf(&tape, "w", 3.0));
    let traced = trace(&tape, &[("x", &x)], || {
        let y = &x * &w;
        Ok(vec![&y * y.clone().stop_gradient()])
    })?;
    let mut program = traced.program;
    let found = append_backward(&mut program, &traced.outputs[0], &Backward::default())?;
    assert_eq!(found.pairs.len(), 1);
    let mut scope = traced.scope;
    let two = Tensor::scalar(2.0)?;
    let fetched = Executor::new().run(&program, &mut scope, &[("x", &two)], &["w@GRAD"])?;
    assert_eq!(fetched[0].item()?, 12.0);
    Ok(())
}

#[test]
fn traced_functions_must_not_set_values() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 2.0);
    let traced = trace(&tape, &[("x", &x)], || {
        let before = x.square();
        x.set(Tensor::scalar(3.0)?)?;
        Ok(vec![&before + &x])
    });
    let e = traced.err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Program);
    assert_eq!(e.to_string(), "`x` is set while a function is traced: use an operator such as `assign`");
    // It is unchanged, and can be set afterwards.
    assert_eq!(x.item()?, 2.0);
    x.set(Tensor::scalar(3.0)?)?;
    assert_eq!(x.item()?, 3.0);

    // The program knows the variables that an operator writes.
    let c = tape.constant(Tensor::scalar(0.0)?);
    let mut traced = trace(&tape, &[("x", &x)], || {
        let before = &c + &x;
        tape.no_grad(|| emit(Assign { x: Arg::from(&x), out: (&c).into() }));
        Ok(vec![&before * &c])
    })?;
    assert_eq!(traced.values[0].item()?, 9.0);
    let mut executor = Executor::new();
    for (x, expected) in [(5.0, (0.0 + 5.0) * 5.0), (7.0, (5.0 + 7.0) * 7.0)] {
        let x = Tensor::scalar(x)?;
        let fetched =
            executor.run(&traced.program, &mut traced.scope, &[("x", &x)], &[&traced.outputs[0]])?;
        assert_eq!(fetched[0].item()?, expected);
    }
    Ok(())
}

#[test]
fn trace_after_a_panicked_trace_starts_empty() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 2.0);
    let traced = panic::catch_unwind(AssertUnwindSafe(|| {
        trace(&tape, &[("x", &x)], || {
            x.square();
            panic::resume_unwind(Box::new("halfway"))
        })
    }));
    assert!(traced.is_err());
    x.set(Tensor::scalar(3.0)?)?;
    let traced = trace(&tape, &[("x", &x)], || Ok(vec![x.exp()]))?;
    assert_eq!(traced.program.root().ops.len(), 1);
    Ok(())
}
