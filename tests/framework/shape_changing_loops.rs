//! Loops whose variables change shape, compared with unrolled programs.

use std::slice::from_ref;

use autobwd::{
    Arg, Backward, Builder, DType, Executor, Expr, Feed, Meta, New, Program, Result, Scope, Tensor,
    append_backward, backward::Recompute, emit, verify,
};
use autobwd_ops::{
    Init, Math,
    array::{ReadFromArray, WriteToArray},
    concat,
    control::{cond, dynamic_dims, scan, while_loop},
    optim::{Optimizer, Sgd},
};

use crate::support::control_flow::number;

/// A program builder, with loops or unrolled.
struct Net {
    net: Builder,
    control: bool,
    w: Expr,
    first: Expr,
}

impl Net {
    fn new(control: bool) -> Net {
        let net = Builder::new();
        let parameter = |name: &str, dims: &[usize]| {
            net.parameter(name, DType::F64, dims, |w| Init::Constant(0.0).emit(w, 0))
        };
        let (w, first) = (parameter("w", &[3, 3]), parameter("first", &[1, 3]));
        Net { net, control, w, first }
    }

    /// A loop over rows, whose number may change.
    fn repeat(&self, times: i64, rows: &Expr, body: impl Fn(&Expr) -> Expr) -> Expr {
        if !self.control {
            return (0..times).fold(rows * 1.0, |rows, _| body(&rows));
        }
        let end = number(&self.net, times);
        let vars = [number(&self.net, 0), dynamic_dims(rows, &[-2])];
        let step = |v: &[Expr]| vec![&v[0] + 1.0, body(&v[1])];
        while_loop(&vars, |v| v[0].less_than(&end), step).remove(1)
    }

    /// Folds the rows into a state, one after another.
    fn fold(&self, rows: &Expr, state: &Expr, body: impl Fn(&Expr, &Expr) -> Expr) -> Expr {
        if !self.control {
            let count = rows.meta().dims[0].get().unwrap_or(0) as i32;
            let row = |i| rows.slice(0, i, i + 1).reshape(&[3]);
            return (0..count).fold(state.clone(), |state, i| body(&row(i), &state));
        }
        let states = scan(from_ref(rows), from_ref(state), false, |x, state| {
            let next = body(&x[0], &state[0]);
            (vec![next.clone()], vec![next])
        });
        states[0].slice(0, -1, i32::MAX).reshape(&[3])
    }

    fn choose(&self, yes: bool, if_true: impl Fn() -> Expr, if_false: impl Fn() -> Expr) -> Expr {
        if !self.control {
            return if yes { if_true() } else { if_false() };
        }
        let pred = number(&self.net, i64::from(!yes)).less_than(&number(&self.net, 1));
        cond(&pred, || vec![if_true()], || vec![if_false()]).remove(0)
    }

    /// Appends a row, the last one times a matrix; all others change, too.
    fn row_more(&self, rows: &Expr) -> Expr {
        let last = rows.slice(0, -1, i32::MAX);
        concat(&[&rows.tanh(), &(last.matmul(&self.w) + &self.first)], 0)
    }

    fn finish(&self, result: &Expr) -> Result<(Program, String)> {
        let loss = (result.square() * result.tanh()).sum(&[]).name();
        let mut program = self.net.program()?.clone();
        append_backward(&mut program, &loss, &Backward::default())?;
        verify(&program)?;
        Ok((program, loss))
    }
}

fn start() -> Result<Scope> {
    let mut scope = Scope::new();
    scope.set("w", Tensor::from_vec([3, 3], (0..9).map(|i| (f64::from(i) * 0.7).sin() * 0.5).collect())?);
    scope.set("first", Tensor::from_vec([1, 3], vec![0.4, -0.2, 0.1])?);
    Ok(scope)
}

/// The loss, and the gradients of both parameters.
fn run(executor: &mut Executor, (program, loss): &(Program, String)) -> Result<Vec<Tensor>> {
    let mut scope = start()?;
    let grads: Vec<&str> =
        ["w@GRAD", "first@GRAD"].into_iter().filter(|g| program.find(g).is_some()).collect();
    let fetches = [&[&**loss], &grads[..]].concat();
    let first = executor.run(program, &mut scope, &[], &fetches)?;
    // The second run reuses plans and memory of the first.
    assert_eq!(executor.run(program, &mut scope, &[], &fetches)?, first);
    let mut apart = Executor::with_threads(2).check_finite(true);
    assert_eq!(apart.run(program, &mut scope, &[], &fetches)?, first);
    Ok(first)
}

