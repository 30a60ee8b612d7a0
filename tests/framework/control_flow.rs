//! Loops, branches and recurrences: values, memory and higher derivatives. For errors, see `control_flow_errors`.

use std::slice::from_ref;

use autobwd::{
    Attr, Backward, BlockId, Builder, DType, Executor, Expr, Feed, Meta, New, Program, Result, Scope, Tensor,
    append_backward, backward::Recompute, emit, gradients, verify,
};
use autobwd_ops::{
    Init, Math,
    array::{ReadFromArray, WriteToArray},
    control::{cond, scan, static_rnn, while_loop},
    filled, positions,
};

use crate::support::{
    control_flow::{DIMS, number},
    derivatives::{assert_derivative, assert_near, run},
};

/// `h ← tanh(h · w + x)` with its loss.
fn recurrence(net: &Builder, size: usize, every: usize) -> String {
    let w = net.parameter("w", DType::F64, &[size, size], |w| Init::Uniform(-0.5, 0.5).emit(w, 1));
    let x = net.input("x", DType::F64, &[-1, 1, size as i64]);
    let zeros = net.input("zeros", DType::F64, &[1, size as i64]);
    let out = static_rnn(net, false, |rnn| {
        rnn.checkpoint_every(every);
        let (x, h) = (rnn.step_input(&x), rnn.memory(&zeros));
        let next = (h.matmul(&w) + &x).tanh();
        rnn.update_memory(&h, &next);
        rnn.step_output(&next.mean())
    });
    out[0].mean().name()
}

#[test]
fn long_recurrence_with_checkpoints_needs_little_memory() -> Result<()> {
    const SIZE: usize = 16;
    const LINE: usize = 64;
    let run = |steps: usize, every: usize| -> Result<(usize, Tensor)> {
        let net = Builder::new();
        let loss = recurrence(&net, SIZE, every);
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss, &Backward::default())?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let x = (0..steps * SIZE).map(|i| (i as f64 * 0.37).sin()).collect();
        let (x, zeros) = (Tensor::from_vec([steps, 1, SIZE], x)?, Tensor::zeros(DType::F64, &[1, SIZE])?);
        let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("zeros", &zeros)];
        let metas = feeds.map(|(name, tensor)| (name, tensor.meta()));
        let peak = executor.prepare(&program, &mut scope, &metas, &["w@GRAD"])?.peak_bytes();
        Ok((peak, executor.run(&program, &mut scope, &feeds, &["w@GRAD"])?.remove(0)))
    };
    let (all, some) = (run(10_000, 0)?, run(10_000, 100)?);
    assert_eq!(some.1, all.1);
    // Without checkpoints, every step saves its initial and final state; now 100 steps save both, and 100 the initial
    // state only.
    let state = SIZE * 8;
    assert_eq!(state % LINE, 0);
    let body = all.0 - run(9_900, 0)?.0 - (run(10_000, 100)?.0 - run(9_900, 100)?.0);
    assert_eq!(body, 100 * 2 * state - state);
    assert!(all.0 - some.0 > 9_000 * 2 * state, "{} {}", all.0, some.0);
    Ok(())
}

#[test]
fn loop_between_checkpoints_is_recomputed_entirely() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[8, 8], |w| Init::Uniform(-0.5, 0.5).emit(w, 1));
    let x = net.input("x", DType::F64, &[200, 8, 8]);
    let scaled = x.tanh();
    let end = w.square().sum(&[]) + 40.0;
    let states = scan(&[scaled.exp()], std::slice::from_ref(&w), false, |x, h| {
        let h = (h[0].matmul(&w) + &x[0]).tanh();
        (vec![h.clone()], vec![h])
    });
    let first = states[0].square().sum(&[]);
    let last = while_loop(&[first], |v| v[0].less_than(&end), |v| vec![&v[0] * w.square().sum(&[])]);
    let loss = last[0].log();
    let run = |checkpoints: Recompute<'_>| -> Result<(usize, Vec<Tensor>, Program)> {
        let mut program = net.program()?.clone();
        append_backward(
            &mut program,
            &loss.name(),
            &Backward { recompute: checkpoints, ..Backward::default() },
        )?;
        verify(&program)?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let x = Tensor::from_vec([200, 8, 8], (0..12800).map(|i| (f64::from(i) * 0.37).sin()).collect())?;
        let fetches = [&*loss.name(), "w@GRAD"];
        let peak = executor.prepare(&program, &mut scope, &[("x", x.meta())], &fetches)?.peak_bytes();
        Ok((peak, executor.run(&program, &mut scope, &[("x", &x)], &fetches)?, program))
    };
    let all = run(Recompute::None)?;
    let some = run(Recompute::Named(&[&scaled.name(), &last[0].name()]))?;
    assert_eq!(some.1, all.1);
    // Of 200 steps, 15 save the initial state, and 14 at a time both states. The second body needs some memory, too.
    assert!(all.0 - some.0 > (2 * 200 - 15 - 2 * 14 - 30) * 8 * 8 * 8, "{} {}", some.0, all.0);
    let every = |ty: &str| some.2.root().ops.iter().find(|op| op.ty == ty)?.attrs.get("checkpoint_every");
    assert_eq!([every("recurrent"), every("while")], [Some(&Attr::I32(i32::MAX)); 2]);
    Ok(())
}

