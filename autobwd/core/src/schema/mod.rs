//! Slots and attributes of operators, and the traits that shape rules, kernels and formulas implement.
//!
//! Must not know any registered operator, nor how programs are run or differentiated.

mod attr;
mod attr_def;
mod const_text;
mod content;
mod control;
mod convert;
mod cost;
mod inherit;
mod slot;

pub use attr::{AttrType, AttrValue};
pub use attr_def::{AttrCheck, AttrDef, Attrs, Bound, BoundKind, attr, check_value, concat_attrs};
pub(crate) use const_text::{ConstText, Nearest, is_joined};
pub use content::{Content, Notes, debug_struct};
pub use control::{Call, Carried, Control, First, StepCount};
pub(crate) use convert::check_described;
pub use convert::{gather_scratch, gather_slot, put_values, same_as};
pub use cost::Cost;
pub use inherit::{check_attr, check_slot, inherit_attr, inherit_slot, slot_name, slot_name_len};
pub use slot::{Arity, Slot};

use crate::{
    Buf, Cx, Dim, OpDesc, Result, Var,
    numbers::{Float, Integer, Symbol},
};

/// The most slots that a pointwise operator has, as its author writes it.
pub(crate) const MAX_SLOTS: usize = 16;

/// One slot of an operator.
#[derive(Clone, Copy, Debug)]
pub struct SlotDef {
    /// Name in programs.
    pub name: &'static str,
    /// Name of the field in the operator's struct; empty for a slot that no struct has.
    pub field: &'static str,
    /// How many variables it takes.
    pub arity: Arity,
    /// Of an input: only its shape is needed, so its memory may be freed early.
    pub shape_only: bool,
    /// Of an input: it may hold some rows of a tensor instead of the whole.
    pub sparse: bool,
    /// It may hold a list of tensors.
    pub array: bool,
    /// Of an output: the input whose memory it may take over.
    pub inplace: Option<&'static str>,
    /// Of an output: the input whose dtype and shape it has; in a formula, contributions along broadcast dimensions are
    /// summed.
    pub like: Option<&'static str>,
    /// First line of the field's documentation.
    pub doc: &'static str,
    /// Source line of the field.
    pub line: u32,
}

impl SlotDef {
    /// A slot with no options.
    pub const fn new(name: &'static str, arity: Arity, doc: &'static str, line: u32) -> SlotDef {
        SlotDef {
            name,
            field: "",
            arity,
            shape_only: false,
            sparse: false,
            array: false,
            inplace: None,
            like: None,
            doc,
            line,
        }
    }

    /// Of that field.
    pub const fn field(self, field: &'static str) -> SlotDef {
        SlotDef { field, ..self }
    }

    /// With `shape_only`.
    pub const fn shape_only(self) -> SlotDef {
        SlotDef { shape_only: true, ..self }
    }

    /// With `sparse`.
    pub const fn sparse(self) -> SlotDef {
        SlotDef { sparse: true, ..self }
    }

    /// With `array`.
    pub const fn array(self) -> SlotDef {
        SlotDef { array: true, ..self }
    }

    /// With `inplace = input`.
    pub const fn inplace(self, input: &'static str) -> SlotDef {
        SlotDef { inplace: Some(input), ..self }
    }

    /// With `like = input`.
    pub const fn like(self, input: &'static str) -> SlotDef {
        SlotDef { like: Some(input), ..self }
    }
}

/// Scratch memory of an operator's kernel, `#[scratch(like = slot)]`.
#[derive(Clone, Copy, Debug)]
pub struct ScratchDef {
    /// Name of the field in the operator's struct.
    pub field: &'static str,
    /// Which side the slot is on whose dtype and shape it has.
    pub role: Role,
    /// The name in programs of that slot, which holds one variable.
    pub like: &'static str,
}

impl ScratchDef {
    /// Memory in that field, like that slot.
    pub const fn new(field: &'static str, role: Role, like: &'static str) -> ScratchDef {
        ScratchDef { field, role, like }
    }
}

/// Everything static about an operator.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Operator type in programs.
    pub name: &'static str,
    /// What it reads.
    pub inputs: &'static [SlotDef],
    /// What it writes.
    pub outputs: &'static [SlotDef],
    /// What its kernel has beside these while it runs.
    pub scratch: &'static [ScratchDef],
    /// Attributes and sub-blocks.
    pub attrs: &'static [AttrDef],
    /// Whether it is given by a formula for one element.
    pub pointwise: bool,
    /// Whether the formula's inputs broadcast against each other.
    pub broadcast: bool,
    /// Whether there is a formula for integers, too.
    pub integers: bool,
    /// The struct's documentation.
    pub doc: &'static str,
    /// Source file of the struct.
    pub file: &'static str,
    /// Source line of the struct.
    pub line: u32,
}

impl Schema {
    /// Whether it is of a gradient operator: one that takes a gradient in.
    pub(crate) const fn is_gradient(&self) -> bool {
        let mut i = 0;
        while i < self.inputs.len() {
            if let Some(b"@GRAD") = self.inputs[i].name.as_bytes().last_chunk() {
                return true;
            }
            i += 1;
        }
        false
    }

