//! Operations of expressions by operators of the library: `+ - * /`, and copies that stop gradients.

use std::{
    ops::{Add, Div, Mul, Neg, Sub},
    panic::Location,
};

use crate::{
    Arg, Builder, DType, Describe, Dims, Error, ErrorKind, Expr, Op, OpDesc, Role, Site, SlotValues, Value,
    Var, VarDesc,
    graph_builder::{ExprValue, OpArgs},
    operators::{Assign, ElementwiseAdd, ElementwiseDiv, ElementwiseMul, ElementwiseSub, FillAnyLike, Scale},
};

/// `x`
#[track_caller]
fn assign(x: &Expr) -> Expr {
    call(Assign { x: (), out: () }, [x])
}

/// `scale * x + bias`
#[track_caller]
fn affine(x: &Expr, scale: f64, bias: f64) -> Expr {
    let (scale, bias) = (x.literal(scale), x.literal(bias));
    call(Scale { x: (), out: (), scale, bias, bias_after_scale: true }, [x])
}

#[track_caller]
fn quotient_of(x: &Expr, y: &Expr) -> Expr {
    call(ElementwiseDiv { x: (), y: (), out: (), axis: -1 }, [x, y])
}

/// An operator with these inputs, one per slot, and one output, as by [`emit`](super::emit), but without cloning
/// values.
#[track_caller]
fn call<D: Describe<()>, const N: usize>(op: D, inputs: [&Expr; N]) -> Expr {
    let name = <D::Op as Op>::SCHEMA.name;
    let mut content = SlotValues::new(name, false);
    let mut left = Some(op.into_parts(&mut content));
    let (words, at, builder) = (&mut content.recorder.key, Location::caller(), inputs[0].builder());
    let desc = &mut || {
        let mut content = SlotValues::new(name, true);
        left = left.take().map(|left| left.into_parts(&mut content));
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
    let mut given = inputs.into_iter();
    let arg = |(role, slot, _)| match role {
        Role::Input => (role, slot, given.next().map(Arg::from)),
        Role::Output => (role, slot, Some(Arg::New)),
    };
    let mut args: OpArgs = content.values.into_iter().map(arg).collect();
    if let Err(e) = builder.append_args(&mut args, words, name, at, desc) {
        builder.fail(&mut args, e, at);
    }
    // The output is the last of its arguments.
    let out = args.pop().and_then(|(.., out)| out?.expr());
    out.unwrap_or_else(|| builder.failed_at(Error::internal("an operator without output"), at))
}

/// The eager values of all expressions, if all have one.
fn values<const N: usize>(of: [&Expr; N]) -> Option<[&Value; N]> {
    let mut values = [of[0].eager_value()?; N];
    for (value, expr) in values.iter_mut().zip(of) {
        *value = expr.eager_value()?;
    }
    Some(values)
}

macro_rules! operators {
    ($($tr:ident $f:ident $op:ident, $x:ident $n:ident: $right:expr, $left:expr;)*) => {$(
        impl $tr<&Expr> for &Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: &Expr) -> Expr {
                call($op { x: (), y: (), out: (), axis: -1 }, [self, other])
            }
        }
        impl $tr<Expr> for &Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: Expr) -> Expr {
                call($op { x: (), y: (), out: (), axis: -1 }, [self, &other])
            }
        }
        impl $tr<&Expr> for Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: &Expr) -> Expr {
                call($op { x: (), y: (), out: (), axis: -1 }, [&self, other])
            }
        }
        impl $tr<Expr> for Expr {
            type Output = Expr;
            #[track_caller]
            fn $f(self, other: Expr) -> Expr {
                call($op { x: (), y: (), out: (), axis: -1 }, [&self, &other])
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
    Add add ElementwiseAdd, x n: affine(x, 1.0, n), affine(x, 1.0, n);
    Sub sub ElementwiseSub, x n: affine(x, 1.0, -n), affine(x, -1.0, n);
    Mul mul ElementwiseMul, x n: affine(x, n, 0.0), affine(x, n, 0.0);
    Div div ElementwiseDiv, x n: quotient(x, n), reciprocal(x, n);
}

/// `x / n`, as a product with `1 / n` like the reference.
#[track_caller]
fn quotient(x: &Expr, n: f64) -> Expr {
    if let Some(e) = no_fractions(x) {
        return x.builder().failed(e);
    }
    // The reciprocal of a subnormal number may be infinite where quotients are finite.
    let subnormal = n != 0.0 && n.abs() < f64::from(f32::MIN_POSITIVE);
    if subnormal { quotient_of(x, &full_like(x, n)) } else { affine(x, 1.0 / n, 0.0) }
}

/// `n / x`
#[track_caller]
fn reciprocal(x: &Expr, n: f64) -> Expr {
    match no_fractions(x) {
        Some(e) => x.builder().failed(e),
        None => quotient_of(&full_like(x, n), x),
    }
}

#[track_caller]
fn full_like(x: &Expr, n: f64) -> Expr {
    let n = x.literal(n);
    call(FillAnyLike { x: (), out: (), value: n, dtype: None }, [x])
}

/// The error of a quotient of integers and a number, which is mostly not an integer.
fn no_fractions(x: &Expr) -> Option<Error> {
    let dtype = x.dtype();
    if dtype.is_float() {
        return None;
    }
    let text = format!(
        "{} is {dtype}, but division by a number needs a floating point dtype; `cast` it first, or use `floor_divide`",
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

impl Expr {
    /// The same elements as a constant: no gradient flows through the result (PyTorch's `detach`). Other uses of the
    /// expression keep their gradients, unlike with [`freeze`](Expr::freeze).
    ///
    /// The copy is an operator `assign`: in a program its output is marked `stop_gradient`, and plans elide the copy.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.leaf("x", Tensor::scalar(3.0_f32)?);
    /// let squares = x.square();
    /// (&squares * squares.clone().stop_gradient()).backward()?;
    /// assert_eq!(x.gradient()?.item()?, 2.0 * 3.0 * 9.0);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn stop_gradient(self) -> Expr {
        match self.held() {
            Ok(ExprValue::Var(var)) => constant_copy(self.builder(), *var),
            Ok(ExprValue::Value(_)) => {
                let _site = self.builder().called_at(Location::caller());
                let copy = self.builder().no_grad(|| assign(&self));
                // If the copy fails for lack of memory or of the operator, use the value itself.
                if copy.error().is_none() { copy.constant() } else { self.constant() }
            }
            Err(_) => self,
        }
    }
}

/// A copy of a variable that stops gradients.
#[track_caller]
fn constant_copy(builder: &Builder, var: Var) -> Expr {
    let (block, at) = (builder.block(), builder.site_or(Location::caller()));
    let copy = builder.change(|program| {
        let desc = program.lookup(block, var).cloned().unwrap_or(VarDesc::data(DType::F32, Dims::default()));
        let desc = VarDesc { stop_gradient: true, ..VarDesc::of(desc.meta()) };
        let copy = program.fresh("assign");
        if let Some(block) = program.block_mut(block) {
            block.vars.insert(copy, desc);
            let assign = Assign { x: var, out: copy };
            block.ops.push(OpDesc { site: Some(Site::Here(at)), ..assign.into() });
        }
        copy
    });
    Expr::of_var(builder, copy)
}
