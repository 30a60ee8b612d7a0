//! Operators: the traits that `#[register_op]` implements, gradient rules, and the operator registry.
//!
//! Must not know programs as a whole: relevance, accumulation and pruning belong to the backward pass.
//!
//! An operator is one struct, generic over the content of its slots: variables in a description, dtypes and shapes in
//! the shape rule, buffers in the kernel, lanes in a formula, expressions in a composition, random distributions in a
//! sample. Three generated conversions connect these forms. `Op::read` builds the struct from data, without slot
//! values, `Describe::into_parts` takes the slot values out and records the attributes, and `Op::fill` puts slot values
//! in.

pub(crate) mod backward_ops;
mod contract;
pub(crate) mod decompose;
mod derived;
pub(crate) mod gradient_ops;
pub(crate) mod impl_probe;
pub(crate) mod op_sequence;
pub(crate) mod peephole;
pub(crate) mod registry;
pub(crate) mod rule;
mod shape_rules;

pub(crate) use backward_ops::check_emitted;
pub(crate) use backward_ops::forward_op;
pub use contract::{check_bounds, check_contract, check_names};
pub(crate) use decompose::Decomposition;
pub use decompose::{Decompose, Parts};
pub use derived::{
    Derivative, Derived, DerivedFromInputs, FirstOrder, FirstOrderFromInputs, Order, SecondOrder, ThirdOrder,
};
pub use gradient_ops::GradientOps;
pub(crate) use impl_probe::ImplProbe;
pub use impl_probe::{check_composed, check_inferred, check_multilinear, check_self_adjoint, refuse_unused};
pub(crate) use impl_probe::{linear_input, unread_input};
pub(crate) use op_sequence::{CompositionEntry, LoopForm, OpSequence, OpSequenceFn, SequenceInput};
pub use peephole::Peephole;
pub(crate) use peephole::{PeepholeEntry, PeepholeFn};
pub(crate) use registry::{Lookup, ShapeCache};
pub use registry::{Meaning, OpInfo, OpInfoMap};
pub(crate) use rule::sorted;
pub(crate) use rule::{DeclaredVars, GradRequest};
pub use rule::{GradBlock, GradCx, GradKind, GradRule, NoGrad, ZeroGrad};
pub use shape_rules::{check_grad, same_count};

use smallvec::SmallVec;

use crate::{
    OpDesc, Result, Role, Schema, SlotValues, Var,
    schema::{keep, take_in_order},
};

/// An operator. [`register_op`](crate::register_op) implements it for the description `Mul<Var>`, which is the meaning
/// of plain `Mul`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operator",
    label = "expected a `#[register_op]` struct"
)]
pub trait Op: Sized + 'static + Describe<Var, Op = Self> {
    /// Slots, attributes and their source locations.
    const SCHEMA: Schema;
    /// Its gradient rule.
    type Grad: GradRule<Self>;
    /// The same struct with other slot values.
    type Of<W>: Describe<W, Op = Self>;

    /// Reads the operator without slot values: attributes are parsed and checked, and `visit` receives the variables in
    /// the order in which [`fill`](Op::fill) asks for values. Scratch memory is visited as an output with the field's
    /// name and without a variable, [`Var::EMPTY`].
    ///
    /// # Errors
    /// A slot with the wrong number of variables; a missing or invalid attribute; an error of `visit`.
    fn read(
        desc: &OpDesc,
        visit: &mut dyn FnMut(Role, &'static str, Var) -> Result<()>,
    ) -> Result<Self::Of<()>>;

    /// Builds the operator with any slot values: `fill` supplies them, attributes are parsed and checked from `desc`.
    ///
    /// # Errors
    /// As [`read`](Op::read), with the errors of `fill`.
    fn from_desc_with<W>(
        desc: &OpDesc,
        fill: &mut dyn FnMut(Role, &'static str, Var) -> Result<W>,
    ) -> Result<Self::Of<W>> {
        let mut values = SmallVec::<[W; 4]>::new();
        let op = Self::read(desc, &mut keep(&mut values, fill))?;
        Ok(Self::fill(op, &mut take_in_order(&mut values)))
    }

    /// Reads the operator from its description.
    ///
    /// # Errors
    /// As [`read`](Op::read).
    fn from_desc(desc: &OpDesc) -> Result<Self>;

    /// The same operator with slot values from `fill`: first in the order of its fields, then for scratch memory.
    fn fill<W>(of: Self::Of<()>, fill: &mut dyn FnMut() -> W) -> Self::Of<W>;

    /// Yields the outputs: the index of the slot in the schema, and its value.
    fn outputs<W>(of: Self::Of<W>, put: &mut dyn FnMut(usize, W));
}

/// Conversion of an operator's struct to data, for any slot values. Implemented by [`register_op`](crate::register_op).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operator with `{W}` in its slots",
    label = "expected a `#[register_op]` struct"
)]
pub trait Describe<W>: Sized {
    /// The operator.
    type Op: Op;

    /// Moves the slot values into `to` and records the attributes there.
    fn into_parts(self, to: &mut SlotValues<W>) -> <Self::Op as Op>::Of<()>;

    /// The operator as data: `name` maps a slot value to its variable.
    ///
    /// # Errors
    /// The errors of `name`.
    fn describe(self, name: &mut dyn FnMut(Role, &'static str, W) -> Result<Var>) -> Result<OpDesc> {
        let mut content = SlotValues::new(Self::Op::SCHEMA.name, true);
        self.into_parts(&mut content);
        content.describe(name)
    }
}

impl<D: Describe<Var>> From<D> for OpDesc {
    fn from(op: D) -> OpDesc {
        match op.describe(&mut |_, _, var| Ok(var)) {
            Ok(desc) => desc,
            // Unreachable: only the closure above could fail.
            Err(_) => OpDesc::new(D::Op::SCHEMA.name),
        }
    }
}

impl OpDesc {
    /// Whether it describes an operator of this type: `op.is::<Assign>()`.
    #[inline]
    pub fn is<O: Op>(&self) -> bool {
        self.ty == O::SCHEMA.name
    }

    /// The operator with its variables and attributes as fields, if it has this type and its slots are valid.
    ///
    /// ```
    /// use autobwd::{OpDesc, Var, operators::Scale};
    ///
    /// let op = OpDesc::from(Scale { x: Var::EMPTY, out: Var::EMPTY, scale: 2.0, bias: 0.0, bias_after_scale: true });
    /// assert!(op.is::<Scale>() && op.as_op::<Scale>().is_none()); // an input is absent
    /// ```
    pub fn as_op<O: Op>(&self) -> Option<O> {
        if self.is::<O>() { O::from_desc(self).ok() } else { None }
    }
}
