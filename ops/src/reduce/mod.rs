//! Sums, means, products and extremes over dimensions of one tensor.

mod cut;
mod extreme;
mod product;
mod square;
mod sum;

pub(crate) use cut::Reduction;
pub use extreme::{ReduceMax, ReduceMaxGrad, ReduceMaxGradGrad, ReduceMin, ReduceMinGrad, ReduceMinGradGrad};
pub use product::{ReduceProd, ReduceProdGrad, ReduceProdGradGrad};
pub use square::{SquaredL2Norm, SquaredL2NormGrad, SquaredL2NormGradGrad};
pub use sum::{
    Mean, MeanGrad, MeanGradGrad, MeanTerm, MeanTermGrad, ReduceMean, ReduceMeanGrad, ReduceMeanGradGrad,
    ReduceSum, ReduceSumGrad, ReduceSumGradGrad,
};
