//! Reductions over dimensions: sum, mean, product, maximum, minimum, norms, logarithm of a sum of powers, truth.

mod distance;
mod logical;
mod logsumexp;
mod min_max;
mod norm;
mod product;
mod squared_l2_norm;
mod sum;
mod tiling;

use autobwd::{Attrs, DType, Expr, New, emit};

pub use distance::{Dist, L1Norm, NormOp, Renorm};
pub use logical::{LogicalReduceAttrs, ReduceAll, ReduceAny};
pub use logsumexp::{Logsumexp, LogsumexpGrad};
pub use min_max::{
    ReduceAmax, ReduceAmaxGrad, ReduceAmaxGradGrad, ReduceAmin, ReduceAminGrad, ReduceAminGradGrad,
    ReduceMax, ReduceMaxGrad, ReduceMaxGradGrad, ReduceMin, ReduceMinGrad, ReduceMinGradGrad,
};
pub use norm::{FrobeniusNorm, FrobeniusNormGrad, PNorm, PNormGrad};
pub use product::{ReduceProd, ReduceProdGrad};
pub use squared_l2_norm::{SquaredL2Norm, SquaredL2NormGrad};
pub use sum::{Mean, MeanGrad, MeanTerm, ReduceMean, ReduceMeanGrad, ReduceSum, ReduceSumGrad};
pub(crate) use tiling::{ReductionTiling, total};

use crate::math::{DimExpr, Math, all_sizes};

/// The attributes of reductions.
#[derive(Attrs, Clone, Debug)]
pub struct ReduceAttrs {
    /// The dimensions to reduce; negative counts from the end, empty means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Reduce all dimensions; `dim` is ignored.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`; −1 means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// The dtype of `out`, to which `x` is converted first; −1 means the dtype of `x`, or int64 for a sum of bool or
    /// int32.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}

impl ReduceAttrs {
    /// Reduces and drops these dimensions; all if empty.
    pub fn over(dim: impl Into<Vec<i32>>) -> ReduceAttrs {
        ReduceAttrs::default().dim(dim)
    }

    /// Reduces these dimensions to size 1; all if empty.
    pub fn keeping(dim: impl Into<Vec<i32>>) -> ReduceAttrs {
        ReduceAttrs::over(dim).keep_dim(true)
    }

    /// The reduced axes of a tensor in a composition, from the first to the last.
    fn axes(&self, x: &Expr) -> Vec<i32> {
        let rank = x.dims().len() as i32;
        let is_reduced =
            |axis: &i32| self.is_full() || self.dim.iter().any(|d| d == axis || d + rank == *axis);
        (0..rank).filter(is_reduced).collect()
    }

    /// The same reduction without conversion.
    fn unconverted(&self) -> ReduceAttrs {
        self.clone().in_dtype(None).out_dtype(None)
    }

    /// The number of terms of each element of the result.
    fn count(&self, x: &Expr) -> DimExpr {
        self.axes(x).into_iter().map(|axis| x.dim(axis)).reduce(|n, dim| n * dim).unwrap_or(1.into())
    }

    /// A result of the reduction of `x`, with size 1 for reduced axes.
    fn kept(&self, result: &Expr, x: &Expr) -> Expr {
        let axes = self.axes(x);
        if self.keep_dim || axes.is_empty() { result.clone() } else { result.unsqueeze(&axes) }
    }

    /// A result of the reduction of `x`, in the shape of `x`.
    fn spread(&self, result: &Expr, x: &Expr) -> Expr {
        self.kept(result, x).expand_to(&all_sizes(x))
    }

    /// Converts from one dtype to another.
    pub fn converting(self, from: DType, to: DType) -> ReduceAttrs {
        self.in_dtype(Some(from)).out_dtype(Some(to))
    }
}

/// `x / count`; NaN for the mean of no elements.
pub(crate) fn quotient(x: &Expr, count: &DimExpr) -> Expr {
    if let Some(n) = count.known() {
        return emit(MeanTerm { x: x.into(), out: New, n: n as f64 }).out;
    }
    let count = count.number(x.builder()).cast(x.dtype());
    // One element broadcasts, except over a scalar.
    x / if x.dims().is_empty() { count.reshape(&[]) } else { count }
}