/// Compares a program with loops with the unrolled one.
#[track_caller]
fn assert_unrolled(model: impl Fn(&Net) -> Expr) {
    let of = |control: bool| -> Result<Vec<Tensor>> {
        let net = Net::new(control);
        let result = model(&net);
        run(&mut Executor::with_threads(1), &net.finish(&result)?)
    };
    assert_near(&of(true).unwrap(), &of(false).unwrap());
}

#[track_caller]
fn assert_near(found: &[Tensor], expected: &[Tensor]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.dims(), expected.dims());
        let (found, expected) = (found.to_f64s(), expected.to_f64s());
        let largest = expected.iter().fold(1e-300_f64, |max, x| max.max(x.abs()));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * largest;
        assert!(found.iter().zip(&expected).all(near), "{found:?}, {expected:?}");
    }
}

#[test]
fn rows_can_become_more() {
    for times in [1, 2, 7, 20] {
        assert_unrolled(|net| net.repeat(times, &net.first, |rows| net.row_more(rows)));
    }
}

#[test]
fn rows_can_become_less_and_more_again() {
    assert_unrolled(|net| {
        let more = net.repeat(5, &net.first, |rows| net.row_more(rows));
        let less = net.repeat(3, &more, |rows| rows.slice(0, 1, i32::MAX).matmul(&net.w));
        let more = net.repeat(2, &less, |rows| net.row_more(rows));
        &more + more.mean_over(&[0])
    });
}

#[test]
fn loops_that_grow_can_be_within_others() {
    let mean = |rows: &Expr| rows.mean_over(&[0]).reshape(&[1, 3]);
    // In a loop whose variables keep their shapes.
    assert_unrolled(|net| {
        net.repeat(3, &net.first, |row| mean(&net.repeat(2, row, |rows| net.row_more(rows))))
    });
    // In another loop with growing variables.
    assert_unrolled(|net| {
        net.repeat(2, &net.first, |rows| {
            let more = net.repeat(2, rows, |rows| net.row_more(rows));
            concat(&[&more, &mean(rows)], 0)
        })
    });
    // In a recurrence.
    assert_unrolled(|net| {
        let all = net.repeat(3, &net.first, |rows| net.row_more(rows));
        net.fold(&all, &net.first.reshape(&[3]), |row, state| {
            let both = (row + state).reshape(&[1, 3]);
            net.repeat(2, &both, |rows| net.row_more(rows)).mean_over(&[0])
        })
    });
    // In a branch.
    for yes in [true, false] {
        assert_unrolled(|net| {
            let grown = || mean(&net.repeat(2, &net.first, |rows| net.row_more(rows)));
            net.choose(yes, grown, || net.first.matmul(&net.w))
        });
    }
}

#[test]
fn backward_part_of_a_step_may_need_nothing_of_it() {
    assert_unrolled(|net| net.repeat(3, &net.first, |rows| concat(&[&(rows * 0.5), &net.first], 0)));
    assert_unrolled(|net| net.repeat(3, &net.first, |rows| concat(&[rows, &net.w], 0)));
}

#[test]
fn loops_that_grow_can_have_others_within() {
    assert_unrolled(|net| {
        net.repeat(3, &net.first, |rows| {
            // One step for each row.
            let state = net.fold(rows, &net.first.reshape(&[3]), |row, state| {
                (row * state + net.w.mean_over(&[0])).tanh()
            });
            let row = state.reshape(&[1, 3]);
            let row = net.choose(true, || row.matmul(&net.w), || row.clone());
            let row = net.repeat(2, &row, |row| row.matmul(&net.w) + row.tanh());
            concat(&[rows, &row], 0)
        })
    });
}

/// A program that reads the number of steps, with a loop over rows; and its loss.
fn fed(net: &Net) -> Result<(Program, String)> {
    let steps = net.net.input("steps", DType::I64, &[1]);
    let vars = [number(&net.net, 0), dynamic_dims(&net.first, &[0])];
    let body = |v: &[Expr]| vec![&v[0] + 1.0, net.row_more(&v[1])];
    net.finish(&while_loop(&vars, |v| v[0].less_than(&steps), body)[1])
}

