//! `cvm`: columns of shows and clicks of an embedding, a continuous value model.

use autobwd::{
    Composed, Composition, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use crate::{Math, concat};

/// Logarithms of the first two columns, shows and clicks: `y[i, 0] = ln(x[i, 0] + 1)`, `y[i, 1] = ln(x[i, 1] + 1) - y[i, 0]`, and the
/// other columns as they are; only the other columns without `use_cvm`.
///
/// As in the reference, the gradient of the first two columns of `x` is `cvm`, whatever the gradient of `y` is.
#[register_op(grad = CvmGrad, composed)]
pub struct Cvm<V = Var> {
    /// `[n, d]` with at least two columns.
    #[input]
    pub x: V,
    /// The gradient of the first two columns of `x`, `[n, 2]`.
    #[input("CVM")]
    pub cvm: V,
    /// `[n, d]`, or `[n, d - 2]` without `use_cvm`.
    #[output]
    pub y: V,
    /// Whether `y` has the first two columns.
    #[attr(default = true)]
    pub use_cvm: bool,
}
impl Infer for Cvm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.cvm.same_dtype(&self.x)?;
        let [n, d] = self.x.dims[..] else { return Err(self.x.wrong("a matrix is needed")) };
        self.x.require(d.get().is_none_or(|d| d >= 2), || "at least two columns are needed".into())?;
        let shape = Dims::from_iter([n, 2.into()]);
        self.cvm.require(self.cvm.dims.agrees(&shape), || format!("dimensions {shape} are needed"))?;
        let others = d.get().map_or(Dim::UNKNOWN, |d| (d - 2).into());
        let n = n.or(self.cvm.dims[0]);
        self.y.set(self.x.dtype, Dims::from_iter([n, if self.use_cvm { d } else { others }]));
        Ok(())
    }
}
impl Composition for Cvm<Expr> {
    fn compose(&mut self) {
        let others = self.x.slice(1, 2, i32::MAX);
        self.y = match self.use_cvm {
            true => {
                let [shows, clicks] = [0, 1].map(|at| self.x.slice(1, at, at + 1).log1p());
                concat(&[&shows, &(clicks - &shows), &others], 1)
            }
            false => others,
        };
    }
}
autobwd::samples!(
    Cvm,
    [
        cvm(positive([3, 5]), uniform([3, 2]), true).not_a_derivative(GIVEN),
        cvm(positive([4, 3]), uniform([4, 2]), false).not_a_derivative(GIVEN),
        cvm(positive([4, 2]), uniform([4, 2]), true).not_a_derivative(GIVEN),
        cvm(positive([4, 2]), uniform([4, 2]), false).not_a_derivative(GIVEN),
        cvm(positive([0, 3]), uniform([0, 2]), true).not_a_derivative(GIVEN),
        cvm(uniform([3, 1]), uniform([3, 2]), true).fails("`X`: at least two columns are needed"),
        cvm(uniform([3]), uniform([3, 2]), true).fails("`X`: a matrix is needed"),
        cvm(uniform([3, 4]), uniform([3, 4]), true).fails("`CVM`: dimensions [3, 2] are needed"),
        cvm(uniform([3, 4]), integers_below(2, [3, 2]), true).fails("`CVM`: dtype int64 does not match"),
        cvm(integers_below(2, [3, 4]), integers_below(2, [3, 2]), true)
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Why gradients of samples are not derivatives.
const GIVEN: &str = "an input gives the gradient of two columns";

fn cvm(x: Draw, cvm: Draw, use_cvm: bool) -> Cvm<Draw> {
    Cvm { x, cvm, y: out(), use_cvm }
}

/// `dx` has the columns of `cvm`, then columns of `dy` for the others.
#[register_op(grad_of = Cvm, grad = Composed, composed, inferred)]
pub struct CvmGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub cvm: V,
    pub dy: V,
    #[output]
    pub dx: V,
    pub use_cvm: bool,
}
impl Composition for CvmGrad<Expr> {
    fn compose(&mut self) {
        let others = if self.use_cvm { self.dy.slice(1, 2, i32::MAX) } else { self.dy.clone() };
        self.dx = concat(&[&self.cvm, &others], 1);
    }
}
