//! Several gradient operators that read the saved steps of one loop, branch or recurrence in one run.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, Result, Scope, Tensor, append_backward, backward::jacobian,
    gradients,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan, while_loop},
};

/// The gradients of both outputs, fetched in one run and in separate runs.
fn compare(model: impl Fn(&Builder, [&Expr; 2]) -> Vec<Expr>) -> Result<()> {
    let net = Builder::new();
    let parameter =
        |name: &str, value| net.parameter(name, DType::F64, &[2], |p| Init::Constant(value).emit(p, 0));
    let (w, u) = (parameter("w", 0.5), parameter("u", 0.25));
    let outputs = model(&net, [&w, &u]);
    let (first, second) = (outputs[0].sum(&[]).name(), outputs[1].sum(&[]).name());
    let mut both = net.program()?.clone();
    append_backward(&mut both, &first, &Backward { allow_missing: true, ..Backward::default() })?;
    let found = gradients(&mut both, &[&second], &["u"], &Default::default())?;
    let of_u = both.name(found.pairs[0].1).to_string();
    let mut alone = net.program()?.clone();
    gradients(&mut alone, &[&second], &["u"], &Default::default())?;

    let mut scope = Scope::new();
    let mut executor = Executor::with_threads(1);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let expected = executor.run(&alone, &mut scope, &[], &["u@GRAD"])?.remove(0);
    assert!(expected.to_f64s().iter().all(|x| *x != 0.0));
    // A run leaves a clean state for the next.
    for _ in 0..2 {
        let fetched = executor.run(&both, &mut scope, &[], &["w@GRAD", &of_u])?;
        assert!(fetched[0].to_f64s().iter().all(|x| *x != 0.0));
        assert_eq!(fetched[1], expected);
    }
    Ok(())
}

#[test]
fn both_gradients_of_a_branch() -> Result<()> {
    compare(|_, [w, u]| {
        let low = w.mean().less_than(&(w.mean() + 1.0));
        cond(&low, || vec![w.square(), w * u.exp()], || vec![w.tanh(), u.tanh()])
    })
}

#[test]
fn both_gradients_of_a_recurrence() -> Result<()> {
    compare(|net, [w, u]| {
        let x = net.persistable("x", DType::F64, &[3, 2], |x| Init::Constant(1.5).emit(x, 0));
        let outputs = scan(&[x], &[w.clone(), u.clone()], false, |x, state| {
            let (a, b) = ((&state[0] * &x[0]).tanh(), (&state[1] * &state[0]).sin());
            (vec![a.clone(), b.clone()], vec![a, b])
        });
        outputs[..2].to_vec()
    })
}

#[test]
fn both_gradients_of_loops_within_a_loop() -> Result<()> {
    compare(|_, [w, u]| {
        while_loop(
            &[w.clone(), u.clone()],
            |v| v[0].sum(&[]).less_than(&(w.sum(&[]) + 8.0)),
            |v| {
                let inner = while_loop(
                    &[v[0].clone(), v[1].clone()],
                    |v| v[0].sum(&[]).less_than(&(w.sum(&[]) + 6.0)),
                    |v| vec![&v[0] * 1.5, (&v[1] * &v[0]).sin()],
                );
                vec![&inner[0] * 1.25, &inner[1] * &v[1]]
            },
        )
    })
}

#[test]
fn jacobian_through_a_recurrence() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let start = net.parameter("start", DType::F64, &[3], |p| Init::Constant(1.0).emit(p, 0));
    let sums = scan(&[x], &[start], false, |x, sum| {
        let sum = &x[0] * &sum[0];
        (vec![sum.clone()], vec![sum])
    });
    let mut program = net.program()?.clone();
    let matrix = jacobian(&mut program, &sums[0].name(), &["start"], &Default::default())?[0]
        .expect("a path leads there");
    let x = Tensor::from_vec([2, 3], vec![2.0, 3.0, 5.0, 7.0, 11.0, 13.0])?;
    let name = program.name(matrix).to_string();
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let found = executor.run(&program, &mut scope, &[("x", &x)], &[&name])?;
    let steps = [[2.0, 3.0, 5.0], [14.0, 33.0, 65.0]];
    let expected = (0..18).map(|k| if k % 9 / 3 == k % 3 { steps[k / 9][k % 3] } else { 0.0 });
    assert_eq!(found[0].to_f64s(), expected.collect::<Vec<_>>());
    Ok(())
}
