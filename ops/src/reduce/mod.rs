//! Sums, means and extremes over dimensions of one tensor.

mod cut;
mod extreme;
mod sum;

pub(crate) use cut::Reduction;
pub use extreme::{ReduceMax, ReduceMaxGrad, ReduceMaxGradGrad, ReduceMin, ReduceMinGrad, ReduceMinGradGrad};
pub use sum::{
    Mean, MeanGrad, MeanGradGrad, ReduceMean, ReduceMeanGrad, ReduceMeanGradGrad, ReduceSum, ReduceSumGrad,
    ReduceSumGradGrad,
};