#[test]
fn how_often_a_loop_runs_may_differ_from_run_to_run() -> Result<()> {
    let (program, loss) = fed(&Net::new(true))?;
    let mut executor = Executor::with_threads(1);
    for times in [3, 0, 1, 40, 3, 7] {
        let feeds: [(&str, &dyn Feed); 1] = [("steps", &Tensor::from_vec([1], vec![times])?)];
        let found = executor.run(&program, &mut start()?, &feeds, &[&loss, "first@GRAD", "w@GRAD"])?;
        let net = Net::new(false);
        let rows = net.repeat(times, &net.first, |rows| net.row_more(rows));
        let (unrolled, same) = net.finish(&rows)?;
        let fetches = [&*same, "first@GRAD", "w@GRAD"];
        // Without steps, the matrix is not read: its gradient is zero.
        let fetches = &fetches[..if times == 0 { 2 } else { 3 }];
        let mut expected = Executor::with_threads(1).run(&unrolled, &mut start()?, &[], fetches)?;
        if times == 0 {
            expected.push(Tensor::zeros(DType::F64, &[3, 3])?);
        }
        assert_near(&found, &expected);
    }
    Ok(())
}

#[test]
fn gradients_of_a_loop_that_grows_are_its_derivatives() -> Result<()> {
    let (program, loss) = fed(&Net::new(true))?;
    let steps = Tensor::from_vec([1], vec![4_i64])?;
    let mut executor = Executor::with_threads(1);
    for (of, gradient, len) in [("w", "w@GRAD", 9), ("first", "first@GRAD", 3)] {
        let found = executor.run(&program, &mut start()?, &[("steps", &steps)], &[gradient])?[0].to_f64s();
        for (i, found) in (0..len).zip(found) {
            let mut side = |step: f64| -> Result<f64> {
                let mut scope = start()?;
                scope.slice_mut::<f64>(of)?[i] += step;
                executor.run(&program, &mut scope, &[("steps", &steps)], &[&loss])?[0].item()
            };
            let expected = (side(1e-5)? - side(-1e-5)?) / 2e-5;
            assert!((found - expected).abs() < 1e-8, "{of}, {i}: {found}, {expected}");
        }
    }
    Ok(())
}

#[test]
fn lists_are_written_and_read_around_loops_that_grow() {
    let written = |net: &Net, list: &Expr, i: i64| -> Result<Expr> {
        let i = number(&net.net, i);
        Ok(emit(ReadFromArray { x: list.into(), i: (&i).into(), x_w: None, out: New }).out)
    };
    let of = |control: bool| -> Result<Vec<Tensor>> {
        let net = Net::new(control);
        let result = if control {
            let zero = number(&net.net, 0);
            let list = emit(WriteToArray { x: (&net.first).into(), i: (&zero).into(), out: New }).out;
            let end = number(&net.net, 4);
            let vars = [zero, dynamic_dims(&net.first, &[0])];
            let body = |v: &[Expr]| {
                let (next, rows) = (&v[0] + 1.0, net.row_more(&v[1]));
                let last = rows.slice(0, -1, i32::MAX).tanh();
                drop(emit(WriteToArray { x: (&last).into(), i: (&next).into(), out: (&list).into() }));
                vec![next, rows]
            };
            let rows = while_loop(&vars, |v| v[0].less_than(&end), body).remove(1);
            // The other elements are not read.
            (&rows + written(&net, &list, 1)?) * written(&net, &list, 3)?
        } else {
            let (mut rows, mut lasts) = (net.first.clone(), vec![]);
            for _ in 0..4 {
                rows = net.row_more(&rows);
                lasts.push(rows.slice(0, -1, i32::MAX).tanh());
            }
            (&rows + &lasts[0]) * &lasts[2]
        };
        run(&mut Executor::with_threads(1), &net.finish(&result)?)
    };
    assert_near(&of(true).unwrap(), &of(false).unwrap());
}

