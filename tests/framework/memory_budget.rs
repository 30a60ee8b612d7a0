//! Training steps within a memory budget: what is planned is what a session takes, a larger budget never repeats more
//! work, and no budget changes a bit.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Meta, Result, Scope, Tensor, eager,
    exec::{MemoryUse, PlannedRun},
    parallel::accumulate,
    verify,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan},
    nn::{Conv2d, Embedding, LayerNorm, Linear, MultiHeadAttention},
    optim::{Adam, GradientClip, MemoryBudget, Momentum, Optimizer, OptimizerSpec, Sgd},
};

const FEED: &str = "x";
/// The number of rows of a batch.
const ROWS: usize = 480;
const WIDTH: usize = 16;

/// A model from the input of `ROWS` rows to the loss.
type Model = fn(&Builder, &Expr) -> Expr;

const MODELS: [(&str, Model); 5] = [
    ("layers", |net, x| {
        let mut h = x.clone();
        for seed in 0..10 {
            h = Linear::builder(net, WIDTH, WIDTH).seed(seed).build().forward(&h).tanh();
        }
        h.square().mean()
    }),
    ("attention", |net, x| {
        let mut h = x.reshape(&[-1, 12, WIDTH as i32]);
        for seed in 0..2 {
            let attention = MultiHeadAttention::builder(net, WIDTH, 4).causal().seed(seed).build();
            h = &h + attention.forward(&LayerNorm::builder(net, WIDTH).build().forward(&h));
            let wide = Linear::builder(net, WIDTH, 4 * WIDTH).seed(seed + 10).build().forward(&h).gelu(true);
            h = &h + Linear::builder(net, 4 * WIDTH, WIDTH).seed(seed + 20).build().forward(&wide);
        }
        h.square().mean()
    }),
    ("convolutions", |net, x| {
        let mut h = x.reshape(&[-1, 1, 8, 8]);
        for (channels, seed) in [(1, 0), (4, 1), (4, 2)] {
            let conv = Conv2d::builder(net, channels, 4, 3).padding(1).seed(seed).build();
            h = conv.forward(&h).relu();
        }
        h.mean_over(&[2, 3]).square().mean()
    }),
    ("recurrence", |net, x| {
        let w = net.parameter("w", DType::F32, &[WIDTH, WIDTH], |w| Init::XavierUniform.emit(w, 1));
        let h = Linear::builder(net, WIDTH, WIDTH).seed(2).build().forward(x).sigmoid();
        let step = |x: &[Expr], h: &[Expr]| {
            let next = (h[0].unsqueeze(&[0]).matmul(&w).reshape(&[WIDTH as i32]) + &x[0]).tanh();
            (vec![next.clone()], vec![next])
        };
        let mut h = scan(&[h.square()], &[h.mean_over(&[0])], false, step).swap_remove(0);
        for seed in 3..7 {
            h = Linear::builder(net, WIDTH, WIDTH).seed(seed).build().forward(&h).tanh();
        }
        h.exp().mean()
    }),
    ("branch", |net, x| {
        let mut h = x.clone();
        for seed in 0..4 {
            h = Linear::builder(net, WIDTH, WIDTH).seed(seed).build().forward(&h).sigmoid();
        }
        let sum = h.sum(&[]);
        let is_small = sum.less_than(&(&sum * 0.0 + 1.0));
        cond(&is_small, || vec![h.exp()], || vec![h.tanh() * &h]).swap_remove(0).square().mean()
    }),
];

