//! Sparse gradients in loops, branches and recurrences: values that cross the border of a block are dense, and
//! gradients equal those of dense look-ups.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, Feed, New, Program, Result, Scope, Tensor, append_backward,
    emit, gradients, verify,
};
use autobwd_ops::{
    Init, Math, concat,
    control::{cond, dynamic_dims, scan, static_rnn, while_loop},
    embedding::LookupTableV2,
};

const STEPS: usize = 3;
const ROWS: usize = 5;

/// A model with parameters, and sparse or dense look-ups.
struct Model {
    net: Builder,
    sparse: bool,
}

impl Model {
    fn parameter(&self, name: &str, dims: &[usize]) -> Expr {
        self.net.parameter(name, DType::F64, dims, |w| Init::Uniform(-1.0, 1.0).emit(w, 7))
    }

    fn look(&self, table: &Expr, ids: &Expr) -> Expr {
        let (ids, w) = (ids.into(), table.into());
        let op = LookupTableV2 { ids, w, out: New, padding_idx: -1, is_sparse: self.sparse };
        emit(op).out
    }

    /// `[STEPS, 4]`, with repeated rows.
    fn ids(&self) -> Expr {
        self.net.input("ids", DType::I64, &[STEPS as i64, 4])
    }

    /// `[STEPS, ROWS, 2]`
    fn tables(&self) -> Expr {
        self.net.input("tables", DType::F64, &[STEPS as i64, ROWS as i64, 2])
    }

    fn number(&self, name: &str) -> Expr {
        self.net.input(name, DType::F64, &[])
    }
}

fn data(program: &Program) -> Result<Vec<(&'static str, Tensor)>> {
    let ids = vec![0_i64, 1, 1, 4, 2, 2, 3, 0, 4, 4, 4, 1];
    let numbers = (0..STEPS * ROWS * 2).map(|i| (i as f64).sin()).collect();
    let all = [
        ("ids", Tensor::from_vec([STEPS, 4], ids)?),
        ("tables", Tensor::from_vec([STEPS, ROWS, 2], numbers)?),
        ("k", Tensor::scalar(0.0)?),
        ("end", Tensor::scalar(3.0)?),
        ("one", Tensor::from_vec([4], vec![3_i64, 0, 3, 1])?),
    ];
    Ok(all.into_iter().filter(|(name, _)| program.expect_var(name).is_ok()).collect())
}

/// Gradients of all parameters, by name.
fn trained(sparse: bool, build: &dyn Fn(&Model) -> Expr) -> Result<Vec<(String, Vec<f64>)>> {
    let model = Model { net: Builder::new(), sparse };
    let loss = build(&model).name();
    let mut program = model.net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    verify(&program)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&model.net.startup().program()?, &mut scope, &[], &[])?;
    let names: Vec<String> = program.parameters().map(|v| format!("{}@GRAD", program.name(v))).collect();
    let data = data(&program)?;
    let feeds: Vec<(&str, &dyn Feed)> = data.iter().map(|(name, x)| (*name, x as &dyn Feed)).collect();
    let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
    // Twice: the state of the first run must not matter.
    executor.run(&program, &mut scope, &feeds, &fetches)?;
    let found = executor.run(&program, &mut scope, &feeds, &fetches)?;
    Ok(names.into_iter().zip(found.iter().map(Tensor::to_f64s)).collect())
}

#[track_caller]
fn compare(build: impl Fn(&Model) -> Expr) -> Result<()> {
    let (sparse, dense) = (trained(true, &build)?, trained(false, &build)?);
    assert!(
        dense.iter().all(|(_, values)| values.iter().any(|x| *x != 0.0)),
        "nothing is trained: {dense:?}"
    );
    for ((name, sparse), (_, dense)) in sparse.iter().zip(&dense) {
        assert_eq!(sparse.len(), dense.len(), "{name}");
        for (a, b) in sparse.iter().zip(dense) {
            assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{name}: {sparse:?}, not {dense:?}");
        }
    }
    Ok(())
}

#[test]
fn state_that_only_look_ups_read() -> Result<()> {
    for reverse in [false, true] {
        compare(|m| {
            let (t0, w) = (m.parameter("t0", &[ROWS, 2]), m.parameter("w", &[2]));
            let y = scan(&[m.tables(), m.ids()], &[t0], reverse, |x, t| {
                let looked = m.look(&t[0], &x[1]);
                (vec![&x[0] * &w], vec![looked])
            });
            y[0].square().sum(&[])
        })?;
    }
    Ok(())
}

