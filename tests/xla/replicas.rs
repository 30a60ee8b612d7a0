//! Training on two devices of one process: steps of `data_parallel` and `shard_optimizer` run as replicas.

use autobwd::{
    Executor, Meta, OpInfoMap, Program, Result, Scope, Tensor,
    parallel::{data_parallel, shard_optimizer, startup, threads},
};
use autobwd_ops::optim::{Adam, Momentum, Optimizer, Sgd};
use autobwd_tests::training_case::TrainingCase;
use autobwd_xla::{
    DeviceExecutor, DeviceScope,
    lower::{LowerRequest, lower},
    pjrt::Device,
};

use crate::support::devices;

const STEPS: usize = 3;

fn models(adam: &dyn Optimizer) -> Result<[(&'static str, TrainingCase); 5]> {
    let (sgd, momentum) =
        (Sgd { rate: 0.1 }, Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false });
    Ok([
        ("mlp", TrainingCase::mlp(adam)?),
        ("digits", TrainingCase::digits(&momentum)?),
        ("lstm", TrainingCase::lstm(&sgd)?),
        ("gpt", TrainingCase::gpt(&sgd, false)?),
        ("gpt with sparse gradients", TrainingCase::gpt(&sgd, true)?),
    ])
}

/// The values at the start, by rank: ranks that are threads of the host exchange them.
fn starts(programs: impl Fn(usize) -> Result<Vec<Program>> + Sync) -> Result<Vec<Scope>> {
    threads::run(2, |transport| {
        let (rank, mut scope) = (transport.rank(), Scope::new());
        let mut executor = Executor::with_threads(1).with_transport(transport);
        for program in programs(rank)? {
            executor.run(&program, &mut scope, &[], &[])?;
        }
        Ok(scope)
    })
}

/// A copy of the values on the host.
fn download(scope: &DeviceScope) -> Result<Scope> {
    let mut values = Scope::new();
    scope.download(&mut values)?;
    Ok(values)
}

/// Lowers a step for two devices.
fn lower_step(model: &TrainingCase, step: &Program, start: &Scope) -> Result<()> {
    let [x, y] = model.batch(0, 1)?;
    let feeds = [("x", x.meta()), ("y", y.meta())];
    let metas = |name: &str| -> Option<Meta> { start.get(name).ok().map(|value| value.meta()) };
    let fetches = [model.loss.as_str()];
    let request = LowerRequest::new(&feeds, &metas, &fetches).replicas(2);
    lower(step, OpInfoMap::linked()?, &request)?.check()
}

/// The values after training on two devices.
fn train(model: &TrainingCase, step: &Program, starts: &[Scope], devices: &[Device]) -> Result<Vec<Scope>> {
    let mut executor = DeviceExecutor::new();
    let mut scopes: Vec<DeviceScope> = devices.iter().map(DeviceScope::new).collect();
    scopes.iter_mut().zip(starts).try_for_each(|(scope, start)| scope.upload(start))?;
    for i in 0..STEPS {
        let ([x0, y0], [x1, y1]) = (model.batch(2 * i, 1)?, model.batch(2 * i + 1, 1)?);
        let feeds: [&[(&str, &Tensor)]; 2] = [&[("x", &x0), ("y", &y0)], &[("x", &x1), ("y", &y1)]];
        executor.run_replicas(step, &mut scopes, &feeds, &[&model.loss])?;
    }
    scopes.iter().map(download).collect()
}

/// The values after training on one device, with batches that are twice as large.
fn train_whole(model: &TrainingCase, start: &Scope, device: &Device) -> Result<Scope> {
    let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(device));
    scope.upload(start)?;
    for i in 0..STEPS {
        let [x, y] = model.batch(2 * i, 2)?;
        executor.run(&model.program, &mut scope, &[("x", &x), ("y", &y)], &[&model.loss])?;
    }
    download(&scope)
}

pub(crate) fn steps_for_two_devices_are_lowered() -> Result<()> {
    for (_, model) in models(&Adam::new(0.01))? {
        let step = data_parallel(&model.program, 2, 1000)?;
        let start = starts(|rank| Ok(vec![model.startup.clone(), startup(&step, rank)?]))?;
        lower_step(&model, &step, &start[0])?;
        let sharded = shard_optimizer(&model.program, &model.startup, 2, 1000)?;
        let start = starts(|rank| Ok(vec![sharded.startup(rank)?]))?;
        lower_step(&model, &sharded.step, &start[0])?;
    }
    Ok(())
}

pub(crate) fn two_devices_train_as_one() -> Result<()> {
    let devices = devices(2)?;
    // The steps of Adam exceed 1e-6 where gradients are close to zero.
    for (name, model) in models(&Sgd { rate: 0.1 })? {
        let step = data_parallel(&model.program, 2, 1000)?;
        let starts = starts(|rank| Ok(vec![model.startup.clone(), startup(&step, rank)?]))?;
        let found = train(&model, &step, &starts, &devices)?;
        let whole = train_whole(&model, &starts[0], &devices[0])?;
        for (var, expected) in whole.iter() {
            let [first, second] = [&found[0], &found[1]].map(|scope| scope.get(var));
            assert_eq!(first?.bytes(), second?.bytes(), "{name}: `{var}`");
            for (a, b) in found[0].get(var)?.to_f64s().iter().zip(expected.to_f64s()) {
                assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{name}: `{var}`: {a}, not {b}");
            }
        }
    }
    Ok(())
}

pub(crate) fn optimizer_state_is_divided_among_devices() -> Result<()> {
    let devices = devices(2)?;
    for (name, model) in models(&Adam::new(0.01))? {
        let step = data_parallel(&model.program, 2, 1000)?;
        let whole = starts(|rank| Ok(vec![model.startup.clone(), startup(&step, rank)?]))?;
        let whole = train(&model, &step, &whole, &devices)?;
        let sharded = shard_optimizer(&model.program, &model.startup, 2, 1000)?;
        let starts = starts(|rank| Ok(vec![sharded.startup(rank)?]))?;
        let found = train(&model, &sharded.step, &starts, &devices)?;
        for (found, whole) in found.iter().zip(&whole) {
            for (var, expected) in whole.iter() {
                match found.get(var) {
                    Ok(value) => assert_eq!(value.bytes(), expected.bytes(), "{name}: `{var}`"),
                    Err(_) => {
                        let part = found.get(&format!("{var}@SHARD"))?;
                        assert_eq!(part.numel(), expected.numel().div_ceil(2), "{name}: `{var}`");
                    }
                }
            }
        }
    }
    Ok(())
}