    /// The input slot of that name.
    pub fn input(&self, name: &str) -> Option<&'static SlotDef> {
        self.inputs.iter().find(|s| s.name == name)
    }

    /// The number of the input slot of that name.
    #[doc(hidden)]
    pub fn input_number(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|s| s.name == name)
    }

    /// The output slot of that name.
    pub fn output(&self, name: &str) -> Option<&'static SlotDef> {
        self.outputs.iter().find(|s| s.name == name)
    }

    /// What its gradient operator reads that has dtype and shape of this input: an output that is `like` it, or the
    /// gradient of one.
    pub(crate) const fn read_like(&self, input: &SlotDef, gradient: &Schema) -> Option<&'static str> {
        let mut i = 0;
        while i < self.outputs.len() * gradient.inputs.len() {
            let (output, read) =
                (&self.outputs[i % self.outputs.len()], &gradient.inputs[i / self.outputs.len()]);
            let is_it = is_joined(read.name, output.name, "") || is_joined(read.name, output.name, "@GRAD");
            if let (true, Arity::One, Some(like)) = (is_it, read.arity, output.like)
                && is_joined(like, input.name, "")
            {
                return Some(read.name);
            }
            i += 1;
        }
        None
    }

    /// The attribute of that name.
    pub fn attr(&self, name: &str) -> Option<&'static AttrDef> {
        self.attrs.iter().find(|a| a.name == name)
    }
}

/// Which side of an operator a slot is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is read.
    Input,
    /// It is written.
    Output,
}

/// Supplies the `Buf` of a slot.
pub type BufOf<'a> = &'a mut dyn FnMut(Role, &'static str, Var) -> Result<Buf<'static>>;

/// The shape rule, written on `Mul<Meta>`: sets dtype and dimensions of the outputs, or says which input is wrong.
///
/// Dimensions may be unknown while a program is built; all are known when it is planned.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no shape rule",
    label = "this operator needs a shape rule",
    note = "write `impl Infer for {Self}`, or give the operator a formula with `#[register_op(.., pointwise)]`"
)]
pub trait Infer {
    /// Sets the outputs' metas.
    ///
    /// # Errors
    /// Inputs or attributes that do not fit each other.
    fn infer(&mut self) -> Result<()>;

    /// Floating point operations of one run, a product and its sum being two; unknown while a dimension is. Asked after
    /// [`infer`](Infer::infer). Worth stating where they take longer than reading and writing the slots once, as in
    /// products of matrices: it tells what computing the operator again [costs](crate::Cost).
    fn flops(&self) -> Dim {
        0.into()
    }
}

/// The kernel, written on `Mul<Buf<'_>>`: computes outputs from inputs, without a heap allocation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no kernel",
    label = "this operator needs a kernel",
    note = "write `impl Kernel for {Self}`, or give the operator a formula with `#[register_op(.., pointwise)]`",
    note = "beside a formula, a kernel is needed where an input is `sparse`"
)]
pub trait Kernel {
    /// Computes the outputs.
    ///
    /// # Errors
    /// Data that the operator cannot take (a label out of range, say); a dtype without kernel.
    fn run(&mut self, cx: &Cx) -> Result<()>;

    /// How much memory [`run`](Kernel::run) asks [`Cx::scratch`] for with that many workers: known before it runs. Memory
    /// with the shape of a slot is better declared, as a field with `#[scratch(like = ..)]`.
    fn scratch_bytes(&self, workers: usize) -> usize {
        let _ = workers;
        0
    }
}

/// The formula of an elementwise operator, written on `Swish<F>` with `F: Float`: one element. It replaces shape rule
/// and kernel, fuses with its neighbours and is compiled for every instruction set.
///
/// Inputs have one shape; with `broadcast` they are broadcast against each other as in NumPy, those of lower rank from
/// the attribute `axis` on where there is one, and outputs declared `like = x` are summed back to the shape of `x`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no formula",
    label = "this operator is declared `pointwise`",
    note = "write `impl<F: Float> Pointwise for ..<F>`"
)]
pub trait Pointwise {
    /// Sets the outputs from the inputs.
    fn eval(&mut self);
}

/// The formula of an operator that is declared `pointwise, integers`, for integers, written on `Clip<I>` with
/// `I: Integer`: one element of int32 or int64. Sums, differences and products wrap around; integers have no gradient.
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
    /// An attribute that is no integer ([`Integer::of`]), of which the shape rule learns by evaluating the formula once;
    /// an element without result (a division by 0), which is [`Error::data`](crate::Error::data).
    fn eval(&mut self) -> Result<()>;
}

/// Generated for pointwise operators: runs the formula on one lane.
///
/// Nothing unsafe relies on an implementation: a slot that the schema does not have reads as 0, and what is written to
/// one is lost.
#[diagnostic::on_unimplemented(
    message = "the gradient of `{Self}` cannot be derived: it has no formula",
    label = "`grad = Derived` needs a formula",
    note = "add `pointwise` to `#[register_op]` and write `impl<F: Float> Pointwise for ..<F>`, or name a gradient \
            operator or rule"
)]
pub trait Lanes: Sized + 'static {
    /// The operator's slots, by whose place lanes are numbered.
    const SLOTS: Schema;
    /// Attributes, and which optional slots are present. They are cloned for every block: those that the macro takes are
    /// `Copy`.
    type Attrs: Clone + Send + Sync + 'static;

    /// Runs the formula: `get` reads an input, `put` writes an output, by index in the schema.
    fn lane<F: Float>(attrs: &Self::Attrs, get: impl FnMut(usize) -> F, put: impl FnMut(usize, F));

    /// Runs the formula on symbols, which records it: the same expressions as [`lane`](Lanes::lane) computes.
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
    /// As `Op::gather`.
    fn attrs(desc: &OpDesc) -> Result<Self::Attrs>;
}

/// Generated for operators that are declared `integers`: runs the formula for integers on one element.
pub trait IntegerLanes: Lanes {
    /// Runs the formula: `get` reads an input, by index in the schema; returns the output.
    ///
    /// # Errors
    /// Those of the formula.
    fn integer_lane<I: Integer>(attrs: &Self::Attrs, get: impl FnMut(usize) -> I) -> Result<I>;
}
