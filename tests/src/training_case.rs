//! Small models for tests of training on several ranks.

use std::sync::Arc;

use autobwd::{
    Builder, DType, Executor, Expr, Program, Result, Scope, Tensor,
    parallel::{Transport, accumulate, data_parallel, require_same_program, shard_optimizer, startup},
};
use autobwd_ops::{
    Math,
    nn::{Conv2d, Embedding, LayerNorm, Linear, Lstm, MultiHeadAttention, Pool2d},
    optim::Optimizer,
};

const STEPS: usize = 3;
const BATCH: usize = 4;

/// The bytes of values, by name.
pub type TrainedValues = Vec<(String, Vec<u8>)>;

/// A small model with its training step, and data for feeds `x` and `y`.
#[derive(Debug)]
pub struct TrainingCase {
    /// The training step.
    pub program: Program,
    /// The program that initialises the parameters.
    pub startup: Program,
    /// The name of the loss.
    pub loss: String,
    /// Dimensions of an example, and the number of classes of its integers, or 0 for floats.
    x: (&'static [usize], i64),
    y: (&'static [usize], i64),
}

impl TrainingCase {
    fn dims(example: &[usize]) -> Vec<i64> {
        [-1].into_iter().chain(example.iter().map(|dim| *dim as i64)).collect()
    }

    /// A model for examples of these dimensions; `build` returns the loss.
    pub fn new(
        x: (&'static [usize], i64),
        y: (&'static [usize], i64),
        optimizer: &dyn Optimizer,
        build: impl FnOnce(&Builder, Expr, Expr) -> Expr,
    ) -> Result<TrainingCase> {
        let net = Builder::new();
        let input = |name: &str, (dims, classes): (&[usize], i64)| {
            let dtype = if classes > 0 { DType::I64 } else { DType::F32 };
            net.input(name, dtype, &TrainingCase::dims(dims))
        };
        let loss = build(&net, input("x", x), input("y", y));
        optimizer.minimize(&loss)?.complete()?;
        let (program, startup) = (net.program()?.clone(), net.startup().program()?.clone());
        Ok(TrainingCase { program, startup, loss: loss.name(), x, y })
    }

    /// A perceptron of two layers.
    pub fn mlp(optimizer: &dyn Optimizer) -> Result<TrainingCase> {
        TrainingCase::new((&[6], 0), (&[1], 0), optimizer, |net, x, y| {
            let hidden = Linear::builder(net, 6, 1024).build().forward(&x).tanh();
            Linear::builder(net, 1024, 1).build().forward(&hidden).square_error(&y).mean()
        })
    }

    /// A convolutional network.
    pub fn digits(optimizer: &dyn Optimizer) -> Result<TrainingCase> {
        TrainingCase::new((&[1, 8, 8], 0), (&[1], 10), optimizer, |net, x, y| {
            let x = Conv2d::builder(net, 1, 4, 3).padding(1).build().forward(&x).relu();
            let x = Pool2d::max(2).stride(2).forward(&x).flatten(1, -1);
            Linear::builder(net, 64, 10).build().forward(&x).mean_cross_entropy(&y)
        })
    }

    /// A recurrent network.
    pub fn lstm(optimizer: &dyn Optimizer) -> Result<TrainingCase> {
        TrainingCase::new((&[5, 3], 0), (&[2], 0), optimizer, |net, x, y| {
            let (hidden, _) = Lstm::builder(net, 3, 8).build().forward(&x.transpose(&[1, 0, 2]));
            Linear::builder(net, 8, 2).build().forward(&hidden.mean_over(&[0])).square_error(&y).mean()
        })
    }

    /// A transformer; its table of embeddings has row-sparse gradients if `sparse`.
    pub fn gpt(optimizer: &dyn Optimizer, sparse: bool) -> Result<TrainingCase> {
        TrainingCase::new((&[6], 11), (&[6, 1], 11), optimizer, |net, x, y| {
            let table = Embedding::builder(net, 11, 8);
            let table = if sparse { table.sparse() } else { table };
            let x = table.build().forward(&x);
            let norm = LayerNorm::builder(net, 8).build().forward(&x);
            let x = &x + &MultiHeadAttention::builder(net, 8, 2).causal().build().forward(&norm);
            Linear::builder(net, 8, 11).build().forward(&x).mean_cross_entropy(&y)
        })
    }

    /// Number `batch` of the data, with `count` batches joined.
    pub fn batch(&self, batch: usize, count: usize) -> Result<[Tensor; 2]> {
        let tensor = |(example, classes): (&[usize], i64), salt: f64| {
            let len: usize = example.iter().product::<usize>() * BATCH;
            let number = |i: usize| ((batch * len + i) as f64 * 0.618_034 + salt).fract();
            let dims: Vec<usize> = [BATCH * count].into_iter().chain(example.iter().copied()).collect();
            match classes {
                0 => Tensor::from_vec(
                    dims,
                    (0..len * count).map(|i| number(i) as f32 - 0.5).collect::<Vec<_>>(),
                ),
                n => Tensor::from_vec(
                    dims,
                    (0..len * count).map(|i| (number(i) * n as f64) as i64).collect::<Vec<_>>(),
                ),
            }
        };
        Ok([tensor(self.x, 0.1)?, tensor(self.y, 0.7)?])
    }

    /// Runs a step of training; returns the loss.
    pub fn step(
        &self,
        executor: &mut Executor,
        scope: &mut Scope,
        step: &Program,
        data: &[Tensor; 2],
    ) -> Result<f64> {
        executor.run(step, scope, &[("x", &data[0]), ("y", &data[1])], &[&self.loss])?[0].item()
    }

    /// The values after training as one of several ranks.
    pub fn train(&self, transport: Arc<dyn Transport>, bucket_bytes: usize) -> Result<TrainedValues> {
        let step = data_parallel(&self.program, transport.ranks(), bucket_bytes)?;
        require_same_program(&*transport, &step)?;
        let start = startup(&step, transport.rank())?;
        self.train_rank(transport, &[&self.startup, &start], &step)
    }

    /// The values after training as one of several ranks with optimizer state in parts.
    pub fn train_sharded(&self, transport: Arc<dyn Transport>) -> Result<TrainedValues> {
        let sharded = shard_optimizer(&self.program, &self.startup, transport.ranks(), 1 << 20)?;
        let start = sharded.startup(transport.rank())?;
        self.train_rank(transport, &[&start], &sharded.step)
    }

    fn train_rank(
        &self,
        transport: Arc<dyn Transport>,
        start: &[&Program],
        step: &Program,
    ) -> Result<TrainedValues> {
        let (rank, ranks, mut scope) = (transport.rank(), transport.ranks(), Scope::new());
        let mut executor = Executor::with_threads(1).with_transport(transport);
        for program in start {
            executor.run(program, &mut scope, &[], &[])?;
        }
        for i in 0..STEPS {
            self.step(&mut executor, &mut scope, step, &self.batch(i * ranks + rank, 1)?)?;
        }
        Ok(values(&scope))
    }

    /// The values after training in one process, which merges the gradients of as many batches.
    pub fn merged(&self, count: usize) -> Result<TrainedValues> {
        let merged = accumulate(&self.program, count)?;
        let (mut executor, mut scope) = (Executor::with_threads(2), Scope::new());
        executor.run(&self.startup, &mut scope, &[], &[])?;
        executor.run(&merged.startup, &mut scope, &[], &[])?;
        for i in 0..STEPS {
            for batch in i * count..(i + 1) * count {
                self.step(&mut executor, &mut scope, &merged.gradients, &self.batch(batch, 1)?)?;
            }
            executor.run(&merged.update, &mut scope, &[], &[])?;
        }
        Ok(values(&scope).into_iter().filter(|(name, _)| !name.ends_with("@MERGED")).collect())
    }

    /// The parameters after training on batches that are as many times larger.
    pub fn whole(&self, count: usize) -> Result<Scope> {
        let (mut executor, mut scope) = (Executor::with_threads(2), Scope::new());
        executor.run(&self.startup, &mut scope, &[], &[])?;
        for i in 0..STEPS {
            self.step(&mut executor, &mut scope, &self.program, &self.batch(i * count, count)?)?;
        }
        Ok(scope)
    }
}

fn values(scope: &Scope) -> TrainedValues {
    let mut values: Vec<_> =
        scope.iter().map(|(name, value)| (name.to_string(), value.bytes().to_vec())).collect();
    values.sort();
    values
}
