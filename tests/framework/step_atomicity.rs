//! Failing steps leave the scope unchanged.

use autobwd::{Builder, DType, Executor, Expr, Feed, Meta, Result, Scope, Tensor};
use autobwd_ops::{
    Init, Math,
    control::{dynamic_dims, while_loop},
    nn,
    optim::{Adam, Momentum, Optimizer, Sgd},
};

use crate::support::control_flow::number;

/// A classifier with statistics and a counter that a step overwrites long before it reads labels.
fn classifier(net: &Builder) -> Expr {
    let (x, y) = (net.input("x", DType::F32, &[-1, 3]), net.input("y", DType::I64, &[-1, 1]));
    let h = nn::Dropout::new(net, 0.5, 1).forward(&nn::BatchNorm::builder(net, 3).build().forward(&x));
    nn::Linear::builder(net, 3, 4).build().forward(&h).cross_entropy(&y).mean()
}

fn batch(label: i64) -> Result<(Tensor, Tensor)> {
    let x = Tensor::from_vec([2, 3], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 7.0])?;
    Ok((x, Tensor::from_vec([2, 1], vec![0, label])?))
}

fn started(net: &Builder, executor: &mut Executor) -> Result<Scope> {
    let mut scope = Scope::new();
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

#[track_caller]
fn assert_same(a: &Scope, b: &Scope) {
    assert_eq!(a.len(), b.len());
    for ((name, a), (other, b)) in a.iter().zip(b.iter()) {
        assert!(name == other && a == b, "{name} is {a:?}, {other} was {b:?}");
    }
}

#[test]
fn bad_label_leaves_no_trace() -> Result<()> {
    let net = Builder::new();
    let loss = classifier(&net);
    Adam::new(0.1).minimize(&loss)?.complete()?;
    let run = |labels: &[i64]| -> Result<Scope> {
        let mut executor = Executor::new();
        let mut scope = started(&net, &mut executor)?;
        for label in labels {
            let ((x, y), before) = (batch(*label)?, scope.clone());
            let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("y", &y)];
            match executor.run(&net.program()?, &mut scope, &feeds, &[&loss.name()]) {
                Ok(_) => assert_ne!(scope.get("batch_norm_0.mean")?, before.get("batch_norm_0.mean")?),
                Err(e) => {
                    assert!(e.to_string().ends_with("`Label`: class index 9 is not within 0..4"), "{e}");
                    assert_same(&scope, &before);
                }
            }
        }
        Ok(scope)
    };
    // A loop that skips bad batches gives the same results as one without them.
    assert_same(&run(&[9, 1, 9, 9, 2, 9])?, &run(&[1, 2])?);
    Ok(())
}

#[test]
fn session_goes_on_after_a_step_that_failed() -> Result<()> {
    let net = Builder::new();
    let loss = classifier(&net).name();
    let executor = Executor::with_threads(1);
    let mut scope = started(&net, &mut Executor::new())?;
    let feeds = [("x", Meta::new(DType::F32, [2, 3])), ("y", Meta::new(DType::I64, [2, 1]))];
    let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&loss])?;
    for label in [9, 1, 9, 2] {
        let ((x, y), before) = (batch(label)?, scope.clone());
        session.feed("x", &x)?;
        session.feed("y", &y)?;
        match session.run(&mut scope) {
            Ok(()) => assert!(session.item(&loss)?.is_finite()),
            Err(_) => assert_same(&scope, &before),
        }
    }
    Ok(())
}

#[test]
fn number_that_is_not_finite_leaves_no_trace() -> Result<()> {
    let net = Builder::new();
    let loss = classifier(&net) * f64::INFINITY;
    Adam::new(0.1).minimize(&loss)?.complete()?;
    let mut executor = Executor::new().check_finite(true);
    let mut scope = started(&net, &mut executor)?;
    let ((x, y), before) = (batch(1)?, scope.clone());
    let run = executor.run(&net.program()?, &mut scope, &[("x", &x), ("y", &y)], &[&loss.name()]);
    assert!(run.unwrap_err().to_string().contains(" is not finite"));
    assert_same(&scope, &before);
    Ok(())
}

#[test]
fn updates_ahead_of_an_operator_that_fails_are_taken_back() -> Result<()> {
    // The gradient of the head and its update are one operator, which runs before the gradient of the table.
    let net = Builder::new();
    let (ids, rows) = (net.input("ids", DType::I64, &[-1]), net.input("rows", DType::I64, &[-1]));
    let embedded = nn::Embedding::builder(&net, 5, 8).build().forward(&ids);
    let loss = nn::Linear::builder(&net, 8, 3).build().forward(&embedded).square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let last = net.expr("linear_0.w").gather(&rows, 0);
    let mut executor = Executor::new();
    let mut scope = started(&net, &mut executor)?;
    let before = scope.clone();
    let ids = Tensor::from_vec([2], vec![1_i64, 4])?;
    for (row, fails) in [(8_i64, true), (7, false)] {
        let row = Tensor::from_vec([1], vec![row])?;
        let feeds: [(&str, &dyn Feed); 2] = [("ids", &ids), ("rows", &row)];
        let run = executor.run(&net.program()?, &mut scope, &feeds, &[&last.name()]);
        assert_eq!(run.is_err(), fails);
        if fails {
            assert_same(&scope, &before);
        }
    }
    assert_ne!(scope.get("linear_0.w")?, before.get("linear_0.w")?);
    Ok(())
}

