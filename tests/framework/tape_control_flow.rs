//! Loops, branches and recurrences in eager mode: the same functions as in programs, run by Rust.

use std::{cell::Cell, slice::from_ref};

use autobwd::{
    Builder, DType, Executor, Expr, New, Result, Scope, Tensor, gradients,
    tape::{self, trace},
};
use autobwd_ops::{
    Math, concat,
    control::{Branch, StaticRnn, cond, dynamic_dims, scan, static_rnn, switch_case, while_loop},
    fill::FillConstant,
};

use crate::support::{derivatives::assert_near, nets::bits, tape::tape};

fn numbers(dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..n).map(|i| (i as f64 * 1.7).sin()).collect()).unwrap()
}

/// The last output and its gradients are the same in both modes; values to the bit.
fn both_ways(given: &[Tensor], function: impl Fn(&[Expr]) -> Vec<Expr>) -> Result<()> {
    let net = Builder::new();
    let names: Vec<String> = (0..given.len()).map(|i| format!("x{i}")).collect();
    let (mut inputs, mut scope) = (vec![], Scope::new());
    for (name, tensor) in names.iter().zip(given) {
        inputs.push(net.parameter(name, tensor.dtype(), tensor.dims(), Expr::clone));
        scope.set(name, tensor.clone());
    }
    let outputs = function(&inputs);
    let mut program = net.program()?.clone();
    let loss = outputs.last().expect("there is one").name();
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = gradients(&mut program, &[&loss], &wanted, &Default::default())?.entries();
    let arrived = found.iter().flatten().map(|v| program.name(*v).to_string());
    let fetches: Vec<String> = outputs.iter().map(Expr::name).chain(arrived).collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let expected = Executor::with_threads(1).run(&program, &mut scope, &[], &fetches)?;

    let tape = tape();
    let leaves: Vec<Expr> =
        names.iter().zip(given).map(|(name, tensor)| tape.leaf(name, tensor.clone())).collect();
    let at_once = function(&leaves);
    for (at_once, expected) in at_once.iter().zip(&expected) {
        assert_eq!(
            (at_once.dims().known(), bits(&at_once.tensor()?)),
            (Some(expected.dims().into()), bits(expected))
        );
    }
    let derivatives = tape::grad(
        &[at_once.last().expect("there is one")],
        &leaves.iter().collect::<Vec<_>>(),
        &tape::GradOptions::default(),
    )?;
    let arrived: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(derivatives.iter().map(Option::is_some).collect::<Vec<_>>(), arrived);
    for (derivative, expected) in derivatives.iter().flatten().zip(&expected[outputs.len()..]) {
        assert_near(&derivative.tensor()?.to_f64s(), &expected.to_f64s(), 1e-12);
    }
    Ok(())
}

#[test]
fn loops_and_branches_agree_in_both_modes() -> Result<()> {
    for scale in [0.5, 40.0] {
        both_ways(&[numbers(&[2, 3]), Tensor::scalar(scale)?], |x| {
            let (x, scale) = (&x[0], &x[1]);
            let limit = scale * 0.0 + 30.0;
            let size = |x: &Expr| x.square().sum(&[]);
            // A variable number of steps, perhaps none.
            let grown = while_loop(
                &[x * scale, x.sum(&[])],
                |v| size(&v[0]).less_than(&limit),
                |v| vec![&v[0] * 1.5, v[0].sum(&[]) + &v[1]],
            );
            let chosen = cond(
                &grown[1].less_than(&limit),
                || vec![grown[0].tanh(), grown[1].clone()],
                || vec![grown[0].sigmoid(), scale.exp()],
            );
            let loss = chosen[0].sum(&[]) * &chosen[1];
            vec![grown[0].clone(), chosen[0].clone(), loss]
        })?;
    }
    Ok(())
}

#[test]
fn swapped_and_reshaped_variables_agree_in_both_modes() -> Result<()> {
    both_ways(&[numbers(&[2]), numbers(&[2])], |x| {
        let zero = x[0].sum(&[]) * 0.0;
        let end = &zero + 3.0;
        let found = while_loop(
            &[zero, x[0].clone(), &x[1] * 2.0, dynamic_dims(&x[0], &[0])],
            |v| v[0].less_than(&end),
            |v| vec![&v[0] + 1.0, v[2].clone(), v[1].clone(), concat(&[&v[3], &v[1]], 0)],
        );
        let loss = found[1].sum(&[]) * found[3].square().sum(&[]);
        vec![found[1].clone(), found[3].clone(), loss]
    })
}

