//! Training on several ranks.

use std::time::Duration;

use autobwd::{
    Builder, DType, ErrorKind, Executor, Result, Scope, Tensor, emit, explain,
    operators::Increment,
    parallel::{RunOptions, accumulate, data_parallel, require_same_program, shard_optimizer, threads},
};
use autobwd_ops::{
    Init, Math,
    nn::{Dropout, Linear},
    optim::{Adam, GradientClip, Lamb, Momentum, Optimizer, Schedule, ScheduledOptimizer, Sgd},
};
use autobwd_tests::training_case::{TrainedValues, TrainingCase};

use crate::support::kept;

/// The values after training on several ranks, by rank.
fn on_ranks(model: &TrainingCase, ranks: usize, bucket_bytes: usize) -> Result<Vec<TrainedValues>> {
    threads::run(ranks, |transport| model.train(transport, bucket_bytes))
}

#[test]
fn ranks_are_bit_identical_to_one_process_with_merged_batches() -> Result<()> {
    let (sgd, adam) = (Sgd { rate: 0.1 }, Adam::new(0.01));
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let models = [
        ("mlp", TrainingCase::mlp(&sgd)?),
        ("mlp with Adam", TrainingCase::mlp(&adam)?),
        ("digits", TrainingCase::digits(&momentum)?),
        ("lstm", TrainingCase::lstm(&adam)?),
        ("gpt", TrainingCase::gpt(&adam, false)?),
    ];
    for (name, model) in models {
        for ranks in [1, 2, 4] {
            let merged = model.merged(ranks)?;
            for bucket_bytes in [0, 1000, 1 << 20] {
                for found in on_ranks(&model, ranks, bucket_bytes)? {
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
    let models = [
        TrainingCase::mlp(&sgd)?,
        TrainingCase::digits(&sgd)?,
        TrainingCase::lstm(&sgd)?,
        TrainingCase::gpt(&sgd, false)?,
    ];
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
    let models = [
        TrainingCase::mlp(&adam)?,
        TrainingCase::digits(&momentum)?,
        TrainingCase::lstm(&sgd)?,
        TrainingCase::gpt(&adam, false)?,
    ];
    for model in models {
        for ranks in [1, 2, 3] {
            let (whole, sharded) = (
                on_ranks(&model, ranks, 1000)?,
                threads::run(ranks, |transport| model.train_sharded(transport))?,
            );
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
fn updates_of_undivided_parameters_are_not_sharded() -> Result<()> {
    let model = TrainingCase::mlp(&Lamb::new(0.01))?;
    let e = shard_optimizer(&model.program, &model.startup, 2, 0).unwrap_err().to_string();
    assert!(e.contains("@GRAD` is read by `lamb`, which is not declared elementwise"), "{e}");
    let sharded = shard_optimizer(&TrainingCase::mlp(&Adam::new(0.1))?.program, &model.startup, 2, 0)?;
    let e = sharded.startup(2).unwrap_err().to_string();
    assert_eq!(e, "the step is made for 2 ranks, so there is no rank 2");
    Ok(())
}

#[test]
fn sparse_gradients_are_exchanged_as_rows() -> Result<()> {
    for ranks in [1, 2, 3] {
        let [sparse, dense] = [true, false].map(|sparse| TrainingCase::gpt(&Sgd { rate: 0.1 }, sparse));
        let (sparse, dense) = (on_ranks(&sparse?, ranks, 1000)?, on_ranks(&dense?, ranks, 1000)?);
        assert_eq!(sparse, dense, "{ranks} ranks");
    }
    Ok(())
}

#[test]
fn ranks_have_masks_of_their_own() -> Result<()> {
    let model = TrainingCase::new((&[6], 0), (&[6], 0), &Sgd { rate: 0.1 }, |net, x, y| {
        let x = Linear::builder(net, 6, 6).build().forward(&x);
        Dropout::new(net, 0.5, 7).forward(&x).square_error(&y).mean()
    })?;
    let found = on_ranks(&model, 2, 1000)?;
    let different: Vec<_> =
        found[0].iter().zip(&found[1]).filter(|(a, b)| a != b).map(|(a, _)| &*a.0).collect();
    assert_eq!(different, ["dropout_0.seed"]);
    Ok(())
}

#[test]
fn program_for_other_ranks_is_refused() -> Result<()> {
    let model = TrainingCase::mlp(&Sgd { rate: 0.1 })?;
    let step = data_parallel(&model.program, 3, 0)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&model.startup, &mut scope, &[], &[])?;
    let e = model.step(&mut executor, &mut scope, &step, &model.batch(0, 1)?).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Rank);
    assert!(e.to_string().contains("the program is made for 3 ranks, not 1"), "{e}");
    Ok(())
}

#[test]
fn ranks_with_other_programs_are_named() -> Result<()> {
    let (a, b) = (TrainingCase::mlp(&Sgd { rate: 0.1 })?, TrainingCase::mlp(&Adam::new(0.1))?);
    let e = threads::run(4, |transport| {
        let program = if transport.rank() % 2 == 1 { &b.program } else { &a.program };
        require_same_program(&*transport, program)
    });
    assert_eq!(e.unwrap_err().to_string(), "rank 0: ranks 1, 3 run another program than rank 0");
    Ok(())
}

#[test]
fn rank_that_fails_ends_the_others() -> Result<()> {
    let model = TrainingCase::mlp(&Sgd { rate: 0.1 })?;
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
            model.step(&mut executor, &mut scope, &step, &model.batch(i, 1)?)?;
        }
        Ok(())
    });
    let e = e.unwrap_err();
    assert!(e.to_string().starts_with("rank 1: "), "{e}");
    assert!(start.elapsed() < Duration::from_secs(30));
    Ok(())
}

#[test]
fn rank_that_hangs_is_named() -> Result<()> {
    let ends = threads::connect(2, Duration::from_millis(50));
    let e = ends[0].transfer(&[], &mut [(1, &mut [0])]).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Rank, "rank 1 has not answered within 50ms"));
    Ok(())
}

