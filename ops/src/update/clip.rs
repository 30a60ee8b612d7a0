//! Clipping of a gradient, whole or sparse.
//!
//! Zeros stay zeros, so that a sparse gradient keeps its rows.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, Result, Var, check::*, op::with_float,
    register_op, tensor::Element,
};

use super::{one, scalars_of_param};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth_part, stored},
    math::like,
    reduce::total,
};

/// The shape rule: `out` is like `x`, with the same rows if it is sparse.
pub(super) fn infer(x: &Meta, out: &mut Meta) -> Result<()> {
    x.float()?;
    out.like(x);
    out.rows = x.rows;
    Ok(())
}

/// `out = f(x)`, in the rows of `x` if it is sparse.
pub(super) fn map<T: Element>(
    cx: &Cx,
    x: &Buf<'_>,
    out: &mut Buf<'_>,
    f: impl Fn(T) -> T + Sync,
) -> Result<()> {
    let out = if x.is_sparse() {
        let (numbers, values) = out.rows_mut::<T>()?;
        let indices = x.rows::<T>()?.indices();
        numbers[..indices.len()].copy_from_slice(indices);
        numbers[indices.len()..].fill(-1);
        values
    } else {
        out.slice_mut()?
    };
    let x = stored::<T>(x)?;
    cx.chunks_mut(&mut out[..x.len()], PART, |part, out| {
        let x = nth_part(x, part, out.len());
        out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x));
    });
    Ok(())
}

/// Scales a tensor whose L2 norm is too large: `out = x * max_norm / ‖x‖` where `‖x‖ > max_norm`, else `x`.
#[register_op(grad = Composed, infallible)]
pub struct ClipByNorm<V = Var> {
    /// Any shape, whole or sparse.
    #[input(sparse)]
    pub x: V,
    /// Same shape as `x`; sparse if `x` is.
    #[output]
    pub out: V,
    /// The largest norm.
    #[attr(min = 0.0)]
    pub max_norm: f32,
}
impl Infer for ClipByNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer(&self.x, &mut self.out)
    }
}
impl Kernel for ClipByNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let most = f64::from(self.max_norm);
            let norm = total(cx, stored::<T>(&self.x)?, |x| x * x).sqrt();
            let factor = T::of(if norm > most { most / norm } else { 1.0 });
            map(cx, &self.x, &mut self.out, |x: T| x * factor)
        })
    }
}
impl Composition for ClipByNorm<Expr> {
    fn compose(&mut self) {
        let (squares, most) = (self.x.square().sum(&[]), f64::from(self.max_norm));
        if most == 0.0 || most.is_infinite() {
            // The quotient below would be NaN.
            self.out = &self.x * if most == 0.0 { 0.0 } else { 1.0 };
            return;
        }
        let divisor = squares.maximum(&like(&squares, most * most));
        self.out = &self.x * (divisor.rsqrt() * most);
    }
}
autobwd::samples!(
    ClipByNorm,
    [
        ClipByNorm { x: away_from(0.0, [2, 3]), out: out(), max_norm: 0.25 },
        ClipByNorm { x: uniform([2, 3]), out: out(), max_norm: 100.0 },
        ClipByNorm { x: given([2], [0.0, 0.0]), out: out(), max_norm: 0.5 },
        ClipByNorm { x: uniform([]), out: out(), max_norm: 0.25 },
        ClipByNorm { x: uniform([0, 3]), out: out(), max_norm: 1.0 },
        ClipByNorm { x: integers_below(9, [2]), out: out(), max_norm: 1.0 }
            .fails("`X`: floating point numbers are needed"),
        ClipByNorm { x: uniform([2]), out: out(), max_norm: -1.0 }.fails("attribute `max_norm`"),
    ]
);

/// Multiplies a gradient by a number: `out = x * factor`. Not in the reference.
#[register_op(grad = Composed)]
pub struct ScaleGradient<V = Var> {
    /// Any shape, whole or sparse.
    #[input(sparse)]
    pub x: V,
    /// One element, with the dtype of `x`.
    #[input]
    pub factor: V,
    /// Same shape as `x`; sparse if `x` is.
    #[output]
    pub out: V,
}
impl Infer for ScaleGradient<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer(&self.x, &mut self.out)?;
        scalars_of_param(&self.x, [&self.factor])
    }
}
impl Kernel for ScaleGradient<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let factor = one::<T>(&self.factor)?;
            map(cx, &self.x, &mut self.out, |x: T| x * factor)
        })
    }
}
impl Composition for ScaleGradient<Expr> {
    fn compose(&mut self) {
        self.out = &self.x * self.factor.reshape(&[]);
    }
}
autobwd::samples!(
    ScaleGradient,
    [
        ScaleGradient { x: uniform([2, 3]), factor: uniform([1]), out: out() },
        ScaleGradient { x: uniform([]), factor: uniform([1]), out: out() },
        ScaleGradient { x: uniform([0, 3]), factor: uniform([1]), out: out() },
        ScaleGradient { x: uniform([2, 3]), factor: uniform([3]), out: out() }
            .fails("`Factor`: one element is needed"),
        ScaleGradient { x: integers_below(9, [2]), factor: uniform([1]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Clamps the elements of a gradient: `out = min(max(x, -limit), limit)`; NaN stays NaN. Not in the reference.
#[register_op(grad = Composed)]
pub struct ClipGradient<V = Var> {
    /// Any shape, whole or sparse.
    #[input(sparse)]
    pub x: V,
    /// Same shape as `x`; sparse if `x` is.
    #[output]
    pub out: V,
    /// The largest magnitude.
    #[attr(min = 0.0)]
    pub limit: f32,
}
impl Infer for ClipGradient<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer(&self.x, &mut self.out)
    }
}
impl Kernel for ClipGradient<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let limit = T::of(f64::from(self.limit));
            map(cx, &self.x, &mut self.out, |x: T| {
                let low = if x < -limit { -limit } else { x };
                if low > limit { limit } else { low }
            })
        })
    }
}
impl Composition for ClipGradient<Expr> {
    fn compose(&mut self) {
        let limit = f64::from(self.limit);
        self.out = self.x.clip(-limit, limit);
    }
}
autobwd::samples!(
    ClipGradient,
    [
        ClipGradient { x: given([2, 2], [-2.0, -0.25, 0.375, 3.0]), out: out(), limit: 0.5 },
        ClipGradient { x: uniform([]), out: out(), limit: 4.0 },
        ClipGradient { x: uniform([0, 3]), out: out(), limit: 1.0 },
        ClipGradient { x: integers_below(9, [2]), out: out(), limit: 1.0 }
            .fails("`X`: floating point numbers are needed"),
        ClipGradient { x: uniform([2]), out: out(), limit: -1.0 }.fails("attribute `limit`"),
    ]
);
