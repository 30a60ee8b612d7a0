//! Slots and attributes of operators, and the traits for shape rules, kernels and formulas.
//!
//! Must not know any registered operator, nor how programs run or are differentiated.

mod attr;
mod attr_def;
mod const_for;
mod const_lookup;
mod const_text;
mod control;
mod convert;
mod cost;
mod inherit;
mod slot;
mod slot_values;

pub use attr::{AttrType, AttrValue};
pub use attr_def::{AttrBound, AttrCheck, AttrDef, Attrs, BoundKind, attr, check_value, concat_attrs};
pub(crate) use const_for::const_for;
pub(crate) use const_lookup::{find_attr, find_slot, has_slot};
pub(crate) use const_text::{ConstText, Nearest, is_joined};
pub use control::{BlockCall, CarriedInit, CarriedValue, Control, StepCount};
pub(crate) use convert::check_described;
pub use convert::{gather_slot, put_values, same_as, visit_scratch};
pub(crate) use convert::{keep, take_in_order};
pub use cost::Cost;
pub use inherit::{check_attr, check_slot, inherit_attr, inherit_slot, slot_name, slot_name_len};
pub use slot::{Arity, Slot};
pub use slot_values::{AttrRecorder, SlotValues, debug_struct};

use crate::{
    Buf, Cx, Dim, OpDesc, Result, Var,
    numbers::{Float, Integer, Symbol},
};

/// The limit of slots in the declaration of a pointwise operator.
pub(crate) const MAX_SLOTS: usize = 16;

/// One slot of an operator.
#[derive(Clone, Copy, Debug)]
pub struct SlotDef {
    /// Name in programs.
    pub name: &'static str,
    /// Name of the field in the operator's struct; empty for a slot without a field.
    pub field: &'static str,
    /// The number of variables it takes.
    pub arity: Arity,
    /// For an input: only its shape is read, so its memory may be freed early.
    pub shape_only: bool,
    /// For an input: the shape rule reads its elements, which are known once the program is planned.
    pub constant: bool,
    /// For an input: it may be row-sparse.
    pub sparse: bool,
    /// For an input: its elements decide whether the kernel fails; elements of inputs without this mark never do, if
    /// the operator has an input with it.
    pub checked: bool,
    /// It may hold an array of tensors.
    pub array: bool,
    /// For an output: the input with which it may share memory.
    pub inplace: Option<&'static str>,
    /// For an output: the input whose dtype and shape it has; a formula sums contributions along broadcast dimensions.
    pub like: Option<&'static str>,
    /// First line of the field's documentation.
    pub doc: &'static str,
    /// Source line of the field.
    pub line: u32,
}

impl SlotDef {
    /// A slot without options.
    pub const fn new(name: &'static str, arity: Arity, doc: &'static str, line: u32) -> SlotDef {
        SlotDef {
            name,
            field: "",
            arity,
            shape_only: false,
            constant: false,
            sparse: false,
            checked: false,
            array: false,
            inplace: None,
            like: None,
            doc,
            line,
        }
    }

    /// Sets the field.
    pub const fn field(self, field: &'static str) -> SlotDef {
        SlotDef { field, ..self }
    }

    /// Sets `shape_only`.
    pub const fn shape_only(self) -> SlotDef {
        SlotDef { shape_only: true, ..self }
    }

    /// Sets `constant`: its elements are known from the plan on, so no memory is read.
    pub const fn constant(self) -> SlotDef {
        SlotDef { constant: true, shape_only: true, ..self }
    }

    /// Sets `sparse`.
    pub const fn sparse(self) -> SlotDef {
        SlotDef { sparse: true, ..self }
    }

    /// Sets `checked`.
    pub const fn checked(self) -> SlotDef {
        SlotDef { checked: true, ..self }
    }

    /// Sets `array`.
    pub const fn array(self) -> SlotDef {
        SlotDef { array: true, ..self }
    }

    /// Sets `inplace`.
    pub const fn inplace(self, input: &'static str) -> SlotDef {
        SlotDef { inplace: Some(input), ..self }
    }

    /// Sets `like`.
    pub const fn like(self, input: &'static str) -> SlotDef {
        SlotDef { like: Some(input), ..self }
    }
}

/// Scratch memory of an operator's kernel, `#[scratch(like = slot)]`.
#[derive(Clone, Copy, Debug)]
pub struct ScratchDef {
    /// Name of the field in the operator's struct.
    pub field: &'static str,
    /// The side of the slot whose dtype and shape it has.
    pub role: Role,
    /// The name of that slot in programs; it holds one variable.
    pub like: &'static str,
}

