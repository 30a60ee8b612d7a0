//! Operators that move elements without changing them: reshape, permute, concatenate, split, repeat, pad.

mod axes;
mod crop;
mod decided;
mod dims;
mod expand;
mod expand_as;
mod meshgrid;
mod pad;
mod roll;
mod slice;
mod split;
mod strided_slice;
mod transpose;
mod unbind;

pub use autobwd::operators::{
    Assign, Cast, CastGrad, Concat, ConcatGrad, Reshape2, Reshape2Grad, ShapeOp, Slice, SliceGrad, Stack,
    StackGrad, Unsqueeze2, Unsqueeze2Grad, Unstack, UnstackGrad,
};
pub use axes::{FlattenContiguousRange, FlattenContiguousRangeGrad, Squeeze2, Squeeze2Grad};
pub use crop::CropTensor;
pub use decided::DecidedSizes;
pub use dims::Size;
pub use expand::{ExpandV2, ExpandV2Grad, Tile, TileGrad};
pub use expand_as::{ExpandAsV2, ExpandAsV2Grad};
pub use meshgrid::{Meshgrid, MeshgridGrad};
pub use pad::{Pad, PadGrad, TrilTriu, TrilTriuGrad};
pub use roll::{Roll, RollGrad};
pub(crate) use slice::at;
pub use split::{Split, SplitGrad};
pub use strided_slice::{StridedSlice, StridedSliceGrad};
pub use transpose::{Flip, Transpose2, Transpose2Grad};
pub use unbind::Unbind;
