//! Shapes computed from shapes: values of slots declared `constant`, known when a program is planned.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Feed, Meta, New, OpDesc, Program, Result, Scope,
    Tensor, Var, VarDesc, append_backward, emit,
    tape::{GradOptions, grad},
    verify,
};
use autobwd_ops::{
    Init, Math, concat,
    control::{cond, dynamic_dims, scan, while_loop},
    elementwise::ElementwiseAdd,
    fill::FillConstant,
    shape::{Assign, Concat, Reshape2, ShapeOp, Slice},
};

use crate::support::programs::differentiable;

fn shape(x: &Expr) -> Expr {
    emit(ShapeOp { input: x.into(), out: New }).out
}

fn int(net: &Builder, n: i64) -> Expr {
    let (shape, str_value) = (vec![1], n.to_string());
    net.emit(FillConstant { shape, dtype: DType::I32, str_value, ..FillConstant::of(New) }).out
}

fn reshape(x: &Expr, dims: &[&Expr]) -> Expr {
    let shape_tensor = dims.iter().map(|dim| (*dim).into()).collect();
    emit(Reshape2 { shape_tensor, ..Reshape2::of(x.into(), New, New, vec![-1; dims.len()]) }).out
}

/// `x` of shape `[n, c, h, w]` as `[n, h · w, c]`, with the shape computed by operators.
fn as_sequence(x: &Expr) -> Expr {
    let shape = shape(x);
    let (n, c) = (shape.slice(0, 0, 1), shape.slice(0, 1, 2));
    reshape(x, &[&n, &c, &int(x.builder(), -1)]).transpose(&[0, 2, 1])
}

fn numbers(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i as f64 * 0.7).sin()).collect()).unwrap()
}

/// A training step of `as_sequence`.
fn model() -> Result<(Program, Program, String)> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, -1, -1, -1]);
    let w = net.parameter("w", DType::F64, &[3, 2], |w| Init::Uniform(-0.5, 0.5).emit(w, 1));
    let loss = as_sequence(&x.tanh()).matmul(&w).square().mean();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    let startup = net.startup().program()?.clone();
    Ok((program, startup, loss.name()))
}

#[test]
fn shape_computed_from_shapes_is_planned_for_each_feed() -> Result<()> {
    let (program, startup, loss) = model()?;
    verify(&program)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&startup, &mut scope, &[], &[])?;
    for dims in [[2, 3, 4, 5], [1, 3, 2, 2]] {
        let x = numbers(&dims);
        let mut at = |w: Option<(usize, f64)>| -> Result<Vec<Tensor>> {
            let before = scope.get("w").unwrap().clone();
            if let Some((i, step)) = w {
                let mut moved = before.clone();
                moved.slice_mut::<f64>()?[i] += step;
                scope.set("w", moved);
            }
            let fetched = executor.run(&program, &mut scope, &[("x", &x)], &[&loss, "w@GRAD"]);
            scope.set("w", before);
            fetched
        };
        let gradient = at(None)?.remove(1).to_f64s();
        for (i, built) in gradient.iter().enumerate() {
            let (up, down) = (at(Some((i, 1e-5)))?[0].item()?, at(Some((i, -1e-5)))?[0].item()?);
            let numeric = (up - down) / 2e-5;
            assert!((built - numeric).abs() < 1e-8, "{built} {numeric}");
        }
    }
    Ok(())
}

#[test]
fn operators_that_compute_shapes_do_not_run() -> Result<()> {
    let (program, startup, loss) = model()?;
    let mut scope = Scope::new();
    let mut executor = Executor::with_threads(1);
    executor.run(&startup, &mut scope, &[], &[])?;
    let feeds = [("x", Meta::new(DType::F64, [2, 3, 4, 5]))];
    for executor in [Executor::with_threads(1), Executor::with_threads(1).check_finite(true)] {
        let plan = executor.plan(&program, &scope, &feeds, &[&loss, "w@GRAD"])?;
        let runs: Vec<_> = plan.instructions().iter().flat_map(|i| &i.operators).collect();
        assert!(runs.iter().any(|op| *op == "reshape2") && runs.iter().any(|op| *op == "matmul_v2"));
        assert!(!runs.iter().any(|op| ["shape", "slice"].contains(&op.as_str())), "{runs:?}");
    }
    // Fetched ones do.
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, -1, -1, -1]);
    let (dims, out) = (shape(&x), as_sequence(&x));
    let fetched = Executor::with_threads(1).run(
        &net.program()?,
        &mut Scope::new(),
        &[("x", &numbers(&[2, 3, 4, 5]))],
        &[&dims.name(), &out.name()],
    )?;
    assert_eq!((fetched[0].slice::<i32>()?, fetched[1].dims()), (&[2, 3, 4, 5][..], &[2, 20, 3][..]));
    Ok(())
}

