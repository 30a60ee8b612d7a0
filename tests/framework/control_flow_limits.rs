//! Loops, recurrences and tensor arrays at their limits.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, New, Result, Scope, Tensor, append_backward, emit, verify,
};
use autobwd_ops::{
    Math,
    array::{LodArrayLength, WriteToArray},
    control::{scan, static_rnn, while_loop},
};

use crate::support::{
    control_flow::{DIMS, number},
    derivatives::{assert_derivatives, assert_near, parameter},
};

#[test]
fn tensor_array_length_follows_its_last_index() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let list = emit(WriteToArray { x: (&x).into(), i: number(&net, 2).into(), out: New }).out;
    let length = || -> Result<Expr> { Ok(emit(LodArrayLength { x: (&list).into(), out: New }).out) };
    let mut lengths: Vec<Expr> = vec![length()?];
    for position in [0, 5] {
        emit(WriteToArray { x: (&x).into(), i: number(&net, position).into(), out: (&list).into() })
            .out
            .check()?;
        lengths.push(length()?);
    }
    verify(&*net.program()?)?;
    let names: Vec<String> = lengths.iter().map(Expr::name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let x = Tensor::zeros(DType::F64, &[2, 2])?;
    let mut executor = Executor::new();
    // Leftovers of a run do not extend the array of the next one.
    for _ in 0..2 {
        let found = executor.run(&net.program()?, &mut Scope::new(), &[("x", &x)], &names)?;
        let found: Vec<&[i64]> = found.iter().map(Tensor::slice).collect::<Result<_>>()?;
        assert_eq!(found, [[3], [3], [6]]);
    }
    Ok(())
}

#[test]
fn recurrence_without_steps_returns_its_initial_state() -> Result<()> {
    let net = Builder::new();
    let (w, first) = (parameter(&net, "w", &[2]), parameter(&net, "first", &[2]));
    let x = net.input("x", DType::F64, &[-1, 2]);
    let scaled = &x * &w;
    let found = static_rnn(&net, false, |rnn| {
        let (x, h) = (rnn.step_input(&scaled), rnn.memory(&first));
        let next = (&h * &w + &x).tanh();
        rnn.update_memory(&h, &next);
        rnn.last_output(&h);
        rnn.step_output(&next)
    });
    let [states, last] = &found[..] else { panic!("{found:?}") };
    let loss = (last.square().sum(&[]) + states.sum(&[])).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    verify(&program)?;
    let fetches = [&*states.name(), &last.name(), "first@GRAD", "w@GRAD", &loss];
    let mut executor = Executor::with_threads(1);
    let mut run = |steps: usize| {
        let mut scope = Scope::new();
        scope.set("w", Tensor::from_vec([2], vec![0.5, 0.25])?);
        scope.set("first", Tensor::from_vec([2], vec![3.0, -4.0])?);
        executor.run(&program, &mut scope, &[("x", &Tensor::zeros(DType::F64, &[steps, 2])?)], &fetches)
    };
    let found = run(0)?;
    assert_eq!(found[0].dims(), [0, 2]);
    let numbers: Vec<Vec<f64>> = found[1..].iter().map(Tensor::to_f64s).collect();
    assert_eq!(numbers, [vec![3.0, -4.0], vec![6.0, -8.0], vec![0.0, 0.0], vec![25.0]]);
    // The same program with steps.
    assert_near(&run(1)?[1].to_f64s(), &[1.5_f64.tanh(), (-1.0_f64).tanh()], 1e-14);
    Ok(())
}

/// The mark `stop_gradient` of data does not apply to gradients between steps of the backward pass.
#[test]
fn state_initialised_with_data_has_second_derivatives() -> Result<()> {
    for reverse in [false, true] {
        let net = Builder::new();
        let w = parameter(&net, "w", &[3]);
        let first = net.persistable("first", DType::F64, &[], Expr::clone);
        let product = static_rnn(&net, reverse, |rnn| {
            let (w, p) = (rnn.step_input(&w), rnn.memory(&first));
            let next = &w * &p;
            rnn.update_memory(&p, &next);
            rnn.last_output(&p);
        });
        let at = [("w", &[0.7, -0.4, 1.2][..]), ("first", &[1.5])];
        assert_derivatives(net.program()?.clone(), &at, product[0].name(), "w", 2);
    }
    Ok(())
}

