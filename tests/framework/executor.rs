//! Executors: runs, placement of values, results.

use autobwd::{
    Arg, Attr, Backward, Builder, DType, Executor, Feed, New, OpDesc, Result, Scope, Tensor, VarDesc,
    append_backward, emit,
};
use autobwd_ops::{
    Init, Math,
    activation::{LeakyRelu, Relu, Scale, Tanh},
    concat,
    optim::{Optimizer, Sgd},
};

use crate::support::random_programs::{check, draw, recipes};

fn tensor(elements: &[f32]) -> Tensor {
    Tensor::from_vec([elements.len()], elements.to_vec()).unwrap()
}

/// Runs once and returns one fetched value.
fn run(net: &Builder, feeds: &[(&str, &dyn Feed)], fetch: &str) -> Result<Tensor> {
    let mut scope = Scope::new();
    let mut executor = Executor::new();
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(executor.run(&net.program()?, &mut scope, feeds, &[fetch])?.remove(0))
}

#[test]
fn batched_products_are_bit_identical_on_any_threads() -> Result<()> {
    // Each product alone is too small to share; together they are shared, also if several have one side in common.
    for y_batch in [&[12][..], &[1], &[]] {
        let net = Builder::new();
        let y_dims = [y_batch, &[40, 56]].concat();
        let parameter = |name: &str, dims: &[usize]| {
            net.parameter(name, DType::F32, dims, |w| Init::Uniform(-1.0, 1.0).emit(w, 7))
        };
        let (x, y) = (parameter("x", &[12, 48, 40]), parameter("y", &y_dims));
        let product = x.matmul(&y);
        let loss = product.square().mean();
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss.name(), &Backward::default())?;
        let mut found = vec![];
        for threads in [1, 2, 3, 7] {
            let (mut executor, mut scope) = (Executor::with_threads(threads), Scope::new());
            executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
            found.push(executor.run(&program, &mut scope, &[], &[&product.name(), "x@GRAD", "y@GRAD"])?);
        }
        assert!(found[0].iter().all(|t| t.to_f64s().iter().any(|x| *x != 0.0)));
        assert!(found.iter().all(|other| *other == found[0]));
    }
    Ok(())
}

#[test]
fn unneeded_operators_do_not_run() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let unused = net.input("unused", DType::F32, &[3]);
    unused.exp().sum(&[]);
    let y = x.square();
    y.log();
    let out = run(&net, &[("x", &tensor(&[1.0, 2.0]))], &y.name())?;
    assert_eq!(out.slice::<f32>()?, [1.0, 4.0]);
    let executor = Executor::new();
    let session = executor.prepare(&net.program()?, &mut Scope::new(), &[("x", out.meta())], &[&y.name()])?;
    assert_eq!(session.instruction_count(), 1);
    Ok(())
}

#[test]
fn variable_may_be_written_again() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let h = x.tanh();
    let before = &h + 0.0;
    emit(Scale { x: (&x).into(), out: Arg::from(&h), scale: 2.0, bias: 0.0, bias_after_scale: true })
        .out
        .check()?;
    let after = &h + 0.0;
    // In place, too.
    emit(Relu { x: (&h).into(), out: (&h).into() }).out.check()?;
    let all = concat(&[&before, &after, &h], 0);
    let out = run(&net, &[("x", &tensor(&[0.5, -1.0]))], &all.name())?;
    let expected = [0.5_f32.tanh(), -(1.0_f32.tanh()), 1.0, -2.0, 1.0, 0.0];
    for (got, expected) in out.slice::<f32>()?.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-6, "{out:?}");
    }
    Ok(())
}