#[test]
fn state_with_other_readers_is_looked_up_at_the_end() -> Result<()> {
    for every in [0, 1, 2] {
        compare(|m| {
            let (t0, w) = (m.parameter("t0", &[ROWS, 2]), m.parameter("w", &[2]));
            let (tables, ids) = (m.tables(), m.ids());
            let y = static_rnn(&m.net, false, |rnn| {
                if every > 0 {
                    rnn.checkpoint_every(every);
                }
                let (x, ids, t) = (rnn.step_input(&tables), rnn.step_input(&ids), rnn.memory(&t0));
                rnn.step_output(&m.look(&t, &ids));
                rnn.update_memory(&t, &((&t * &w).tanh() + &x));
                rnn.last_output(&t)
            });
            let one = m.net.input("one", DType::I64, &[4]);
            y[0].square().sum(&[]) + m.look(&y[1], &one).exp().sum(&[])
        })?;
    }
    Ok(())
}

#[test]
fn sequences_of_tables() -> Result<()> {
    compare(|m| {
        let tables = m.parameter("tables0", &[STEPS, ROWS, 2]);
        let y = scan(&[tables, m.ids()], &[], false, |x, _| (vec![], vec![m.look(&x[0], &x[1])]));
        y[0].square().sum(&[])
    })
}

#[test]
fn outputs_that_are_looked_up() -> Result<()> {
    compare(|m| {
        let w = m.parameter("w", &[2]);
        let y = scan(&[m.tables()], &[], true, |x, _| (vec![], vec![(&x[0] * &w).sum(&[0])]));
        // Rows 0 to 2 of the outputs of three steps, some repeated, one absent.
        let one = m.net.input("one", DType::I64, &[4]);
        let rows = (one.cast(DType::F64) * 0.5).cast(DType::I64);
        m.look(&y[0], &rows).exp().sum(&[])
    })
}

#[test]
fn parameters_within_loops_branches_and_both() -> Result<()> {
    compare(|m| {
        let (t, u) = (m.parameter("t", &[ROWS, 2]), m.parameter("u", &[ROWS, 2]));
        let one = m.net.input("one", DType::I64, &[4]);
        let (k, end) = (m.number("k"), m.number("end"));
        let first = m.look(&u, &one);
        let last = while_loop(
            &[k, first],
            |v| v[0].less_than(&end),
            |v| {
                let even = (&v[0] * 0.0).less_than(&v[0]);
                let looked = cond(&even, || vec![m.look(&t, &one)], || vec![m.look(&u, &one)]);
                vec![&v[0] + 1.0, v[1].tanh() * &looked[0]]
            },
        );
        last[1].sum(&[])
    })
}

#[test]
fn variable_of_a_loop_that_is_looked_up_in_it() -> Result<()> {
    let of = |m: &Model, next: &dyn Fn(&Expr) -> Expr| {
        let t = m.parameter("t", &[ROWS, 2]);
        let one = m.net.input("one", DType::I64, &[4]);
        let (k, end) = (m.number("k"), m.number("end"));
        let zero = m.look(&t, &one) * 0.0;
        let body = |v: &[Expr]| {
            let sum = &v[2] + m.look(&v[1], &one).square();
            vec![&v[0] + 1.0, next(&v[1]), sum]
        };
        let last = while_loop(&[k, t, zero], |v| v[0].less_than(&end), body);
        last[2].sum(&[]) + last[1].square().sum(&[])
    };
    compare(|m| of(m, &|t| (t * 0.9).tanh()))?;
    // Only the look-up depends on the table of a step.
    compare(|m| {
        let w = m.parameter("w", &[2]);
        of(m, &|t| (t * 0.0).stop_gradient() + &w)
    })
}

#[test]
fn recurrence_within_a_recurrence() -> Result<()> {
    compare(|m| {
        let (t0, w) = (m.parameter("t0", &[ROWS, 2]), m.parameter("w", &[2]));
        let (tables, ids) = (m.tables(), m.ids());
        let y = scan(std::slice::from_ref(&tables), &[t0], false, |x, t| {
            let inner = scan(&[tables.clone(), ids.clone()], &[t[0].clone()], true, |y, s| {
                let looked = m.look(&s[0], &y[1]) * &w;
                (vec![&y[0] * &w + &x[0]], vec![looked])
            });
            (vec![&x[0] * &w], vec![inner[0].sum(&[0])])
        });
        y[0].square().sum(&[])
    })
}

