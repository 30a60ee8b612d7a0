//! Operators with very many inputs or outputs, and variables with very many readers: work is linear in their number. At
//! these sizes, quadratic work would take minutes.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, New, Program, Result, Scope, Tensor, append_backward,
    backward::jacobian, emit,
};
use autobwd_ops::{Init, Math, concat, sum::Sum};

const MANY: usize = 20_000;

/// Fetched values of a program where `w` is [0.5].
fn fetched(program: &Program, fetches: &[&str]) -> Result<Vec<Vec<f64>>> {
    let mut scope = Scope::new();
    scope.set("w", Tensor::from_vec([1], vec![0.5])?);
    let found = Executor::with_threads(1).run(program, &mut scope, &[], fetches)?;
    Ok(found.iter().map(Tensor::to_f64s).collect())
}

fn model() -> (Builder, Expr) {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[1], |w| Init::Constant(0.5).emit(w, 0));
    (net, w)
}

#[test]
fn concat_of_very_many_with_its_gradient() -> Result<()> {
    let (net, w) = model();
    // One variable that all read, and copies, which plans elide.
    let parts: Vec<Expr> = (0..MANY).map(|i| if i % 2 == 0 { w.square() } else { w.copy() }).collect();
    let all = concat(&parts.iter().collect::<Vec<_>>(), 0);
    let loss = all.sum(&[]).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    let found = fetched(&program, &[&loss, "w@GRAD", &all.name()])?;
    let half = MANY as f64 / 2.0;
    assert_eq!((found[0][0], found[1][0], found[2].len()), (half * 0.75, half * 2.0, MANY));
    Ok(())
}

#[test]
fn sum_of_very_many_with_its_gradient() -> Result<()> {
    let (net, w) = model();
    let x = (0..MANY).map(|_| Ok((&w.square()).into())).collect::<Result<_>>()?;
    let loss = emit(Sum { x, out: New }).out.sum(&[]).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    let found = fetched(&program, &[&loss, "w@GRAD"])?;
    assert_eq!(found, [[MANY as f64 / 4.0], [MANY as f64]]);
    Ok(())
}

#[test]
fn split_into_very_many_that_are_all_fetched() -> Result<()> {
    let (net, w) = model();
    let x = concat(&(0..MANY).map(|_| &w).collect::<Vec<_>>(), 0);
    let parts = x.split(&vec![1; MANY], 0);
    let names: Vec<String> = parts.iter().map(|part| Ok(part.tanh().name())).collect::<Result<_>>()?;
    let found = fetched(&*net.program()?, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    assert!(found.len() == MANY && found.iter().all(|x| *x == [0.5_f64.tanh()]));
    Ok(())
}

#[test]
fn jacobian_grows_with_its_rows() -> Result<()> {
    let of = |n: usize| -> Result<(Program, String)> {
        let net = Builder::new();
        let w = net.parameter("w", DType::F64, &[n], |w| Init::Constant(0.5).emit(w, 0));
        let y = (w.square() * w.exp()).name();
        let mut program = net.program()?.clone();
        let found = jacobian(&mut program, &y, &["w"], &Default::default())?[0].expect("there is one");
        let name = program.name(found).to_string();
        Ok((program, name))
    };
    // The number of operators for each row.
    let count = |n: usize| Ok::<_, autobwd::Error>(of(n)?.0.root().ops.len());
    let each = count(3)? - count(2)?;
    assert_eq!(count(3000)?, count(2)? + 2998 * each);
    let (program, name) = of(40)?;
    autobwd::verify(&program)?;
    let mut scope = Scope::new();
    let at = |i: usize| 0.1 * i as f64 - 2.0;
    scope.set("w", Tensor::from_vec([40], (0..40).map(at).collect())?);
    let found = Executor::new().run(&program, &mut scope, &[], &[&name])?[0].to_f64s();
    for (i, x) in found.iter().enumerate() {
        let w = at(i / 40);
        let expected = if i / 40 == i % 40 { (2.0 * w + w * w) * w.exp() } else { 0.0 };
        assert!((x - expected).abs() < 1e-12, "{i}: {x}, not {expected}");
    }
    Ok(())
}
