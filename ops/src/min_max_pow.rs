//! Elementwise maximum, minimum and power, defined by formulas, with the broadcasting of `elementwise_add`.
//!
//! Double gradients are derived from the formulas.

use autobwd::{
    DType, Derived, Error, Float, Pointwise, Result, Var,
    check::*,
    op::{Dual, Integer, PointwiseInteger},
    register_op,
};

/// Samples shared by maximum and minimum; no pair of elements is near a tie.
macro_rules! extremum_samples {
    ($op:ident) => {
        const _: () = {
            fn row(x: Draw, y: Draw) -> $op<Draw> {
                $op { x, y, out: out(), axis: -1 }
            }
            autobwd::samples!(
                $op,
                [
                    row(distinct([2, 3]), given([2, 3], [0.0, -0.37, 0.37, 1.11, -1.11, 2.0])),
                    row(away_from(0.0, [2, 3, 4]), between(-0.2, 0.2, [3, 1])),
                    row(between(-0.2, 0.2, [4]), away_from(0.0, [3, 4])),
                    $op { axis: 1, ..row(away_from(0.0, [2, 3, 4]), between(-0.2, 0.2, [3])) },
                    $op { axis: 0, ..row(between(-0.2, 0.2, [2, 3]), away_from(0.0, [2, 3, 4])) },
                    row(away_from(0.0, [2, 3]), between(-0.2, 0.2, [])),
                    row(uniform([0, 3]), uniform([3])),
                    row(given([3], [0.0, 1.0, 2.0]), given([3], [0.0, 1.0, 2.5]))
                        .not_a_derivative("on a tie, `y` gets the whole gradient"),
                    row(given([3], [f64::NAN, 1.0, f64::NAN]), given([3], [1.0, f64::NAN, f64::NAN]))
                        .not_a_derivative("NaN has none"),
                    row(
                        given([2, 3], [7.0, -7.0, 0.0, 2147483647.0, -2147483648.0, 5.0]).of(DType::I32),
                        given([3], [2.0, -3.0, -1.0]).of(DType::I32)
                    ),
                    row(
                        given([2, 1], [9007199254740992.0, -5.0]).of(DType::I64),
                        given([3], [3.0, 9007199254740992.0, 64.0]).of(DType::I64)
                    ),
                    row(integers_below(9, [0, 3]), integers_below(9, [3])),
                    row(integers_below(9, [3]), uniform([3])).fails("does not match int64 of `X`"),
                    row(integers_below(2, [3]).of(DType::Bool), integers_below(2, [3]).of(DType::Bool))
                        .fails("`X`: signed or floating point numbers are needed"),
                    row(uniform([2, 3]), uniform([4])).fails("does not broadcast"),
                ]
            );
        };
    };
}

/// Elementwise maximum with broadcasting: `out = max(x, y)`; NaN where either is NaN.
///
/// On a tie, `y` gets the whole gradient.
#[register_op(grad = ElementwiseMaxGrad, pointwise, broadcast, integers)]
pub struct ElementwiseMax<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// Dimension of the other operand at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseMax<F> {
    fn eval(&mut self) {
        // `max` gives `y` where `x` is NaN.
        self.out = F::select(self.x.equals(self.x), self.x.max(self.y), self.x);
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseMax<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.max(self.y);
        Ok(())
    }
}
extremum_samples!(ElementwiseMax);

/// `dx = dout` where `x > y`, `dy = dout` elsewhere, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseMax, grad = Derived, pointwise, broadcast)]
pub struct ElementwiseMaxGrad<V = Var> {
    pub dout: V,
    pub x: V,
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseMaxGrad<F> {
    fn eval(&mut self) {
        let (mask, zero) = (self.x.gt(self.y), F::from(0.0));
        self.dx = self.dx.map(|_| F::select(mask, self.dout, zero));
        self.dy = self.dy.map(|_| F::select(mask, zero, self.dout));
    }
}

/// Elementwise minimum with broadcasting: `out = min(x, y)`; NaN where either is NaN.
///
/// On a tie, `y` gets the whole gradient.
#[register_op(grad = ElementwiseMinGrad, pointwise, broadcast, integers)]
pub struct ElementwiseMin<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// Dimension of the other operand at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseMin<F> {
    fn eval(&mut self) {
        // `min` gives `y` where `x` is NaN.
        self.out = F::select(self.x.equals(self.x), self.x.min(self.y), self.x);
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseMin<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.min(self.y);
        Ok(())
    }
}
extremum_samples!(ElementwiseMin);