#[test]
fn last_state_equals_state_of_last_step() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[2], |w| Init::Constant(0.7).emit(w, 0));
    let x = net.input("x", DType::F64, &[3, 2]);
    let found = static_rnn(&net, true, |rnn| {
        let (x, h) = (rnn.step_input(&x), rnn.memory(&w));
        let next = (&h * &w + &x).tanh();
        rnn.update_memory(&h, &next);
        rnn.last_output(&h);
        rnn.step_output(&next);
    });
    let [states, last] = &found[..] else { panic!("{found:?}") };
    // In reverse, the first step is the last.
    let same = states.slice(0, 0, 1);
    let mut found = vec![];
    for loss in [last.sum(&[]), same.sum(&[])] {
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss.name(), &Backward::default())?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let x = Tensor::from_vec([3, 2], vec![0.1, -0.4, 0.3, 0.8, -0.5, 0.2])?;
        found.push(executor.run(&program, &mut scope, &[("x", &x)], &[&loss.name(), "w@GRAD"])?);
    }
    assert_eq!(found[0], found[1]);
    Ok(())
}

#[test]
fn one_value_can_be_several_outputs_and_memories() -> Result<()> {
    let run = |memories: usize, outputs: usize| -> Result<Vec<Tensor>> {
        let net = Builder::new();
        let w = net.parameter("w", DType::F64, &[2], |w| Init::Constant(0.7).emit(w, 0));
        let x = net.input("x", DType::F64, &[-1, 2]);
        let first = vec![w.clone(); memories];
        let found = scan(&[x], &first, false, |x, states| {
            let next = (&states[0] * &states[memories - 1] + &x[0]).tanh();
            (vec![next.clone(); memories], vec![next; outputs])
        });
        let loss = (&found[0] * &found[outputs - 1]).sum(&[]).name();
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss, &Backward::default())?;
        let (mut executor, mut scope) = (Executor::new(), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let x = Tensor::from_vec([3, 2], vec![0.1, -0.4, 0.3, 0.8, -0.5, 0.2])?;
        executor.run(&program, &mut scope, &[("x", &x)], &[&loss, "w@GRAD"])
    };
    let expected = run(1, 1)?;
    for (memories, outputs) in [(1, 2), (2, 1), (2, 2), (3, 2)] {
        for (found, expected) in run(memories, outputs)?.iter().zip(&expected) {
            let pairs = found.to_f64s().into_iter().zip(expected.to_f64s());
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{memories}, {outputs}: {a}, {b}"));
        }
    }
    Ok(())
}

#[test]
fn tensor_array_is_read_after_it_is_written() -> Result<()> {
    let read = |position: i64| -> Result<String> {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &DIMS);
        let list = emit(WriteToArray { x: (&x).into(), i: number(&net, 2).into(), out: New }).out;
        let body = |v: &[Expr]| {
            let i = number(&net, position).into();
            let element = emit(ReadFromArray { x: (&list).into(), i, x_w: None, out: New }).out;
            vec![&v[0] + element]
        };
        let last = while_loop(from_ref(&x), |v| v[0].sum(&[]).less_than(&x.square().sum(&[])), body);
        let x = Tensor::from_vec([2, 2], vec![2.0; 4])?;
        let run = Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&last[0].name()]);
        Ok(run.map_or_else(|e| e.to_string(), |found| format!("{:?}", found[0].to_f64s())))
    };
    assert_eq!(read(2)?, "[4.0, 4.0, 4.0, 4.0]");
    for (position, expected) in [
        (1, "element 1 of the tensor array has not been written"),
        (3, "element 3 is out of range: the tensor array has 3 elements"),
        (-1, "`I`: there is no element -1"),
    ] {
        let e = read(position)?;
        assert!(
            e.contains(
                "operator `read_from_array` (block 1, operator 1, added at tests/framework/control_flow.rs:"
            ),
            "{e}"
        );
        assert!(e.ends_with(expected), "{e}");
    }
    Ok(())
}

