//! Values of literals.

use syn::{Expr, ExprLit, ExprUnary, Lit, UnOp};

/// An expression that passed through `macro_rules!` is in an invisible group.
pub(crate) fn ungrouped(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => ungrouped(&group.expr),
        expr => expr,
    }
}

/// The value of a number.
pub(crate) fn number(expr: &Expr) -> Option<f64> {
    match ungrouped(expr) {
        Expr::Lit(ExprLit { lit: Lit::Int(int), .. }) => int.base10_parse().ok(),
        Expr::Lit(ExprLit { lit: Lit::Float(float), .. }) => float.base10_parse().ok(),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => Some(-number(expr)?),
        _ => None,
    }
}

/// The literal in one form for each value: `1e-3` and `0.001` are equal.
pub(crate) fn canonical(expr: &Expr) -> Option<String> {
    match ungrouped(expr) {
        Expr::Lit(ExprLit { lit: Lit::Int(int), .. }) => Some(int.base10_digits().into()),
        Expr::Lit(ExprLit { lit: Lit::Bool(bool), .. }) => Some(bool.value.to_string()),
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(format!("{:?}", text.value())),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => Some(format!("-{}", canonical(expr)?)),
        Expr::Array(array) => {
            let all: Option<Vec<String>> = array.elems.iter().map(canonical).collect();
            Some(format!("[{}]", all?.join(", ")))
        }
        expr => Some(format!("{:?}", number(expr)?)),
    }
}