/// As in programs of the reference, where a copy of data is marked.
#[test]
fn counted_loop_over_differentiable_data_has_second_derivatives() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let first = net.persistable("first", DType::F64, &[3], Expr::clone);
    let (start, end) = (number(&net, 0), number(&net, 2));
    let body = |v: &[Expr]| vec![&v[0] + 1.0, &v[1] * &w + v[1].sum(&[]) * w.sum(&[])];
    let state = while_loop(&[start, first], |v| v[0].less_than(&end), body)[1].clone().freeze();
    let (loss, at) = (state.sum(&[]).name(), [("w", &[0.7, -0.4, 1.2][..]), ("first", &[1.5, 1.0, -0.5])]);
    assert_derivatives(net.program()?.clone(), &at, loss, "w", 2);
    Ok(())
}

#[test]
fn unrequested_gradients_do_not_affect_requested_ones() -> Result<()> {
    let run = |no_grad: &[&str], unread: bool| -> Result<(Vec<Tensor>, bool)> {
        let net = Builder::new();
        let [w, v, first] = ["w", "v", "first"].map(|name| parameter(&net, name, &[2]));
        let (w, v, x) = (w, v, net.input("x", DType::F64, &[-1, 2]));
        let outputs = scan(&[&x * &v], &[first], false, |x, h| {
            let next = (&h[0] * &w + &x[0]).tanh();
            let also = if unread { vec![(&next * &w).exp()] } else { vec![] };
            (vec![next.clone()], also.into_iter().chain([next]).collect())
        });
        let loss = outputs.last().expect("there is one").square().sum(&[]).name();
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss, &Backward { no_grad, ..Backward::default() })?;
        verify(&program)?;
        let mut scope = Scope::new();
        for (name, numbers) in [("w", [0.7, -0.4]), ("v", [0.9, 1.1]), ("first", [0.2, -0.3])] {
            scope.set(name, Tensor::from_vec([2], numbers.to_vec())?);
        }
        let x = Tensor::from_vec([3, 2], vec![0.1, -0.4, 0.3, 0.8, -0.5, 0.2])?;
        let has = program.find("w@GRAD").is_some_and(|v| program.root().vars.contains_key(&v));
        let fetches = [&*loss, "v@GRAD", "first@GRAD", "w@GRAD"];
        let fetches = if has { &fetches[..] } else { &fetches[..3] };
        Ok((Executor::with_threads(1).run(&program, &mut scope, &[("x", &x)], fetches)?, has))
    };
    let (all, has) = run(&[], false)?;
    assert!(has && all.iter().flat_map(Tensor::to_f64s).all(|x| x != 0.0), "{all:?}");
    let (others, has) = run(&["w"], false)?;
    assert!(!has);
    assert_eq!(others, all[..3]);
    // An unread sequence and a read one.
    assert_eq!(run(&[], true)?, (all, true));
    Ok(())
}

#[test]
fn step_limit_holds_for_nested_loops() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let (three, ten) = (number(&net, 3), number(&net, 10));
    let last = while_loop(
        &[number(&net, 0), x],
        |v| v[0].less_than(&three),
        |v| {
            let inner = [number(&net, 0), v[1].clone()];
            let inner = while_loop(&inner, |v| v[0].less_than(&ten), |v| vec![&v[0] + 1.0, &v[1] + 1.0]);
            vec![&v[0] + 1.0, inner[1].clone()]
        },
    );
    let (program, name, x) = (net.program()?, last[1].name(), Tensor::zeros(DType::F64, &[2, 2])?);
    let mut scope = Scope::new();
    let mut executor = Executor::new().loop_limit(5);
    let e = executor.run(&program, &mut scope, &[("x", &x)], &[&name]).unwrap_err().to_string();
    assert!(
        e.contains("operator `while` (block 1, operator ") && e.contains("control_flow_limits.rs:"),
        "{e}"
    );
    assert!(
        e.ends_with(
            "the loop has not ended after 5 steps, its limit; change its condition, or raise the limit with \
             `Executor::loop_limit`"
        ),
        "{e}"
    );
    // The limit is for one run of a loop; all runs together may take more steps.
    let found = executor.loop_limit(10).run(&program, &mut scope, &[("x", &x)], &[&name])?;
    assert_eq!(found[0].to_f64s(), [30.0; 4]);
    Ok(())
}