#[track_caller]
fn refuse(net: &Builder, out: &Expr, feeds: &[(&str, &dyn Feed)], kind: ErrorKind, message: &str) {
    let program = net.program().unwrap().clone();
    verify(&program).unwrap();
    let found = Executor::with_threads(1).run(&program, &mut Scope::new(), feeds, &[&out.name()]);
    let e = found.unwrap_err();
    assert!(e.kind() == kind && e.to_string().contains(message), "{e}\nlacks\n{message}");
}

#[test]
fn shape_that_depends_on_data_is_refused() -> Result<()> {
    let x = numbers(&[2, 3]);
    let n = Tensor::from_vec([1], vec![6_i32])?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("n", &n)];
    let net = Builder::new();
    let (x, n) = (net.input("x", DType::F64, &[2, 3]), net.input("n", DType::I32, &[1]));
    let double = &n + &n;
    let message = format!(
        "`ShapeTensor`: the value of `{}` must be known when the program is planned, but it depends on data: `n` is fed",
        double.name()
    );
    refuse(&net, &reshape(&x, &[&double]), &feeds, ErrorKind::Shape, &message);

    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let n = net.parameter("n", DType::I32, &[1], |_| int(&net, 1));
    let out = reshape(&x, &[&n]);
    let (program, mut scope) = (net.program()?, Scope::new());
    scope.set("n", Tensor::from_vec([1], vec![6_i32])?);
    let e = Executor::with_threads(1).run(&program, &mut scope, &feeds[..1], &[&out.name()]).unwrap_err();
    assert!(e.to_string().contains("it depends on data: `n` is a value of the scope"), "{e}");

    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let many = net.emit(FillConstant { shape: vec![2000], dtype: DType::I32, ..FillConstant::of(New) }).out;
    let out = reshape(&x, &[&many.slice(0, 0, 1)]);
    let message = "int32 [2000], and at most 1024 elements are computed then";
    refuse(&net, &out, &feeds[..1], ErrorKind::Shape, message);
    Ok(())
}

#[test]
fn blocks_read_shapes_from_outside() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    differentiable(&net, &x);
    let (rows, one) = (shape(&x).slice(0, 0, 1), int(&net, 1));
    let wide = |x: &Expr| reshape(x, &[&one, &(&rows * &int(&net, 3))]);
    let looped = while_loop(
        &[x.sum(&[])],
        |v| v[0].less_than(&(x.sum(&[]) + 10.0)),
        |v| vec![&v[0] + wide(&x.exp()).sum(&[]).square() + 0.5],
    );
    let chosen = cond(&x.sum(&[]).less_than(&looped[0]), || vec![wide(&x).sum(&[])], || vec![x.sum(&[])]);
    let scanned = scan(std::slice::from_ref(&x), &[x.sum(&[])], false, |x, h| {
        let dims = shape(&x[0]);
        let h = &h[0] + reshape(&x[0], &[&dims, &one]).sum(&[]);
        (vec![h.clone()], vec![h])
    });
    let loss = &looped[0] + &chosen[0] + scanned[0].sum(&[]);
    let mut program = net.program()?.clone();
    verify(&program)?;
    autobwd::gradients(&mut program, &[&loss.name()], &["x"], &Default::default())?;
    let mut executor = Executor::with_threads(1);
    for dims in [[2, 3], [4, 3]] {
        let tensor = numbers(&dims);
        let fetched =
            executor.run(&program, &mut Scope::new(), &[("x", &tensor)], &[&chosen[0].name(), "x@GRAD"])?;
        let sum: f64 = tensor.to_f64s().iter().sum();
        assert!((fetched[0].item()? - sum).abs() < 1e-12);
        assert_eq!(fetched[1].dims(), dims);
    }
    Ok(())
}

#[test]
fn steps_of_several_shapes_compute_their_own() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[1, 2]);
    differentiable(&net, &x);
    let rows = while_loop(
        &[dynamic_dims(&x, &[0])],
        |v| v[0].square().sum(&[]).less_than(&((&x * 0.0).sum(&[]) + 40.0)),
        |v| {
            let doubled =
                reshape(&reshape(&v[0], &[&int(&net, -1)]), &[&shape(&v[0]).slice(0, 0, 1), &int(&net, 2)]);
            vec![concat(&[&v[0], &(&doubled * 2.0)], 0)]
        },
    );
    let loss = rows[0].sum(&[]);
    let mut program = net.program()?.clone();
    autobwd::gradients(&mut program, &[&loss.name()], &["x"], &Default::default())?;
    let x = Tensor::from_vec([1, 2], vec![1.0, 0.5])?;
    let fetches = [loss.name(), "x@GRAD".into()];
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let found = Executor::with_threads(1).run(&program, &mut Scope::new(), &[("x", &x)], &fetches)?;
    // Every step triples the sum.
    assert_eq!((found[0].item()?, found[1].to_f64s()), (40.5, vec![27.0, 27.0]));
    Ok(())
}

