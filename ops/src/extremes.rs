//! Elementwise operators with broadcasting that choose or mix: `elementwise_fmax`, `elementwise_fmin`,
//! `elementwise_heaviside` and `lerp`, each defined by a formula.

use autobwd::{
    DType, Derived, Float, Pointwise, Result, Var,
    check::*,
    op::{DerivedFromInputs, Integer, PointwiseInteger},
    register_op,
};

/// Samples shared by maximum and minimum; no pair of elements is near a tie.
macro_rules! extremum_samples {
    ($op:ident) => {
        const _: () = {
            fn row(x: Draw, y: Draw) -> $op<Draw> {
                $op { x, y, out: out() }
            }
            autobwd::samples!(
                $op,
                [
                    row(distinct([2, 3]), given([2, 3], [0.0, -0.37, 0.37, 1.11, -1.11, 2.0])),
                    row(away_from(0.0, [2, 3, 4]), between(-0.2, 0.2, [3, 1])),
                    row(between(-0.2, 0.2, [4]), away_from(0.0, [3, 4])),
                    row(away_from(0.0, [2, 3]), between(-0.2, 0.2, [])),
                    row(uniform([0, 3]), uniform([3])),
                    row(
                        given([4], [0.0, f64::NAN, 2.0, f64::NAN]),
                        given([4], [0.0, 1.0, f64::NAN, f64::NAN])
                    )
                    .not_a_derivative("on a tie, `x` gets the whole gradient; NaN has none"),
                    row(
                        given([2, 3], [7.0, -7.0, 0.0, 2147483647.0, -2147483648.0, 5.0]).of(DType::I32),
                        given([3], [2.0, -3.0, -1.0]).of(DType::I32)
                    ),
                    row(integers_below(9, [3]), uniform([3])).fails("does not match int64 of `X`"),
                    row(uniform([2, 3]), uniform([4])).fails("does not broadcast"),
                ]
            );
        };
    };
}

/// Elementwise maximum with broadcasting that ignores NaN: `out = max(x, y)`, or the other operand where one is NaN.
///
/// On a tie, `x` gets the whole gradient.
#[register_op(grad = DerivedFromInputs, pointwise, broadcast, integers)]
pub struct ElementwiseFmax<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for ElementwiseFmax<F> {
    fn eval(&mut self) {
        let (x, y) = (self.x, self.y);
        self.out = F::select(y.gt(x), y, F::select(x.equals(x), x, y));
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseFmax<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.max(self.y);
        Ok(())
    }
}
extremum_samples!(ElementwiseFmax);

/// Elementwise minimum with broadcasting that ignores NaN: `out = min(x, y)`, or the other operand where one is NaN.
///
/// On a tie, `x` gets the whole gradient.
#[register_op(grad = DerivedFromInputs, pointwise, broadcast, integers)]
pub struct ElementwiseFmin<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for ElementwiseFmin<F> {
    fn eval(&mut self) {
        let (x, y) = (self.x, self.y);
        self.out = F::select(x.gt(y), y, F::select(x.equals(x), x, y));
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseFmin<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.min(self.y);
        Ok(())
    }
}
extremum_samples!(ElementwiseFmin);

/// Heaviside step function with broadcasting: `out` is 0 where `x < 0`, 1 where `x > 0`, else `y`.
#[register_op(grad = DerivedFromInputs, pointwise, broadcast)]
pub struct ElementwiseHeaviside<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// The value at 0, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for ElementwiseHeaviside<F> {
    fn eval(&mut self) {
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let step = F::select(self.x.gt(zero), one, zero);
        self.out = F::select(self.x.equals(zero), self.y, step);
    }
}
autobwd::samples!(
    ElementwiseHeaviside,
    [
        ElementwiseHeaviside { x: away_from(0.0, [2, 3]), y: uniform([2, 3]), out: out() },
        ElementwiseHeaviside { x: away_from(0.0, [2, 3]), y: uniform([3]), out: out() },
        ElementwiseHeaviside { x: away_from(0.0, [4]), y: uniform([2, 4]), out: out() },
        ElementwiseHeaviside { x: given([2], [0.0, -0.0]), y: uniform([2]), out: out() }
            .not_a_derivative("it jumps at 0"),
        ElementwiseHeaviside { x: uniform([2, 3]), y: uniform([4]), out: out() }.fails("does not broadcast"),
    ]
);

/// Linear interpolation with broadcasting: `out = x + weight * (y - x)`.
#[register_op(grad = Derived, pointwise, broadcast)]
pub struct Lerp<V = Var> {
    /// The result for weight 0, any shape.
    #[input]
    pub x: V,
    /// The result for weight 1, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Any shape that broadcasts with those of `x` and `y`.
    #[input]
    pub weight: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Lerp<F> {
    fn eval(&mut self) {
        self.out = self.x + self.weight * (self.y - self.x);
    }
}
autobwd::samples!(
    Lerp,
    [
        Lerp { x: uniform([2, 3]), y: uniform([2, 3]), weight: uniform([2, 3]), out: out() },
        Lerp { x: uniform([2, 3]), y: uniform([2, 3]), weight: uniform([]), out: out() },
        Lerp { x: uniform([2, 1]), y: uniform([3]), weight: uniform([4, 1, 1]), out: out() },
        Lerp { x: uniform([0, 3]), y: uniform([3]), weight: uniform([1]), out: out() },
        Lerp { x: uniform([2, 3]), y: uniform([4]), weight: uniform([]), out: out() }
            .fails("does not broadcast"),
    ]
);
