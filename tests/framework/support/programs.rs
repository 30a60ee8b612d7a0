//! Programs, variables and gradients of programs.

use autobwd::{Backward, Builder, DType, Expr, Program, Result, append_backward, backward::Gradients};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan, while_loop},
};

use super::derivatives::parameter;

/// Gives data a gradient.
pub(crate) fn differentiable(net: &Builder, x: &Expr) {
    net.edit(|program| {
        program.root_mut().vars.get_mut(&x.var()).into_iter().for_each(|desc| desc.stop_gradient = false);
        Ok(())
    })
    .unwrap();
}

pub(crate) fn float_parameter(net: &Builder, name: &str, dims: &[usize]) -> Expr {
    parameter_of(net, name, DType::F32, dims)
}

pub(crate) fn parameter_of(net: &Builder, name: &str, dtype: DType, dims: &[usize]) -> Expr {
    net.parameter(name, dtype, dims, |w| Init::Uniform(-1.0, 1.0).emit(w, 3))
}

pub(crate) fn differentiate(
    net: &Builder,
    loss: &Expr,
    backward: &Backward<'_>,
) -> Result<(Program, Gradients)> {
    let mut program = net.program()?.clone();
    let found = append_backward(&mut program, &loss.name(), backward)?;
    Ok((program, found))
}

/// A recurrence, a loop and a branch, with their backward pass.
pub(crate) fn nested() -> Result<(Program, Gradients)> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let x = net.input("x", DType::F64, &[-1, 2]);
    let states = scan(&[x], std::slice::from_ref(&w), false, |x, h| {
        let h = (&h[0] * &w + &x[0]).tanh();
        (vec![h.clone()], vec![h])
    });
    let end = w.mean() + 9.0;
    let grow = |v: &[Expr]| vec![&v[0] * w.square().mean()];
    let last = while_loop(&[states[0].mean()], |v| v[0].less_than(&end), grow);
    let small = last[0].less_than(&end);
    let loss = cond(&small, || vec![last[0].exp()], || vec![last[0].log()]);
    differentiate(&net, &loss[0], &Backward::default())
}
