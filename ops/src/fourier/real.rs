//! Transforms between real and complex numbers, composed of transforms of complex numbers.

use autobwd::{
    Composed, Composition, Dims, Error, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use super::{
    FftNormalization,
    complex::{at, complex_rank, different_axes, transformed},
};
use crate::{
    DimExpr, Math,
    math::{in_dtype, like, positions},
    stack,
};

/// Discrete Fourier transforms of real numbers along axes, as `fft_c2c`: of the last axis, the first half of
/// frequencies determines the others.
#[register_op(grad = Composed, composed)]
pub struct FftR2c<V = Var> {
    /// At least one dimension, with at least one element along each axis.
    #[input]
    pub x: V,
    /// Complex numbers, `[.., 2]`; `n / 2 + 1` of `n` along the last of the axes if `onesided`.
    #[output]
    pub out: V,
    /// Different axes, at least one; negative ones count from the end.
    #[attr]
    pub axes: Vec<i64>,
    /// The factor (`backward`, `ortho`, `forward`).
    #[attr]
    pub normalization: FftNormalization,
    /// The direction.
    #[attr]
    pub forward: bool,
    /// Whether the second half of frequencies along the last of the axes is left out: conjugates of the first half.
    #[attr]
    pub onesided: bool,
}
impl Infer for FftR2c<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let last = last_axis(&self.x, self.x.rank(), &self.axes)?;
        let mut dims = self.x.dims.clone();
        if self.onesided {
            dims[last] = dims[last] / 2 + 1;
        }
        dims.push(2);
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for FftR2c<Expr> {
    fn compose(&mut self) {
        let (rank, how) = (self.x.dims().len(), (self.normalization, self.forward));
        let pairs = stack(&[&self.x, &like(&self.x, 0.0)], rank as i32);
        let Some((last, others)) = self.axes.split_last() else { return self.out = pairs };
        let out = transformed(&pairs, &[*last], how);
        let last = at(*last, rank) as i32;
        let half = self.x.dim(last) / 2 + 1;
        let out = if self.onesided { out.slice_to(last, &0.into(), &half) } else { out };
        self.out = if others.is_empty() { out } else { transformed(&out, others, how) };
    }
}
autobwd::samples!(
    FftR2c,
    [
        fft_r2c(uniform([4]), [0], FftNormalization::Backward, [true, true]),
        fft_r2c(uniform([3, 5]), [1], FftNormalization::Ortho, [false, true]),
        fft_r2c(uniform([3, 4]), [0], FftNormalization::Forward, [true, false]),
        fft_r2c(uniform([2, 3, 4]), [0, -1], FftNormalization::Forward, [true, true]),
        fft_r2c(uniform([2, 6, 3]), [2, 1], FftNormalization::Backward, [false, true]),
        fft_r2c(uniform([2, 1]), [1], FftNormalization::Ortho, [true, true]),
        fft_r2c(uniform([0, 3]), [1], FftNormalization::Ortho, [true, true]),
        fft_r2c(uniform([4]), [], FftNormalization::Ortho, [true, true])
            .fails("attribute `axes`: at least one is needed"),
        fft_r2c(uniform([4, 2]), [2], FftNormalization::Backward, [true, true])
            .fails("attribute `axes`: 2 is no axis of 2 dimensions"),
        fft_r2c(uniform([4, 2]), [0, 0], FftNormalization::Backward, [true, true])
            .fails("attribute `axes`: 0 is given twice"),
        fft_r2c(uniform([4, 0]), [1], FftNormalization::Backward, [true, true])
            .fails("`X`: at least one element is needed along axis 1"),
        fft_r2c(integers_below(9, [4]), [0], FftNormalization::Backward, [true, true])
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn fft_r2c<const N: usize>(
    x: Draw,
    axes: [i64; N],
    normalization: FftNormalization,
    [forward, onesided]: [bool; 2],
) -> FftR2c<Draw> {
    FftR2c { x, out: out(), axes: axes.to_vec(), normalization, forward, onesided }
}

/// Real numbers from one half of the frequencies along the last axis, the conjugates of the other half:
/// `out[j] = c · Re Σ w[k] · x[k] · exp(∓2πi · j · k / n)`, with `w[k] = 1` for frequency 0 and for `k = n / 2`, else 2; as
/// `fft_c2c` along the other axes.
#[register_op(grad = Composed, composed)]
pub struct FftC2r<V = Var> {
    /// Complex numbers, `[.., 2]`, with `n / 2 + 1` elements along the last of the axes.
    #[input]
    pub x: V,
    /// `x` without its last dimension, and with `n` elements along the last of the axes.
    #[output]
    pub out: V,
    /// Different axes, at least one, which count the dimensions without the last one of 2; negative ones count from their
    /// end.
    #[attr]
    pub axes: Vec<i64>,
    /// The factor (`backward`, `ortho`, `forward`).
    #[attr]
    pub normalization: FftNormalization,
    /// The direction.
    #[attr]
    pub forward: bool,
    /// The length `n`, for which even and odd numbers have the same number of frequencies; 0 for the even one.
    #[attr(default = 0, min = 0)]
    pub last_dim_size: i64,
}
impl Infer for FftC2r<Meta> {
    fn infer(&mut self) -> Result<()> {
        let rank = complex_rank(&self.x)?;
        let last = last_axis(&self.x, rank, &self.axes)?;
        let mut dims: Vec<Dim> = self.x.dims[..rank].to_vec();
        let half = dims[last].get();
        dims[last] = match self.last_dim_size {
            0 => {
                self.x.require(half != Some(1), || {
                    format!("at least two elements are needed along axis {last} without `last_dim_size`")
                })?;
                (dims[last] - 1) * 2
            }
            n => {
                let needed = n / 2 + 1;
                self.x.require(half.is_none_or(|half| half as i64 == needed), || {
                    format!("{needed} elements are needed along axis {last} for `last_dim_size` {n}")
                })?;
                (n as usize).into()
            }
        };
        self.out.set(self.x.dtype, dims.into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Composition for FftC2r<Expr> {
    fn compose(&mut self) {
        let (rank, how) = (self.x.dims().len() - 1, (self.normalization, self.forward));
        let Some((last, others)) = self.axes.split_last() else { return self.out = self.x.clone() };
        let last = at(*last, rank);
        let half = self.x.dim(last as i32);
        let n = if self.last_dim_size > 0 { self.last_dim_size.into() } else { (&half - 1) * 2 };
        let x = if others.is_empty() { self.x.clone() } else { transformed(&self.x, others, how) };
        let places = positions(x.builder(), &half);
        let own =
            places.equal(&like(&places, 0.0)).logical_or(&(&places * 2.0).equal(&n.number(x.builder())));
        let weights = in_dtype(&own.where_cond(&like(&places, 1.0), &like(&places, 2.0)), x.dtype());
        let after: Vec<i32> = (1..=(rank - last) as i32).collect();
        let added = |at: usize| if at == last { &n - &half } else { DimExpr::from(0) };
        let paddings: Vec<[DimExpr; 2]> = (0..=rank).map(|at| [0.into(), added(at)]).collect();
        let all = (x * weights.unsqueeze(&after)).pad_to(&paddings, 0.0);
        let out = transformed(&all, &[last as i64], how);
        self.out = out.slice(rank as i32, 0, 1).squeeze(&[rank as i32]);
    }
}
autobwd::samples!(
    FftC2r,
    [
        fft_c2r(uniform([3, 2]), [0], FftNormalization::Backward, false, 0),
        fft_c2r(uniform([3, 2]), [0], FftNormalization::Backward, true, 5),
        fft_c2r(uniform([2, 4, 2]), [1], FftNormalization::Ortho, false, 6),
        fft_c2r(uniform([3, 4, 2]), [0], FftNormalization::Forward, true, 0),
        fft_c2r(uniform([2, 3, 4, 2]), [0, -1], FftNormalization::Backward, false, 7),
        fft_c2r(uniform([2, 3, 4, 2]), [2, 1], FftNormalization::Forward, true, 0),
        fft_c2r(uniform([3, 1, 2]), [1], FftNormalization::Ortho, true, 1),
        fft_c2r(uniform([0, 3, 2]), [1], FftNormalization::Ortho, false, 0),
        fft_c2r(uniform([3, 1, 2]), [1], FftNormalization::Ortho, true, 0)
            .fails("`X`: at least two elements are needed along axis 1 without `last_dim_size`"),
        fft_c2r(uniform([3, 2]), [0], FftNormalization::Ortho, true, 6)
            .fails("`X`: 4 elements are needed along axis 0 for `last_dim_size` 6"),
        fft_c2r(uniform([3, 2]), [0], FftNormalization::Ortho, true, -1)
            .fails("attribute `last_dim_size`: must be at least 0"),
        fft_c2r(uniform([3, 2]), [], FftNormalization::Ortho, true, 0)
            .fails("attribute `axes`: at least one is needed"),
        fft_c2r(uniform([3, 2]), [1], FftNormalization::Ortho, true, 0)
            .fails("attribute `axes`: 1 is no axis of 1 dimension"),
        fft_c2r(uniform([0, 2]), [0], FftNormalization::Ortho, true, 0)
            .fails("`X`: at least one element is needed along axis 0"),
        fft_c2r(uniform([3, 2, 2]), [0, -2], FftNormalization::Ortho, true, 0)
            .fails("attribute `axes`: -2 is given twice"),
        fft_c2r(uniform([3]), [0], FftNormalization::Ortho, true, 0)
            .fails("`X`: a last dimension of 2, real and imaginary parts, is needed"),
    ]
);

fn fft_c2r<const N: usize>(
    x: Draw,
    axes: [i64; N],
    normalization: FftNormalization,
    forward: bool,
    last_dim_size: i64,
) -> FftC2r<Draw> {
    FftC2r { x, out: out(), axes: axes.to_vec(), normalization, forward, last_dim_size }
}

/// Checks the axes, and returns the last one.
fn last_axis(x: &Meta, rank: usize, axes: &[i64]) -> Result<usize> {
    different_axes(x, rank, axes)?;
    let last = axes.last().ok_or_else(|| Error::attr("axes", "at least one is needed"))?;
    Ok(at(*last, rank))
}
