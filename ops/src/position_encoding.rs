//! Sinusoids that tell positions of a sequence apart.

use autobwd::{Composed, Composition, Expr, Infer, Meta, Result, Var, check::*, register_op};

use crate::{
    DimExpr, Math, concat,
    math::{in_dtype, positions},
};

/// Adds sinusoids of positions (Vaswani et al., 2017): `out[.., i, k] = alpha * x[.., i, k] + beta * sin(a[i, k])` for the first half of the
/// columns, and with `cos` for the second, `a[i, k] = i / 10000^(k / (d / 2 - 1))`.
///
/// A half of one column has `a[i, 0] = i / 10000`.
#[register_op(grad = Composed, composed)]
pub struct AddPositionEncoding<V = Var> {
    /// Sequences, `[n, length, d]` with even `d`.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The factor of `x`.
    #[attr]
    pub alpha: f32,
    /// The factor of sinusoids.
    #[attr]
    pub beta: f32,
}
impl Infer for AddPositionEncoding<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let is_even = |d: usize| d.is_multiple_of(2);
        let fits = self.x.rank() == 3 && self.x.dims[2].get().is_none_or(is_even);
        self.x.require(fits, || "three dimensions, the last one an even number, are needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for AddPositionEncoding<Expr> {
    fn compose(&mut self) {
        let (x, builder) = (&self.x, self.x.builder());
        let numbers = |n| in_dtype(&positions(builder, n), x.dtype());
        let half = x.dim(2) / 2;
        // A single column has the exponent 1.
        let is_single = half.number(builder).equal(&DimExpr::from(1).number(builder));
        let exponents = &numbers(&half) / &(&half - 1);
        let exponents = exponents.maximum(&in_dtype(&is_single, x.dtype()));
        let rates = (exponents * -libm::log(10000.0)).exp();
        let angles = numbers(&x.dim(1)).unsqueeze(&[1]) * rates;
        let waves = concat(&[&angles.sin(), &angles.cos()], 1);
        self.out = x * f64::from(self.alpha) + waves * f64::from(self.beta);
    }
}
autobwd::samples!(
    AddPositionEncoding,
    [
        position_encoding(uniform([2, 3, 6]), 1.0, 1.0),
        position_encoding(uniform([3, 5, 4]), 0.5, -2.0),
        position_encoding(uniform([1, 3, 2]), 2.0, 0.5),
        position_encoding(uniform([0, 3, 4]), 1.0, 1.0),
        position_encoding(uniform([2, 0, 4]), 1.0, 1.0),
        position_encoding(uniform([2, 3, 0]), 1.0, 1.0),
        position_encoding(uniform([2, 3, 5]), 1.0, 1.0)
            .fails("`X`: three dimensions, the last one an even number, are needed"),
        position_encoding(uniform([3, 4]), 1.0, 1.0)
            .fails("`X`: three dimensions, the last one an even number, are needed"),
        position_encoding(integers_below(9, [1, 2, 2]), 1.0, 1.0)
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn position_encoding(x: Draw, alpha: f32, beta: f32) -> AddPositionEncoding<Draw> {
    AddPositionEncoding { x, out: out(), alpha, beta }
}
