//! A framework for operators declared as annotated structs, programs of operators, automatic differentiation and
//! execution.
//!
//! This page shows in order how to describe a model, run it, differentiate it, train it, and write an operator. The
//! operators themselves live in crates of their own: `autobwd_ops`, or yours.
//!
//! # Describing a model
//!
//! A [`Builder`] collects a [`Program`]: blocks, variables and operators as plain data, which prints, compares and
//! saves. Expressions append operators to it and check dtypes and shapes immediately; −1 is a dynamic dimension.
//!
//! ```
//! use autobwd::{Builder, DType};
//! use autobwd_ops::Math;
//!
//! let net = Builder::new();
//! let x = net.input("x", DType::F32, &[-1, 3]);
//! let y = x.square() + 1.0;
//! assert_eq!(y.to_string(), "scale_0: float32 [-1, 3]");
//! // An expression that cannot be built holds the error, and its program is withheld.
//! x.matmul(&x.reshape(&[5, -1])).relu();
//! let e = net.program().unwrap_err();
//! assert!(e.to_string().contains("operator `matmul_v2`"), "{e}");
//! ```
//!
//! # Running it
//!
//! An [`Executor`] plans a program for the shapes of its feeds and runs the operators that the fetches need. For loops,
//! a [`Session`] is such a plan with its memory: running it allocates nothing, and its memory use is known before.
//!
//! ```
//! # use autobwd::{Builder, DType};
//! # use autobwd_ops::Math;
//! use autobwd::{Executor, Scope, Tensor};
//!
//! # let net = Builder::new();
//! # let x = net.input("x", DType::F32, &[-1, 3]);
//! let y = x.square() + 1.0;
//! let x = Tensor::from_vec([1, 3], vec![1.0_f32, 2.0, 3.0])?;
//! let fetched = Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&y.name()])?;
//! assert_eq!(fetched[0].slice::<f32>()?, [2.0, 5.0, 10.0]);
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! Arrays and views of [`ndarray`] can be fed directly ([`Feed`]), and a [`Tensor`] converts to and from an array
//! without a copy ([`Tensor::into_array`]).
//!
//! # Differentiating it
//!
//! [`append_backward`] appends the operators that compute the gradients of a loss with respect to all parameters, from
//! the gradient rules of the operators; [`gradients`] does so for any targets and inputs. The result lists parameters
//! without gradient, with the place where the path to the loss ends.
//!
//! ```
//! # use autobwd::{Builder, DType, Executor, Scope, Tensor};
//! # use autobwd_ops::{Init, Math};
//! use autobwd::{Backward, append_backward};
//!
//! let net = Builder::new();
//! let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
//! let unused = net.parameter("unused", DType::F32, &[2], |w| Init::Constant(0.0).emit(w, 0));
//! let loss = w.square().mean();
//! let found = net.edit(|program| append_backward(program, "mean_0", &Backward::default()))?;
//! assert_eq!(found.missing[0].to_string(), "`unused` has no gradient: no path leads from it to `mean_0`");
//! assert!(net.program()?.to_string().contains("w@GRAD = square_grad(Out@GRAD=square_0@GRAD, X=w)"));
//!
//! // The start-up program initialises the parameters in a scope, which keeps them.
//! let (mut executor, mut scope) = (Executor::new(), Scope::new());
//! executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
//! let fetched = executor.run(&net.program()?, &mut scope, &[], &["w@GRAD"])?;
//! assert_eq!(fetched[0].slice::<f32>()?, [3.0, 3.0]);
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! Gradients have gradients: [`backward::hessian_vector_product`] and [`backward::jacobian`] combine several backward
//! passes.
//!
//! Optimizers (`autobwd_ops::optim`) call `append_backward` and append the updates:
//! `Sgd { rate: 0.1 }.minimize(&loss)?.complete()?`.
//!
//! # Eager mode
//!
//! Functions and layers work the same in both modes: with an [`eager`] builder, expressions are values on a tape, and
//! [`Expr::backward`] accumulates gradients into every leaf that a value depends on. See [`tape`].
//!
//! ```
//! # use autobwd_ops::{Init, Math};
//! # use autobwd::DType;
//! let tape = autobwd::eager();
//! let w = tape.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
//! let loss = w.square().mean();
//! assert_eq!(loss.item()?, 9.0);
//! loss.backward()?;
//! assert_eq!(w.gradient()?.tensor()?.slice::<f32>()?, [3.0, 3.0]);
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # Inspecting a program
//!
//! A program prints one line per operator. [`explain`] says how a gradient is computed, or why there is none;
//! [`Gradients::report`](backward::Gradients::report) does so for all requested gradients. [`program::diff`] compares
//! two programs, and [`Program::to_dot`] and [`Program::to_mermaid`] draw one. All of these also work on programs read
//! from files.
//!
//! ```
//! # use autobwd::{Builder, DType};
//! # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
//! use autobwd::{program::diff, explain};
//!
//! let net = Builder::new();
//! let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
//! let loss = (&w * &w).mean();
//! let model = net.program()?.clone();
//! Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
//!
//! let story = explain(&*net.program()?, "w@GRAD")?;
//! assert!(story.contains("operator 5: w@GRAD = sum\n    sums 2 contributions to the gradient of `w`"));
//! let added = diff(&model, &*net.program()?).to_string();
//! assert!(added.contains("  + operator 6: w = sgd(Grad=w@GRAD, LearningRate=learning_rate_0, Param=w)"));
//! assert!(net.program()?.to_mermaid().starts_with("flowchart TD")); // the picture of a training step
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # Writing an operator
//!
//! An operator is one struct, generic over the content of its slots, annotated with [`#[register_op]`](register_op).
//! `Cube` (short for `Cube<Var>`) describes the operator; an elementwise one only needs its formula in addition, which
//! is compiled for `f32` and `f64` and for every instruction set, and fused with its neighbours.
//!
//! ```standalone_crate
//! use autobwd::{Expr, Float, New, NoGrad, Pointwise, Result, Var, emit, register_op};
//!
//! /// `out = x³`
//! #[register_op(grad = CubeGrad, pointwise)]
//! pub struct Cube<V = Var> {
//!     /// Any shape.
//!     #[input]
//!     pub x: V,
//!     /// Same shape as `x`.
//!     #[output(inplace = x)]
//!     pub out: V,
//! }
//! impl<F: Float> Pointwise for Cube<F> {
//!     fn eval(&mut self) {
//!         self.out = self.x * self.x * self.x;
//!     }
//! }
//!
//! /// `dx = dout * 3 * x²`
//! #[register_op(grad = NoGrad, pointwise)]
//! pub struct CubeGrad<V = Var> {
//!     /// Input of the forward operator.
//!     #[input]
//!     pub x: V,
//!     /// Gradient of its output.
//!     #[input("Out@GRAD")]
//!     pub dout: V,
//!     /// Gradient of its input.
//!     #[output("X@GRAD", inplace = dout)]
//!     pub dx: V,
//! }
//! impl<F: Float> Pointwise for CubeGrad<F> {
//!     fn eval(&mut self) {
//!         self.dx = self.dout * 3.0 * self.x * self.x;
//!     }
//! }
//!
//! /// The function for users.
//! pub fn cube(x: &Expr) -> Expr {
//!     emit(Cube { x: x.into(), out: New }).out
//! }
//!
//! // Its samples, and the check of its gradient against central differences.
//! use autobwd::check::{check_sample, out, samples, uniform};
//! autobwd::samples!(Cube, [Cube { x: uniform([2, 3]), out: out() }]);
//! assert_eq!(check_sample(&samples()[0])?.elements, 6);
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! The compiler checks that the slots of a gradient operator match its forward operator. A gradient composed of several
//! operators is a rule ([`GradRule`]); an operator that is not elementwise has a shape rule ([`Infer`]) and a kernel
//! ([`Kernel`]).
//!
//! # Nets
//!
//! The older form of a model is a tree of operators, nets and step nets over time, whose gradient is a tree again:
//! [`net`].
//!
//! # The available operators
//!
//! [`OpInfoMap::linked`] holds the operators of all crates that a binary links. Cargo does not link a crate that is
//! only named in `Cargo.toml`: a binary that only loads programs writes `use autobwd_ops as _;`. A build with
//! `AUTOBWD_OPERATORS` links the operators that it names, such as the operators of [`OpInfoMap::used`], and no others. To
//! use other operators, pass a map: [`Backward::ops`], [`backward::GradientOptions::ops`], [`OpInfoMap::verify`],
//! [`Executor::with_ops`], [`Builder::with_ops`].
//!
//! An [`OpInfo`](op::OpInfo) prints the reference of its operator, and [`OpInfoMap::gradient_ops`] gives the gradient operators of
//! one operator as descriptions.
//!
//! # Errors
//!
//! Every fallible function returns [`Error`]: a kind, a message, and, if an operator failed, the operator with its
//! variables and the source line that added it ([`Error::op`](program::OpContext)). Expressions carry their errors, so
//! model code needs no `?`; consumers of the model ([`Builder::program`], [`Expr::backward`], [`Expr::item`], …) report
//! the first error ([`Expr`]). Nothing panics on bad input. NaN and infinities are an error only with
//! [`Executor::check_finite`].
//!
//! # Spans
//!
//! With the feature `tracing`, subscribers of the crate `tracing` see spans of what takes long: `load_program`,
//! `load_tensors`, `save_tensors`, `verify`, `append_backward`, `gradients`, `plan`, `prepare`, `run` of a session,
//! `save_checkpoint` and `load_checkpoint`, at the level of debugging. A checkpoint or log of another version of the
//! arithmetic is an event, a warning. Without the feature, the library has no code for them.
//!
//! The operators of a run have no spans, which would cost more than many of them: [`Session::trace`] and
//! [`Session::profile`] measure them.
//!
#![cfg_attr(feature = "tracing", doc = "```")]
#![cfg_attr(not(feature = "tracing"), doc = "```ignore")]
//! # use autobwd::{Builder, DType, Executor, Scope, Tensor};
//! # use autobwd_ops::Math;
//! use tracing_subscriber::fmt::format::FmtSpan;
//!
//! # let net = Builder::new();
//! # let y = net.input("x", DType::F32, &[-1]).square();
//! # let x = Tensor::from_vec([2], vec![1.0_f32, 2.0])?;
//! // Prints each span with its duration: "run{instructions=1}: autobwd_exec::session: close time.busy=2.31µs …".
//! let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
//! let subscriber = subscriber.with_span_events(FmtSpan::CLOSE).finish();
//! tracing::subscriber::with_default(subscriber, || {
//!     Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&y.name()])
//! })?;
//! # Ok::<(), autobwd::Error>(())
//! ```

