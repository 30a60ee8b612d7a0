//! Spectral normalisation.

use autobwd::{
    Composed, Composition, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use crate::Math;

/// Spectral normalisation (Miyato et al., 2018): `out = weight / sigma`, with `sigma = uᵀ · m · v` for the matrix `m` that
/// has dimension `dim` as its rows and all others as its columns.
///
/// Each of `power_iters` steps first sets `v = mᵀ · u / (‖mᵀ · u‖ + eps)`, then `u = m · v / (‖m · v‖ + eps)`, so that
/// `sigma` approaches the largest singular value. Gradients take `u` and `v` as constants.
#[register_op(grad = Composed, composed)]
pub struct SpectralNorm<V = Var> {
    /// 2 to 5 dimensions.
    #[input]
    pub weight: V,
    /// Approximates the left singular vector, `[rows]`.
    #[input]
    pub u: V,
    /// Approximates the right singular vector, `[columns]`.
    #[input]
    pub v: V,
    /// Same shape as `weight`.
    #[output]
    pub out: V,
    /// The dimension of the rows, 0 or 1.
    #[attr(default = 0, min = 0, max = 1)]
    pub dim: i32,
    /// The number of steps.
    #[attr(default = 1, min = 0, max = 100)]
    pub power_iters: i32,
    /// Added to norms, so that divisors are not 0.
    #[attr(default = 1e-12, min = 0.0)]
    pub eps: f32,
}
impl Infer for SpectralNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.weight.float()?;
        self.weight
            .require((2..=5).contains(&self.weight.rank()), || "2 to 5 dimensions are needed".into())?;
        let dim = self.weight.axis("dim", self.dim.into())?;
        let (rows, mut columns) = (self.weight.dims[dim], Dim::from(1));
        for (axis, n) in self.weight.dims.iter().enumerate() {
            columns = if axis == dim { columns } else { columns * *n };
        }
        for (vector, size) in [(&self.u, rows), (&self.v, columns)] {
            vector.same_dtype(&self.weight)?;
            let dims = [size].into_iter().collect::<Dims>();
            vector.require(vector.dims.agrees(&dims), || format!("{dims} is needed"))?;
        }
        self.out.like(&self.weight);
        Ok(())
    }
}
impl Composition for SpectralNorm<Expr> {
    fn compose(&mut self) {
        let (weight, rank) = (&self.weight, self.weight.dims().len() as i32);
        let axes: Vec<i32> =
            [self.dim].into_iter().chain((0..rank).filter(|axis| *axis != self.dim)).collect();
        let ordered = if self.dim == 0 { weight.clone() } else { weight.transpose(&axes) };
        let matrix = if rank > 2 { ordered.flatten(1, -1) } else { ordered };
        let unit = |x: Expr| &x / &(x.norm(2.0, -1) + f64::from(self.eps));
        let (constant, mut u, mut v) = (matrix.detach(), self.u.detach(), self.v.detach());
        for _ in 0..self.power_iters {
            v = unit(constant.transpose(&[1, 0]).matmul(&u)).detach();
            u = unit(constant.matmul(&v)).detach();
        }
        let sigma = (u * matrix.matmul(&v)).sum(&[]);
        self.out = weight / &sigma;
    }
}
autobwd::samples!(
    SpectralNorm,
    [
        spectral_norm(positive([2, 3]), positive([2]), positive([3]), 0, 1).not_a_derivative(CONSTANT),
        spectral_norm(uniform([2, 3, 4]), given([3], [0.5, -0.75, 0.25]), uniform([8]), 1, 2)
            .not_a_derivative(CONSTANT),
        SpectralNorm {
            eps: 0.5,
            ..spectral_norm(positive([2, 1, 3, 2]), positive([2]), positive([6]), 0, 3)
        }
        .not_a_derivative(CONSTANT),
        spectral_norm(positive([3, 2]), positive([3]), positive([2]), 0, 0).not_a_derivative(CONSTANT),
        spectral_norm(uniform([0, 2]), uniform([0]), positive([2]), 0, 1).not_a_derivative(CONSTANT),
        spectral_norm(positive([2, 3]), positive([3]), positive([3]), 0, 1).fails("`U`: [2] is needed"),
        spectral_norm(positive([2, 3]), positive([2]), positive([2]), 0, 1).fails("`V`: [3] is needed"),
        spectral_norm(positive([3]), positive([3]), positive([1]), 0, 1)
            .fails("`Weight`: 2 to 5 dimensions are needed"),
        spectral_norm(positive([2, 3]), positive([2]), positive([3]), 2, 1).fails("attribute `dim`"),
        spectral_norm(positive([2, 3]), positive([2]), positive([3]), 0, -1).fails("attribute `power_iters`"),
        SpectralNorm { eps: -1.0, ..spectral_norm(positive([2, 3]), positive([2]), positive([3]), 0, 1) }
            .fails("attribute `eps`"),
        spectral_norm(positive([2, 3]), integers_below(9, [2]), positive([3]), 0, 1)
            .fails("`U`: dtype int64 does not match"),
        spectral_norm(integers_below(9, [2, 3]), positive([2]), positive([3]), 0, 1)
            .fails("`Weight`: floating point numbers are needed"),
    ]
);

const CONSTANT: &str = "gradients take the vectors as constants";

fn spectral_norm(weight: Draw, u: Draw, v: Draw, dim: i32, power_iters: i32) -> SpectralNorm<Draw> {
    SpectralNorm { weight, u, v, out: out(), dim, power_iters, eps: 1e-12 }
}
