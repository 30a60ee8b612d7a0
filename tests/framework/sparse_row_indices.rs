//! Row indices that the kernel of an author writes: they ascend, or the operator fails.

use autobwd::{Builder, DType, Executor, Expr, New, Result, Scope, Tensor, append_backward, emit};
use autobwd_ops::{Init, Math, matmul::MatmulV2};

use crate::support::operators::FirstRows;

fn loss(x: &Expr, numbers: &[i64]) -> Expr {
    emit(FirstRows { x: x.into(), out: New, numbers: numbers.to_vec() }).out.square().sum(&[])
}

/// The gradient from a program.
fn built(numbers: &[i64]) -> Result<Vec<f64>> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[3, 1], |w| Init::Constant(3.0).emit(w, 0));
    let loss = loss(&w, numbers).name();
    net.edit(|program| append_backward(program, &loss, &Default::default()))?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(executor.run(&net.program()?, &mut scope, &[], &["w@GRAD"])?[0].to_f64s())
}

/// The gradient from a tape.
fn taped(numbers: &[i64]) -> Result<Vec<f64>> {
    let tape = autobwd::eager();
    let w = tape.leaf("w", Tensor::from_vec([3, 1], vec![3.0_f32; 3])?);
    loss(&w, numbers).backward()?;
    Ok(w.gradient()?.tensor()?.to_f64s())
}

#[test]
fn rows_that_do_not_ascend_are_an_error_of_their_operator() -> Result<()> {
    for gradient in [built, taped] {
        assert_eq!(gradient(&[0, 1])?, [6.0, 6.0, 0.0]);
        assert_eq!(gradient(&[2, -1])?, [0.0, 0.0, 6.0]);
        assert_eq!(gradient(&[-1, 0])?, [0.0; 3]);
        for (numbers, wrote) in [
            ([1, 0], "row 0 after row 1"),
            ([1, 1], "row 1 after row 1"),
            ([0, 3], "row 3 of a tensor of 3 rows"),
            ([-2, 0], "row -2 of a tensor of 3 rows"),
        ] {
            let e = gradient(&numbers).unwrap_err().to_string();
            let text =
                format!("`X@GRAD`: its kernel wrote {wrote}; rows ascend, each once, and -1 ends them");
            assert!(e.contains(&text) && e.contains("first_rows_grad"), "{e}");
        }
    }
    Ok(())
}

#[test]
fn rows_that_do_not_ascend_leave_no_trace() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[3, 1], |w| Init::Constant(3.0).emit(w, 0));
    let kept = net.persistable("kept", DType::F32, &[1, 1], |kept| Init::Constant(2.0).emit(kept, 0));
    let (x, y, out) = ((&kept).into(), (&kept).into(), (&kept).into());
    emit(MatmulV2 { x, y, out, trans_x: false, trans_y: false }).out.check()?;
    let loss = loss(&w, &[1, 0]).name();
    net.edit(|program| append_backward(program, &loss, &Default::default()))?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    assert!(executor.run(&net.program()?, &mut scope, &[], &["w@GRAD"]).is_err());
    assert_eq!(scope.get("kept")?.item()?, 2.0);
    executor.run(&net.program()?, &mut scope, &[], &[])?;
    assert_eq!(scope.get("kept")?.item()?, 4.0);
    Ok(())
}