#[doc(inline)]
pub use autobwd_backward as backward;
#[doc(inline)]
pub use autobwd_backward::{Backward, append_backward, explain, gradients};
#[doc(inline)]
pub use autobwd_check as check;
pub use autobwd_check::check_all;
/// The `ndarray` crate in the version used here: tensors convert to and from its arrays, and kernels get its views.
pub use autobwd_core::ndarray;
/// The operators that the library itself emits or recognises.
pub use autobwd_core::operators;
#[doc(hidden)]
pub use autobwd_core::{__private, __submit_samples};
#[doc(inline)]
pub use autobwd_core::{
    Arg, Attr, Attrs, BlockId, Buf, Builder, Composed, Composition, Cx, DType, Derived, Dims, Error,
    ErrorKind, Expr, Float, GradCx, GradRule, Infer, Kernel, Meta, Multilinear, New, NoGrad, OpDesc,
    OpInfoMap, Pointwise, Program, Result, Tensor, Var, VarDesc, ZeroGrad, emit, register_op, samples,
    verify,
};
#[doc(inline)]
pub use autobwd_eager as tape;
#[doc(inline)]
pub use autobwd_eager::eager;
#[doc(inline)]
pub use autobwd_exec::{Executor, Feed, Scope, Session};
#[doc(inline)]
pub use autobwd_net as net;
#[doc(inline)]
pub use autobwd_parallel as parallel;
#[doc(inline)]
pub use autobwd_viewer as viewer;