#[test]
fn operator_may_write_what_it_reads_from_the_scope() -> Result<()> {
    let net = Builder::new();
    let w = net.persistable("w", DType::F32, &[2, 2], |w| Init::Constant(1.0).emit(w, 0));
    // A matrix product cannot work in place: its result is copied back afterwards.
    emit(autobwd_ops::matmul::MatmulV2 {
        x: (&w).into(),
        y: (&w).into(),
        out: (&w).into(),
        trans_x: false,
        trans_y: false,
    })
    .out
    .check()?;
    let read = &w + 0.0;
    let (mut scope, mut executor) = (Scope::new(), Executor::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for expected in [2.0, 8.0] {
        let fetched = executor.run(&net.program()?, &mut scope, &[], &["w", &read.name()])?;
        assert_eq!(fetched[0].slice::<f32>()?, [expected; 4]);
        assert_eq!(fetched[1], fetched[0]);
        assert_eq!(scope.get("w")?, &fetched[0]);
    }
    Ok(())
}

#[test]
fn batches_of_other_sizes_get_plans_of_their_own() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(2.0).emit(w, 0));
    let sum = (&x * &w).sum(&[]);
    let (mut scope, mut executor) = (Scope::new(), Executor::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for rows in [1, 5, 0, 5, 1, 30_000] {
        let x = Tensor::from_vec([rows, 3], vec![1.0_f32; rows * 3])?;
        let out = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&sum.name()])?;
        assert_eq!(out[0].item()?, 6.0 * rows as f64);
    }
    Ok(())
}

#[test]
fn values_in_the_scope_can_be_set_between_runs() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
    let loss = w.square().sum(&[]);
    Sgd { rate: 0.25 }.minimize(&loss)?.complete()?;
    let (mut scope, executor) = (Scope::new(), Executor::new());
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut session = executor.prepare(&net.program()?, &mut scope, &[], &[&loss.name()])?;
    session.run(&mut scope)?;
    assert_eq!(scope.get("w")?.slice::<f32>()?, [0.5, 0.5]);
    scope.slice_mut::<f32>("w")?[0] = 4.0;
    scope.set("learning_rate_0", tensor(&[0.5]));
    session.run(&mut scope)?;
    assert_eq!(session.item(&loss.name())?, 16.25);
    assert_eq!(scope.get("w")?.slice::<f32>()?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn formulas_broadcast_next_to_other_data() -> Result<()> {
    // Larger than a block and a chunk, odd sizes; one fused kernel with a row, a column and a scalar.
    let net = Builder::new();
    let (rows, cols) = (301, 257);
    let x = net.input("x", DType::F64, &[rows as i64, cols as i64]);
    let row = net.input("row", DType::F64, &[cols as i64]);
    let column = net.input("column", DType::F64, &[rows as i64, 1]);
    let scalar = net.input("scalar", DType::F64, &[]);
    let out = &x * &row + &column - &scalar;
    let value = |i: usize| (i as f64 * 0.7).sin();
    let all = |n: usize| (0..n).map(value).collect::<Vec<_>>();
    let (x, row) = (Tensor::from_vec([rows, cols], all(rows * cols))?, Tensor::from_vec([cols], all(cols))?);
    let (column, scalar) = (Tensor::from_vec([rows, 1], all(rows))?, Tensor::scalar(0.25)?);
    let feeds: [(&str, &dyn Feed); 4] = [("x", &x), ("row", &row), ("column", &column), ("scalar", &scalar)];
    let got = run(&net, &feeds, &out.name())?;
    for (k, got) in got.slice::<f64>()?.iter().enumerate() {
        let (i, j) = (k / cols, k % cols);
        assert_eq!(*got, value(k) * value(j) + value(i) - 0.25);
    }
    Ok(())
}

#[test]
fn start_up_values_follow_from_the_seed() -> Result<()> {
    let weights = |seed| -> Result<Tensor> {
        let net = Builder::new();
        net.parameter("w", DType::F32, &[50, 40], |w| Init::KaimingNormal.emit(w, seed));
        let mut scope = Scope::new();
        Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
        Ok(scope.get("w")?.clone())
    };
    assert_eq!(weights(3)?, weights(3)?);
    assert_ne!(weights(3)?, weights(4)?);
    let w = weights(3)?.to_f64s();
    let variance = w.iter().map(|x| x * x).sum::<f64>() / w.len() as f64;
    assert!((variance - 2.0 / 50.0).abs() < 0.004, "{variance}");
    Ok(())
}

#[test]
fn programs_and_weights_survive_a_file() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let mut scope = Scope::new();
    scope.set("w", tensor(&[1.5, -2.0]));
    scope.set("n", Tensor::from_vec([1], vec![7_i64])?);
    scope.save(&path)?;
    let mut loaded = Scope::new();
    loaded.load(&path)?;
    assert_eq!(loaded.get("w")?, scope.get("w")?);
    assert_eq!(loaded.get("n")?, scope.get("n")?);
    Ok(())
}