#[test]
fn recurrences_agree_in_both_modes() -> Result<()> {
    for reverse in [false, true] {
        both_ways(&[numbers(&[4, 2]), numbers(&[2]), numbers(&[2])], |x| {
            let (sequence, w, first) = (&x[0], &x[1], &x[2]);
            // Memories with one initial value, and one value for two of them.
            let mut found = static_rnn(w.builder(), reverse, |rnn| {
                rnn.checkpoint_every(2);
                let x = rnn.step_input(sequence);
                let (a, b) = (rnn.memory(first), rnn.memory(first));
                let next = (&a * w + (&b + &x)).tanh();
                rnn.update_memory(&b, &(&next * &a));
                rnn.update_memory(&a, &next);
                rnn.last_output(&b);
                rnn.step_output(&next);
                rnn.step_output(&x.sum(&[]))
            });
            let sums = scan(&found[..2], from_ref(first), reverse, |x, sum| {
                let sum = &x[0] * &x[1] + &sum[0];
                (vec![sum.clone()], vec![sum])
            });
            found.push(sums[0].square().sum(&[]) + found[2].sum(&[]));
            found
        })?;
    }
    Ok(())
}

#[test]
fn only_the_chosen_branch_is_computed() -> Result<()> {
    let tape = tape();
    let x = tape.constant(Tensor::scalar(2.0)?);
    let called = Cell::new(0);
    let branch = |by: f64| -> Branch<'_> {
        Box::new({
            let (x, called) = (&x, &called);
            move || {
                called.set(called.get() + 1);
                vec![x * by]
            }
        })
    };
    for (index, expected) in [(3, 6.0), (7, 14.0), (4, 0.0)] {
        let index = tape.constant(Tensor::from_vec([1], vec![index])?);
        let out = switch_case(&index, vec![(3, branch(3.0)), (7, branch(7.0))], branch(0.0));
        assert_eq!(out[0].item()?, expected);
    }
    assert_eq!(called.get(), 3);
    Ok(())
}

#[test]
fn trace_has_the_steps_that_were_run() -> Result<()> {
    let tape = tape();
    let x = tape.constant(Tensor::scalar(30.0)?);
    let program = trace(&tape, &[("x", &x)], || {
        let limit = &x * 0.0 + 100.0;
        Ok(while_loop(from_ref(&x), |v| v[0].less_than(&limit), |v| vec![&v[0] * 2.0]))
    })?
    .program;
    assert_eq!(program.blocks().len(), 1);
    let text = program.to_string();
    // The scale of the limit, and two steps.
    assert_eq!(text.matches("= scale(").count(), 4, "{text}");
    Ok(())
}

#[test]
fn invalid_control_flow_is_refused_immediately() {
    let tape = tape();
    let x = tape.constant(numbers(&[3, 2]));
    let never = || x.sum(&[]).less_than(&x.sum(&[]));
    let always = || (x.sum(&[]) - 1.0).less_than(&x.sum(&[]));
    let refused = |found: Vec<Expr>, expected: &str| {
        let e = found[0].check().unwrap_err().to_string();
        assert!(
            e.contains(expected) && e.contains("\n  within at ") && e.contains("tape_control_flow.rs:"),
            "{e}"
        );
    };
    let x = || from_ref(&x);
    refused(while_loop(x(), |v| v[0].clone(), |v| v.to_vec()), "is not a bool of one element");
    refused(while_loop(x(), |_| always(), |_| vec![]), "over 1 variables returns 0");
    let cast = |v: &[Expr]| vec![v[0].cast(DType::F32)];
    refused(while_loop(x(), |_| always(), cast), "the body of a loop changes dtype or shape of a variable");
    assert_eq!(while_loop(x(), |_| never(), cast)[0].dtype(), DType::F64);
    refused(cond(&x()[0], Vec::new, Vec::new), "is not a bool of one element");
    let wrong = x()[0].matmul(&x()[0]);
    assert!(cond(&wrong, || unreachable!(), || unreachable!())[0].check().is_err(), "neither is called");
    refused(while_loop(x(), |_| always(), |v| vec![v[0].matmul(&v[0])]), "operator `matmul_v2` (run at ");

    let step = |step: &dyn Fn(&mut StaticRnn)| static_rnn(&tape, false, |rnn| step(rnn));
    refused(step(&|_| ()), "a recurrence needs at least one sequence");
    refused(step(&|rnn| drop(rnn.step_input(&x()[0].sum(&[])))), "has no first dimension to iterate over");
    let none = FillConstant { shape: vec![0, 2], dtype: DType::F64, value: 0.0, ..FillConstant::of(New) };
    let none = tape.emit(none).out;
    refused(step(&|rnn| drop(rnn.step_input(&none))), "has no step 0 to compute eagerly");
    let memory = |rnn: &mut StaticRnn| {
        let first = rnn.step_input(&x()[0]);
        rnn.memory(&first)
    };
    refused(step(&|rnn| drop(memory(rnn))), "is never updated");
    let last = |rnn: &mut StaticRnn| {
        let memory = memory(rnn);
        rnn.last_output(&memory);
    };
    refused(step(&last), "is not updated before");
    let changed = |rnn: &mut StaticRnn| {
        let memory = memory(rnn);
        rnn.update_memory(&memory, &x()[0]);
    };
    refused(step(&changed), "a step changes dtype or shape of a memory");
}