#[test]
fn rank_that_ends_or_panics_fails_waiting_ranks() -> Result<()> {
    let model = TrainingCase::mlp(&Sgd { rate: 0.1 })?;
    let step = data_parallel(&model.program, 3, 1 << 20)?;
    let start = std::time::Instant::now();
    let run = |panics: bool| {
        threads::run(3, |transport| {
            let (rank, mut scope) = (transport.rank(), Scope::new());
            let mut executor = Executor::with_threads(1).with_transport(transport);
            executor.run(&model.startup, &mut scope, &[], &[])?;
            for i in 0..5 {
                if (rank, i) == (1, 3) {
                    assert!(!panics, "no batch");
                    return Ok(());
                }
                model.step(&mut executor, &mut scope, &step, &model.batch(i, 1)?)?;
            }
            Ok(())
        })
    };
    let e = run(true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Panic);
    assert!(e.to_string().starts_with("rank 1: the work of the rank panicked at "), "{e}");
    let e = run(false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Rank);
    let text = e.to_string();
    assert!(text.starts_with("rank 0: ") || text.starts_with("rank 2: "), "{text}");
    let expected = "has ended, but this rank waits for it: all ranks must run the same number of steps";
    assert!(text.contains(expected), "{text}");
    assert!(start.elapsed() < Duration::from_secs(30));
    Ok(())
}

#[test]
fn deadline_of_ranks_is_an_option() -> Result<()> {
    let run = |milliseconds: u64| {
        let options = RunOptions { deadline: Duration::from_millis(milliseconds) };
        threads::run_with(2, &options, |transport| {
            if transport.rank() == 1 {
                std::thread::sleep(Duration::from_millis(300));
                return transport.transfer(&[(0, &[7])], &mut []).map(|()| 7);
            }
            let mut received = [0];
            transport.transfer(&[], &mut [(1, &mut received)]).map(|()| received[0])
        })
    };
    let e = run(50).unwrap_err().to_string();
    assert!(e.contains("rank 1 has not answered within 50ms"), "{e}");
    assert_eq!(run(60_000)?, [7, 7]);
    Ok(())
}

