//! Operators that move elements without changing them: reshape, permute, concatenate, split, repeat, pad.

mod axes;
mod dims;
mod expand;
mod pad;
mod slice;
mod split;
mod transpose;

pub use autobwd::operators::{
    Assign, Cast, CastGrad, Concat, ConcatGrad, Reshape2, Reshape2Grad, Slice, SliceGrad, Stack, StackGrad,
    Unstack, UnstackGrad,
};
pub use axes::{
    FlattenContiguousRange, FlattenContiguousRangeGrad, Squeeze2, Squeeze2Grad, Unsqueeze2, Unsqueeze2Grad,
};
pub use dims::{Shape, Size};
pub use expand::{ExpandV2, ExpandV2Grad, Tile, TileGrad};
pub use pad::{Pad, PadGrad, TrilTriu};
pub(crate) use slice::at;
pub use split::{Split, SplitGrad};
pub use transpose::{Flip, Transpose2, Transpose2Grad};