fn feeds() -> [(&'static str, Meta); 1] {
    [(FEED, Meta::new(DType::F32, [ROWS, WIDTH]))]
}

/// Values by name, as bytes.
type KeptValues = Vec<(String, Vec<u8>)>;

struct Described {
    net: Builder,
    loss: Expr,
}

fn described(model: Model) -> Described {
    let net = Builder::new();
    let x = net.input(FEED, DType::F32, &[-1, WIDTH as i64]);
    let loss = model(&net, &x);
    Described { net, loss }
}

/// The memory of a step, and the bits of everything that it keeps, after three steps.
fn trained(net: &Builder, loss: &Expr) -> Result<(MemoryUse, KeptValues)> {
    let program = net.program()?;
    verify(&program)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut session = executor.prepare(&program, &mut scope, &feeds(), &[&loss.name()])?;
    let memory = MemoryUse::of(&session, &program, &scope);
    for step in 0..3 {
        let numbers = (0..ROWS * WIDTH).map(|i| ((i + step) as f32 * 0.37).sin()).collect();
        session.feed(FEED, &Tensor::from_vec([ROWS, WIDTH], numbers)?)?;
        session.run(&mut scope)?;
    }
    let kept = program.root().vars.iter().filter(|(_, desc)| desc.persistable);
    let values = kept.map(|(var, _)| program.name(*var)).map(|name| {
        let bytes = scope.find(name).map_or_else(Vec::new, |value| value.bytes().to_vec());
        (name.to_string(), bytes)
    });
    Ok((memory, values.collect()))
}

#[test]
fn twenty_budgets_of_five_models_fit_and_change_no_bit() -> Result<()> {
    for (name, model) in MODELS {
        let plain = described(model);
        Adam::new(0.01).minimize(&plain.loss)?.complete()?;
        let (kept, expected) = trained(&plain.net, &plain.loss)?;

        let within = |bytes: usize| -> Result<_> {
            let Described { net, loss } = described(model);
            let budget = MemoryBudget::bytes(bytes).feeds(&feeds()).threads(1);
            let (updates, memory) = Adam::new(0.01).minimize_within(&loss, &Backward::default(), &budget)?;
            let planned = updates.recomputed.planned.expect("a budget was given");
            updates.complete()?;
            let (taken, values) = trained(&net, &loss)?;
            assert_eq!(taken, memory, "{name}, {bytes} bytes");
            assert_eq!(values, expected, "{name}, {bytes} bytes");
            Ok((memory, planned.again.picoseconds()))
        };
        let refused = within(0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Budget, "{name}: {refused}");
        let (_, rest) = refused.message().split_once("a run takes ").unwrap();
        let least: usize = rest.split_once(',').unwrap().0.parse().unwrap();
        assert!(least < kept.total(), "{name}: {least} of {}", kept.total());

        let mut last = u64::MAX;
        for step in 0..20 {
            let bytes = least + (kept.total() - least) * step / 19;
            let (memory, again) = within(bytes)?;
            assert!(memory.total() <= bytes, "{name}: {} of {bytes}", memory.total());
            assert!(again <= last, "{name}: {bytes} bytes repeat more work than fewer");
            last = again;
        }
        assert_eq!(last, 0, "{name}");
        assert_eq!(within(kept.total())?.0, kept, "{name}");
        assert_eq!(within(least - 1).unwrap_err().kind(), ErrorKind::Budget, "{name}");
    }
    Ok(())
}

/// With many layers between which few bytes are read, a step needs little more than what is read between layers, and the
/// values of one layer.
#[test]
fn deep_networks_keep_what_is_between_their_layers() -> Result<()> {
    const LAYERS: i32 = 64;
    let model = |layers: i32| {
        let net = Builder::new();
        let x = net.input(FEED, DType::F32, &[-1, WIDTH as i64]);
        let mut h = x.reshape(&[-1, 12, WIDTH as i32]);
        for seed in 0..layers {
            let attention = MultiHeadAttention::builder(&net, WIDTH, 4).causal().seed(seed).build();
            h = &h + attention.forward(&LayerNorm::builder(&net, WIDTH).build().forward(&h));
            let normed = LayerNorm::builder(&net, WIDTH).build().forward(&h);
            let wide = |seed| Linear::builder(&net, WIDTH, 4 * WIDTH).seed(seed).build().forward(&normed);
            let gated = wide(seed).silu() * wide(seed + 100);
            h = &h + Linear::builder(&net, 4 * WIDTH, WIDTH).seed(seed + 200).build().forward(&gated);
        }
        let loss = h.square().mean();
        (net, loss)
    };
    let arena = |layers: i32| -> Result<usize> {
        let (net, loss) = model(layers);
        Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
        let name = loss.name();
        let run = PlannedRun { program: &*net.program()?, feeds: &feeds(), fetches: &[&name] };
        Ok(MemoryUse::planned(&Executor::with_threads(1), &[run])?.arena)
    };
    let (_net, loss) = model(LAYERS);
    let budget = MemoryBudget::bytes(0).feeds(&feeds()).threads(1);
    let refused = Sgd { rate: 0.1 }.minimize_within(&loss, &Backward::default(), &budget).unwrap_err();
    let (_, rest) = refused.message().split_once("arena ").unwrap();
    let least: usize = rest.split(',').next().unwrap().trim().parse().unwrap();
    let between = LAYERS as usize * 4 * ROWS * WIDTH;
    let (one, all) = (arena(1)?, arena(LAYERS)?);
    assert!(least < between + 2 * one, "{least} of {all}: {between} between layers, {one} of one layer");
    Ok(())
}

#[test]
fn every_optimizer_trains_within_a_budget() -> Result<()> {
    let mut optimizers: Vec<(String, Box<dyn Optimizer>)> = vec![
        ("decay".into(), Box::new(Adam::new(0.01).weight_decay(0.1))),
        ("clip".into(), Box::new(Adam::new(0.01).clip(GradientClip::GlobalNorm(0.1)))),
        ("half".into(), Box::new(Adam::new(0.01).mixed_precision(DType::F16).name("half"))),
    ];
    for name in OptimizerSpec::names() {
        optimizers.push((name.into(), Box::new(format!("{name}:0.01").parse::<OptimizerSpec>()?)));
    }
    for (name, optimizer) in optimizers {
        let plain = described(MODELS[0].1);
        optimizer.minimize(&plain.loss)?.complete()?;
        let (kept, expected) = trained(&plain.net, &plain.loss)?;
        let Described { net, loss } = described(MODELS[0].1);
        let bytes = kept.total() - kept.arena / 20;
        let (feeds, loss_name) = (feeds(), loss.name());
        let budget = MemoryBudget::bytes(bytes).feeds(&feeds).threads(1).fetches(&[&loss_name]);
        let (updates, memory) = optimizer.minimize_within(&loss, &Backward::default(), &budget)?;
        assert!(!updates.recomputed.names.is_empty(), "{name}");
        let (taken, values) = trained(&net, &loss)?;
        assert_eq!((taken, values), (memory, expected), "{name}");
    }
    Ok(())
}

#[test]
fn impossible_budgets_are_refused_and_change_nothing() -> Result<()> {
    let Described { net, loss } = described(MODELS[0].1);
    let before = net.program()?.to_string();
    let feeds = feeds();
    let refused = |budget: MemoryBudget| {
        Sgd { rate: 0.1 }.minimize_within(&loss, &Backward::default(), &budget).unwrap_err()
    };
    let e = refused(MemoryBudget::bytes(100).feeds(&feeds).threads(1));
    assert!(e.message().starts_with("the budget of 100 bytes is exceeded by "), "{e}");
    assert!(e.message().contains(" parameters "), "{e}");
    let e = refused(MemoryBudget::bytes(1 << 20));
    assert!(e.message().contains("`x` is read, but neither fed nor written before"), "{e}");
    let e = refused(MemoryBudget::bytes(1 << 20).feeds(&feeds).fetches(&["y"]));
    assert_eq!(e.kind(), ErrorKind::Fetch, "{e}");
    assert_eq!(net.program()?.to_string(), before);

    let tape = eager();
    let w = tape.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
    let e = Sgd { rate: 0.1 }
        .minimize_within(&w.mean(), &Backward::default(), &MemoryBudget::bytes(1 << 20))
        .unwrap_err();
    assert!(e.message().contains("a memory budget is for programs"), "{e}");
    Ok(())
}

#[test]
fn micro_batches_within_a_budget_have_the_bits_of_micro_batches_without() -> Result<()> {
    const BATCHES: usize = 4;
    let metas = [(FEED, Meta::new(DType::F32, [ROWS / BATCHES, WIDTH]))];
    let run = |net: &Builder, loss: &Expr| -> Result<_> {
        let step = accumulate(&net.program()?, BATCHES)?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        executor.run(&step.startup, &mut scope, &[], &[])?;
        let mut gradients = executor.prepare(&step.gradients, &mut scope, &metas, &[&loss.name()])?;
        let mut update = executor.prepare(&step.update, &mut scope, &[], &[])?;
        for batch in 0..2 * BATCHES {
            let numbers = (0..ROWS / BATCHES * WIDTH).map(|i| ((i + batch) as f32 * 0.37).sin()).collect();
            gradients.feed(FEED, &Tensor::from_vec([ROWS / BATCHES, WIDTH], numbers)?)?;
            gradients.run(&mut scope)?;
            if batch % BATCHES == BATCHES - 1 {
                update.run(&mut scope)?;
            }
        }
        let arenas = gradients.arena_bytes() + update.arena_bytes();
        let scratch = gradients.scratch_bytes() + update.scratch_bytes();
        let values: Vec<_> =
            scope.iter().map(|(name, value)| (name.to_string(), value.bytes().to_vec())).collect();
        Ok((arenas + scratch, values.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), values))
    };
    let plain = described(MODELS[0].1);
    Adam::new(0.01).minimize(&plain.loss)?.complete()?;
    let (of_run, kept, expected) = run(&plain.net, &plain.loss)?;
    let Described { net, loss } = described(MODELS[0].1);
    let budget = MemoryBudget::bytes(of_run + kept - 10_000).feeds(&metas).threads(1).micro_batches(BATCHES);
    let (updates, memory) = Adam::new(0.01).minimize_within(&loss, &Backward::default(), &budget)?;
    assert!(!updates.recomputed.names.is_empty());
    let (of_run, kept, values) = run(&net, &loss)?;
    assert_eq!(memory.total(), of_run + kept);
    assert_eq!(values, expected);
    Ok(())
}