#[test]
fn equal_batches_that_are_merged_train_as_one_of_them() -> Result<()> {
    let sgd = Sgd { rate: 0.5 };
    let scheduled = ScheduledOptimizer { optimizer: Adam::new(1.0), schedule: Schedule::linear(1.0, 0.0, 4) };
    let optimizers: [(&str, Box<dyn Optimizer>); 5] = [
        ("sgd", Box::new(sgd)),
        ("groups", Box::new(sgd.group("b", Sgd { rate: 0.25 }))),
        ("decay", Box::new(sgd.weight_decay(0.25))),
        ("clipping", Box::new(sgd.clip(GradientClip::GlobalNorm(0.5)))),
        ("schedule", Box::new(scheduled.weight_decay(0.25).group("c", Adam::new(0.5)))),
    ];
    for (name, optimizer) in optimizers {
        // Both dtypes, and rank 0: their learning rates are computed from one.
        let net = Builder::new();
        let [a, b, c] = [("a", DType::F32, &[2][..]), ("b", DType::F64, &[]), ("c", DType::F64, &[2])]
            .map(|(name, dtype, dims)| net.parameter(name, dtype, dims, |w| Init::Constant(1.0).emit(w, 0)));
        let x = net.input("x", DType::F64, &[2]);
        let loss = (a.square().cast(DType::F64) * &x).mean() + (b.square() * (c * x).mean());
        optimizer.minimize(&loss)?.complete()?;
        let step = accumulate(&net.program()?, 2)?;
        let mut executor = Executor::with_threads(1);
        let (mut expected, mut merged) = (Scope::new(), Scope::new());
        for scope in [&mut expected, &mut merged] {
            executor.run(&net.startup().program()?, scope, &[], &[])?;
        }
        executor.run(&step.startup, &mut merged, &[], &[])?;
        for x in [[0.5, 0.25], [1.0, -0.5], [0.75, 2.0]] {
            let x = Tensor::from_vec([2], x.to_vec())?;
            executor.run(&net.program()?, &mut expected, &[("x", &x)], &[])?;
            for _ in 0..2 {
                executor.run(&step.gradients, &mut merged, &[("x", &x)], &[])?;
            }
            executor.run(&step.update, &mut merged, &[], &[])?;
            assert_eq!(kept(&merged), kept(&expected), "{name}");
        }
    }
    Ok(())
}

#[test]
fn counters_of_batches_count_merged_batches() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[1], |w| Init::Constant(1.0).emit(w, 0));
    let count = net.persistable("count", DType::F64, &[1], |x| Init::Constant(0.0).emit(x, 0));
    emit(Increment { x: (&count).into(), out: (&count).into(), step: 1.0 }).out.check()?;
    let loss = (&w * &count).sum(&[]);
    Sgd { rate: 1.0 }.minimize(&loss)?.complete()?;
    let norm = w.square().sum(&[]).name();
    let step = accumulate(&net.program()?, 2)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    for program in [&*net.startup().program()?, &step.startup] {
        executor.run(program, &mut scope, &[], &[])?;
    }
    for _ in 0..2 {
        executor.run(&step.gradients, &mut scope, &[], &[])?;
    }
    // After the update, the weight is 1 − (1 + 2) / 2.
    assert_eq!(executor.run(&step.update, &mut scope, &[], &[&norm])?[0].item()?, 0.25);
    assert_eq!(scope.get("count")?.item()?, 2.0);
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
    let model = TrainingCase::mlp(&Sgd { rate: 0.1 })?;
    let program = model.program;
    assert!(data_parallel(&program, 0, 0).is_err() && accumulate(&program, 0).is_err());
    Ok(())
}

#[test]
fn explanation_tells_of_the_sum_over_all_ranks() -> Result<()> {
    let model = TrainingCase::mlp(&Sgd { rate: 0.1 })?;
    for (bucket_bytes, told) in [
        (0, "w@GRAD = c_allreduce_sum\n    sums it over all ranks"),
        (
            1 << 20,
            "c_allreduce_sum\n    sums `linear_0.w@GRAD` over all ranks, each of 4 gradients by itself",
        ),
    ] {
        let step = data_parallel(&model.program, 4, bucket_bytes)?;
        let story = explain(&step, "linear_0.w@GRAD")?;
        assert!(story.contains(told), "{story}");
        assert!(story.contains("whose derivative with respect to itself is one, times 0.25 ("), "{story}");
        // Other sums are no part of it.
        assert_eq!(story.matches("c_allreduce_sum").count(), 1, "{story}");
        let read = autobwd::Program::from_json(&step.to_json())?;
        assert_eq!(explain(&read, "linear_0.w@GRAD")?, story);
    }
    Ok(())
}

#[test]
fn panic_of_a_rank_is_the_users_and_has_its_place() {
    let e = threads::run(2, |transport| {
        assert_eq!(transport.rank(), 0, "on purpose");
        Ok(())
    });
    let e = e.unwrap_err();
    let text = e.to_string();
    let start = "rank 1: the work of the rank panicked at tests/framework/parallel.rs:";
    assert!(text.starts_with(start) && text.contains("on purpose"), "{text}");
    assert!(!text.contains("autobwd bug"), "{text}");
    assert_eq!(e.kind(), ErrorKind::Panic);
}
