//! The same elements elsewhere: copied, in another shape or order, joined or cut.

mod copy;
mod join;
mod order;

pub use copy::{Assign, AssignGrad, Cast, CastGrad};
pub use join::{Concat, ConcatGrad, ConcatGradGrad, Split, SplitGrad};
pub use order::{Reshape2, Reshape2Grad, Reshape2GradGrad, Transpose2, Transpose2Grad, Transpose2GradGrad};
