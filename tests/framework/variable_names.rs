//! Names given to variables of a program.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Program, Result, Scope, Tensor, append_backward,
    emit, exec::Monitor,
};
use autobwd_ops::{
    Init, Math,
    activation::Relu,
    control::{scan, static_rnn, while_loop},
    nn::Linear,
    optim::{Optimizer, Sgd},
};

#[test]
fn name_does_not_depend_on_other_variables() -> Result<()> {
    let log = |layers: usize| -> Result<String> {
        let net = Builder::new();
        let mut h = net.input("x", DType::F32, &[-1, 2]);
        for _ in 0..layers {
            h = Linear::builder(&net, 2, 2).build().forward(&h).tanh();
        }
        let before = h.square().mean();
        let loss = before.clone().named("loss");
        // Copies of the expression also have the name.
        assert_eq!((loss.name(), before.name()), ("loss".into(), "loss".into()));
        Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
        let program = net.program()?.clone();
        autobwd::verify(&program)?;
        assert_eq!(Program::from_json(&program.to_json())?, program);
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut monitor = Monitor::create(&path, &program, &["loss"])?;
        let x = Tensor::from_vec([1, 2], vec![1.0_f32, 2.0])?;
        let fetches = monitor.fetches();
        let found = executor.run(&program, &mut scope, &[("x", &x)], &fetches)?;
        monitor.record_fetched(1, &found)?;
        Ok(std::fs::read_to_string(path).unwrap())
    };
    for layers in [1, 3] {
        let log = log(layers)?;
        assert!(log.contains(r#""values":["loss"]"#) && log.contains(r#""values":{"loss":"#), "{log}");
    }
    Ok(())
}

#[test]
fn old_names_are_free_again() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let first = x.tanh().named("first");
    let (second, third) = (x.tanh(), x.tanh().named("third"));
    assert_eq!(second.name(), "tanh_1");
    let sum = (&first + &second + &third).mean().named("sum").named("sum");
    assert_eq!(sum.named("total").name(), "total");
    assert_eq!(net.input("sum", DType::F32, &[2]).name(), "sum");
    let text = net.program()?.to_string();
    for line in ["first = tanh(X=x)", "tanh_1 = tanh(X=x)", "third = tanh(X=x)", "total = "] {
        assert!(text.contains(line), "{text}\nlacks {line}");
    }
    Ok(())
}

#[test]
fn names_are_refused_where_they_would_not_fit() -> Result<()> {
    type Naming = fn(&Builder, &Expr, &Expr) -> Expr;
    let cases: [(Naming, &str); 8] = [
        (
            |_, x, _| {
                let x = emit(Relu { x: x.into(), out: x.into() }).out;
                x.named("y")
            },
            "only values that operators of the current block compute",
        ),
        (|_, x, _| x.clone().named("y"), "only values that operators of the current block compute"),
        (|_, _, w| w.clone().named("y"), "only values that operators of the current block compute"),
        (|_, x, _| x.tanh().named("x"), "the program has a variable of that name"),
        (|_, x, _| x.tanh().named("w@GRAD"), "cannot be a variable name"),
        (|_, x, _| x.tanh().named(""), ""),
        (
            |net, x, w| {
                let loss = (x * w).mean();
                net.edit(|p| append_backward(p, &loss.name(), &Backward::default())).unwrap();
                loss.named("late")
            },
            "a gradient of one of both",
        ),
        (
            |_, x, _| {
                let mut inner = None;
                scan(&[x.unsqueeze(&[0])], std::slice::from_ref(x), false, |x, h| {
                    let next = &x[0] + &h[0];
                    inner = Some(next.clone());
                    (vec![next.clone()], vec![next])
                });
                inner.unwrap().named("inner")
            },
            "only values that operators of the current block compute",
        ),
    ];
    for (naming, text) in cases {
        let net = Builder::new();
        let x = net.input("x", DType::F32, &[2]);
        let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
        let line = naming(&net, &x, &w).check().unwrap_err().to_string();
        assert!(line.contains(text) && line.contains("variable_names.rs:"), "{line}");
    }
    let e = Builder::new().input("x", DType::F32, &[2]).named("y").check().unwrap_err().kind();
    assert_eq!(e, ErrorKind::UnknownVar);
    Ok(())
}

#[test]
fn values_within_loops_can_be_named() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3, 2]);
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let zero = x.sum(&[]) * 0.0;
    let looped = while_loop(
        &[x.clone().tanh().named("start"), zero.clone()],
        |v| v[1].less_than(&(&zero + 2.0)),
        |v| vec![(&v[0] * &w).named("scaled"), &v[1] + 1.0],
    );
    let looped = looped[0].clone().named("looped");
    let steps = static_rnn(&net, false, |rnn| {
        let (x, h) = (rnn.step_input(&looped), rnn.memory(&w));
        let next = (&x * &h).tanh().named("state");
        rnn.update_memory(&h, &next);
        rnn.step_output(&next);
    });
    let loss = steps[0].clone().named("steps").mean().named("loss");
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let program = net.program()?.clone();
    autobwd::verify(&program)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::from_vec([3, 2], vec![0.1_f32, 0.2, 0.3, 0.4, 0.5, 0.6])?;
    let found = executor.run(&program, &mut scope, &[("x", &x)], &["loss", "steps", "looped"])?;
    assert!((found[2].to_f64s()[0] - 0.1_f64.tanh() * 0.25).abs() < 1e-6);
    Ok(())
}
