//! Programs on a device: values, cached programs, errors.

use std::sync::Arc;

use autobwd::{Builder, DType, ErrorKind, Executor, Expr, Meta, Result, Scope, Tensor};
use autobwd_ops::{
    Init, Math,
    nn::{Dropout, Linear},
    optim::{Adam, Optimizer, Sgd},
};
use autobwd_xla::{DeviceExecutor, DeviceScope};

use crate::plugin::{client, device, tensor};

/// A regression with dropout; its loss.
fn regression(net: &Builder) -> Expr {
    let (x, y) = (net.input("x", DType::F32, &[-1, 3]), net.input("y", DType::F32, &[-1, 1]));
    let hidden = Linear::builder(net, 3, 8).seed(1).build().forward(&x).tanh();
    let hidden = Dropout::new(net, 0.25, 2).forward(&hidden);
    let loss = Linear::builder(net, 8, 1).seed(3).build().forward(&hidden).square_error(&y).mean();
    Adam::new(0.01).minimize(&loss).unwrap().complete().unwrap();
    loss
}

/// So many examples.
#[expect(clippy::disallowed_methods, reason = "inputs")]
fn examples(n: usize) -> [Tensor; 2] {
    let numbers = |columns: usize, factor: f32| {
        let values = (0..n * columns).map(|i| (factor * i as f32).sin()).collect();
        Tensor::from_vec([n, columns], values).unwrap()
    };
    [numbers(3, 0.7), numbers(1, 1.3)]
}

pub(crate) fn training_has_the_values_of_the_host() -> Result<()> {
    let device = device()?;
    let net = Builder::new();
    let loss = regression(&net).name();
    let (startup, step) = (net.startup().program().unwrap().clone(), net.program().unwrap().clone());
    let (mut host, mut values) = (Executor::new(), Scope::new());
    let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&device));
    host.run(&startup, &mut values, &[], &[]).unwrap();
    executor.run(&startup, &mut scope, &[], &[]).unwrap();
    for (name, value) in values.iter() {
        assert_eq!(&scope.tensor(name).unwrap(), value, "{name}");
    }
    for n in [8, 8, 5, 8] {
        let [x, y] = examples(n);
        let expected = host.run(&step, &mut values, &[("x", &x), ("y", &y)], &[&loss]).unwrap();
        let found = executor.run(&step, &mut scope, &[("x", &x), ("y", &y)], &[&loss]).unwrap();
        assert!((found[0].item().unwrap() - expected[0].item().unwrap()).abs() < 1e-6);
    }
    for (name, value) in values.iter() {
        let found = scope.tensor(name).unwrap().to_f64s();
        assert!(found.iter().zip(value.to_f64s()).all(|(a, b)| (a - b).abs() < 1e-6), "{name}");
    }
    Ok(())
}

pub(crate) fn start_up_programs_of_one_scope_do_not_share_a_learning_rate() -> Result<()> {
    let device = device()?;
    let program = |name: &str, optimizer: &dyn Optimizer| {
        let net = Builder::new();
        let w = net.parameter(name, DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0));
        optimizer.minimize(&w.square().mean()).unwrap().complete().unwrap();
        net.startup().program().unwrap().clone()
    };
    let (first, second) = (program("a", &Sgd { rate: 0.5 }), program("b", &Sgd { rate: 0.25 }));
    let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&device));
    executor.run(&first, &mut scope, &[], &[]).unwrap();
    let e = executor.run(&second, &mut scope, &[], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Program);
    assert!(e.message().contains("`learning_rate_0` has been initialised by another program"), "{e}");
    assert!(scope.find("b").is_none());
    assert_eq!(scope.tensor("learning_rate_0").unwrap().item().unwrap(), 0.5);

    // Again the first, an optimizer with a name, and a value that was removed.
    executor.run(&first, &mut scope, &[], &[]).unwrap();
    executor.run(&program("b", &Sgd { rate: 0.25 }.name("second")), &mut scope, &[], &[]).unwrap();
    scope.remove("learning_rate_0");
    executor.run(&second, &mut scope, &[], &[]).unwrap();
    assert_eq!(scope.tensor("learning_rate_0").unwrap().item().unwrap(), 0.25);

    // A value that no program has initialised.
    scope.set("learning_rate_0", &tensor(&[1.0])).unwrap();
    executor.run(&first, &mut scope, &[], &[]).unwrap();
    assert_eq!(scope.tensor("learning_rate_0").unwrap().item().unwrap(), 0.5);
    Ok(())
}

pub(crate) fn programs_are_compiled_once_for_a_shape() -> Result<()> {
    let client = client(2)?;
    let [device, other] = [0, 1].map(|i| client.device(i).unwrap());
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1]);
    let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(2.0).emit(w, 0));
    let y = (&x * &w).mean().name();
    let program = net.program().unwrap().clone();
    let (mut executor, mut scope) = (DeviceExecutor::new().cache_size(2), DeviceScope::new(&device));
    scope.set("w", &tensor(&[2.0])).unwrap();
    let feeds = |n: usize| [("x", Meta::new(DType::F32, [n]))];
    let first = executor.prepare(&program, &scope, &feeds(3), &[&y]).unwrap();
    let second = executor.prepare(&program, &scope, &feeds(4), &[&y]).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(Arc::ptr_eq(&first, &executor.prepare(&program, &scope, &feeds(3), &[&y]).unwrap()));
    assert!(Arc::ptr_eq(&second, &executor.prepare(&program, &scope, &feeds(4), &[&y]).unwrap()));

    // Another device; the cache has room for two programs.
    let x = tensor(&[1.0, 2.0, 3.0]);
    let mut elsewhere = DeviceScope::new(&other);
    elsewhere.set("w", &tensor(&[2.0])).unwrap();
    assert_eq!(
        executor.run(&program, &mut elsewhere, &[("x", &x)], &[&y, &y]).unwrap()[1].item().unwrap(),
        4.0
    );
    assert!(!Arc::ptr_eq(&first, &executor.prepare(&program, &scope, &feeds(3), &[&y]).unwrap()));
    Ok(())
}

pub(crate) fn errors_of_the_executor_name_their_cause() -> Result<()> {
    let device = device()?;
    let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&device));
    let net = Builder::new();
    let y = net.input("x", DType::F32, &[-1]).log().name();
    let program = net.program().unwrap().clone();
    let e = executor.run(&program, &mut scope, &[], &[&y]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Feed);
    let text = e.to_string();
    assert!(text.starts_with("operator `log` (block 0, operator 0, added at "), "{text}");
    assert!(text.ends_with("`x` is read, but neither fed nor written before; feed it"), "{text}");
    let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(2.0).emit(w, 0)).square().name();
    let square = net.program().unwrap().clone();
    let e = executor.run(&square, &mut scope, &[], &[&w]).unwrap_err();
    assert!(e.to_string().contains("`w` has no value in the scope; run the start-up program"), "{e}");
    scope.set("w", &tensor(&[1.0, 2.0])).unwrap();
    let e = executor.run(&square, &mut scope, &[], &[&w]).unwrap_err();
    assert!(e.to_string().ends_with("`w` is float32 [1], but the scope holds float32 [2]"), "{e}");
    let e = executor.run_replicas(&program, &mut [], &[], &[&y]).unwrap_err();
    assert_eq!(e.to_string(), "a program runs with at least one scope");
    Ok(())
}