#[test]
fn shape_that_changes_from_step_to_step_is_refused() {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let (one, six) = (int(&net, 1), int(&net, 6));
    let out = while_loop(
        &[one.clone(), x.sum(&[])],
        |v| v[0].less_than(&six),
        |v| vec![&v[0] + &one, &v[1] + reshape(&x, &[&v[0], &int(&net, -1)]).sum(&[])],
    );
    refuse(&net, &out[1], &[("x", &numbers(&[2, 3]))], ErrorKind::Shape, "changes from step to step");
}

/// The program `x` of shape `[2, 3]` reshaped to `[n]`, where `n` is computed by these operators from `six`.
fn computed(add: impl FnOnce(&mut dyn FnMut(OpDesc), Var, &mut dyn FnMut() -> Var) -> Var) -> Program {
    let mut program = Program::new();
    let mut ops = vec![];
    let fresh = |program: &mut Program, name: &str, dtype: DType, dims: &[usize]| {
        let var = program.fresh(name);
        program.root_mut().vars.insert(var, VarDesc::new(dtype, dims.into()));
        var
    };
    let x = program.var("x");
    program.root_mut().vars.insert(x, VarDesc::new(DType::F64, [2, 3].into()));
    let six = fresh(&mut program, "six", DType::I32, &[1]);
    ops.push(FillConstant::exactly(6.0, vec![1], DType::I32, six));
    let last = add(&mut |op| ops.push(op), six, &mut || fresh(&mut program, "n", DType::I32, &[1]));
    let out = program.var("out");
    program.root_mut().vars.insert(out, VarDesc::new(DType::F64, [6].into()));
    let x_shape = fresh(&mut program, "x_shape", DType::F64, &[0, 2, 3]);
    ops.push(Reshape2 { shape_tensor: vec![last], ..Reshape2::of(x, out, x_shape, vec![-1]) }.into());
    program.root_mut().ops = ops;
    program
}

#[test]
fn long_and_wide_computations_of_a_shape_end() -> Result<()> {
    const MANY: usize = 100_000;
    let deep = computed(|op, six, fresh| {
        (0..MANY).fold(six, |x, _| {
            let out = fresh();
            op(Assign { x, out }.into());
            out
        })
    });
    // Each value is read twice: 2^200 paths.
    let branching = computed(|op, six, fresh| {
        let (zero, mut x) = (fresh(), fresh());
        op(FillConstant::exactly(0.0, vec![1], DType::I32, zero));
        op(ElementwiseAdd { x: zero, y: zero, out: x, axis: -1 }.into());
        for _ in 0..200 {
            let out = fresh();
            op(ElementwiseAdd { x, y: x, out, axis: -1 }.into());
            x = out;
        }
        let out = fresh();
        op(ElementwiseAdd { x, y: six, out, axis: -1 }.into());
        out
    });
    let wide = computed(|op, six, fresh| {
        let copies = (0..1000).map(|_| {
            let out = fresh();
            op(Assign { x: six, out }.into());
            out
        });
        let (x, out, all) = (copies.collect::<Vec<_>>(), fresh(), fresh());
        op(Concat { x, out: all, axis: 0, axis_tensor: None }.into());
        let (axes, starts, ends) = (vec![0], vec![-1], vec![i32::MAX]);
        op(Slice { axes, starts, ends, ..Slice::of(all, out) }.into());
        out
    });
    for (mut program, wide) in [(deep, false), (branching, false), (wide, true)] {
        if wide {
            let all = program.root().ops.iter().find_map(|op| op.as_op::<Concat>()).unwrap().out;
            program.root_mut().vars.insert(all, VarDesc::new(DType::I32, [1000].into()));
        }
        let x = numbers(&[2, 3]);
        let fetched = Executor::with_threads(1).run(&program, &mut Scope::new(), &[("x", &x)], &["out"])?;
        assert_eq!(fetched[0].dims(), [6]);
        let feeds = [("x", x.meta())];
        assert_eq!(
            Executor::with_threads(1).plan(&program, &Scope::new(), &feeds, &["out"])?.instructions().len(),
            1
        );
    }
    Ok(())
}