#[test]
fn recurrence_saves_only_values_read_by_its_gradient() -> Result<()> {
    let peak = |steps: usize, train: bool| -> Result<usize> {
        let net = Builder::new();
        let w = net.parameter("w", DType::F64, &[64, 64], |w| Init::Constant(0.01).emit(w, 0));
        let x = net.input("x", DType::F64, &[-1, 64, 64]);
        let zeros = net.input("zeros", DType::F64, &[64, 64]);
        let out = scan(&[x], &[zeros], false, |x, h| {
            let h = (h[0].matmul(&w) + &x[0]).tanh();
            (vec![h.clone()], vec![h.mean()])
        });
        let loss = out[0].mean().name();
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss, &Backward::default())?;
        let mut scope = Scope::new();
        Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
        let feeds =
            [("x", Meta::new(DType::F64, [steps, 64, 64])), ("zeros", Meta::new(DType::F64, [64, 64]))];
        let fetches: &[&str] = if train { &[&loss, "w@GRAD"] } else { &[&loss] };
        Ok(Executor::new().prepare(&program, &mut scope, &feeds, fetches)?.peak_bytes())
    };
    const STATE: usize = 64 * 64 * 8;
    // One more step needs one more input step and two more states, before it and after it; 8 steps also fill a cache
    // line of each of two sequences of scalars that are needed at the peak.
    assert_eq!(peak(101, false)? - peak(100, false)?, STATE);
    assert_eq!(peak(108, true)? - peak(100, true)?, 8 * 3 * STATE + 128);
    Ok(())
}

/// `x ← tanh(x · w)`, from the counter's start to its end; and the gradient of the loss with respect to `w`.
fn counted(start: i64, end: impl Fn(&Builder) -> Expr) -> Result<(Program, String)> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[2, 2], |w| Init::Uniform(-0.9, 0.9).emit(w, 1));
    let x = &w * 1.0;
    let end = end(&net);
    let vars = [number(&net, start), x];
    let body = |v: &[Expr]| vec![&v[0] + 2.0, v[1].matmul(&w).tanh()];
    let loss = while_loop(&vars, |v| v[0].less_than(&end), body)[1].square().sum(&[]).name();
    let mut program = net.program()?.clone();
    gradients(&mut program, &[&loss], &["w"], &Default::default())?;
    Ok((program, loss))
}

#[test]
fn counted_loop_has_second_and_third_derivatives() -> Result<()> {
    for (start, end) in [(0, 5), (3, 9), (4, 4), (-1, 0)] {
        let (mut program, loss) = counted(start, |net| number(net, end))?;
        let w: &[f64] = &[0.4, -0.7, 0.6, 0.5];
        assert_derivative(&program, &[("w", w)], &loss, "w", "w@GRAD");
        let mut last = "w@GRAD".to_string();
        for _ in 0..2 {
            let before = run(&program, &[("w", w)], &[&last])?;
            let next = gradients(&mut program, &[&last], &["w"], &Default::default())?.entries()[0];
            verify(&program)?;
            // The replaced operators do not run and are not printed.
            let text = program.to_string();
            let shown = |id: usize| text.contains(&format!("\nblock {id} in block"));
            let ops = program.blocks().iter().flat_map(|block| &block.ops);
            let owned: Vec<usize> = ops.flat_map(|op| op.attrs.blocks()).map(BlockId::index).collect();
            assert!((1..program.blocks().len()).all(|id| shown(id) == owned.contains(&id)), "{text}");
            // The replaced loop computes the same values.
            assert_near(&run(&program, &[("w", w)], &[&last])?[0], &before[0], 1e-12);
            let next = program.name(next.expect("a path leads there")).to_string();
            assert_derivative(&program, &[("w", w)], &last, "w", &next);
            last = next;
        }
    }
    Ok(())
}

