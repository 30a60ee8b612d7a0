//! `+ - * /` on expressions and numbers.

use std::{
    ops::{Add, Div, Mul, Neg, Sub},
    panic::Location,
};

use super::{Arg, Expr, OpArgs, Value};
use crate::{Content, Error, ErrorKind, Role, schema::Notes};

#[track_caller]
fn binary(op: &'static str, x: &Expr, y: &Expr) -> Expr {
    call(op, [x, y], |notes| {
        notes.attr("axis", -1);
    })
}

/// `x`
#[track_caller]
pub(super) fn assign(x: &Expr) -> Expr {
    call("assign", [x], |_| {})
}

/// `scale * x + bias`
#[track_caller]
fn affine(x: &Expr, scale: f64, bias: f64) -> Expr {
    let (scale, bias) = (x.literal(scale), x.literal(bias));
    call("scale", [x], |notes| {
        notes.attr("scale", scale);
        notes.attr("bias", bias);
        notes.attr("bias_after_scale", true);
    })
}

/// An operator with these inputs, one in a slot.
#[track_caller]
fn call<const N: usize>(op: &'static str, inputs: [&Expr; N], attrs: impl Fn(&mut Notes)) -> Expr {
    let mut notes = Notes::default();
    // Fields may stand in another order in the operator's struct: these words are not the struct's.
    notes.words.put(1);
    notes.words.name(op);
    attrs(&mut notes);
    let (words, at, builder) = (&mut notes.words, Location::caller(), inputs[0].builder());
    let desc = &mut || {
        let mut content = Content::new(op, true);
        attrs(&mut content.notes);
        let slots = ["X", "Y"].into_iter().take(N).map(|slot| (Role::Input, slot, Some(())));
        content.held.extend(slots.chain([(Role::Output, "Out", Some(()))]));
        content.describe_in_order()
    };
    if let (Some(engine), Some(values)) = (builder.engine(), values(inputs)) {
        let known = engine.run_known(words, &values, &[], at);
        let node = known.unwrap_or_else(|| engine.run_described(builder, words, desc, &values, &[], at));
        return match node {
            Ok(node) => Expr::of_value(builder, Value::of(node, 0)),
            Err(e) => builder.failed_at(e, at),
        };
    }
    let mut args = OpArgs::new();
    for (slot, x) in ["X", "Y"].into_iter().zip(inputs) {
        args.push((Role::Input, slot, Some(x.into())));
    }
    args.push((Role::Output, "Out", Some(Arg::New)));
    if let Err(e) = builder.append_args(&mut args, words, op, at, desc) {
        builder.fail(&mut args, e, at);
    }
    // The output is the last of its arguments.
    let out = args.pop().and_then(|(.., out)| out?.expr());
    out.unwrap_or_else(|| builder.failed_at(Error::internal("an operator without output"), at))
}

/// What was computed of all, if it was.
fn values<const N: usize>(of: [&Expr; N]) -> Option<[&Value; N]> {
    let mut values = [of[0].held_value()?; N];
    for (value, expr) in values.iter_mut().zip(of) {
        *value = expr.held_value()?;
    }
    Some(values)
}

macro_rules! operators {
    ($($tr:ident $f:ident $op:literal, $x:ident $n:ident: $right:expr, $left:expr;)*) => {$(
        impl $tr<&Expr> for &Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: &Expr) -> Expr {
                binary($op, self, other)
            }
        }
        impl $tr<Expr> for &Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: Expr) -> Expr {
                binary($op, self, &other)
            }
        }
        impl $tr<&Expr> for Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: &Expr) -> Expr {
                binary($op, &self, other)
            }
        }
        impl $tr<Expr> for Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: Expr) -> Expr {
                binary($op, &self, &other)
            }
        }
        impl $tr<f64> for &Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, $n: f64) -> Expr {
                let $x = self;
                $right
            }
        }
        impl $tr<f64> for Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, number: f64) -> Expr {
                $tr::$f(&self, number)
            }
        }
        impl $tr<&Expr> for f64 {
            type Output = Expr;
            #[track_caller]
            fn $f(self, $x: &Expr) -> Expr {
                let $n = self;
                $left
            }
        }
        impl $tr<Expr> for f64 {
            type Output = Expr;
            #[track_caller]
            fn $f(self, x: Expr) -> Expr {
                $tr::$f(self, &x)
            }
        }
    )*};
}
operators! {
    Add add "elementwise_add", x n: affine(x, 1.0, n), affine(x, 1.0, n);
    Sub sub "elementwise_sub", x n: affine(x, 1.0, -n), affine(x, -1.0, n);
    Mul mul "elementwise_mul", x n: affine(x, n, 0.0), affine(x, n, 0.0);
    Div div "elementwise_div", x n: quotient(x, n), reciprocal(x, n);
}

/// `x / n`, as in the reference the product with `1 / n`.
#[track_caller]
fn quotient(x: &Expr, n: f64) -> Expr {
    if let Some(e) = no_fractions(x) {
        return x.builder().failed(e);
    }
    // The reciprocal of a subnormal number may be infinite where quotients are not.
    let subnormal = n != 0.0 && n.abs() < f64::from(f32::MIN_POSITIVE);
    if subnormal { binary("elementwise_div", x, &full_like(x, n)) } else { affine(x, 1.0 / n, 0.0) }
}

/// `n / x`
#[track_caller]
fn reciprocal(x: &Expr, n: f64) -> Expr {
    match no_fractions(x) {
        Some(e) => x.builder().failed(e),
        None => binary("elementwise_div", &full_like(x, n), x),
    }
}

#[track_caller]
fn full_like(x: &Expr, n: f64) -> Expr {
    let n = x.literal(n);
    call("fill_any_like", [x], |notes| {
        notes.attr("value", n);
    })
}

/// Why there is no quotient of integers and a number: most are not integers.
fn no_fractions(x: &Expr) -> Option<Error> {
    let dtype = x.dtype();
    if dtype.is_float() {
        return None;
    }
    let text = format!(
        "{} is {dtype}, and a quotient with a number has a fraction; `cast` it to a floating point dtype first, or use \
         `floor_divide`",
        x.subject()
    );
    Some(Error::new(ErrorKind::DType, text))
}

impl Neg for &Expr {
    type Output = Expr;
    #[track_caller]
    fn neg(self) -> Expr {
        affine(self, -1.0, 0.0)
    }
}
impl Neg for Expr {
    type Output = Expr;
    #[track_caller]
    fn neg(self) -> Expr {
        -&self
    }
}
