//! The core of autobwd: the definition of an operator, programs as data, and the builder that turns expressions into
//! programs. Operator crates need this package only; the other packages of autobwd build on it.
//!
//! Users reach all packages through the facade, `autobwd`, which documents them. An operator crate that is to be built
//! against this package alone has `extern crate autobwd_core as autobwd;` in its `lib.rs`.
//!
//! The facade exports the public interface. Other public items of this package are for the other packages of autobwd,
//! and may change with any version.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "results are compared with the system's"))]

extern crate self as autobwd;

mod arith;
mod arithmetic;
mod checksum;
pub mod composition;
mod debug;
pub mod desc;
mod error;
pub mod graph_builder;
mod internals;
pub mod lanes;
pub mod numbers;
mod obstacles;
pub mod op;
pub mod operators;
pub mod runtime;
pub mod sample;
pub mod schema;
mod spans;
pub mod tensor;
pub mod verify;

pub use arithmetic::ARITHMETIC_VERSION;
pub use autobwd_macros::{Attrs, register_op};
pub use composition::{AnyRule, Composed, Composition, Rule, Rules};
pub use desc::{
    Attr, AttrMap, Block, BlockId, Diff, Name, OpDesc, OpKey, Origin, Program, ProgramSignature,
    SignatureEntry, Site, SlotVars, Slots, Var, VarDesc, VarKind, Vars, diff,
};
pub use error::{Error, ErrorKind, OpContext, Result};
pub use graph_builder::{
    Arg, Builder, Expr, NameScopeGuard, New, ProgramSnapshot, SiteGuard, Transaction, Value, emit,
};
/// The version of `half` that this crate uses, with the 16-bit elements [`f16`](half::f16) and [`bf16`](half::bf16).
pub use half;
pub use lanes::{LaneOf, VectorLoops, Vectorised, fold_lanes, map_fold_lanes, map_lanes};
/// The version of `ndarray` that this crate uses for conversions to and from tensors and for the views that kernels
/// get.
pub use ndarray;
pub use numbers::{Float, Integer};
pub use op::{
    Decompose, Derived, DerivedFromInputs, Describe, GradBlock, GradCx, GradKind, GradRule, GradientOps,
    NoGrad, Op, OpInfo, OpInfoMap, Parts, Peephole, ZeroGrad,
};
pub use operators::{Multilinear, SelfAdjoint};
pub use runtime::{
    CHANNEL_BLOCK, Cx, DepthwiseProducts, DividedMat, Factor, GemmElement, Levels, Mat, QuantizedMat,
    Strided, SubmatrixMut, Transport, WindowAxis, WindowProducts, interleave_channels, separate_channels,
};
pub use schema::{
    Arity, AttrBound, AttrDef, AttrType, AttrValue, Attrs, BlockCall, BoundKind, CarriedInit, CarriedValue,
    Control, Cost, Infer, IntegerLanes, Kernel, Lanes, Pointwise, PointwiseInteger, Role, Schema, ScratchDef,
    Slot, SlotDef, SlotValues, StepCount,
};
pub use tensor::{
    Bool, Buf, DType, Dim, Dims, Element, InOut, Meta, OptionalBuf, Rows, Shape, Tensor, TensorArray,
};
pub use verify::verify;
#[doc(hidden)]
pub mod __private {
    /// Traits with what the packages of autobwd call on public types.
    pub mod internals {
        pub use crate::internals::*;
    }

    pub use crate::composition::nesting::within as within_composition;
    pub use crate::desc::initialisers::Initialisers;
    pub use crate::error::did_you_mean;
    pub use crate::graph_builder::append::{DescribeFn, OpArgs};
    pub use crate::graph_builder::engine::{Engine, PreparedOp};
    pub use crate::graph_builder::function::{FunctionCall, describe_function};
    pub use crate::graph_builder::value::{
        MemoryGuard, NodeOrigin, OpCall, SourceValue, TapeNode, ValueSettings,
    };
    pub use crate::lanes::broadcast::{aligned, broadcast_axis, broadcast_dims};
    pub use crate::lanes::broadcast_map::BroadcastMap;
    pub use crate::lanes::formula_space::FormulaSpace;
    pub use crate::lanes::fused_kernel::{FusedKernel, FusedKernelSpec, FusedOp, OperandLocation};
    pub use crate::lanes::fused_kernels::FusedKernels;
    pub use crate::lanes::half_copy::copy_converted;
    pub use crate::lanes::scalar_path::FormulaCall;
    pub use crate::obstacles::Obstacles;
    pub use crate::op::backward_ops::check_emitted;
    pub use crate::op::decompose::Decomposition;
    pub use crate::op::gradient_ops::OperatorGradients;
    pub use crate::op::impl_probe::{ImplDefaults, ImplProbe};
    pub use crate::op::op_sequence::{CompositionEntry, LoopForm, OpSequence, OpSequenceFn, SequenceInput};
    pub use crate::op::registry::{Implementation, LeftOut, Lookup, ShapeCache};
    pub use crate::op::rule::{DeclaredVars, GradRequest};
    pub use crate::runtime::scratch::ScratchUse;
    pub use crate::runtime::worker_spans::{WorkerSpan, record_worker_spans};
    pub use crate::tensor::array::{SavedStep, SavedSteps, ValueCell};
    pub use crate::tensor::densify::dense_bytes;
    pub use crate::tensor::half_float::HalfFloat;
    pub use crate::tensor::memory::{
        AccessMode, Arena, Binder, Lease, Memory, Place, bytes_of, bytes_of_mut, dimension,
        return_freed_memory,
    };
    pub use crate::tensor::shape::MAX_CONSTANT;
    pub use crate::tensor::value::add_up;

    pub use crate::lanes::Lane;

    pub use crate::op::{
        OpInfo, check_bounds, check_composed, check_contract, check_inferred, check_multilinear, check_names,
        check_self_adjoint, refuse_unused,
    };
    pub use crate::schema::{
        AttrCheck, AttrRecorder, attr, check_attr, check_slot, check_value, concat_attrs, debug_struct,
        gather_slot, inherit_attr, inherit_slot, put_values, same_as, slot_name, slot_name_len,
        visit_scratch,
    };

    pub use crate::{
        Attr, AttrBound, AttrDef, AttrType, AttrValue, Attrs, BoundKind, Buf, Control, Decompose, Describe,
        Expr, Float, GradCx, GradRule, Infer, Integer, IntegerLanes, Kernel, Lanes, Meta, NoGrad, Op, OpDesc,
        Pointwise, PointwiseInteger, Result, Role, Schema, ScratchDef, Slot, SlotDef, SlotValues, Var,
    };
    pub use inventory;
    #[cfg(feature = "tracing")]
    pub use tracing;

    pub use crate::{__span as span, __warn as warn};
}
