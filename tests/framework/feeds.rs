//! Feeding variables that the program computes.

use autobwd::{
    Arg, Backward, Builder, DType, ErrorKind, Executor, Expr, Feed, Meta, Result, Scope, Tensor,
    append_backward, emit,
};
use autobwd_ops::{Math, concat, control::while_loop, increment::Increment};

use crate::support::control_flow::number;

fn scalar(x: f32) -> Tensor {
    Tensor::from_vec([1], vec![x]).unwrap()
}

#[test]
fn program_is_cut_at_what_is_fed() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let z = x.square();
    let y = &z + 1.0;
    let (z, y) = (z.name(), y.name());
    let (mut executor, mut scope, program) = (Executor::new(), Scope::new(), net.program()?);
    let (one, hundred) = (scalar(1.0), scalar(100.0));
    let mut run = |feeds: &[(&str, &dyn Feed)]| -> Result<f64> {
        executor.run(&program, &mut scope, feeds, &[&y, &z])?[0].item()
    };
    // Alternately: each set of feeds needs a plan of its own.
    for _ in 0..2 {
        assert_eq!(run(&[("x", &one)])?, 2.0);
        assert_eq!(run(&[("x", &one), (&z, &hundred)])?, 101.0);
        // Variables that only the cut part reads need not be fed.
        assert_eq!(run(&[(&z, &hundred)])?, 101.0);
    }
    let plan = Executor::new().plan(&program, &Scope::new(), &[(&z, Meta::new(DType::F32, [1]))], &[&y])?;
    assert_eq!(plan.instructions()[0].operators, ["scale"]);
    Ok(())
}

#[test]
fn feed_overrides_one_output_of_many() -> Result<()> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F32, &[1, 3], Expr::clone);
    let (largest, at) = x.top_k(1);
    let loss = largest.square().sum(&[]).name();
    let grads = net.edit(|program| append_backward(program, &loss, &Backward::default()))?;
    let program = net.program()?;
    let gradient = grads.entries()[0].map(|var| program.name(var).to_string()).unwrap();
    let mut scope = Scope::new();
    scope.set("x", Tensor::from_vec([1, 3], vec![1.0_f32, 5.0, 2.0])?);
    let fed = Tensor::from_vec([1, 1], vec![7.0_f32])?;
    let (largest, at) = (largest.name(), at.name());
    let fetches = [&*loss, &*at, &*gradient, &*largest];
    let found = Executor::new().run(&program, &mut scope, &[(&largest, &fed)], &fetches)?;
    assert_eq!(found[0].item()?, 49.0);
    assert_eq!(found[1].to_f64s(), [1.0]);
    assert_eq!(found[2].to_f64s(), [0.0, 14.0, 0.0]);
    assert_eq!(found[3], fed);
    Ok(())
}

#[test]
fn feed_sets_a_variable_read_before_it_is_written() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    emit(Increment { x: Arg::from(&x), out: (&x).into(), step: 1.0 }).out.check()?;
    let y = (&x * 2.0).name();
    let found =
        Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &scalar(3.0))], &[&y, "x"])?;
    assert_eq!((found[0].item()?, found[1].item()?), (8.0, 4.0));
    Ok(())
}

#[test]
fn feed_that_would_be_overwritten_is_refused() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let z = x.square();
    emit(Increment { x: Arg::from(&z), out: (&z).into(), step: 1.0 }).out.check()?;
    let run = |net: &Builder, name: &str, fetch: &str| {
        let feeds: [(&str, &dyn Feed); 2] = [("x", &scalar(1.0)), (name, &scalar(2.0))];
        Executor::new().run(&net.program().unwrap(), &mut Scope::new(), &feeds, &[fetch]).unwrap_err()
    };
    let e = run(&net, "square_0", "square_0");
    let text =
        "`square_0` cannot be fed: `square` computes it and `increment` overwrites it; feed another variable";
    assert_eq!((e.kind(), e.message()), (ErrorKind::Feed, text));

    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let grown = while_loop(&[x], |v| v[0].less_than(&(&v[0] * 0.0 + 9.0)), |v| vec![&v[0] * 2.0]);
    let e = run(&net, &grown[0].name(), &grown[0].name());
    assert!(e.message().contains("cannot be fed: "), "{e}");
    Ok(())
}

#[test]
fn operators_that_are_planned_while_running_keep_what_is_fed() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let end = number(&net, 3);
    let vars = [number(&net, 0), autobwd_ops::control::dynamic_dims(&x, &[-1])];
    let step = |v: &[autobwd::Expr]| vec![&v[0] + 1.0, concat(&[&v[1], &x], 0)];
    let all = while_loop(&vars, |v| v[0].less_than(&end), step).remove(1);
    let z = x.square();
    let y = all.sum(&[]) + &z;
    let (z, y) = (z.name(), y.name());
    let mut executor = Executor::new();
    let feeds: [(&str, &dyn Feed); 2] = [("x", &scalar(2.0)), (&z, &scalar(100.0))];
    let found = executor.run(&net.program()?, &mut Scope::new(), &feeds, &[&y])?;
    assert_eq!(found[0].item()?, 108.0);
    let found = executor.run(&net.program()?, &mut Scope::new(), &feeds[..1], &[&y])?;
    assert_eq!(found[0].item()?, 12.0);
    Ok(())
}
