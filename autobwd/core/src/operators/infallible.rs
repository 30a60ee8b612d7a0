//! Operators of the library itself whose kernels never fail.

use super::{
    Assign, Cast, Concat, ConcatGrad, FillAnyLike, FillConstant, FillZerosLike, Increment, Reshape2,
    Reshape2Grad, Scale, Seed, ShapeOp, Slice, SliceGrad, Stack, StackGrad, Sum, Unsqueeze2, Unsqueeze2Grad,
    Unstack, UnstackGrad,
};

crate::infallible!(
    Assign,
    Cast,
    Concat,
    ConcatGrad,
    FillAnyLike,
    FillConstant,
    FillZerosLike,
    Increment,
    Reshape2,
    Reshape2Grad,
    Scale,
    Seed,
    ShapeOp,
    Slice,
    SliceGrad,
    Stack,
    StackGrad,
    Sum,
    Unsqueeze2,
    Unsqueeze2Grad,
    Unstack,
    UnstackGrad
);
