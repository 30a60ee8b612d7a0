//! Memory of many runs: plans that are no longer used are freed.

use std::sync::atomic::Ordering;

use autobwd::{Builder, DType, Executor, Meta, Result, Scope, Tensor};
use autobwd_ops::{Math, nn::Linear};

use crate::support::{
    counting::{HELD, LINE},
    sgd,
};

pub(crate) fn plans_for_many_shapes_are_evicted() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 64]);
    let loss = Linear::builder(&net, 64, 10).build().forward(&x).square().mean();
    sgd(&loss)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (program, mut held) = (net.program()?, vec![]);
    for i in 0..40 {
        let x = Tensor::zeros(DType::F32, &[1_000 - 8 * i, 64])?;
        drop(executor.run(&program, &mut scope, &[("x", &x)], &[&loss.name()])?);
        drop(x);
        held.push(HELD.load(Ordering::SeqCst));
    }
    // 16 sessions are kept, the start-up program among the first; each new one is smaller than the one it evicts.
    assert!(held[..15].is_sorted_by(|a, b| a < b), "{held:?}");
    assert!(held[16..].is_sorted_by(|a, b| a > b), "{held:?}");
    Ok(())
}

/// 2,200 runs in which data decides on another size each: their plans are not all kept.
pub(crate) fn plans_for_many_decided_shapes_are_evicted() -> Result<()> {
    const ELEMENTS: usize = 2200;
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[ELEMENTS as i64]);
    let sum = x.masked_select(&x.greater_than(&(&x * 0.0))).square().sum(&[]).name();
    let (executor, mut scope) = (Executor::with_threads(1), Scope::new());
    let feeds = [("x", Meta::new(DType::F32, [ELEMENTS]))];
    let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&sum])?;
    let mut x = Tensor::from_vec([ELEMENTS], vec![-1.0_f32; ELEMENTS])?;
    let mut held = Vec::with_capacity(ELEMENTS);
    for i in 0..ELEMENTS {
        x.slice_mut::<f32>()?[i] = 1.0;
        session.feed("x", &x)?;
        session.run(&mut scope)?;
        assert_eq!(session.item(&sum)?, (i + 1) as f64);
        held.push(HELD.load(Ordering::SeqCst));
    }
    // When there are 1,024 plans, all but 16 of them are dropped.
    let (first, all) = (held[..1024].iter().max(), held.iter().max());
    assert!(all <= first.map(|most| most + most / 10).as_ref(), "{first:?} bytes, {all:?} in the end");
    assert!(held[1100] < held[1000], "{} after 1,000 sizes, {} after 1,100", held[1000], held[1100]);
    Ok(())
}

/// 10,000 steps, with more sizes in turn than cached sessions: each is planned again.
pub(crate) fn memory_stays_the_same_while_batch_sizes_change() -> Result<()> {
    const SIZES: usize = 25;
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 4]);
    let loss = Linear::builder(&net, 4, 2).build().forward(&x).square().mean();
    sgd(&loss)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (program, loss) = (net.program()?, loss.name());
    let batches = (1..=SIZES).map(|rows| Tensor::zeros(DType::F32, &[7 * rows % SIZES + 1, 4]));
    let batches = batches.collect::<Result<Vec<Tensor>>>()?;
    let mut held = Vec::with_capacity(10_000 / SIZES);
    for _ in 0..10_000 / SIZES {
        for x in &batches {
            drop(executor.run(&program, &mut scope, &[("x", x)], &[&loss])?);
        }
        held.push(HELD.load(Ordering::SeqCst));
    }
    // A thread pools up to 4,096 freed cache lines; from then on, its memory is constant.
    const FREE_LINES: usize = 4096 * LINE;
    assert!(held.iter().all(|bytes| *bytes <= held[0] + FREE_LINES), "{held:?}");
    assert!(held[held.len() / 2..].iter().all(|bytes| Some(bytes) == held.last()), "{held:?}");
    Ok(())
}
