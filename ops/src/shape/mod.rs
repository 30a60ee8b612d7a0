//! The same elements elsewhere: copied, in another shape or order, joined, cut or repeated.

mod axes;
mod copy;
mod join;
mod order;
mod pad;
mod repeat;
mod slice;
mod stack;
mod strided;

pub use axes::{
    FlattenContiguousRange, FlattenContiguousRangeGrad, Squeeze2, Squeeze2Grad, Unsqueeze2, Unsqueeze2Grad,
};
pub use copy::{Assign, AssignGrad, Cast, CastGrad};
pub use join::{Concat, ConcatGrad, ConcatGradGrad, Split, SplitGrad};
pub use order::{Flip, FlipGrad, Reshape2, Reshape2Grad, Reshape2GradGrad, Transpose2, Transpose2Grad};
pub use pad::{Pad, PadGrad, TrilTriu, TrilTriuGrad};
pub use repeat::{ExpandV2, ExpandV2Grad, Tile, TileGrad};
pub(crate) use slice::at;
pub use slice::{Slice, SliceGrad, SliceGradGrad};
pub use stack::{Stack, StackGrad, StackGradGrad, Unstack, UnstackGrad, UnstackGradGrad};