#[test]
fn uncountable_loop_has_no_second_derivative() -> Result<()> {
    let given = |net: &Builder| net.input("end", DType::I64, &[1]);
    let (mut program, _) = counted(0, given)?;
    let before = program.clone();
    let e = gradients(&mut program, &["w@GRAD"], &["w"], &Default::default()).unwrap_err().to_string();
    assert!(e.starts_with("operator `while_grad` (block 0, operator"), "{e}");
    assert!(
        e.contains("the operator has no gradient, which would be of second order, but the gradient of"),
        "{e}"
    );
    assert!(
        e.contains("the trip count of operator `while` (block 0, operator") && e.contains("control_flow.rs:"),
        "{e}"
    );
    assert!(e.ends_with("is not known before the run: `end` is an input of the program"), "{e}");
    assert_eq!(program, before);

    let (mut program, _) = counted(0, |net| number(net, 1_i64 << 40))?;
    let e = gradients(&mut program, &["w@GRAD"], &["w"], &Default::default()).unwrap_err().to_string();
    assert!(e.ends_with("is not known before the run: the loop takes more than 65536 steps"), "{e}");
    Ok(())
}

#[test]
fn blocks_that_run_in_turn_share_memory() -> Result<()> {
    const LENGTH: usize = 1 << 14;
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[LENGTH as i64]);
    let zero = filled(&net, DType::F32, "0", &[1.into()]);
    let is_positive = zero.less_than(&x.slice(0, 0, 1));
    // Constants, and values that no fused kernel keeps in registers.
    let ramp = |of: &Expr| positions(&net, &(LENGTH as i64).into()).cast(DType::F32).cumsum(0) * of.cumsum(0);
    let mut y = x.clone();
    let mut arenas = vec![];
    let executor = Executor::new();
    for _ in 0..3 {
        let before = y.clone();
        y = cond(&is_positive, || vec![ramp(&before)], || vec![ramp(&-&before).cumsum(0)]).remove(0);
        let feeds = [("x", Meta::new(DType::F32, [LENGTH]))];
        let session = executor.prepare(&net.program()?, &mut Scope::new(), &feeds, &[&y.name()])?;
        arenas.push(session.peak_bytes());
    }
    // The input and output of the second call are all that there is more; the third call shares with these.
    assert!(arenas[1] <= arenas[0] + LENGTH * 4 * 2, "{arenas:?}");
    assert!(arenas[2] <= arenas[1] + LENGTH * 4, "{arenas:?}");

    // Constants are computed anew, since other blocks have used their memory.
    let feeds = [("x", Meta::new(DType::F32, [LENGTH]))];
    let mut scope = Scope::new();
    let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&y.name()])?;
    let mut results = vec![];
    for sign in [1.0, -1.0, 1.0, -1.0] {
        session.feed("x", &Tensor::from_vec([LENGTH], vec![sign * 1e-20_f32; LENGTH])?)?;
        session.run(&mut scope)?;
        results.push(session.fetch(&y.name())?);
    }
    let bits = |tensor: &Tensor| tensor.bytes().to_vec();
    assert!(bits(&results[0]) == bits(&results[2]) && bits(&results[1]) == bits(&results[3]));
    let ramp = |x: &[f64]| -> Vec<f64> {
        let mut sums = [0.0, 0.0];
        x.iter()
            .enumerate()
            .map(|(i, x)| {
                sums = [sums[0] + i as f64, sums[1] + x];
                sums[0] * sums[1]
            })
            .collect()
    };
    let expected = ramp(&ramp(&ramp(&[1e-20; LENGTH])));
    for (found, expected) in results[0].slice::<f32>()?.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() <= 1e-3 * expected, "{found} for {expected}");
    }
    Ok(())
}

#[test]
fn saved_state_of_branches_is_counted() -> Result<()> {
    const LENGTH: usize = 1 << 14;
    let scratch_bytes = |is_trained: bool| -> Result<usize> {
        let net = Builder::new();
        let w = net.parameter("w", DType::F32, &[LENGTH], |w| Init::Constant(0.5).emit(w, 0));
        let is_positive = filled(&net, DType::F32, "0", &[1.into()]).less_than(&w.slice(0, 0, 1));
        let y = cond(&is_positive, || vec![w.sigmoid()], || vec![w.tanh()]).remove(0);
        let loss = y.square().mean().name();
        let (mut program, mut scope) = (net.program()?.clone(), Scope::new());
        append_backward(&mut program, &loss, &Backward::default())?;
        Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
        let fetches: &[&str] = if is_trained { &[&loss, "w@GRAD"] } else { &[&loss] };
        Ok(Executor::new().prepare(&program, &mut scope, &[], fetches)?.scratch_bytes())
    };
    // Either branch may run, and saves its result.
    assert!(scratch_bytes(true)? >= scratch_bytes(false)? + 2 * LENGTH * 4);
    Ok(())
}
