//! Data decides the shapes of operators: in programs with operators after them, in gradients, in blocks, in eager mode.

use autobwd::{
    Builder, DType, Executor, New, Program, Result, Scope, Tensor, emit, exec::Predictor, gradients, verify,
};
use autobwd_ops::{
    Math,
    control::{cond, dynamic_dims, while_loop},
    select::SelectInput,
};

use crate::support::{
    control_flow::number,
    derivatives::{Point, assert_derivatives, parameter},
};

fn vector(x: &[f64]) -> Tensor {
    Tensor::from_vec([x.len()], x.to_vec()).unwrap()
}

/// `x[x > 0]²`, its sum, and its gradient.
fn selecting() -> Result<(Program, [String; 3])> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1]);
    let positive = x.masked_select(&x.greater_than(&(x.sign() * 0.0)));
    let squares = positive.square();
    let sum = squares.sum(&[]);
    let names = [squares.name(), sum.name()];
    let mut program = net.program()?.clone();
    program.root_mut().vars.get_mut(&x.var()).expect("declared").stop_gradient = false;
    verify(&program)?;
    let found = gradients(&mut program, &[&names[1]], &["x"], &Default::default())?;
    let gradient = found.entries()[0].expect("the sum depends on x");
    verify(&program)?;
    let gradient = program.name(gradient).to_string();
    let [squares, sum] = names;
    Ok((program, [squares, sum, gradient]))
}

#[test]
fn sizes_change_from_run_to_run() -> Result<()> {
    let (program, [squares, sum, gradient]) = selecting()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    let mut run =
        |x: &[f64]| executor.run(&program, &mut scope, &[("x", &vector(x))], &[&squares, &sum, &gradient]);
    for _ in 0..2 {
        let found = run(&[1.0, -2.0, 3.0])?;
        assert_eq!(found, [vector(&[1.0, 9.0]), Tensor::scalar(10.0)?, vector(&[2.0, 0.0, 6.0])]);
        let found = run(&[-1.0, -2.0, -3.0])?;
        assert_eq!(found, [vector(&[]), Tensor::scalar(0.0)?, vector(&[0.0; 3])]);
        let found = run(&[4.0])?;
        assert_eq!(found, [vector(&[16.0]), Tensor::scalar(16.0)?, vector(&[8.0])]);
    }
    Ok(())
}

#[test]
fn numbers_from_before_are_known_to_shape_rules_after() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 2]);
    let count = x.dim(0) * 2;
    let flat = x.reshape_to(std::slice::from_ref(&count));
    let positive = flat.masked_select(&flat.greater_than(&(&flat * 0.0)));
    let repeated = positive.unsqueeze(&[0]).expand_to(&[count, positive.dim(0)]);
    let x = Tensor::from_vec([1, 2], vec![3.0, -1.0])?;
    let found = Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&repeated.name()])?;
    assert_eq!(found, [Tensor::from_vec([2, 1], vec![3.0; 2])?]);
    Ok(())
}

#[test]
fn several_decide_one_after_another() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1]);
    let positive = x.masked_select(&x.greater_than(&(&x * 0.0)));
    let small = positive.masked_select(&positive.less_than(&(&positive * 0.0 + 5.0)));
    let (distinct, index) = small.unique();
    let places = x.nonzero();
    let names = [&distinct, &index, &places].map(|value| value.name());
    let program = net.program()?;
    let fetches = names.each_ref().map(String::as_str);
    let x = vector(&[3.0, -1.0, 7.0, 0.0, 3.0, 2.0]);
    let found = Executor::new().run(&program, &mut Scope::new(), &[("x", &x)], &fetches)?;
    assert_eq!(found[0], vector(&[2.0, 3.0]));
    assert_eq!(found[1], Tensor::from_vec([3], vec![1_i64, 1, 0])?);
    assert_eq!(found[2], Tensor::from_vec([5, 1], vec![0_i64, 1, 2, 4, 5])?);
    Ok(())
}

#[test]
fn loops_and_branches_select() -> Result<()> {
    // Drops elements until their sum is small: the loop variable has another size in each step.
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1]);
    let limit = number(&net, 0).cast(DType::F64) + 6.0;
    let rest = while_loop(
        &[dynamic_dims(&x, &[0])],
        |v| limit.less_than(&v[0].sum(&[]).reshape(&[1])),
        |v| vec![v[0].masked_select(&v[0].less_than(&v[0].amax(&[]).expand_to(&[v[0].dim(0)])))],
    );
    let is_empty = number(&net, 0).greater_than(&number(&net, 1));
    let kept =
        cond(&is_empty, || vec![rest[0].nonzero().sum(&[])], || vec![rest[0].nonzero().sum(&[]) + 10.0]);
    let names = [rest[0].name(), kept[0].name()];
    let program = net.program()?;
    let fetches = names.each_ref().map(String::as_str);
    let x = vector(&[3.0, 1.0, 7.0, 2.0, 4.0]);
    let found = Executor::new().run(&program, &mut Scope::new(), &[("x", &x)], &fetches)?;
    assert_eq!(found, [vector(&[3.0, 1.0, 2.0]), Tensor::scalar(13_i64)?]);
    Ok(())
}

