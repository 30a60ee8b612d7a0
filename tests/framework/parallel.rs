//! Training on several ranks.

use std::time::Duration;

use autobwd::{
    Builder, DType, ErrorKind, Executor, Program, Result, Scope, Tensor,
    parallel::{accumulate, data_parallel, require_same_program, shard_optimizer, startup, threads},
};
use autobwd_ops::{
    Init, Math,
    nn::{Conv2d, Dropout, Embedding, LayerNorm, Linear, Lstm, MultiHeadAttention, Pool2d},
    optim::{Adam, Lamb, Momentum, Optimizer, Sgd},
};

const STEPS: usize = 3;
const BATCH: usize = 4;

/// The bytes of values, by name.
type Values = Vec<(String, Vec<u8>)>;

/// A model with its training step; feeds are `x` and `y`.
struct Model {
    program: Program,
    startup: Program,
    loss: String,
    /// Dimensions of an example, and the number of classes of its integers, or 0 for floats.
    x: (&'static [usize], i64),
    y: (&'static [usize], i64),
}

impl Model {
    fn dims(example: &[usize]) -> Vec<i64> {
        [-1].into_iter().chain(example.iter().map(|dim| *dim as i64)).collect()
    }

    fn new(
        x: (&'static [usize], i64),
        y: (&'static [usize], i64),
        optimizer: &dyn Optimizer,
        build: impl FnOnce(&Builder, autobwd::Expr, autobwd::Expr) -> autobwd::Expr,
    ) -> Result<Model> {
        let net = Builder::new();
        let input = |name: &str, (dims, classes): (&[usize], i64)| {
            let dtype = if classes > 0 { DType::I64 } else { DType::F32 };
            net.input(name, dtype, &Model::dims(dims))
        };
        let loss = build(&net, input("x", x), input("y", y));
        optimizer.minimize(&loss)?.complete()?;
        let (program, startup) = (net.program()?.clone(), net.startup().program()?.clone());
        Ok(Model { program, startup, loss: loss.name(), x, y })
    }

    fn mlp(optimizer: &dyn Optimizer) -> Result<Model> {
        Model::new((&[6], 0), (&[1], 0), optimizer, |net, x, y| {
            let hidden = Linear::builder(net, 6, 300).build().forward(&x).tanh();
            Linear::builder(net, 300, 1).build().forward(&hidden).square_error(&y).mean()
        })
    }

    fn digits(optimizer: &dyn Optimizer) -> Result<Model> {
        Model::new((&[1, 8, 8], 0), (&[1], 10), optimizer, |net, x, y| {
            let x = Conv2d::builder(net, 1, 4, 3).padding(1).build().forward(&x).relu();
            let x = Pool2d::max(2).stride(2).forward(&x).flatten(1, -1);
            Linear::builder(net, 64, 10).build().forward(&x).mean_cross_entropy(&y)
        })
    }

    fn lstm(optimizer: &dyn Optimizer) -> Result<Model> {
        Model::new((&[5, 3], 0), (&[2], 0), optimizer, |net, x, y| {
            let (hidden, _) = Lstm::builder(net, 3, 8).build().forward(&x.transpose(&[1, 0, 2]));
            Linear::builder(net, 8, 2).build().forward(&hidden.mean_over(&[0])).square_error(&y).mean()
        })
    }

    fn gpt(optimizer: &dyn Optimizer, sparse: bool) -> Result<Model> {
        Model::new((&[6], 11), (&[6, 1], 11), optimizer, |net, x, y| {
            let table = Embedding::builder(net, 11, 8);
            let table = if sparse { table.sparse() } else { table };
            let x = table.build().forward(&x);
            let norm = LayerNorm::builder(net, 8).build().forward(&x);
            let x = &x + &MultiHeadAttention::builder(net, 8, 2).causal().build().forward(&norm);
            Linear::builder(net, 8, 11).build().forward(&x).mean_cross_entropy(&y)
        })
    }

    /// Number `batch` of the data, with `count` batches joined.
    fn batch(&self, batch: usize, count: usize) -> Result<[Tensor; 2]> {
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

    fn run(
        &self,
        executor: &mut Executor,
        scope: &mut Scope,
        step: &Program,
        data: &[Tensor; 2],
    ) -> Result<f64> {
        executor.run(step, scope, &[("x", &data[0]), ("y", &data[1])], &[&self.loss])?[0].item()
    }

    /// The parameters after training on several ranks, by rank.
    fn on_ranks(&self, ranks: usize, bucket_bytes: usize) -> Result<Vec<Values>> {
        let step = data_parallel(&self.program, ranks, bucket_bytes)?;
        threads::run(ranks, |transport| {
            let (rank, mut scope) = (transport.rank(), Scope::new());
            require_same_program(&*transport, &step)?;
            let mut executor = Executor::with_threads(1).with_transport(transport);
            executor.run(&self.startup, &mut scope, &[], &[])?;
            executor.run(&startup(&step, rank)?, &mut scope, &[], &[])?;
            for i in 0..STEPS {
                self.run(&mut executor, &mut scope, &step, &self.batch(i * ranks + rank, 1)?)?;
            }
            Ok(values(&scope))
        })
    }

    /// The values after training on several ranks with optimizer state in parts, by rank.
    fn sharded(&self, ranks: usize) -> Result<Vec<Values>> {
        let sharded = shard_optimizer(&self.program, &self.startup, ranks, 1 << 20)?;
        threads::run(ranks, |transport| {
            let (rank, mut scope) = (transport.rank(), Scope::new());
            let mut executor = Executor::with_threads(1).with_transport(transport);
            executor.run(&sharded.startup(rank)?, &mut scope, &[], &[])?;
            for i in 0..STEPS {
                self.run(&mut executor, &mut scope, &sharded.step, &self.batch(i * ranks + rank, 1)?)?;
            }
            Ok(values(&scope))
        })
    }

    /// The parameters after training in one process, which merges the gradients of as many batches.
    fn merged(&self, count: usize) -> Result<Values> {
        let merged = accumulate(&self.program, count)?;
        let (mut executor, mut scope) = (Executor::with_threads(2), Scope::new());
        executor.run(&self.startup, &mut scope, &[], &[])?;
        executor.run(&merged.startup, &mut scope, &[], &[])?;
        for i in 0..STEPS {
            for batch in i * count..(i + 1) * count {
                self.run(&mut executor, &mut scope, &merged.gradients, &self.batch(batch, 1)?)?;
            }
            executor.run(&merged.update, &mut scope, &[], &[])?;
        }
        Ok(values(&scope).into_iter().filter(|(name, _)| !name.ends_with("@MERGED")).collect())
    }

    /// The parameters after training on batches that are as many times larger.
    fn whole(&self, count: usize) -> Result<Scope> {
        let (mut executor, mut scope) = (Executor::with_threads(2), Scope::new());
        executor.run(&self.startup, &mut scope, &[], &[])?;
        for i in 0..STEPS {
            self.run(&mut executor, &mut scope, &self.program, &self.batch(i * count, count)?)?;
        }
        Ok(scope)
    }
}

fn values(scope: &Scope) -> Values {
    let mut values: Vec<_> =
        scope.iter().map(|(name, value)| (name.to_string(), value.bytes().to_vec())).collect();
    values.sort();
    values
}

#[test]
fn ranks_have_the_bits_of_one_process_that_merges_their_batches() -> Result<()> {
    let (sgd, adam) = (Sgd { rate: 0.1 }, Adam::new(0.01));
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let models = [
        ("mlp", Model::mlp(&sgd)?),
        ("mlp with Adam", Model::mlp(&adam)?),
        ("digits", Model::digits(&momentum)?),
        ("lstm", Model::lstm(&adam)?),
        ("gpt", Model::gpt(&adam, false)?),
    ];
    for (name, model) in models {
        for ranks in [1, 2, 4] {
            let merged = model.merged(ranks)?;
            for bucket_bytes in [0, 1000, 1 << 20] {
                for found in model.on_ranks(ranks, bucket_bytes)? {
                    assert_eq!(found.len(), merged.len(), "{name}");
                    for (found, merged) in found.iter().zip(&merged) {
                        assert_eq!(found, merged, "{name} on {ranks} ranks, {bucket_bytes} bytes");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn merged_batches_train_as_one_large_batch() -> Result<()> {
    let sgd = Sgd { rate: 0.1 };
    let models = [Model::mlp(&sgd)?, Model::digits(&sgd)?, Model::lstm(&sgd)?, Model::gpt(&sgd, false)?];
    for (model, count) in models.iter().zip([2, 3, 4, 2]) {
        let whole = model.whole(count)?;
        for (name, bytes) in model.merged(count)? {
            let expected = whole.get(&name)?;
            let mut found = Tensor::zeros(expected.dtype(), expected.dims())?;
            found.bytes_mut().copy_from_slice(&bytes);
            for (a, b) in found.to_f64s().iter().zip(expected.to_f64s()) {
                assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "`{name}`, {count} batches: {a}, not {b}");
            }
        }
    }
    Ok(())
}

#[test]
fn optimizer_state_in_parts_gives_the_same_bits() -> Result<()> {
    let (sgd, adam) = (Sgd { rate: 0.1 }, Adam::new(0.01));
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let models =
        [Model::mlp(&adam)?, Model::digits(&momentum)?, Model::lstm(&sgd)?, Model::gpt(&adam, false)?];
    for model in models {
        for ranks in [1, 2, 3] {
            let (whole, sharded) = (model.on_ranks(ranks, 1000)?, model.sharded(ranks)?);
            for (whole, sharded) in whole.iter().zip(&sharded) {
                for (name, value) in whole {
                    match sharded.iter().find(|(other, _)| other == name) {
                        Some((_, other)) => assert_eq!(value, other, "`{name}` on {ranks} ranks"),
                        None => {
                            let part = format!("{name}@SHARD");
                            let (_, part) = sharded.iter().find(|(other, _)| *other == part).expect("a part");
                            assert_eq!(part.len(), (value.len() / 4).div_ceil(ranks) * 4, "`{name}`");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn updates_of_whole_parameters_have_no_parts() -> Result<()> {
    let model = Model::mlp(&Lamb::new(0.01))?;
    let e = shard_optimizer(&model.program, &model.startup, 2, 0).unwrap_err().to_string();
    assert!(e.contains("@GRAD` is read by `lamb`, which is not declared elementwise"), "{e}");
    let sharded = shard_optimizer(&Model::mlp(&Adam::new(0.1))?.program, &model.startup, 2, 0)?;
    let e = sharded.startup(2).unwrap_err().to_string();
    assert_eq!(e, "the step is made for 2 ranks, so there is no rank 2");
    Ok(())
}

#[test]
fn sparse_gradients_are_exchanged_as_rows() -> Result<()> {
    for ranks in [1, 2, 3] {
        let [sparse, dense] = [true, false].map(|sparse| Model::gpt(&Sgd { rate: 0.1 }, sparse));
        let (sparse, dense) = (sparse?.on_ranks(ranks, 1000)?, dense?.on_ranks(ranks, 1000)?);
        assert_eq!(sparse, dense, "{ranks} ranks");
    }
    Ok(())
}

#[test]
fn ranks_have_masks_of_their_own() -> Result<()> {
    let model = Model::new((&[6], 0), (&[6], 0), &Sgd { rate: 0.1 }, |net, x, y| {
        let x = Linear::builder(net, 6, 6).build().forward(&x);
        Dropout::new(net, 0.5, 7).forward(&x).square_error(&y).mean()
    })?;
    let found = model.on_ranks(2, 1000)?;
    let different: Vec<_> =
        found[0].iter().zip(&found[1]).filter(|(a, b)| a != b).map(|(a, _)| &*a.0).collect();
    assert_eq!(different, ["dropout_0.seed"]);
    Ok(())
}

#[test]
fn a_program_for_other_ranks_is_refused() -> Result<()> {
    let model = Model::mlp(&Sgd { rate: 0.1 })?;
    let step = data_parallel(&model.program, 3, 0)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&model.startup, &mut scope, &[], &[])?;
    let e = model.run(&mut executor, &mut scope, &step, &model.batch(0, 1)?).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Rank);
    assert!(e.to_string().contains("the program is made for 3 ranks, not 1"), "{e}");
    Ok(())
}

#[test]
fn ranks_with_other_programs_are_named() -> Result<()> {
    let (a, b) = (Model::mlp(&Sgd { rate: 0.1 })?, Model::mlp(&Adam::new(0.1))?);
    let e = threads::run(4, |transport| {
        let program = if transport.rank() % 2 == 1 { &b.program } else { &a.program };
        require_same_program(&*transport, program)
    });
    assert_eq!(e.unwrap_err().to_string(), "rank 0: ranks 1, 3 run another program than rank 0");
    Ok(())
}

#[test]
fn a_rank_that_fails_ends_the_others() -> Result<()> {
    let model = Model::mlp(&Sgd { rate: 0.1 })?;
    let step = data_parallel(&model.program, 3, 1 << 20)?;
    let start = std::time::Instant::now();
    let e = threads::run(3, |transport| {
        let (rank, mut scope) = (transport.rank(), Scope::new());
        let mut executor = Executor::with_threads(1).with_transport(transport);
        executor.run(&model.startup, &mut scope, &[], &[])?;
        for i in 0..5 {
            if (rank, i) == (1, 3) {
                scope.get("no such value")?;
            }
            model.run(&mut executor, &mut scope, &step, &model.batch(i, 1)?)?;
        }
        Ok(())
    });
    let e = e.unwrap_err();
    assert!(e.to_string().starts_with("rank 1: "), "{e}");
    assert!(start.elapsed() < Duration::from_secs(30));
    Ok(())
}

#[test]
fn a_rank_that_hangs_is_named() -> Result<()> {
    let ends = threads::connect(2, Duration::from_millis(50));
    let e = ends[0].transfer(&[], &mut [(1, &mut [0])]).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Rank, "rank 1 has not answered within 50ms"));
    Ok(())
}

#[test]
fn programs_without_gradients_are_refused() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
    let _loss = w.square().mean();
    let program = net.program()?.clone();
    let expected = "the program has no gradient of a parameter; append the backward pass first";
    assert_eq!(data_parallel(&program, 2, 0).unwrap_err().to_string(), expected);
    assert_eq!(accumulate(&program, 2).unwrap_err().to_string(), expected);
    let model = Model::mlp(&Sgd { rate: 0.1 })?;
    let program = model.program;
    assert!(data_parallel(&program, 0, 0).is_err() && accumulate(&program, 0).is_err());
    Ok(())
}
