//! Affine function of one variable.

use crate::{
    DType, Float, GradCx, GradRule, Integer, Pointwise, PointwiseInteger, Result, Var, register_op, sample::*,
};

/// `out = scale * x + bias`, or `scale * (x + bias)` unless `bias_after_scale`.
#[register_op(grad = ScaleGrad, pointwise, integers, infallible)]
pub struct Scale<V = Var> {
    /// Any shape. With integers, `scale` and `bias` must be integers of that dtype.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The factor.
    #[attr(default = 1.0)]
    pub scale: f64,
    /// The bias.
    #[attr(default = 0.0)]
    pub bias: f64,
    /// Whether the bias is added after scaling.
    #[attr(default = true)]
    pub bias_after_scale: bool,
}
impl<F: Float> Pointwise for Scale<F> {
    fn eval(&mut self) {
        let (scale, bias) = (F::from(self.scale), F::from(self.bias));
        self.out = if self.bias_after_scale { self.x * scale + bias } else { (self.x + bias) * scale };
    }
}
impl<I: Integer> PointwiseInteger for Scale<I> {
    fn eval(&mut self) -> Result<()> {
        let (scale, bias) = (I::of("scale", self.scale)?, I::of("bias", self.bias)?);
        self.out = if self.bias_after_scale { self.x * scale + bias } else { (self.x + bias) * scale };
        Ok(())
    }
}
crate::samples!(
    Scale,
    [
        scale(integers_below(9, [2, 3]), -2.0, 16777217.0, true),
        scale(given([2], [2147483647.0, -1.0]).of(DType::I32), 2.0, 1.0, false),
        scale(integers_below(2, [2]).of(DType::Bool), 1.0, 0.0, true)
            .fails("signed or floating point numbers are needed"),
        scale(integers_below(9, [3]), 1.9, 0.0, true).fails(
            "attribute `scale`: 1.9 is not representable in int64; `cast` the input to a floating point dtype first"
        ),
        scale(integers_below(9, [3]).of(DType::I32), 1.0, 2147483648.0, false)
            .fails("attribute `bias`: 2147483648 is not representable in int32"),
        scale(uniform([2, 3]), -2.5, 0.75, true),
        scale(uniform([3]), 0.5, -1.0, false),
        scale(uniform([]), 1.0, 0.0, true),
    ]
);

fn scale(x: Draw, scale: f64, bias: f64, bias_after_scale: bool) -> Scale<Draw> {
    Scale { x, out: out(), scale, bias, bias_after_scale }
}

/// `dx = scale * dout`, again a `scale`.
#[derive(Debug)]
pub struct ScaleGrad;
impl GradRule<Scale> for ScaleGrad {
    fn emit(fwd: &Scale, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            let scale = fwd.scale;
            g.push(Scale { x: g.grad(fwd.out), out: dx, scale, bias: 0.0, bias_after_scale: true });
        }
    }
}