#[test]
fn elements_of_several_shapes_are_not_read() -> Result<()> {
    let net = Net::new(true);
    let write = |net: &Net, x: &Expr, i: i64, out: Arg| {
        emit(WriteToArray { x: x.into(), i: (&number(&net.net, i)).into(), out }).out
    };
    // The declared shape counts.
    let list = write(&net, &net.first, 0, New);
    let e = write(&net, &net.w, 1, (&list).into()).check().unwrap_err().to_string();
    assert!(
        e.contains("operator `write_to_array` (block 0, operator") && e.contains("shape_changing_loops.rs:"),
        "{e}"
    );
    assert!(
        e.ends_with("`Out` is array of float64 [3, 3], but `write_to_array_0` is array of float64 [1, 3]"),
        "{e}"
    );

    let net = Net::new(true);
    let rows = dynamic_dims(&net.first, &[0]);
    let list = write(&net, &rows, 0, New);
    write(&net, &net.w, 1, (&list).into());
    let i = number(&net.net, 1);
    let read = emit(ReadFromArray { x: (&list).into(), i: (&i).into(), x_w: None, out: New }).out.name();
    let e = Executor::new().run(&net.net.program()?, &mut start()?, &[], &[&read]).unwrap_err().to_string();
    assert!(
        e.contains("operator `read_from_array` (block 0, operator") && e.contains("shape_changing_loops.rs:"),
        "{e}"
    );
    assert!(e.ends_with("the shape [-1, 3] of `read_from_array_0` is unknown or too large"), "{e}");
    Ok(())
}

#[test]
fn memory_does_not_grow_with_the_number_of_shapes() -> Result<()> {
    let net = Net::new(true);
    let steps = net.net.input("steps", DType::I64, &[1]);
    let vars = [number(&net.net, 0), dynamic_dims(&net.first, &[0])];
    let body = |v: &[Expr]| vec![&v[0] + 1.0, net.row_more(&v[1])];
    let rows = while_loop(&vars, |v| v[0].less_than(&steps), body).remove(1).mean().name();
    let (program, mut scope) = (net.net.program()?.clone(), start()?);
    let feeds = [("steps", Meta::new(DType::I64, [1]))];
    let mut session = Executor::with_threads(1).prepare(&program, &mut scope, &feeds, &[&rows])?;
    session.feed("steps", &Tensor::from_vec([1], vec![300_i64])?)?;
    session.run(&mut scope)?;
    // Memory of sixteen steps with 285 to 300 rows: each has its initial rows, a slice, and its final rows, one more.
    let row = 3 * 8;
    assert!(session.peak_bytes() < 16 * 4 * 301 * row, "{}", session.peak_bytes());
    let found = session.item(&rows)?;
    session.feed("steps", &Tensor::from_vec([1], vec![300_i64])?)?;
    session.run(&mut scope)?;
    assert_eq!(session.item(&rows)?, found);
    Ok(())
}

#[test]
fn plan_says_where_it_ends_and_a_budget_is_refused() -> Result<()> {
    let net = Net::new(true);
    let rows = net.repeat(2, &net.first, |rows| net.row_more(rows));
    let loss = rows.square().mean().name();
    let mut program = net.net.program()?.clone();
    let plan = Executor::new().plan(&program, &start()?, &[], &[&loss])?;
    let late = plan.tail().unwrap_or_default();
    assert!(late.starts_with("operator `while` (block 0, operator"), "{late}");
    assert!(plan.to_string().contains(&format!("then {late} and what is behind it")), "{plan}");
    let checkpoints = Recompute::auto(1 << 20, &[]);
    let e = append_backward(&mut program, &loss, &Backward { recompute: checkpoints, ..Backward::default() });
    let e = e.unwrap_err().to_string();
    assert!(e.starts_with("operator `while` (block 0, operator"), "{e}");
    assert!(e.ends_with("known only at run time; name the checkpoints with `Recompute::Named`"), "{e}");
    Ok(())
}

#[test]
fn operators_after_a_dynamic_shape_reach_the_scope() -> Result<()> {
    let train = |control: bool| -> Result<Vec<Vec<f64>>> {
        let net = Net::new(control);
        let rows = net.repeat(3, &net.first, |rows| net.row_more(rows));
        let loss = rows.square().mean();
        Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
        let (program, mut executor, mut scope) =
            (net.net.program()?.clone(), Executor::with_threads(1), Scope::new());
        executor.run(&net.net.startup().program()?, &mut scope, &[], &[])?;
        start()?.iter().for_each(|(name, value)| scope.set(name, value.clone()));
        for _ in 0..5 {
            executor.run(&program, &mut scope, &[], &[])?;
        }
        Ok(vec![scope.get("w")?.to_f64s(), scope.get("first")?.to_f64s()])
    };
    let (found, expected) = (train(true)?.concat(), train(false)?.concat());
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}, {expected:?}");
    assert_ne!(found, [start()?.get("w")?.to_f64s(), start()?.get("first")?.to_f64s()].concat());
    Ok(())
}