#[test]
fn steps_of_several_shapes() -> Result<()> {
    compare(|m| {
        let (t0, w) = (m.parameter("t0", &[ROWS, 2]), m.parameter("w", &[2]));
        let (tables, ids) = (m.tables(), m.ids());
        let one = m.net.input("one", DType::I64, &[4]);
        let start = dynamic_dims(&m.look(&t0, &one), &[0]);
        let y = static_rnn(&m.net, false, |rnn| {
            let (x, ids) = (rnn.step_input(&tables), rnn.step_input(&ids));
            let (t, seen) = (rnn.memory(&t0), rnn.memory(&start));
            let next = concat(&[&seen.tanh(), &m.look(&t, &ids)], 0);
            rnn.update_memory(&seen, &next);
            rnn.update_memory(&t, &(&x * &w));
            rnn.step_output(&next.sum(&[0]));
            rnn.last_output(&seen);
            rnn.last_output(&t)
        });
        let rows = (one.cast(DType::F64) * 0.5).cast(DType::I64);
        let looked = m.look(&y[0], &rows).square().sum(&[]) + m.look(&y[2], &one).exp().sum(&[]);
        looked + y[1].square().sum(&[])
    })
}

#[test]
fn derivatives_of_derivatives() -> Result<()> {
    let of = |sparse| -> Result<Result<Vec<f64>>> {
        let m = Model { net: Builder::new(), sparse };
        let t0 = m.parameter("t0", &[ROWS, 2]);
        let y = scan(&[m.tables(), m.ids()], &[t0], false, |x, t| {
            (vec![&t[0] * &x[0]], vec![m.look(&t[0], &x[1])])
        });
        let loss = y[0].tanh().sum(&[]).name();
        let mut program = m.net.program()?.clone();
        let again =
            gradients(&mut program, &[&loss], &["t0"], &Default::default())?.entries()[0].expect("one");
        let again = program.name(again).to_string();
        let second = match gradients(&mut program, &[&again], &["t0"], &Default::default()) {
            Ok(found) => program.name(found.entries()[0].expect("one")).to_string(),
            Err(e) => return Ok(Err(e)),
        };
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&m.net.startup().program()?, &mut scope, &[], &[])?;
        let data = data(&program)?;
        let feeds: Vec<(&str, &dyn Feed)> = data.iter().map(|(name, x)| (*name, x as &dyn Feed)).collect();
        Ok(executor.run(&program, &mut scope, &feeds, &[&second]).map(|found| found[0].to_f64s()))
    };
    let dense = of(false)??;
    match of(true)? {
        Ok(sparse) => {
            for (a, b) in sparse.iter().zip(&dense) {
                assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{sparse:?}, not {dense:?}");
            }
        }
        Err(e) => assert!(e.to_string().contains("a dense tensor is needed, not rows of"), "{e}"),
    }
    Ok(())
}

#[test]
fn dense_only_operators_are_refused_with_the_reason() {
    // After the loop, the gradient, under its name in the loop, consists of rows.
    let e = trained(true, &|m| {
        let t = m.parameter("t", &[ROWS, 2]);
        let one = m.net.input("one", DType::I64, &[4]);
        let (k, end) = (m.number("k"), m.number("end"));
        let body = |v: &[Expr]| vec![&v[0] + 1.0, (&v[1] * 0.9).tanh()];
        m.look(&while_loop(&[k, t], |v| v[0].less_than(&end), body)[1], &one).sum(&[])
    });
    let e = e.unwrap_err().to_string();
    assert!(
        e.contains("@GRAD` is sparse (rows of a tensor) for one of its writers and dense for this"),
        "{e}"
    );
    assert!(e.starts_with("operator `while_grad` (block 0, "), "{e}");
    // A choice between branches passes on dense tensors only.
    let e = trained(true, &|m| {
        let t = m.parameter("t", &[ROWS, 2]);
        let (one, k) = (m.net.input("one", DType::I64, &[4]), m.number("k"));
        let chosen = cond(&k.less_than(&(&k + 1.0)), || vec![t.exp()], || vec![t.tanh()]);
        m.look(&chosen[0], &one).sum(&[])
    });
    let e = e.unwrap_err().to_string();
    assert!(e.contains("a dense tensor is needed, not rows of float64 [5, 2]"), "{e}");
}
