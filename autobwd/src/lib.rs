//! Operators from annotated structs.
//!
//! An op author annotates a struct with [`#[register_op]`](register_op); a framework user describes a model with such
//! operators, asks for its backward part with [`append_backward`] and runs it with an [`Executor`].

extern crate self as autobwd;

mod error;

pub mod backward;
pub mod build;
pub mod check;
pub mod cx;
pub mod desc;
pub mod exec;
pub mod grad;
pub mod lanes;
mod plan;
pub mod registry;
pub mod schema;
pub mod tensor;
mod verify;

pub use autobwd_macros::register_op;
pub use backward::{Backward, Gradients, append_backward, append_backward_in, gradients, gradients_in};
pub use build::{Arg, Builder, Expr, New, emit};
pub use cx::{Cx, Mat, Product};
pub use desc::{
    Args, Attr, Attrs, Block, BlockId, Name, OpDesc, Origin, Program, Site, Slots, Var, VarDesc, VarKind,
};
pub use error::{Error, ErrorKind, Result};
pub use exec::{Executor, Scope, Session};
pub use grad::{GradCx, GradKind, GradRule, NoGrad, ZeroGrad};
pub use lanes::Float;
pub use registry::{OpInfo, OpInfoMap};
pub use schema::{
    Arity, AttrDef, AttrType, AttrValue, Describe, Infer, Kernel, Lanes, Op, Pointwise, Role, Schema, Slot,
    SlotDef,
};
pub use tensor::{Bool, Buf, DType, Dim, Dims, Element, InOut, Meta, Shape, Tensor};
pub use verify::{verify, verify_in};

/// What generated code calls. Not for people.
#[doc(hidden)]
pub mod __private {
    pub use crate::registry::OpInfo;
    pub use crate::schema::{
        above, at_least, at_most, attr, below, check_contract, gather_slot, put_input, put_output, put_values,
    };
    pub use inventory;
}