#[test]
fn session_says_what_shapes_there_are() -> Result<()> {
    let (program, loss) = fed(&Net::new(true))?;
    let rows = &program.root().ops.iter().find(|op| op.ty == "while").unwrap().outputs.get("Out")[1];
    let rows = program.name(*rows);
    let mut scope = start()?;
    let feeds = [("steps", Meta::new(DType::I64, [1]))];
    let mut session = Executor::new().prepare(&program, &mut scope, &feeds, &[rows, &loss])?;
    let before = session.peak_bytes();
    for times in [2, 5] {
        session.feed("steps", &Tensor::from_vec([1], vec![times as i64])?)?;
        session.run(&mut scope)?;
        assert_eq!(session.fetch(rows)?.dims(), [times + 1, 3]);
        assert_eq!(session.slice::<f64>(rows)?.len(), (times + 1) * 3);
    }
    assert!(session.peak_bytes() > before);
    Ok(())
}

#[test]
fn rank_and_dtype_must_stay_and_an_end_must_come() -> Result<()> {
    // An undeclared shape may change, but not the rank.
    let net = Net::new(true);
    let flag = || net.w.mean().less_than(&net.w.mean());
    let rows = dynamic_dims(&net.first, &[0]);
    let e = while_loop(from_ref(&rows), |_| flag(), |v| vec![v[0].reshape(&[-1])])[0].check().unwrap_err();
    assert!(
        e.to_string()
            .starts_with("the body of a loop changes dtype or shape of a variable: before it is assign_"),
        "{e}"
    );
    let e = while_loop(&[rows], |_| flag(), |v| vec![v[0].cast(DType::F32)])[0].check().unwrap_err();
    assert!(e.to_string().contains("float64 [-1, 3], after it is cast_0: float32 [-1, 3]"), "{e}");
    assert_eq!(
        dynamic_dims(&net.first, &[2]).check().unwrap_err().message(),
        "first: float64 [1, 3] has no dimension 2"
    );
    // A declared dimension must not change.
    let e =
        while_loop(from_ref(&net.first), |_| flag(), |v| vec![net.row_more(&v[0])])[0].check().unwrap_err();
    assert!(e.message().ends_with("float64 [1, 3], after it is concat_0: float64 [2, 3]"), "{e}");

    let (program, loss) = fed(&Net::new(true))?;
    let steps = Tensor::from_vec([1], vec![i64::MAX])?;
    let e = Executor::new().loop_limit(20).run(&program, &mut start()?, &[("steps", &steps)], &[&loss]);
    let e = e.unwrap_err().to_string();
    assert!(e.starts_with("operator `while` (block 0, operator"), "{e}");
    assert!(
        e.ends_with(
            "the loop has not ended after 20 steps, its limit; change its condition, or raise the limit with \
             `Executor::loop_limit`"
        ),
        "{e}"
    );
    Ok(())
}

#[test]
fn fetches_before_a_final_dynamic_operator_work() -> Result<()> {
    let net = Builder::new();
    let (x, first) = (net.input("x", DType::F64, &[2, 3]), net.input("first", DType::F64, &[3]));
    // Each step copies its state as often as the sequence says, and sums the copies.
    let step = |x: &[Expr], state: &[Expr]| {
        let row = state[0].reshape(&[1, 3]);
        let count = x[0].slice(0, 0, 1);
        let vars = [&count * 0.0, dynamic_dims(&row, &[0])];
        let rows =
            while_loop(&vars, |v| v[0].less_than(&count), |v| vec![&v[0] + 1.0, concat(&[&v[1], &row], 0)]);
        let next = rows[1].sum(&[0]);
        (vec![next.clone()], vec![next])
    };
    let once = scan(from_ref(&x), from_ref(&first), false, step);
    let twice = scan(from_ref(&once[0]), from_ref(&first), false, step);
    let x = Tensor::from_vec([2, 3], vec![1.0, 0.5, 0.0, 2.0, 1.0, 1.0])?;
    let first = Tensor::from_vec([3], vec![1.0, 0.5, -1.0])?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("first", &first)];
    let fetches = [&*once[0].name(), &*twice[0].name()];
    let found = Executor::with_threads(1).run(&net.program()?, &mut Scope::new(), &feeds, &fetches)?;
    assert_eq!(found[0].to_f64s(), [2.0, 1.0, -2.0, 6.0, 3.0, -6.0]);
    assert_eq!(found[1].to_f64s(), [3.0, 1.5, -3.0, 21.0, 10.5, -21.0]);
    Ok(())
}