#[test]
fn selected_value_may_be_empty() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[4]);
    let mask = x.sum(&[]).greater_than(&(x.sum(&[]) * 0.0)).cast(DType::I32);
    let parts = [x.slice(0, 0, 0), x.slice(0, 1, 4)];
    let x = parts.iter().map(|part| Some(part.into())).collect();
    let selected = emit(SelectInput { x, mask: (&mask).into(), out: New }).out;
    let doubled = (&selected * 2.0).name();
    assert_eq!(selected.dims()[0].get(), None);
    let program = net.program()?;
    for (x, y) in [([1.0, 2.0, 3.0, 4.0], vec![4.0, 6.0, 8.0]), ([1.0, -2.0, 0.5, 0.0], vec![])] {
        let found = Executor::new().run(&program, &mut Scope::new(), &[("x", &vector(&x))], &[&doubled])?;
        assert_eq!(found[0], vector(&y));
    }
    Ok(())
}

#[test]
fn eager_values_have_the_decided_shape() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::from_vec([2, 2], vec![1.0, -2.0, 3.0, -4.0])?);
    let positive = x.masked_select(&x.greater_than(&(&x * 0.0)));
    assert_eq!(positive.tensor()?, vector(&[1.0, 3.0]));
    positive.square().sum(&[]).backward()?;
    assert_eq!(x.gradient()?.tensor()?.to_f64s(), [2.0, 0.0, 6.0, 0.0]);
    assert_eq!((x.sum(&[0]) * 0.0).nonzero().tensor()?.dims(), [0, 1]);
    Ok(())
}

#[test]
fn gradients_of_a_selection_are_right_to_second_order() -> Result<()> {
    let net = Builder::new();
    let [x, y] = ["x", "y"].map(|name| parameter(&net, name, &[4]));
    let mask = x.greater_than(&(&x * 0.0));
    let loss = (x.masked_select(&mask).tanh() * y.masked_select(&mask)).sum(&[]);
    let at: &Point<'_> = &[("x", &[0.3, -0.4, 0.7, 1.1]), ("y", &[0.5, 0.2, -0.9, 0.8])];
    assert_derivatives(net.program()?.clone(), at, loss.name(), "x", 2);
    Ok(())
}

#[test]
fn check_for_infinities_reads_the_decided_elements() -> Result<()> {
    let (program, [squares, ..]) = selecting()?;
    let mut executor = Executor::new().check_finite(true);
    let mut run = |x: &[f64]| executor.run(&program, &mut Scope::new(), &[("x", &vector(x))], &[&squares]);
    assert_eq!(run(&[2.0, -f64::INFINITY])?[0], vector(&[4.0]));
    let e = run(&[2.0, f64::INFINITY]).unwrap_err();
    assert!(e.message().contains("`masked_select_0` is not finite"), "{e}");
    assert!(
        e.message().contains("writes Y = `masked_select_0`: float64 [2], from 2.0 to 2.0, 1 infinite"),
        "{e}"
    );
    Ok(())
}

#[test]
fn scope_keeps_no_decided_shape() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[4]);
    let name = x.nonzero().name();
    let mut program = net.program()?.clone();
    let var = program.find(&name).expect("it is declared");
    program.root_mut().vars.get_mut(&var).expect("it is declared").persistable = true;
    let x = vector(&[1.0, 0.0, 2.0, 0.0]);
    let e = Executor::new().run(&program, &mut Scope::new(), &[("x", &x)], &[&name]).unwrap_err();
    let text = format!(
        "`Out`: data decides its shape, but `{name}` is kept in the scope, where shapes do not change"
    );
    assert_eq!(e.message(), text);
    Ok(())
}

#[test]
fn predictors_serve_programs_that_decide_shapes() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1]);
    let y = (x.masked_select(&x.greater_than(&(&x * 0.0))) * 2.0).name();
    let program = net.program()?.clone();
    let mut predictor = Predictor::new(&program, Scope::new(), &[&y])?;
    for (x, y) in
        [(vec![1.0, -1.0], vec![2.0]), (vec![-1.0, -2.0, -3.0], vec![]), (vec![5.0, 6.0], vec![10.0, 12.0])]
    {
        assert_eq!(predictor.predict(&[("x", &vector(&x))])?, [vector(&y)]);
    }
    Ok(())
}
