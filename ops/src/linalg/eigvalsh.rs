//! Eigenvalues of symmetric matrices.

use autobwd::{
    Composed, Composition, Dims, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op,
    tensor::Dim,
};

use super::{Eigh, Triangle, cholesky::DEFINITE, cubic, eigh::ONE_TRIANGLE, square};

/// Eigenvalues of symmetric matrices, as `eigh` computes them; their gradient is symmetric.
#[register_op(grad = Composed, composed)]
pub struct Eigvalsh<V = Var> {
    /// Symmetric matrices, `[.., n, n]`.
    #[input]
    pub x: V,
    /// In ascending order, `[.., n]`.
    #[output]
    pub eigenvalues: V,
    /// Eigenvectors as columns, `[.., n, n]`.
    #[output]
    pub eigenvectors: Option<V>,
    /// The triangle of `x` that is read.
    #[attr("UPLO", default = Triangle::Lower)]
    pub uplo: Triangle,
    /// Whether the reference leaves out eigenvectors, which only gradients read; it changes nothing here.
    #[attr(default = false)]
    pub is_test: bool,
}
impl Infer for Eigvalsh<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.x)?;
        let dims = self.x.dims.iter().take(self.x.rank() - 1).copied().collect::<Dims>();
        self.eigenvalues.set(self.x.dtype, dims);
        self.eigenvectors.iter_mut().for_each(|vectors| vectors.like(&self.x));
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(64) * cubic(&self.x)
    }
}
impl Composition for Eigvalsh<Expr> {
    fn compose(&mut self) {
        let op = emit(Eigh { x: (&self.x).into(), eigenvalues: New, eigenvectors: New, uplo: self.uplo });
        self.eigenvalues = op.eigenvalues;
        self.eigenvectors = Some(op.eigenvectors);
    }
}
autobwd::samples!(
    Eigvalsh,
    [
        eigvalsh(given([2, 3, 3], DEFINITE), Triangle::Lower).not_a_derivative(ONE_TRIANGLE),
        eigvalsh(given([2, 2], [1.0, 0.5, -0.25, 3.0]), Triangle::Lower).not_a_derivative(ONE_TRIANGLE),
        eigvalsh(given([2, 2], [1.0, 0.5, -0.25, 3.0]), Triangle::Upper).not_a_derivative(ONE_TRIANGLE),
        Eigvalsh { is_test: true, eigenvectors: None, ..eigvalsh(positive([2, 1, 1]), Triangle::Lower) },
        eigvalsh(uniform([0, 2, 2]), Triangle::Lower).not_a_derivative(ONE_TRIANGLE),
        eigvalsh(uniform([2, 0, 0]), Triangle::Lower),
        eigvalsh(uniform([2, 3]), Triangle::Lower).fails("`X`: square matrices are needed"),
        eigvalsh(integers_below(9, [2, 2]), Triangle::Lower).fails("`X`: floating point numbers are needed"),
    ]
);

fn eigvalsh(x: Draw, uplo: Triangle) -> Eigvalsh<Draw> {
    Eigvalsh { x, eigenvalues: out(), eigenvectors: Some(out()), uplo, is_test: false }
}
