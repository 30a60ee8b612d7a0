//! `floor`, `ceil`, `trunc`, `round`, `sign` and `clip`: piecewise constant or identity functions, each defined by a formula.

use autobwd::{
    DType, Float, GradCx, GradRule, Pointwise, Result, Var, ZeroGrad,
    check::*,
    op::{Integer, PointwiseInteger, SelfAdjoint},
    operators::Scale,
    register_op,
};

use crate::unary::unary_formula;

/// The gradient operator of a function that is constant between its jumps.
macro_rules! zero_gradient {
    ($grad:ident, $op:ident) => {
        /// `dx = 0`.
        #[register_op(grad_of = $op, grad = ZeroGrad, pointwise)]
        pub struct $grad<V = Var> {
            #[input(shape_only)]
            pub dout: V,
            #[output]
            pub dx: V,
        }
        impl<F: Float> Pointwise for $grad<F> {
            fn eval(&mut self) {
                self.dx = F::from(0.0);
            }
        }
    };
}

unary_formula!(
    /// Rounds down: `out = ⌊x⌋`.
    Floor(grad = FloorGrad), |x| x.floor(),
    samples [given([2, 3], [-1.5, -0.25, 0.25, 1.75, 2.5, -3.125]), between(0.1, 0.9, [])]
);
zero_gradient!(FloorGrad, Floor);

unary_formula!(
    /// Rounds up: `out = ⌈x⌉`.
    Ceil(grad = CeilGrad), |x| -(-x).floor(),
    samples [
        given([2, 3], [-1.5, -0.25, 0.25, 1.75, 2.5, -3.125]),
        between(0.1, 0.9, []),
        given([4], [-2.0, 0.0, 3.0, f64::INFINITY]) => not_a_derivative("integers are where it jumps"),
    ]
);
zero_gradient!(CeilGrad, Ceil);

unary_formula!(
    /// Rounds towards 0.
    Trunc(grad = TruncGrad), |x| F::select(F::from(0.0).gt(x), -(-x).floor(), x.floor()),
    samples [
        given([2, 3], [-1.5, -0.25, 0.25, 1.75, 2.5, -3.125]),
        between(0.1, 0.9, []),
        given([4], [-2.0, 0.0, 3.0, f64::INFINITY]) => not_a_derivative("integers are where it jumps"),
    ]
);
zero_gradient!(TruncGrad, Trunc);

unary_formula!(
    /// Rounds to the nearest integer, halves away from 0.
    Round(grad = RoundGrad), |x| x.round(),
    samples [
        given([2, 3], [-1.25, -0.75, 0.25, 0.875, 2.625, -3.0]),
        between(0.6, 1.4, []),
        given([4], [-2.5, -0.5, 0.5, 2.5]) => not_a_derivative("halves are where it jumps"),
    ]
);
zero_gradient!(RoundGrad, Round);

unary_formula!(
    /// Sign: `out` is 1 where `x > 0`, -1 where `x < 0`, else `x`: 0 or NaN.
    Sign(grad = SignGrad), |x| {
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let not_above = F::select(zero.gt(x), -one, x);
        F::select(x.gt(zero), one, not_above)
    },
    samples [
        away_from(0.0, [2, 3]),
        uniform([0, 2]),
        given([], [0.0]) => not_a_derivative("it jumps at 0"),
    ]
);

/// `dx = 0 * dout`, a `scale` operator.
#[derive(Debug)]
pub struct SignGrad;
impl GradRule<Sign> for SignGrad {
    fn emit(fwd: &Sign, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            let x = g.grad(fwd.out);
            g.push(Scale { x, out: dx, scale: 0.0, bias: 0.0, bias_after_scale: true });
        }
    }
}

/// Clamps to a range: `out = min(max(x, min), max)`; NaN stays NaN.
///
/// At the bounds, the gradient is 0.
#[register_op(grad = ClipGrad, pointwise, integers)]
pub struct Clip<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Lower bound; for integers one of their dtype, or less than all of them.
    #[attr]
    pub min: f64,
    /// Upper bound, which wins over `min`; for integers one of their dtype, or more than all of them.
    #[attr]
    pub max: f64,
}
impl<F: Float> Pointwise for Clip<F> {
    fn eval(&mut self) {
        let (min, max) = (F::from(self.min), F::from(self.max));
        let low = F::select(min.gt(self.x), min, self.x);
        self.out = F::select(low.gt(max), max, low);
    }
}
impl<I: Integer> PointwiseInteger for Clip<I> {
    fn eval(&mut self) -> Result<()> {
        // Bounds beyond the range of the integers have no effect.
        let min = if self.min <= I::MIN.to_f64() { I::MIN } else { I::of("min", self.min)? };
        let max = if self.max >= I::MAX.to_f64() { I::MAX } else { I::of("max", self.max)? };
        self.out = self.x.max(min).min(max);
        Ok(())
    }
}
autobwd::samples!(
    Clip,
    [
        Clip { x: given([2, 3], [-2.0, -0.75, -0.25, 0.5, 0.875, 3.0]), out: out(), min: -0.5, max: 0.75 },
        Clip { x: given([4], [-2.0, 0.125, 0.5, 2.0]), out: out(), min: 0.25, max: 1.5 },
        Clip { x: uniform([]), out: out(), min: -2.0, max: 2.0 },
        Clip {
            x: given([4], [-9.0, -1.0, 2.0, 9.0]).of(DType::I32),
            out: out(),
            min: -1.0,
            max: f64::INFINITY
        },
        Clip { x: integers_below(9, [2, 3]), out: out(), min: -1e30, max: 16777217.0 },
        Clip { x: integers_below(9, [2]), out: out(), min: -0.5, max: 2.0 }.fails(
            "attribute `min`: -0.5 is not representable in int64; `cast` the input to a floating point dtype first"
        ),
        Clip { x: integers_below(9, [2]).of(DType::I32), out: out(), min: 3e9, max: 4e9 }
            .fails("attribute `min`: 3000000000 is not representable in int32"),
    ]
);

/// `dx = dout` where `min < x < max`, else 0.
#[register_op(grad_of = Clip, grad = SelfAdjoint, pointwise)]
pub struct ClipGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub min: f64,
    pub max: f64,
}
impl<F: Float> Pointwise for ClipGrad<F> {
    fn eval(&mut self) {
        let (zero, min, max) = (F::from(0.0), F::from(self.min), F::from(self.max));
        let above = F::select(self.x.gt(min), self.dout, zero);
        self.dx = F::select(max.gt(self.x), above, zero);
    }
}