/// Execution of programs, reports of their plans, and records of runs.
pub mod exec {
    #[doc(inline)]
    pub use autobwd_core::ARITHMETIC_VERSION;
    #[doc(inline)]
    pub use autobwd_exec::{
        Checkpoint, Executor, Feed, LEARNING_RATE, LoadReport, MemoryUse, MismatchedValue, Monitor,
        ObservedOp, ObservedValue, Observer, PlannedRun, Predictor, RunTrace, SCHEDULE_STEP, Scope, Session,
        ValueRange,
    };
    #[doc(inline)]
    pub use autobwd_plan::{PlanReport, PlannedBuffer, PlannedInstruction};
    #[doc(inline)]
    pub use autobwd_record as record;
}

/// Programs as data: blocks, operators and variables, and the builders and expressions that create them.
pub mod program {
    #[doc(inline)]
    pub use autobwd_core::{
        Arg, Attr, AttrMap, Block, BlockId, Builder, Diff, Expr, Name, NameScopeGuard, New, OpContext,
        OpDesc, OpKey, Origin, Program, ProgramSignature, ProgramSnapshot, SignatureEntry, Site, SiteGuard,
        SlotVars, Slots, Transaction, Var, VarDesc, VarKind, Vars, diff, emit, verify,
    };
}

