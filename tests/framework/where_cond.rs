//! `where_cond` broadcasts: values, gradients, open dimensions, errors.

use autobwd::{Builder, DType, Executor, Feed, Result, Scope, Tensor, gradients, tensor::Bool, verify};
use autobwd_ops::Math;

use crate::support::programs::differentiable;

fn floats(dims: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_vec(dims, values.to_vec()).unwrap()
}

fn truths(dims: &[usize], values: &[bool]) -> Tensor {
    Tensor::from_vec(dims, values.iter().map(|x| Bool::from(*x)).collect()).unwrap()
}

#[test]
fn operands_broadcast_and_gradients_are_summed() -> Result<()> {
    let tape = autobwd::eager();
    let mask = tape.constant(truths(&[2, 1], &[true, false]));
    let (x, y) = (tape.leaf("x", floats(&[3], &[1.0, 2.0, 3.0])), tape.leaf("y", floats(&[], &[-1.0])));
    let out = mask.where_cond(&x, &y);
    assert_eq!(out.tensor()?.to_f64s(), [1.0, 2.0, 3.0, -1.0, -1.0, -1.0]);
    let weights = tape.constant(floats(&[2, 3], &[1.0, 10.0, 100.0, 2.0, 20.0, 200.0]));
    (out * weights).sum(&[]).backward()?;
    assert_eq!(x.gradient()?.tensor()?.to_f64s(), [1.0, 10.0, 100.0]);
    assert_eq!(y.gradient()?.tensor()?.to_f64s(), [222.0]);
    // Infinities on the other side stay there, and any dtype is selected.
    let (few, many) =
        (tape.leaf("few", floats(&[1], &[f64::NAN])), tape.constant(floats(&[2, 1], &[4.0, 5.0])));
    mask.where_cond(&many, &few.exp()).sum(&[]).backward()?;
    let integers = tape.constant(Tensor::from_vec([2], vec![7_i64, 8])?);
    let one = tape.constant(Tensor::scalar(1_i64)?);
    assert_eq!(mask.where_cond(&integers, &one).tensor()?.slice::<i64>()?, [7, 8, 1, 1]);
    let condition = tape.constant(truths(&[], &[true]));
    assert_eq!(condition.where_cond(&mask, &mask).tensor()?.dims(), [2, 1]);
    Ok(())
}

#[test]
fn open_dimensions_broadcast_when_the_program_runs() -> Result<()> {
    let net = Builder::new();
    let mask = net.input("mask", DType::Bool, &[-1, 1]);
    let (x, y) = (net.input("x", DType::F64, &[-1]), net.input("y", DType::F64, &[-1, -1]));
    [&x, &y].into_iter().for_each(|x| differentiable(&net, x));
    let loss = (mask.where_cond(&x, &y) * 2.0).sum(&[]).name();
    let mut program = net.program()?.clone();
    let built = gradients(&mut program, &[&loss], &["x", "y"], &Default::default())?.entries();
    let names: Vec<String> = built.iter().flatten().map(|var| program.name(*var).to_string()).collect();
    verify(&program)?;
    let mask = truths(&[2, 1], &[false, true]);
    let (x, y) = (floats(&[3], &[1.0, 2.0, 3.0]), floats(&[2, 3], &[4.0; 6]));
    let feeds: [(&str, &dyn Feed); 3] = [("mask", &mask), ("x", &x), ("y", &y)];
    let fetches = [&loss, &names[0], &names[1]].map(String::as_str);
    let found = Executor::with_threads(1).run(&program, &mut Scope::new(), &feeds, &fetches)?;
    assert_eq!(found[0].to_f64s(), [36.0]);
    assert_eq!(found[1].to_f64s(), [2.0; 3]);
    assert_eq!(found[2].to_f64s(), [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn open_dimensions_broadcast_against_1() -> Result<()> {
    let net = Builder::new();
    let (x, b) = (net.input("x", DType::F64, &[-1, 4]), net.input("b", DType::F64, &[1, 4]));
    [&x, &b].into_iter().for_each(|x| differentiable(&net, x));
    let out = x.greater_than(&(&x * 0.0)).where_cond(&x, &b);
    let (loss, out) = (out.sum(&[]).name(), out.name());
    let mut program = net.program()?.clone();
    let built = gradients(&mut program, &[&loss], &["x", "b"], &Default::default())?.entries();
    let names: Vec<String> = built.iter().flatten().map(|var| program.name(*var).to_string()).collect();
    let fetches = [&out, &names[0], &names[1]].map(String::as_str);
    for rows in [1, 3] {
        let (x, b) = (floats(&[rows, 4], &[1.0, -1.0, 2.0, -2.0].repeat(rows)), floats(&[1, 4], &[5.0; 4]));
        let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("b", &b)];
        let found = Executor::with_threads(1).run(&program, &mut Scope::new(), &feeds, &fetches)?;
        assert_eq!(found[0], floats(&[rows, 4], &[1.0, 5.0, 2.0, 5.0].repeat(rows)));
        assert_eq!(found[1], floats(&[rows, 4], &[1.0, 0.0, 1.0, 0.0].repeat(rows)));
        let sum = rows as f64;
        assert_eq!(found[2], floats(&[1, 4], &[0.0, sum, 0.0, sum]));
    }
    Ok(())
}

#[test]
fn shapes_that_do_not_broadcast_are_an_error() {
    let net = Builder::new();
    let mask = net.input("mask", DType::Bool, &[2]);
    let (x, y) = (net.input("x", DType::F32, &[3, 2]), net.input("y", DType::F32, &[3]));
    let e = mask.where_cond(&x, &y).check().unwrap_err().to_string();
    let text =
        "`where_cond`: the shapes of the condition [2], of `yes` [3, 2] and of `no` [3] do not broadcast";
    assert!(e.starts_with(text) && e.contains("where_cond.rs"), "{e}");
}
