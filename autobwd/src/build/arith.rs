//! `+ - * /` on expressions and numbers.

use std::{
    ops::{Add, Div, Mul, Neg, Sub},
    panic::Location,
};

use smallvec::smallvec;

use super::{Arg, Expr, OpArgs};
use crate::{Attr, Error, OpDesc, Result, Role, Var};

#[track_caller]
fn binary(op: &'static str, x: &Expr, y: &Expr) -> Result<Expr> {
    let desc = OpDesc::new(op)
        .input("X", [Var::stand_in(1)])
        .input("Y", [Var::stand_in(2)])
        .output("Out", [Var::stand_in(3)])
        .attr("axis", Attr::I32(-1));
    append(x, &desc, smallvec![(Role::Input, x.into()), (Role::Input, y.into()), (Role::Output, Arg::New)])
}

/// `scale * x + bias`
#[track_caller]
fn affine(x: &Expr, scale: f64, bias: f64) -> Result<Expr> {
    let desc = OpDesc::new("scale")
        .input("X", [Var::stand_in(1)])
        .output("Out", [Var::stand_in(2)])
        .attr("scale", Attr::F32(scale as f32))
        .attr("bias", Attr::F32(bias as f32))
        .attr("bias_after_scale", Attr::Bool(true));
    append(x, &desc, smallvec![(Role::Input, x.into()), (Role::Output, Arg::New)])
}

#[track_caller]
fn append(x: &Expr, desc: &OpDesc, args: OpArgs) -> Result<Expr> {
    let mut exprs = x.builder().append_desc(desc, args, Location::caller())?;
    // The output is the last of its arguments.
    exprs.pop().ok_or_else(|| Error::internal("an operator without arguments"))
}

macro_rules! operators {
    ($($tr:ident $f:ident $op:literal, $x:ident $n:ident: $right:expr, $left:expr;)*) => {$(
        impl $tr<&Expr> for &Expr {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, other: &Expr) -> Result<Expr> {
                binary($op, self, other)
            }
        }
        impl $tr<Expr> for &Expr {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, other: Expr) -> Result<Expr> {
                binary($op, self, &other)
            }
        }
        impl $tr<&Expr> for Expr {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, other: &Expr) -> Result<Expr> {
                binary($op, &self, other)
            }
        }
        impl $tr<Expr> for Expr {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, other: Expr) -> Result<Expr> {
                binary($op, &self, &other)
            }
        }
        impl $tr<f64> for &Expr {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, $n: f64) -> Result<Expr> {
                let $x = self;
                $right
            }
        }
        impl $tr<f64> for Expr {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, number: f64) -> Result<Expr> {
                $tr::$f(&self, number)
            }
        }
        impl $tr<&Expr> for f64 {
            type Output = Result<Expr>;
            #[track_caller]
            fn $f(self, $x: &Expr) -> Result<Expr> {
                let $n = self;
                $left
            }
        }
    )*};
}
operators! {
    Add add "elementwise_add", x n: affine(x, 1.0, n), affine(x, 1.0, n);
    Sub sub "elementwise_sub", x n: affine(x, 1.0, -n), affine(x, -1.0, n);
    Mul mul "elementwise_mul", x n: affine(x, n, 0.0), affine(x, n, 0.0);
    Div div "elementwise_div", x n: affine(x, 1.0 / n, 0.0), reciprocal(x, n);
}

/// `n / x`
#[track_caller]
fn reciprocal(x: &Expr, n: f64) -> Result<Expr> {
    let desc = OpDesc::new("fill_any_like")
        .input("X", [Var::stand_in(1)])
        .output("Out", [Var::stand_in(2)])
        .attr("value", Attr::F32(n as f32));
    let n = append(x, &desc, smallvec![(Role::Input, x.into()), (Role::Output, Arg::New)])?;
    binary("elementwise_div", &n, x)
}

impl Neg for &Expr {
    type Output = Result<Expr>;
    #[track_caller]
    fn neg(self) -> Result<Expr> {
        affine(self, -1.0, 0.0)
    }
}