#[test]
fn operators_of_a_file_run_by_name() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let out = emit(Tanh { x: (&x).into(), out: New }).out;
    let name = out.name();
    net.edit(|p| {
        let (x, y) = (p.find("x").unwrap(), p.var("y"));
        let root = p.root_mut();
        root.vars.insert(y, VarDesc::new(DType::F32, [2].into()));
        root.ops.push(OpDesc::new("scale").input("X", [x]).output("Out", [y]).attr("scale", Attr::F32(3.0)));
        Ok(())
    })?;
    let json = net.program()?.to_json();
    let program = autobwd::Program::from_json(&json)?;
    let x = tensor(&[1.0, 2.0]);
    let fetched = Executor::new().run(&program, &mut Scope::new(), &[("x", &x)], &["y", &name])?;
    assert_eq!(fetched[0].slice::<f32>()?, [3.0, 6.0]);
    Ok(())
}

#[test]
fn fusing_and_reusing_memory_change_nothing() {
    check(150, recipes(), |recipe| {
        let drawn = draw(&recipe);
        let mut program = drawn.net.program()?.clone();
        append_backward(&mut program, &drawn.loss, &Default::default())?;
        // Fetching every value gives each its own memory: none in registers, none in place.
        let written = program.root().ops.iter().flat_map(|op| op.writes());
        let names: Vec<String> = written.map(|v| program.name(v).to_string()).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let apart = Executor::with_threads(1).run(&program, &mut drawn.scope()?, &[], &all)?;
        let mut checking = Executor::with_threads(2).check_finite(true);
        assert_eq!(checking.run(&program, &mut drawn.scope()?, &[], &all)?, apart);
        for threads in [1, 2] {
            let mut executor = Executor::with_threads(threads);
            for (name, value) in all.iter().zip(&apart).filter(|(n, _)| n.ends_with("@GRAD")) {
                let together = executor.run(&program, &mut drawn.scope()?, &[], &[name])?;
                assert_eq!(&together[0], value, "{name}");
            }
            let mut checking = executor.check_finite(true);
            assert_eq!(checking.run(&program, &mut drawn.scope()?, &[], &all)?, apart);
        }
        Ok(())
    });
}

#[test]
fn values_that_no_operator_computes_are_fetched() -> Result<()> {
    for with_constant in [false, true] {
        let net = Builder::new();
        net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.0).emit(w, 0));
        let mut fetches = vec!["w".to_string()];
        if with_constant {
            let constant = autobwd_ops::fill::FillConstant {
                shape: vec![2],
                dtype: DType::F32,
                value: 1.5,
                ..autobwd_ops::fill::FillConstant::of(New)
            };
            fetches.push(net.emit(constant).out.name());
        }
        let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let mut executor = Executor::new();
        let mut scope = Scope::new();
        for w in [[1.0, 2.0], [3.0, -4.0]] {
            scope.set("w", tensor(&w));
            let fetched = executor.run(&net.program()?, &mut scope, &[], &fetches)?;
            assert_eq!(fetched[0], tensor(&w));
        }
        let mut session = executor.prepare(&net.program()?, &mut scope, &[], &fetches)?;
        session.profile(&mut scope)?;
        assert_eq!(session.fetch("w")?, tensor(&[3.0, -4.0]));
    }
    Ok(())
}

#[test]
fn operators_whose_attributes_are_zeros_of_both_signs_are_two() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let leaky = |alpha: f64| emit(LeakyRelu { x: (&x).into(), out: New, alpha }).out;
    let both = concat(&[&(leaky(0.0).reciprocal()), &(leaky(-0.0).reciprocal())], 0);
    let found = run(&net, &[("x", &tensor(&[-1.0]))], &both.name())?;
    assert_eq!(found.slice::<f32>()?, [f32::NEG_INFINITY, f32::INFINITY]);
    Ok(())
}

#[test]
fn thread_count_is_limited() {
    assert_eq!(Executor::with_threads(0).threads(), 1);
    assert_eq!(Executor::with_threads(3).threads(), 3);
    assert!(Executor::with_threads(1_000_000).threads() <= 1024);
}
