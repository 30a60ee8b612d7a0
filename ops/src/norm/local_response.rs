//! Local response normalisation.

use autobwd::{
    Composed, Composition, Error, Expr, Infer, Meta, Result, Var, check::*, op::attr_enum, register_op,
};

use crate::{
    Math,
    math::{DimExpr, like},
};

attr_enum! {
    /// Position of the channel dimension in `lrn`.
    pub enum LrnLayout {
        /// Channels are dimension 1.
        AnyLayout = "AnyLayout",
        /// Samples, channels, rows, columns.
        Nchw = "NCHW",
        /// Samples, rows, columns, channels.
        Nhwc = "NHWC",
    }
}

/// Local response normalisation (Krizhevsky et al., 2012) over `n` neighbouring channels:
/// `out[c] = x[c] / mid[c]^beta` with `mid[c] = k + alpha * Σ x[c + i]²` for `|i| <= (n - 1) / 2`.
#[register_op(grad = Composed, composed)]
pub struct Lrn<V = Var> {
    /// Images, 4 dimensions.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The sums `mid`, same shape as `x`.
    #[output]
    pub mid_out: V,
    /// The number of channels in a sum, odd.
    #[attr(default = 5, min = 1, max = 128)]
    pub n: i32,
    /// The constant term, positive, so that the divisor is not 0.
    #[attr(default = 2.0, above = 0.0)]
    pub k: f32,
    /// The factor of the squares.
    #[attr(default = 1e-4, min = 0.0)]
    pub alpha: f32,
    /// The exponent.
    #[attr(default = 0.75)]
    pub beta: f32,
    /// Position of the channel dimension.
    #[attr(default = LrnLayout::AnyLayout)]
    pub data_format: LrnLayout,
}
impl Infer for Lrn<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() == 4, || "4 dimensions are needed".into())?;
        if self.n % 2 == 0 {
            return Err(Error::attr("n", format!("an odd number is needed, not {}", self.n)));
        }
        self.out.like(&self.x);
        self.mid_out.like(&self.x);
        Ok(())
    }
}
impl Composition for Lrn<Expr> {
    fn compose(&mut self) {
        let axis = if self.data_format == LrnLayout::Nhwc { 3 } else { 1 };
        let before = DimExpr::from(i64::from(self.n / 2));
        let mut paddings = [(); 4].map(|()| [DimExpr::from(0), DimExpr::from(0)]);
        paddings[axis] = [before.clone(), before];
        let channels = self.x.dim(axis as i32);
        let squares = self.x.square().pad_to(&paddings, 0.0);
        let shifted = |i: i32| {
            let start = DimExpr::from(i64::from(i));
            squares.slice_to(axis as i32, &start, &(&channels + &start))
        };
        let sum = (1..self.n).fold(shifted(0), |sum, i| sum + shifted(i));
        self.mid_out = sum * f64::from(self.alpha) + f64::from(self.k);
        self.out = &self.x * self.mid_out.pow(&like(&self.mid_out, -f64::from(self.beta)));
    }
}
autobwd::samples!(
    Lrn,
    [
        lrn(uniform([2, 5, 3, 1]), 3, [1.0, 0.5, 0.75], LrnLayout::Nchw),
        lrn(uniform([2, 3, 1, 5]), 3, [2.0, 0.25, 0.5], LrnLayout::Nhwc),
        lrn(uniform([2, 3, 1, 4]), 5, [2.0, 1e-4, 0.75], LrnLayout::AnyLayout),
        lrn(uniform([1, 3, 2, 4]), 1, [0.5, 1.0, -1.0], LrnLayout::AnyLayout),
        lrn(uniform([0, 3, 2, 4]), 3, [1.0, 1.0, 1.0], LrnLayout::Nchw),
        lrn(uniform([2, 3, 4]), 3, [1.0, 1.0, 1.0], LrnLayout::Nchw).fails("`X`: 4 dimensions are needed"),
        lrn(uniform([2, 3, 1, 4]), 2, [1.0, 1.0, 1.0], LrnLayout::Nchw)
            .fails("attribute `n`: an odd number is needed, not 2"),
        lrn(uniform([2, 3, 1, 4]), 0, [1.0, 1.0, 1.0], LrnLayout::Nchw).fails("attribute `n`"),
        lrn(uniform([2, 3, 1, 4]), 3, [0.0, 1.0, 1.0], LrnLayout::Nchw).fails("attribute `k`"),
        lrn(uniform([2, 3, 1, 4]), 3, [1.0, -1.0, 1.0], LrnLayout::Nchw).fails("attribute `alpha`"),
        lrn(integers_below(9, [2, 3, 1, 4]), 3, [1.0, 1.0, 1.0], LrnLayout::Nchw)
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn lrn(x: Draw, n: i32, [k, alpha, beta]: [f32; 3], data_format: LrnLayout) -> Lrn<Draw> {
    Lrn { x, out: out(), mid_out: out(), n, k, alpha, beta, data_format }
}
