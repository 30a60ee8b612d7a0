//! What the other packages of autobwd call on public types, and users do not.
//!
//! The methods are private to this package. A trait for each type passes them on to packages that import it from
//! `__private`. They are documented where they are written, and named as there.
#![allow(missing_docs, clippy::new_ret_no_self)]

use std::{fmt::Display, panic::Location, rc::Rc, sync::Arc};

use rand::Rng;
use rustc_hash::FxHashMap;

use crate::{
    BlockCall, BlockId, Buf, Builder, Cx, DType, Error, Expr, Meta, OpContext, OpDesc, OpInfo, OpInfoMap,
    OpKey, Program, Result, Slots, Tensor, Value, Var, VarDesc,
    graph_builder::{
        append::{DescribeFn, OpArgs},
        engine::Engine,
        value::TapeNode,
    },
    lanes::LaneEntry,
    op::{
        Decomposition, PeepholeFn,
        registry::{Implementation, MetaOf, PutMeta},
        rule::GradRequest,
    },
    runtime::scratch::ScratchUse,
    sample::{Draw, Sample},
    tensor::{Shape, array::ValueCell, memory::Memory},
};

/// A trait for a type: each method calls the method of this name of the type itself.
macro_rules! internals {
    ($($trait:ident for $ty:ty { $($methods:tt)* })*) => {$(
        pub trait $trait: Sized {
            internals!(@declare $($methods)*);
        }
        impl $trait for $ty {
            internals!(@call $ty; $($methods)*);
        }
    )*};
    (@declare $(fn $name:ident $(<$($generic:tt),*>)? ($($arg:tt)*) $(-> $result:ty)?;)*) => {
        $(fn $name $(<$($generic),*>)? ($($arg)*) $(-> $result)?;)*
    };
    (@call $ty:ty;) => {};
    (@call $ty:ty; fn $name:ident $(<$($generic:tt),*>)? (&$this:ident $(, $arg:ident: $of:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name $(<$($generic),*>)? (&$this $(, $arg: $of)*) $(-> $result)? { <$ty>::$name($this $(, $arg)*) }
        internals!(@call $ty; $($rest)*);
    };
    (@call $ty:ty; fn $name:ident $(<$($generic:tt),*>)? (&mut $this:ident $(, $arg:ident: $of:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name $(<$($generic),*>)? (&mut $this $(, $arg: $of)*) $(-> $result)? { <$ty>::$name($this $(, $arg)*) }
        internals!(@call $ty; $($rest)*);
    };
    (@call $ty:ty; fn $name:ident (self $(, $arg:ident: $of:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name(self $(, $arg: $of)*) $(-> $result)? { <$ty>::$name(self $(, $arg)*) }
        internals!(@call $ty; $($rest)*);
    };
    (@call $ty:ty; fn $name:ident ($($arg:ident: $of:ty),*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name($($arg: $of),*) $(-> $result)? { <$ty>::$name($($arg),*) }
        internals!(@call $ty; $($rest)*);
    };
}

internals! {
    BlockCallInternals for BlockCall {
        fn faults(&self, op: &OpDesc, program: &Program) -> Vec<Error>;
        fn replay(&self) -> BlockCall;
    }
    BufInternals for Buf<'_> {
        fn cell(&self) -> Result<&Arc<ValueCell>>;
        fn check_decided(&self) -> Result<()>;
        fn check_rows(&self) -> Result<()>;
        fn copy_part(&self, index: usize, memory: &mut Memory, at: usize) -> Result<()>;
        fn copy_whole(&self, memory: &mut Memory, at: usize) -> Result<()>;
        fn decided_dims(&self) -> Option<Shape>;
        fn to_tensor(&self) -> Result<Tensor>;
        fn undecide(&mut self);
        fn write_whole(&mut self, x: &Buf<'_>) -> Result<()>;
    }
    BuilderInternals for Builder {
        fn append_args(
            &self,
            args: &mut OpArgs,
            key: &mut OpKey,
            op: &str,
            at: &'static Location<'static>,
            desc: DescribeFn<'_>
        ) -> Result<()>;
        fn engine(&self) -> Option<&dyn Engine>;
        fn recording<T>(&self, on: bool, function: impl FnOnce() -> T) -> T;
        fn with_engine(engine: Rc<dyn Engine>, ops: Option<OpInfoMap>) -> Builder;
    }
    CxInternals for Cx {
        fn reserve(&self, bytes: usize) -> Result<usize>;
        fn watch_scratch(&self, bytes: usize, fill: u8) -> Result<()>;
        fn watched_scratch(&self) -> ScratchUse;
    }
    DrawInternals for Draw {
        fn dims(&self) -> &[usize];
        fn dtype(&self, float: DType) -> DType;
        fn is_of_any_sign(&self) -> bool;
        fn is_of_float(&self) -> bool;
        fn is_output(&self) -> bool;
        fn same_domain(&self, other: &Draw) -> bool;
        fn tensor(&self, float: DType, rng: &mut impl Rng) -> Result<Tensor>;
    }
    ErrorInternals for Error {
        fn at_op(self, op: impl FnOnce() -> OpContext) -> Error;
        fn internal(message: impl Display) -> Error;
    }
    ExprInternals for Expr {
        fn eager_value(&self) -> Option<&Value>;
        fn of_value(builder: &Builder, value: Value) -> Expr;
        fn seed(&self, given: Option<&Value>) -> Result<Value>;
        fn value(&self) -> Result<&Value>;
        fn with_history(&self) -> Result<&Value>;
    }
    MetaInternals for Meta {
        fn is_decided(&self) -> bool;
        fn in_slot(self, slot: &'static str) -> Meta;
        fn scopes() -> Meta;
        fn small(&self) -> Result<()>;
        fn with_constant(self, constant: Option<Arc<[f64]>>) -> Meta;
    }
    OpContextInternals for OpContext {
        fn at(self, block: usize, index: usize) -> OpContext;
        fn called(kind: &str, ty: &str, call: &str, site: &Location<'_>, slots: &[String]) -> OpContext;
        fn new(kind: &str, ty: &str) -> OpContext;
        fn push<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>);
    }
    OpInfoInternals for OpInfo {
        fn call(&self, desc: &OpDesc, program: &Program) -> Result<Option<BlockCall>>;
        fn decompose(&self, desc: &OpDesc, meta: &dyn Fn(Var) -> Option<Meta>) -> Result<Decomposition>;
        fn emit_grad(&self, request: GradRequest<'_>) -> Result<Vec<Var>>;
        fn infer_checked(&self, desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<()>;
        fn lanes(&self) -> Option<&LaneEntry>;
        fn reads_slot(&self, desc: &OpDesc, slot: &str) -> Result<bool>;
        fn run(&self) -> Implementation;
    }
    OpInfoMapInternals for OpInfoMap {
        fn composed(
            &self,
            op: &OpDesc,
            meta: &dyn Fn(Var) -> Option<Meta>,
            fresh: &mut dyn FnMut(&str) -> Var
        ) -> Result<Vec<OpDesc>>;
        fn forward_of(&self, gradient: &str) -> Option<&'static OpInfo>;
        fn peepholes(&self) -> &FxHashMap<(&'static str, &'static str), PeepholeFn>;
    }
    ProgramInternals for Program {
        fn check_declared(&self, block: BlockId, written: &[(Var, Meta)]) -> Result<()>;
        fn check_outer_writes(&self, block: BlockId, outlast: &[Var]) -> Vec<Error>;
        fn describe_at(&self, place: &str, op: &OpDesc) -> OpContext;
        fn forget_names(&mut self, count: usize);
        fn fresh_var(&mut self, prefix: &str) -> Var;
        fn gradient_var(&mut self, var: Var) -> Var;
        fn is_loaded(&self) -> bool;
        fn is_verified(&self) -> bool;
        fn stamp(&self) -> u64;
        fn truncate_blocks(&mut self, count: usize);
    }
    SampleInternals for Sample {
        fn resized(&self, from: usize, to: usize) -> Option<Sample>;
    }
    SlotsInternals for Slots {
        fn fills_as(&self, other: &Slots) -> bool;
    }
    TensorInternals for Tensor {
        fn copy_of(memory: &Memory, at: usize, meta: &Meta) -> Result<Tensor>;
        fn into_memory(self) -> Result<Memory>;
        fn memory(&mut self) -> Result<&Memory>;
        fn memory_of(memory: &Memory, meta: &Meta) -> Result<Memory>;
        fn shared_memory(&self) -> Result<&Memory>;
    }
    ValueInternals for Value {
        fn has_settings(&self) -> bool;
        fn node(&self) -> &Arc<TapeNode>;
        fn of(node: Arc<TapeNode>, out: usize) -> Value;
    }
    VarInternals for Var {
        fn stand_in(k: usize) -> Var;
    }
    VarDescInternals for VarDesc {
        fn allows(&self, meta: &Meta) -> bool;
    }
}