/// The bytes of intermediate values of a step of a table and a layer of the same weights.
fn arena_bytes(optimizer: &dyn Optimizer) -> Result<usize> {
    const WORDS: usize = 1024;
    let net = Builder::new();
    let words = net.input("words", DType::I64, &[8]);
    let table = Embedding::builder(&net, WORDS, WIDTH).build();
    let mut h = table.forward(&words);
    for seed in 0..6 {
        h = Linear::builder(&net, WIDTH, WORDS).seed(seed).build().forward(&h).tanh();
        h = Linear::builder(&net, WORDS, WIDTH).seed(seed + 10).build().forward(&h).tanh();
    }
    let loss = h.square().mean();
    optimizer.minimize(&loss)?.complete()?;
    let feeds = [("words", Meta::new(DType::I64, [8]))];
    let (program, loss) = (net.program()?, loss.name());
    let run = PlannedRun { program: &program, feeds: &feeds, fetches: &[&loss] };
    let memory = MemoryUse::planned(&Executor::with_threads(1), &[run])?;
    assert_eq!(memory.copies, 0, "updates run ahead of an operator that may fail");
    Ok(memory.arena)
}

#[test]
fn gradients_do_not_outlive_their_updates() -> Result<()> {
    let gradient_bytes = 4 * 1024 * WIDTH;
    // The updates depend on the norm of all gradients.
    let all = arena_bytes(&Adam::new(0.1).clip(GradientClip::GlobalNorm(1.0)))?;
    assert!(all > 12 * gradient_bytes, "{all}");
    for optimizer in [
        &Adam::new(0.1) as &dyn Optimizer,
        &Momentum { rate: 0.1, momentum: 0.9, nesterov: true, lazy: false },
        &Adam::new(0.1).weight_decay(0.01),
        &Adam::new(0.1).clip(GradientClip::Norm(1.0)),
        &Sgd { rate: 0.1 },
    ] {
        let early = arena_bytes(optimizer)?;
        assert!(early < all - 7 * gradient_bytes, "{early} of {all}");
    }
    Ok(())
}

#[test]
fn failed_steps_change_nothing_although_updates_are_early() -> Result<()> {
    let (net, mut scope, mut executor) = (Builder::new(), Scope::new(), Executor::with_threads(1));
    let (ids, table) = (net.input("ids", DType::I64, &[2]), Embedding::builder(&net, 64, 1024).build());
    let h = Linear::builder(&net, 1024, 64).build().forward(&table.forward(&ids)).tanh();
    Adam::new(0.1).minimize(&h.mean())?.complete()?;
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let program = net.program()?;
    let bits = |scope: &Scope| -> Vec<Vec<u8>> {
        let kept = program.root().vars.iter().filter(|(_, desc)| desc.persistable);
        kept.map(|(var, _)| scope.find(program.name(*var)).unwrap().bytes().to_vec()).collect()
    };
    let before = bits(&scope);
    for (ids, is_valid) in [([3_i64, 64], false), ([3, 63], true)] {
        let ids = Tensor::from_vec([2], ids.to_vec())?;
        let outcome = executor.run(&program, &mut scope, &[("ids", &ids)], &[]);
        assert_eq!(outcome.is_ok(), is_valid, "{outcome:?}");
        assert_eq!(bits(&scope) == before, !is_valid);
    }
    Ok(())
}
