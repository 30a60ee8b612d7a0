//! Reductions over dimensions: sum, mean, product, maximum, minimum, norms, logarithm of a sum of powers, truth.

mod logical;
mod logsumexp;
mod min_max;
mod norm;
mod product;
mod squared_l2_norm;
mod sum;
mod tiling;

use autobwd::{Attrs, DType};

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

    /// Converts from one dtype to another.
    pub fn converting(self, from: DType, to: DType) -> ReduceAttrs {
        self.in_dtype(Some(from)).out_dtype(Some(to))
    }
}