impl ScratchDef {
    /// Scratch memory in a field, with dtype and shape of a slot.
    pub const fn new(field: &'static str, role: Role, like: &'static str) -> ScratchDef {
        ScratchDef { field, role, like }
    }
}

/// The static description of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Operator type in programs.
    pub name: &'static str,
    /// Input slots.
    pub inputs: &'static [SlotDef],
    /// Output slots.
    pub outputs: &'static [SlotDef],
    /// Scratch memory of its kernel.
    pub scratch: &'static [ScratchDef],
    /// Attributes and sub-blocks.
    pub attrs: &'static [AttrDef],
    /// Whether it is defined by an elementwise formula.
    pub pointwise: bool,
    /// Whether the formula's inputs broadcast against each other.
    pub broadcast: bool,
    /// Whether there is also an integer formula.
    pub integers: bool,
    /// The struct's documentation.
    pub doc: &'static str,
    /// Source file of the struct.
    pub file: &'static str,
    /// Source line of the struct.
    pub line: u32,
}

impl Schema {
    /// Whether it belongs to a gradient operator: one of its inputs is a gradient.
    pub(crate) const fn is_gradient(&self) -> bool {
        const_for!(input in self.inputs => {
            if let Some(b"@GRAD") = input.name.as_bytes().last_chunk() {
                return true;
            }
        });
        false
    }

    /// The input slot of this name.
    pub fn input(&self, name: &str) -> Option<&'static SlotDef> {
        self.inputs.iter().find(|s| s.name == name)
    }

    /// The index of the input slot of this name.
    pub fn input_number(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|s| s.name == name)
    }

    /// The output slot of this name.
    pub fn output(&self, name: &str) -> Option<&'static SlotDef> {
        self.outputs.iter().find(|s| s.name == name)
    }

    /// A slot of its gradient operator with dtype and shape of this input: an output that is `like` it, or the gradient
    /// of one.
    pub(crate) const fn read_like(&self, input: &SlotDef, gradient: &Schema) -> Option<&'static str> {
        const_for!(read in gradient.inputs => {
            const_for!(output in self.outputs => {
                let is_it = is_joined(read.name, output.name, "") || is_joined(read.name, output.name, "@GRAD");
                if let (true, Arity::One, Some(like)) = (is_it, read.arity, output.like)
                    && is_joined(like, input.name, "")
                {
                    return Some(read.name);
                }
            });
        });
        None
    }

    /// The attribute of this name.
    pub fn attr(&self, name: &str) -> Option<&'static AttrDef> {
        self.attrs.iter().find(|a| a.name == name)
    }
}

/// The side of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator reads it.
    Input,
    /// The operator writes it.
    Output,
}

/// Supplies the `Buf` of a slot.
pub type BufOf<'a> = &'a mut dyn FnMut(Role, &'static str, Var) -> Result<Buf<'static>>;

/// The shape rule, written on `Mul<Meta>`: sets dtype and dimensions of the outputs, or rejects an input.
///
/// Dimensions may be unknown while a program is built; all are known when it is planned.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no shape rule",
    label = "this operator needs a shape rule",
    note = "write `impl Infer for {Self}`, or give the operator a formula with `#[register_op(.., pointwise)]`"
)]
pub trait Infer {
    /// Sets dtype and dimensions of the outputs.
    ///
    /// # Errors
    /// Inconsistent inputs or attributes.
    fn infer(&mut self) -> Result<()>;

    /// Floating point operations of one run, with a multiply-add as two; unknown while a dimension is. Called after
    /// [`infer`](Infer::infer). Worth implementing if they take longer than one pass over the slots, as in matrix
    /// products: they determine the [cost](crate::Cost) of recomputation.
    fn flops(&self) -> Dim {
        0.into()
    }
}

/// The kernel, written on `Mul<Buf<'_>>`: computes outputs from inputs, without a heap allocation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no kernel",
    label = "this operator needs a kernel",
    note = "write `impl Kernel for {Self}`, or give the operator a formula with `#[register_op(.., pointwise)]` or a composition with `#[register_op(.., composed)]`",
    note = "a formula with a `sparse` input also needs a kernel"
)]
pub trait Kernel {
    /// Computes the outputs.
    ///
    /// # Errors
    /// Data that the operator rejects (a label out of range, say); a dtype without kernel.
    fn run(&mut self, cx: &Cx) -> Result<()>;

