//! Matrix products.

use autobwd::{Expr, New, emit};
use autobwd_ops::{Math, linalg::Determinant, matmul::MatmulV2};

use super::{
    node::{NodeContext, Outputs, one, refuse},
    rules::{Native, NodeRules},
};

pub(super) const RULES: NodeRules = &[
    ("MatMul", Native, matmul),
    ("Gemm", Native, gemm),
    ("Einsum", Native, einsum),
    ("Det", Native, determinant),
];

fn matmul(n: &mut NodeContext<'_, '_>) -> Outputs {
    one(n.input(0)?.matmul(&n.input(1)?))
}

fn determinant(n: &mut NodeContext<'_, '_>) -> Outputs {
    let x = n.input(0)?;
    one(emit(Determinant { input: (&x).into(), out: New }).out)
}

fn einsum(n: &mut NodeContext<'_, '_>) -> Outputs {
    let equation = n.text("equation")?.ok_or_else(|| refuse("operator `Einsum` has no equation"))?;
    let operands = n.all_inputs()?;
    one(autobwd_ops::einsum(equation, &operands.iter().collect::<Vec<_>>()))
}

/// `x · y`, of transposed operands where that is asked for.
pub(super) fn product(x: &Expr, y: &Expr, trans_x: bool, trans_y: bool) -> Expr {
    emit(MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y }).out
}

/// `alpha · a · b + beta · c`.
fn gemm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (trans_a, trans_b) = (n.flag("transA", false)?, n.flag("transB", false)?);
    let (alpha, beta) = (n.float_or("alpha", 1.0)?, n.float_or("beta", 1.0)?);
    let scaled = |x: Expr, by: f32| if by == 1.0 { x } else { x * f64::from(by) };
    let out = scaled(product(&n.input(0)?, &n.input(1)?, trans_a, trans_b), alpha);
    one(match n.optional(2)? {
        Some(c) if beta != 0.0 => &out + &scaled(c, beta),
        _ => out,
    })
}
