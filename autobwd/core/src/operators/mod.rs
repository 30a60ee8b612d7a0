//! The operators that the library itself emits or recognises, and helpers for kernels.
//!
//! The backward pass of a program needs sums, zeros and copies; `+ - * /` of expressions are operators; gradients of
//! control flow are branches and recurrences. These operators are typed: the library builds them as structs
//! ([`OpDesc::from`](crate::OpDesc)) and recognises them by type ([`OpDesc::is`](crate::OpDesc::is),
//! [`OpDesc::as_op`](crate::OpDesc::as_op)). Their compositions need a few more, such as `shape`. All others are in
//! separate crates, which may also use the functions here.

mod accumulate;
mod broadcast;
mod compare;
mod concat;
mod conditional_block;
mod constants;
mod copy;
mod elements;
mod elementwise;
mod fill;
mod fill_like;
mod increment;
mod logic;
mod multilinear;
mod recurrent;
mod reshape;
mod scale;
mod seed;
mod shape;
mod slice;
mod slices;
mod sparse_rows;
mod stack;
mod strided;
mod sum;
mod unsqueeze;
mod while_op;

pub use crate::op::{check_grad, same_count};
pub use accumulate::{sum, zeros};
pub use broadcast::{broadcast, zip_broadcast};
pub use compare::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual};
pub use concat::{Concat, ConcatGrad, row_bytes, slice_part};
pub use conditional_block::{ConditionalBlock, ConditionalBlockGrad, ConditionalBlockRule};
pub use constants::{
    ConstantInput, ConstantInts, constant_int, constant_ints, constant_ints_of_tensor, known_int,
};
pub use copy::{Assign, Cast, CastGrad};
pub use elements::{AnyNumber, ConvertElement, check_number, convert, fill_with};
pub use elementwise::{
    ElementwiseAdd, ElementwiseAddGrad, ElementwiseAddGradGrad, ElementwiseDiv, ElementwiseDivGrad,
    ElementwiseDivGradGrad, ElementwiseMul, ElementwiseMulGrad, ElementwiseMulGradGrad, ElementwiseSub,
    ElementwiseSubGrad, ElementwiseSubGradGrad, grad_if_any, grad_or_zeros,
};
pub use fill::{FillConstant, FillConstantGrad, given_shape, parse_number, shape_of_attr};
pub use fill_like::{FillAnyLike, FillZerosLike};
pub use increment::{Increment, IncrementGrad};
pub use logic::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor};
pub use multilinear::{Multilinear, SelfAdjoint};
pub use recurrent::{Recurrent, RecurrentGrad, RecurrentRule};
pub use reshape::{Reshape2, Reshape2Grad, in_stored_shape, infer_from_x_shape, remembered, set_x_shape};
pub use scale::{Scale, ScaleGrad};
pub use seed::Seed;
pub use shape::ShapeOp;
pub use slice::{Slice, SliceGrad, one_for_each_axis, sliced_dims, sliced_layout};
pub use slices::{PART, nth_part, outer_axis_inner, pieces};
pub use sparse_rows::{PARTS, add_up_rows, update_rows};
pub use stack::{Stack, StackGrad, Unstack, UnstackGrad};
pub use strided::{MAX_RANK, StridedLayout, few_dims};
pub use sum::{Sum, SumGrad};
pub use unsqueeze::{Unsqueeze2, Unsqueeze2Grad};
pub use while_op::{While, WhileGrad, WhileRule};
