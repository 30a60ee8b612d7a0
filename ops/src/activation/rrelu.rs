//! Randomised leaky rectifier.

use autobwd::{Composed, Composition, Error, Expr, Infer, Meta, Result, Var, check::*, register_op};

use crate::{
    Math,
    distributions::unit_like,
    math::{in_dtype, like},
};

/// Randomised leaky rectifier (Xu et al., 2015): `out = x` where `x >= 0`, else `noise * x`.
///
/// The noise is uniform in `lower..upper`, or at inference its mean. Equal seeds give equal noise.
#[register_op(grad = Composed, composed)]
pub struct Rrelu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The factor of each element, 1 where `x >= 0`; same shape as `x`.
    #[output]
    pub noise: V,
    /// The smallest factor.
    #[attr(default = 0.125, min = 0.0, max = 1.0)]
    pub lower: f32,
    /// The largest factor.
    #[attr(default = 1.0 / 3.0, min = 0.0, max = 1.0)]
    pub upper: f32,
    /// Inference mode: all factors are `(lower + upper) / 2`.
    #[attr(default = false)]
    pub is_test: bool,
    /// Seed of the generator. The reference, which lacks this attribute, has a global generator.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Rrelu<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        if self.lower > self.upper {
            let text = format!("a number not below `lower` = {} is needed, not {}", self.lower, self.upper);
            return Err(Error::attr("upper", text));
        }
        self.out.like(&self.x);
        self.noise.like(&self.x);
        Ok(())
    }
}
impl Composition for Rrelu<Expr> {
    fn compose(&mut self) {
        let (x, lower, upper) = (&self.x, f64::from(self.lower), f64::from(self.upper));
        let factors = if self.is_test {
            like(x, (lower + upper) / 2.0)
        } else {
            let unit = unit_like(x, self.seed);
            in_dtype(&(unit * (upper - lower) + lower), x.dtype())
        };
        self.noise = x.greater_equal(&like(x, 0.0)).where_cond(&like(x, 1.0), &factors);
        self.out = x * &self.noise;
    }
}
autobwd::samples!(
    Rrelu,
    [
        rrelu(away_from(0.0, [2, 3]), [0.125, 1.0 / 3.0], false),
        Rrelu { seed: 7, ..rrelu(away_from(0.0, [2, 3, 4]), [0.0, 1.0], false) },
        rrelu(away_from(0.0, [2, 3]), [0.25, 0.5], true),
        rrelu(away_from(0.0, [2, 3]), [0.5, 0.5], false),
        rrelu(away_from(0.0, []), [0.25, 0.5], false),
        rrelu(uniform([0, 3]), [0.25, 0.5], true),
        rrelu(uniform([2]), [0.5, 0.25], false)
            .fails("attribute `upper`: a number not below `lower` = 0.5 is needed, not 0.25"),
        rrelu(uniform([2]), [-0.5, 0.25], false).fails("attribute `lower`"),
        rrelu(uniform([2]), [0.5, 1.25], false).fails("attribute `upper`"),
        rrelu(integers_below(9, [2]), [0.25, 0.5], true).fails("`X`: floating point numbers are needed"),
    ]
);

fn rrelu(x: Draw, [lower, upper]: [f32; 2], is_test: bool) -> Rrelu<Draw> {
    Rrelu { x, out: out(), noise: out(), lower, upper, is_test, seed: 0 }
}