/// `dx = dout` where `x < y`, `dy = dout` elsewhere, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseMin, grad = Derived, pointwise, broadcast)]
pub struct ElementwiseMinGrad<V = Var> {
    pub dout: V,
    pub x: V,
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseMinGrad<F> {
    fn eval(&mut self) {
        let (mask, zero) = (self.y.gt(self.x), F::from(0.0));
        self.dx = self.dx.map(|_| F::select(mask, self.dout, zero));
        self.dy = self.dy.map(|_| F::select(mask, zero, self.dout));
    }
}

/// Elementwise power with broadcasting: `out = x ^ y`. Integer results are truncated; a negative exponent of 0 is an
/// error.
#[register_op(grad = ElementwisePowGrad, pointwise, broadcast, integers)]
pub struct ElementwisePow<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// Dimension of the other operand at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwisePow<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.pow(self.y);
    }
}
impl<I: Integer> PointwiseInteger for ElementwisePow<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.checked_pow(self.y).ok_or_else(negative_power_of_zero)?;
        Ok(())
    }
}
autobwd::samples!(
    ElementwisePow,
    [
        elementwise_pow(positive([2, 3]), uniform([2, 3])),
        elementwise_pow(positive([2, 3, 4]), uniform([3, 1])),
        elementwise_pow(positive([4]), uniform([3, 4])),
        ElementwisePow { axis: 1, ..elementwise_pow(positive([2, 3, 4]), uniform([3])) },
        ElementwisePow { axis: 0, ..elementwise_pow(positive([2, 3]), away_from(0.0, [2, 3, 4])) },
        elementwise_pow(positive([2, 3]), between(2.0, 3.0, [])),
        elementwise_pow(positive([0, 3]), uniform([3])),
        elementwise_pow(given([2], [-1.5, -0.5]), given([2], [2.0, 3.0]))
            .not_a_derivative("a negative number has whole powers only"),
        elementwise_pow(
            given([2, 3], [3.0, -2.0, 0.0, 1.0, -1.0, 7.0]).of(DType::I32),
            given([2, 3], [20.0, 31.0, 0.0, -5.0, -3.0, -1.0]).of(DType::I32)
        ),
        elementwise_pow(integers_below(9, [3, 1]), integers_below(9, [2])),
        elementwise_pow(integers_below(9, [2, 1, 3, 1, 2]), integers_below(9, [4, 1, 5, 1])),
        elementwise_pow(given([1], [0.0]).of(DType::I64), given([1], [-1.0]).of(DType::I64))
            .fails("`X`: the integer 0 has no negative power"),
        elementwise_pow(uniform([2, 3]), uniform([4])).fails("does not broadcast"),
    ]
);

fn elementwise_pow(x: Draw, y: Draw) -> ElementwisePow<Draw> {
    ElementwisePow { x, y, out: out(), axis: -1 }
}

/// The error for a negative integer power of 0.
pub(crate) fn negative_power_of_zero() -> Error {
    Error::data("`X`: the integer 0 has no negative power")
}

/// `dx = dout * y * x ^ (y - 1)`, `dy = dout * ln(x) * x ^ y`, each summed over the broadcast dimensions of its operand.
///
/// `dx` is 0 where `y` is 0, and `dy` where `x` is negative (an exponent that is a constant of a model, 2, would get NaN)
/// or 0 with `y` at least 0.
#[register_op(grad_of = ElementwisePow, grad = Derived, pointwise, broadcast)]
pub struct ElementwisePowGrad<V = Var> {
    pub dout: V,
    pub x: V,
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwisePowGrad<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, y, dout) = (self.x, self.y, self.dout);
        self.dx = self.dx.map(|_| dout * Dual::variable(x).pow(Dual::constant(y)).derivative);
        self.dy = self.dy.map(|_| dout * Dual::constant(x).pow(Dual::variable(y)).derivative);
    }
}