#[test]
fn failed_dynamic_operators_leave_no_trace() -> Result<()> {
    let net = Builder::new();
    let (row, at) = (net.input("row", DType::F32, &[1, 2]), net.input("at", DType::I64, &[1]));
    let count = |name: &str| {
        let counter = net.persistable(name, DType::F32, &[1], |c| Init::Constant(0.0).emit(c, 0));
        let op =
            autobwd_ops::increment::Increment { x: (&counter).into(), out: (&counter).into(), step: 1.0 };
        autobwd::emit(op).out
    };
    count("before");
    let end = number(&net, 3);
    let vars = [number(&net, 0), dynamic_dims(&row, &[-2])];
    let step = |v: &[Expr]| vec![&v[0] + 1.0, autobwd_ops::concat(&[&v[1], &row], 0)];
    let rows = while_loop(&vars, |v| v[0].less_than(&end), step).remove(1);
    count("behind");
    let picked = rows.gather(&at, 0).name();
    let mut executor = Executor::new();
    let mut scope = started(&net, &mut executor)?;
    let row = Tensor::from_vec([1, 2], vec![1.0_f32, 2.0])?;
    for (at, expected) in [(4_i64, 0.0), (3, 1.0), (9, 1.0), (0, 2.0)] {
        let at = Tensor::from_vec([1], vec![at])?;
        let run = executor.run(&net.program()?, &mut scope, &[("row", &row), ("at", &at)], &[&picked]);
        assert_eq!(run.is_ok(), at.item()? < 4.0);
        let counters = [scope.get("before")?.item()?, scope.get("behind")?.item()?];
        assert_eq!(counters, [expected; 2]);
    }
    Ok(())
}

#[test]
fn failed_run_creates_no_values() -> Result<()> {
    let net = Builder::new();
    let (x, at) = (net.input("x", DType::F32, &[2]), net.input("at", DType::I64, &[1]));
    let kept = net.persistable("kept", DType::F32, &[2], Expr::clone);
    let op = autobwd_ops::shape::Assign { x: (&x).into(), out: (&kept).into() };
    autobwd::emit(op).out.check()?;
    let picked = x.gather(&at, 0).name();
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    let x = Tensor::from_vec([2], vec![1.0_f32, 2.0])?;
    for (at, len) in [(2_i64, 0), (1, 1), (2, 1)] {
        let at = Tensor::from_vec([1], vec![at])?;
        let run = executor.run(&net.program()?, &mut scope, &[("x", &x), ("at", &at)], &[&picked]);
        assert_eq!((run.is_ok(), scope.len()), (at.item()? < 2.0, len));
    }
    assert_eq!(scope.get("kept")?, &x);
    Ok(())
}

#[test]
fn training_copies_no_parameter() -> Result<()> {
    type Minimize = fn(&Expr) -> Result<()>;
    let optimizers: [Minimize; 3] = [
        |loss| Sgd { rate: 0.1 }.minimize(loss).map(drop),
        |loss| Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false }.minimize(loss).map(drop),
        |loss| Adam::new(0.1).minimize(loss).map(drop),
    ];
    for minimize in optimizers {
        let net = Builder::new();
        let (x, y) = (net.input("x", DType::F32, &[1, 1, 8, 8]), net.input("y", DType::I64, &[1, 1]));
        let h = nn::Conv2d::builder(&net, 1, 256, 3).build().forward(&x).relu().max_pool2d(6, 6);
        let h = nn::BatchNorm::builder(&net, 256).build().forward(&h).flatten(1, 3);
        let h = nn::Linear::builder(&net, 256, 512)
            .build()
            .forward(&nn::LayerNorm::builder(&net, 256).build().forward(&h));
        let loss = nn::Linear::builder(&net, 512, 256).build().forward(&h.tanh()).cross_entropy(&y).mean();
        minimize(&loss)?;
        let executor = Executor::with_threads(1);
        let mut scope = started(&net, &mut Executor::new())?;
        let feeds = [("x", Meta::new(DType::F32, [1, 1, 8, 8])), ("y", Meta::new(DType::I64, [1, 1]))];
        let session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&loss.name()])?;
        // One matrix has half a million bytes.
        assert!(session.scratch_bytes() < 400_000, "{} bytes", session.scratch_bytes());
    }
    Ok(())
}