/// Tensors: dtypes, shapes, values, and the views that kernels get.
pub mod tensor {
    /// The 16-bit elements, of the crate `half`.
    #[doc(no_inline)]
    pub use autobwd_core::half::{bf16, f16};
    #[doc(inline)]
    pub use autobwd_core::tensor::{
        Bool, Buf, DType, Dim, Dims, Element, InOut, Meta, OptionalBuf, Rows, Shape, Tensor, TensorArray,
        TensorReader, check_writable, load_tensors, open_file, read_bounded, read_file, save_tensors,
        write_atomically,
    };
}

/// Items for authors of operators: slots and attributes, shape rules, kernels and formulas, gradient rules, the
/// registry.
pub mod op {
    // Compiler errors name it.
    #[doc(hidden)]
    pub use autobwd_core::schema::gather_slot;
    #[doc(inline)]
    pub use autobwd_core::{
        AnyRule, Arity, AttrBound, AttrDef, AttrType, AttrValue, Attrs, BlockCall, BoundKind, CHANNEL_BLOCK,
        CarriedInit, CarriedValue, Composed, Composition, Control, Cost, Cx, Decompose, DepthwiseProducts,
        Derived, DerivedFromInputs, Describe, DividedMat, Factor, Float, GemmElement, GradBlock, GradCx,
        GradRule, GradientOps, Infer, Integer, IntegerLanes, Kernel, LaneOf, Lanes, Levels, Mat, Multilinear,
        NoGrad, Op, OpInfo, OpInfoMap, Parts, Peephole, Pointwise, PointwiseInteger, QuantizedMat, Role,
        Rule, Rules, Schema, ScratchDef, SelfAdjoint, Slot, SlotDef, SlotValues, StepCount, Strided,
        SubmatrixMut, VectorLoops, Vectorised, WindowAxis, WindowProducts, ZeroGrad, attr_enum, fold_lanes,
        interleave_channels, map_fold_lanes, map_lanes, register_op, separate_channels, with_dtype,
        with_factor, with_float, with_signed,
    };
    #[doc(inline)]
    pub use autobwd_core::{
        lanes::{Formula, Isa, isa},
        numbers::{Dual, FormulaFunction, FormulaNode, SelectMask, Symbol, UseSelectMaxOrMin},
        op::{Derivative, GradKind, Meaning, Order},
    };
}

/// Items for model code: `use autobwd::prelude::*;`.
pub mod prelude {
    #[doc(no_inline)]
    pub use crate::{
        Backward, Builder, DType, Error, Executor, Expr, Feed, Program, Result, Scope, Session, Tensor,
        append_backward, eager, explain, gradients, viewer::ToHtml,
    };
}
