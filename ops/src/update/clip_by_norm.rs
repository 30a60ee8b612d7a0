//! Clipping of a gradient by its norm.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op,
};

use crate::{
    Math,
    fill::FillAnyLike,
    kernel_helpers::{KernelFloat, PART, nth_part},
    reduce::total,
};

/// Scales a tensor whose L2 norm is too large: `out = x * max_norm / ‖x‖` where `‖x‖ > max_norm`, else `x`.
#[register_op(grad = Composed)]
pub struct ClipByNorm<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The largest norm.
    #[attr(min = 0.0)]
    pub max_norm: f32,
}
impl Infer for ClipByNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for ClipByNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, most) = (self.x.slice::<T>()?, f64::from(self.max_norm));
            let norm = total(cx, x, |x| x * x).sqrt();
            let factor = T::of(if norm > most { most / norm } else { 1.0 });
            cx.chunks_mut(self.out.slice_mut::<T>()?, PART, |part, out| {
                let x = nth_part(x, part, out.len());
                out.iter_mut().zip(x).for_each(|(out, x)| *out = *x * factor);
            });
            Ok(())
        })
    }
}
impl Composition for ClipByNorm<Expr> {
    fn compose(&mut self) {
        let (squares, most) = (self.x.square().sum(&[]), f64::from(self.max_norm));
        let most_squares = FillAnyLike { x: (&squares).into(), out: New, value: most * most, dtype: None };
        let divisor = squares.maximum(&emit(most_squares).out);
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