#[test]
fn hostile_values_are_errors() -> Result<()> {
    let x = numbers(&[2, 3]);
    let feeds: [(&str, &dyn Feed); 1] = [("x", &x)];
    let given = |n: i64, out: fn(&Expr, &Expr) -> Expr, message: &str| {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &[-1, 3]);
        let n = {
            let (shape, str_value) = (vec![1], n.to_string());
            net.emit(FillConstant { shape, dtype: DType::I64, str_value, ..FillConstant::of(New) }).out
        };
        let out = out(&x, &n);
        let program = net.program().unwrap().clone();
        let found = Executor::with_threads(1).run(&program, &mut Scope::new(), &feeds, &[&out.name()]);
        let e = found.unwrap_err().to_string();
        assert!(e.contains(message), "{n}: {e}");
    };
    let reshaped = |x: &Expr, n: &Expr| reshape(x, &[n]);
    let filled = |x: &Expr, n: &Expr| {
        let net = x.builder();
        let list = vec![n.into(), n.into(), n.into()];
        net.emit(FillConstant { shape_tensor_list: list, ..FillConstant::of(New) }).out
    };
    for n in [7, i64::MAX, i64::from(i32::MAX) + 1] {
        given(n, reshaped, "as many elements as in");
    }
    for n in [-2, i64::MIN] {
        given(n, reshaped, "is not a dimension");
        given(n, filled, "is not a dimension");
    }
    for n in [1 << 40, i64::MAX] {
        given(n, filled, "is unknown or too large");
    }
    // A NaN is an integer after a cast, and no shape before.
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    let zero = net.emit(FillConstant { shape: vec![1], ..FillConstant::of(New) }).out;
    let nan = &zero / &zero;
    let out = reshape(&x, &[&nan.cast(DType::I32), &int(&net, -1)]);
    let fetched = Executor::with_threads(1).run(&net.program()?, &mut Scope::new(), &feeds, &[&out.name()]);
    // 0 copies a dimension.
    assert_eq!(fetched?[0].dims(), [2, 3]);
    let out = reshape(&x, &[&nan]);
    assert!(out.check().unwrap_err().to_string().contains("`ShapeTensor`: int32 or int64 is needed"));
    Ok(())
}

#[test]
fn operator_that_fails_while_planning_is_named() {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let table = int(&net, 6);
    let out = reshape(&x, &[&table.gather(&int(&net, 5), 0)]);
    refuse(&net, &out, &[("x", &numbers(&[2, 3]))], ErrorKind::Shape, "cannot be computed then");
}

#[test]
fn eager_shapes_may_depend_on_data() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", numbers(&[2, 3, 2, 2]));
    let y = as_sequence(&x);
    assert_eq!(y.dims(), Meta::new(DType::F64, [2, 4, 3]).dims);
    let gradient = |out: &Expr| -> Result<Vec<f64>> {
        let found = grad(&[out], &[&x], &GradOptions::default())?;
        Ok(found[0].as_ref().unwrap().tensor()?.to_f64s())
    };
    let expected: Vec<f64> = x.tensor()?.to_f64s().iter().map(|x| 2.0 * x).collect();
    assert_eq!(gradient(&y.square().sum(&[]))?, expected);
    // The same shapes with other elements.
    for n in [1, 2, 3, 4] {
        let n = tape.constant(Tensor::from_vec([1], vec![n])?);
        let y = reshape(&x, &[&n, &int(&tape, -1)]);
        assert_eq!(y.tensor()?.dims(), [n.item()? as usize, 24 / n.item()? as usize]);
        assert_eq!(gradient(&y.square().sum(&[]))?, expected);
    }
    let n = tape.constant(Tensor::from_vec([1], vec![7_i32])?);
    assert!(reshape(&x, &[&n]).check().unwrap_err().to_string().contains("as many elements as in [7]"));
    Ok(())
}

#[test]
fn empty_slots_do_not_appear_in_programs() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    differentiable(&net, &x);
    let out =
        concat(&[&x.reshape(&[-1]).slice(0, 0, 2), &x.tile(&[2, 1]).expand(&[2, -1, -1]).reshape(&[-1])], 0);
    let mut program = net.program()?.clone();
    autobwd::gradients(&mut program, &[&out.name()], &["x"], &Default::default())?;
    for text in [program.to_string(), program.to_json()] {
        for slot in
            [" Shape=", "(Shape=", "Tensor", "\"Shape\"", "RepeatTimes", "shapes_tensor", "times_tensor"]
        {
            assert!(!text.contains(slot), "{slot} in {text}");
        }
    }
    Ok(())
}
