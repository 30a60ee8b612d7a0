//! Training steps of small models of layers, initialisers and optimizers.

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_benches::workload::{integers, numbers};
use autobwd_ops::{
    Math,
    nn::{BatchNorm, Conv2d, Dropout, Embedding, LayerNorm, Linear, Lstm, MultiHeadAttention},
    optim::{Adam, AdamW, GradientClip, Momentum, Optimizer, RmsProp, Schedule, ScheduledOptimizer},
};

use crate::{hashes::by_threads, parts::BitResult, workloads::values_of};

const STEPS: usize = 20;

/// Describes a model and its updates, with its data in the scope; returns its loss.
type Model = fn(&Builder, &mut Scope) -> Result<Expr>;

const MODELS: [(&str, Model); 4] = [
    ("mlp_with_adam", mlp),
    ("convolutions_with_momentum", convolutions),
    ("lstm_with_rmsprop", lstm),
    ("transformer_with_adamw", transformer),
];

pub(crate) fn models(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let mut results = vec![];
    for (name, model) in MODELS {
        let found = executors.iter().map(|executor| train(executor, model)).collect::<Result<Vec<_>>>()?;
        results.extend(by_threads(&format!("{name} "), executors, &found)?);
    }
    Ok(results)
}

/// The last loss, and all values after the steps.
fn train(executor: &Executor, model: Model) -> Result<Vec<(String, Tensor)>> {
    let (net, mut scope) = (Builder::new(), Scope::new());
    let loss = model(&net, &mut scope)?.name();
    executor.prepare(&net.startup().program()?, &mut scope, &[], &[])?.run(&mut scope)?;
    let mut session = executor.prepare(&net.program()?, &mut scope, &[], &[&loss])?;
    (0..STEPS).try_for_each(|_| session.run(&mut scope))?;
    let last = session.fetch(&loss)?;
    Ok([vec![("loss".to_string(), last)], values_of(&scope)].concat())
}

/// A variable with numbers.
fn data(net: &Builder, scope: &mut Scope, name: &str, dims: &[usize]) -> Result<Expr> {
    let elements = numbers(100 + name.len() as u32, dims.iter().product(), 1.0);
    scope.set(name, Tensor::from_vec(dims, elements)?);
    Ok(net.persistable(name, DType::F32, dims, Expr::clone))
}

/// A variable with integers below a bound.
fn labels(net: &Builder, scope: &mut Scope, name: &str, dims: &[usize], bound: u32) -> Result<Expr> {
    scope.set(name, Tensor::from_vec(dims, integers(50, dims.iter().product(), bound))?);
    Ok(net.persistable(name, DType::I64, dims, Expr::clone))
}

/// Layers with activations, dropout and layer normalisation; gradients are clipped, rates scheduled.
fn mlp(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let (x, y) = (data(net, scope, "x", &[37, 21])?, data(net, scope, "target", &[37, 3])?);
    let hidden = Linear::builder(net, 21, 45).seed(1).build().forward(&x).gelu(false);
    let hidden = LayerNorm::builder(net, 45).build().forward(&Dropout::new(net, 0.2, 5).forward(&hidden));
    let hidden = Linear::builder(net, 45, 19).seed(2).build().forward(&hidden).silu();
    let loss = Linear::builder(net, 19, 3).seed(3).build().forward(&hidden).square_error(&y).mean();
    let optimizer = Adam::new(0.01).clip(GradientClip::GlobalNorm(0.5));
    let schedule = Schedule::cosine(0.01, 0.001, STEPS as u64).warmup(3);
    ScheduledOptimizer { optimizer, schedule }.minimize(&loss)?.complete()?;
    Ok(loss)
}

/// Convolutions with batch normalisation and pooling.
fn convolutions(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let x = data(net, scope, "images", &[9, 2, 11, 11])?;
    let y = labels(net, scope, "labels", &[9, 1], 7)?;
    let h = Conv2d::builder(net, 2, 6, 3).seed(1).build().forward(&x);
    let h = BatchNorm::builder(net, 6).build().forward(&h).relu().max_pool2d(3, 2);
    let h = Conv2d::builder(net, 6, 10, 2).seed(2).build().forward(&h);
    let h = BatchNorm::builder(net, 10).build().forward(&h).tanh().reshape(&[9, 90]);
    let loss = Linear::builder(net, 90, 7).seed(3).build().forward(&h).cross_entropy(&y).mean();
    let optimizer = Momentum { rate: 0.05, momentum: 0.9, nesterov: true, lazy: false };
    optimizer.weight_decay(0.001).minimize(&loss)?.complete()?;
    Ok(loss)
}

/// The mean square error of all states.
fn lstm(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let x = data(net, scope, "sequences", &[13, 5, 6])?;
    let (hidden, _) = Lstm::builder(net, 6, 11).seed(1).build().forward(&x);
    let loss = Linear::builder(net, 11, 6).seed(2).build().forward(&hidden).square_error(&x).mean();
    RmsProp::new(0.01).minimize(&loss)?.complete()?;
    Ok(loss)
}

/// One block with causal attention, on words.
fn transformer(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let words = labels(net, scope, "words", &[3, 10], 23)?;
    let next = labels(net, scope, "next", &[30, 1], 23)?;
    let x = Embedding::builder(net, 23, 24).seed(1).build().forward(&words);
    let mixed = MultiHeadAttention::builder(net, 24, 3).causal().seed(2).build();
    let x = &x + mixed.forward(&LayerNorm::builder(net, 24).build().forward(&x));
    let hidden = LayerNorm::builder(net, 24).build().forward(&x);
    let hidden = Linear::builder(net, 24, 50).seed(3).build().forward(&hidden).gelu(true);
    let x = x + Linear::builder(net, 50, 24).seed(4).build().forward(&hidden);
    let scores = Linear::builder(net, 24, 23).seed(5).build().forward(&x).reshape(&[30, 23]);
    let loss = scores.cross_entropy(&next).mean();
    AdamW::new(0.003).minimize(&loss)?.complete()?;
    Ok(loss)
}
