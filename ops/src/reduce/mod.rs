//! Sums, means, products and extremes over dimensions of one tensor.

mod cut;
mod extreme;
mod product;
mod square;
mod sum;

use autobwd::{Attrs, DType};

pub(crate) use cut::Reduction;
pub use extreme::{ReduceMax, ReduceMaxGrad, ReduceMaxGradGrad, ReduceMin, ReduceMinGrad, ReduceMinGradGrad};
pub use product::{ReduceProd, ReduceProdGrad};
pub use square::{SquaredL2Norm, SquaredL2NormGrad};
pub use sum::{Mean, MeanGrad, MeanTerm, ReduceMean, ReduceMeanGrad, ReduceSum, ReduceSumGrad};

/// The attributes of reductions.
#[derive(Attrs, Clone, Debug)]
pub struct ReduceAttrs {
    /// The dimensions to reduce, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Reduce all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// The dtype of `out`, to which `x` is converted first; −1 means that of `x`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}

impl ReduceAttrs {
    /// Over these dimensions, which are dropped; over all where there are none.
    pub fn over(dim: impl Into<Vec<i32>>) -> ReduceAttrs {
        ReduceAttrs::default().dim(dim)
    }

    /// Over these dimensions, which become 1; over all where there are none.
    pub fn keeping(dim: impl Into<Vec<i32>>) -> ReduceAttrs {
        ReduceAttrs::over(dim).keep_dim(true)
    }

    /// Of elements of one dtype, converted to another.
    pub fn converting(self, from: DType, to: DType) -> ReduceAttrs {
        self.in_dtype(Some(from)).out_dtype(Some(to))
    }
}