    /// The number of bytes that [`run`](Kernel::run) requests from [`Cx::scratch`] with this many workers, known before
    /// it runs. Prefer to declare memory with the shape of a slot as a field with `#[scratch(like = ..)]`.
    fn scratch_bytes(&self, workers: usize) -> usize {
        let _ = workers;
        0
    }
}

/// The formula of an elementwise operator for one element, written on `Swish<F>` with `F: Float`. It replaces shape
/// rule and kernel, fuses with its neighbours and is compiled for every instruction set.
///
/// Inputs have one shape. With `broadcast`, they broadcast against each other as in NumPy; an input of lower rank is
/// aligned at the attribute `axis`, if the operator has one. Outputs declared `like = x` are summed to the shape of
/// `x`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no formula",
    label = "this operator is declared `pointwise`",
    note = "write `impl<F: Float> Pointwise for ..<F>`"
)]
pub trait Pointwise {
    /// Sets the outputs from the inputs.
    fn eval(&mut self);
}

/// The integer formula of an operator that is declared `pointwise, integers`, for one element of int32 or int64,
/// written on `Clip<I>` with `I: Integer`. Sums, differences and products wrap around; integers have no gradient.
///
/// ```standalone_crate
/// use autobwd::{Float, op::{Integer, PointwiseInteger}, NoGrad, Pointwise, Result, Var, register_op};
///
/// /// `out = by * x`
/// #[register_op(grad = NoGrad, pointwise, integers)]
/// pub struct Times<V = Var> {
///     /// Any shape.
///     #[input]
///     pub x: V,
///     /// Same shape as `x`.
///     #[output(inplace = x)]
///     pub out: V,
///     /// The factor.
///     #[attr]
///     pub by: f64,
/// }
/// impl<F: Float> Pointwise for Times<F> {
///     fn eval(&mut self) {
///         self.out = self.x * self.by;
///     }
/// }
/// impl<I: Integer> PointwiseInteger for Times<I> {
///     fn eval(&mut self) -> Result<()> {
///         self.out = I::of("by", self.by)? * self.x;
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no formula for integers",
    label = "this operator is declared `integers`",
    note = "write `impl<I: Integer> PointwiseInteger for ..<I>`"
)]
pub trait PointwiseInteger {
    /// Sets the output from the inputs.
    ///
    /// # Errors
    /// An attribute that is not an integer ([`Integer::of`]), which the shape rule detects by evaluating the formula
    /// once; an element without result (a division by 0), which is [`Error::data`](crate::Error::data).
    fn eval(&mut self) -> Result<()>;
}

/// Generated for pointwise operators: evaluates the formula on one lane.
///
/// No unsafe code relies on an implementation: an unknown slot reads as 0, and writes to one are dropped.
#[diagnostic::on_unimplemented(
    message = "the gradient of `{Self}` cannot be derived: it has no formula",
    label = "`grad = Derived` needs a formula",
    note = "add `pointwise` to `#[register_op]` and write `impl<F: Float> Pointwise for ..<F>`, or name a gradient \
            operator or rule"
)]
pub trait Lanes: Sized + 'static {
    /// The operator's slots, whose order numbers the lanes.
    const SLOTS: Schema;
    /// Attributes, and the set of present optional slots. They are cloned for every block: those that the macro accepts
    /// are `Copy`.
    type Attrs: Clone + Send + Sync + 'static;

    /// Evaluates the formula: `get` reads an input, `put` writes an output, by index in the schema.
    fn lane<F: Float>(attrs: &Self::Attrs, get: impl FnMut(usize) -> F, put: impl FnMut(usize, F));

    /// Evaluates the formula on symbols, which records the expressions that [`lane`](Lanes::lane) computes.
    fn symbols(
        attrs: &Self::Attrs,
        get: &mut dyn FnMut(usize) -> Symbol,
        put: &mut dyn FnMut(usize, Symbol),
    ) {
        Self::lane(attrs, get, put);
    }

    /// Reads the attributes.
    ///
    /// # Errors
    /// As `Op::read`.
    fn attrs(desc: &OpDesc) -> Result<Self::Attrs>;
}

/// Generated for operators that are declared `integers`: evaluates the integer formula on one element.
pub trait IntegerLanes: Lanes {
    /// Evaluates the formula: `get` reads an input, by index in the schema; returns the output.
    ///
    /// # Errors
    /// The errors of the formula.
    fn integer_lane<I: Integer>(attrs: &Self::Attrs, get: impl FnMut(usize) -> I) -> Result<I>;
}
