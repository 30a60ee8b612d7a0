//! Operators that move elements without changing them: reshape, permute, concatenate, split, repeat, pad.

mod axes;
mod join;
mod order;
mod pad;
mod repeat;
mod slice;

pub use autobwd::operators::{
    Assign, Cast, CastGrad, Concat, ConcatGrad, Reshape2, Reshape2Grad, Slice, SliceGrad, Stack, StackGrad,
    Unstack, UnstackGrad,
};
pub use axes::{
    FlattenContiguousRange, FlattenContiguousRangeGrad, Squeeze2, Squeeze2Grad, Unsqueeze2, Unsqueeze2Grad,
};
pub use join::{Split, SplitGrad};
pub use order::{Flip, Transpose2, Transpose2Grad};
pub use pad::{Pad, PadGrad, TrilTriu};
pub use repeat::{ExpandV2, ExpandV2Grad, Tile, TileGrad};
pub(crate) use slice::at;
