//! What an operator is, what a program is, and how expressions become programs: what operator crates need of autobwd, and what
//! its other packages stand on.
//!
//! Most people use all packages through the facade, `autobwd`, which documents them. An operator crate that is to be built
//! against this package alone has `extern crate autobwd_core as autobwd;` in its `lib.rs`.
//!
//! Modules that are hidden in this documentation are for the other packages of autobwd; they promise nothing.

extern crate self as autobwd;

pub mod build;
pub mod cx;
pub mod desc;
#[doc(hidden)]
pub mod error;
pub mod grad;
pub mod lanes;
pub mod numbers;
pub mod operators;
pub mod registry;
#[doc(hidden)]
pub mod sample;
pub mod schema;
pub mod tensor;
pub mod verify;

pub use autobwd_macros::{Attrs, register_op};
pub use build::{Arg, Builder, Expr, New, ProgramSnapshot, Transaction, Value, emit};
pub use cx::{Cx, Mat, Product, Strided};
pub use desc::{
    Args, Attr, AttrMap, Block, BlockId, Diff, Name, OpDesc, Origin, Program, Site, Slots, Var, VarDesc,
    VarKind, Vars, Words, diff,
};
pub use error::{Error, ErrorKind, Result};
pub use grad::{
    Composed, Derived, DerivedFromInputs, GradBlock, GradCx, GradKind, GradRule, GradientOps, Multilinear,
    NoGrad, SelfAdjoint, ZeroGrad,
};
pub use lanes::{LaneOf, Loops, Vectorised, fold_lanes, map_fold_lanes, map_lanes};
/// The arrays that tensors are made from and become, and whose views kernels get: in the version that this crate has.
pub use ndarray;
pub use numbers::{Float, Integer};
pub use registry::{OpInfo, OpInfoMap};
pub use schema::{
    Arity, AttrDef, AttrType, AttrValue, Attrs, Bound, BoundKind, Call, Carried, Composition, Content,
    Control, Cost, Decompose, Describe, First, Infer, IntegerLanes, Join, Kernel, Lanes, Op, Parts,
    Pointwise, PointwiseInteger, Role, Schema, Slot, SlotDef, StepCount,
};
pub use tensor::{Bool, Buf, DType, Dim, Dims, Element, InOut, Meta, Rows, Shape, Tensor, TensorArray};
pub use verify::{verify, verify_in};
#[doc(hidden)]
pub mod __private {
    pub use crate::lanes::Lane;
    pub use crate::registry::OpInfo;
    pub use crate::schema::{
        AttrCheck, Notes, Unwritten, Written, attr, check_attr, check_bounds, check_composed, check_contract,
        check_inferred, check_multilinear, check_slot, check_value, concat_attrs, gather_slot, inherit_attr,
        inherit_slot, like, put_values, refuse_unused, same_as, slot_name, slot_name_len,
    };
    pub use inventory;
}
