//! The entry of an operator.
//!
//! Entries are plain data with function pointers, collected at link time; making one does nothing.

mod formula;
mod infer;
mod lookup;
mod map;
mod reference;
mod shape_cache;

use infer::{infer, infer_gradient, infer_integers, infer_pointwise};
pub use lookup::Lookup;
pub use map::OpInfoMap;
pub use shape_cache::ShapeCache;

use super::{Composing, derived::check_derivative, rule};
use crate::{
    Buf, Call, Control, Cx, Decompose, Dim, Error, ErrorKind, GradCx, GradKind, GradRule, Infer,
    IntegerLanes, Kernel, Lanes, Meta, Op, OpDesc, Parts, Program, Result, Schema, SlotDef, Var,
    error::did_you_mean,
    lanes::{IntegerKernel, LaneEntry},
    schema::{BufOf, check_described},
    tensor::Lease,
};

type MetaOf<'a> = &'a dyn Fn(Var) -> Result<Meta>;
type PutMeta<'a> = &'a mut dyn FnMut(Var, Meta);
type MakeFrame = fn(&OpDesc, Lease, BufOf<'_>) -> Result<Box<dyn Kernel + Send>>;
type MakeCall = fn(&OpDesc, &Program) -> Result<Call>;
/// Returns the floating point operations.
type DecomposeFn = fn(&OpDesc, &mut Parts<'_>) -> Result<()>;
type JoinFn = fn(&OpDesc, &OpDesc) -> Result<Option<OpDesc>>;
type CheckFn = fn(&Schema, &OpDesc) -> Result<()>;
type InferFn = fn(&OpDesc, MetaOf<'_>, PutMeta<'_>) -> Result<Dim>;

/// Why attributes are no NaN.
const NO_NAN: &str = "a program that holds one would not equal its copies; let an operator compute it";

/// How an operator runs.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// By its kernel, bound to memory.
    Kernel(MakeFrame),
    /// By its formula, in a region; by that kernel where an input holds rows or integers.
    Formula {
        /// What runs then.
        others: Option<MakeFrame>,
    },
    /// By running its sub-block.
    Control(MakeCall),
}

/// Everything that is registered about one operator.
pub struct OpInfo {
    schema: Schema,
    grad_kind: GradKind,
    grad: fn(&mut GradCx<'_>) -> Result<()>,
    check: CheckFn,
    infer: InferFn,
    run: Run,
    lanes: Option<LaneEntry>,
    decompose: Option<DecomposeFn>,
    composing: Option<Composing>,
    forward: Option<&'static Schema>,
    krate: &'static str,
    version: &'static str,
}
inventory::collect!(OpInfo);

impl OpInfo {
    /// The entry of an operator with shape rule and kernel.
    pub const fn kernel<O>(krate: &'static str, version: &'static str) -> OpInfo
    where
        O: Op,
        O::Of<Meta>: Infer,
        // For every lifetime: a kernel written for `Buf<'static>` alone, which could keep its memory, does not compile.
        for<'a> O::Of<Buf<'a>>: Kernel,
        O::Of<Buf<'static>>: Send,
    {
        OpInfo {
            infer: infer::<O>,
            run: Run::Kernel(frame::<O>),
            lanes: None,
            ..OpInfo::base::<O>(krate, version)
        }
    }

    /// The entry of a gradient operator with a kernel, whose shape rule follows from that of its forward operator.
    pub const fn kernel_of_gradient<O, F>(krate: &'static str, version: &'static str) -> OpInfo
    where
        O: Op,
        F: Op,
        F::Of<Meta>: Infer,
        for<'a> O::Of<Buf<'a>>: Kernel,
        O::Of<Buf<'static>>: Send,
    {
        OpInfo {
            infer: infer_gradient::<O, F>,
            run: Run::Kernel(frame::<O>),
            lanes: None,
            ..OpInfo::base::<O>(krate, version)
        }
    }

    /// The entry of an operator with a formula, and a kernel for inputs that are no whole tensors.
    pub const fn pointwise_and_kernel<O: Op + Lanes>(krate: &'static str, version: &'static str) -> OpInfo
    where
        for<'a> O::Of<Buf<'a>>: Kernel,
        O::Of<Buf<'static>>: Send,
    {
        OpInfo { run: Run::Formula { others: Some(frame::<O>) }, ..OpInfo::pointwise::<O>(krate, version) }
    }

    /// The entry of an operator with a formula, and one for integers.
    pub const fn pointwise_and_integers<O: Op + IntegerLanes>(
        krate: &'static str,
        version: &'static str,
    ) -> OpInfo {
        OpInfo {
            infer: infer_integers::<O>,
            run: Run::Formula { others: Some(IntegerKernel::frame::<O>) },
            ..OpInfo::pointwise::<O>(krate, version)
        }
    }

    /// The entry of an operator with a formula.
    pub const fn pointwise<O: Op + Lanes>(krate: &'static str, version: &'static str) -> OpInfo {
        OpInfo { lanes: Some(lanes_of::<O>()), ..OpInfo::base::<O>(krate, version) }
    }

    /// The entry of a derivative. Formulas of derivatives of gradient operators are interpreted: they are many, long and
    /// seldom run.
    pub(crate) const fn derivative<O: Op + Lanes>(of: &Schema) -> OpInfo {
        let lanes = if of.is_gradient() { LaneEntry::interpreted::<O>() } else { lanes_of::<O>() };
        let (krate, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        OpInfo { lanes: Some(lanes), check: check_derivative, ..OpInfo::base::<O>(krate, version) }
    }

    /// The same, of an operator that consists of elementwise ones.
    #[must_use]
    pub const fn decomposed<O: Decompose>(self) -> OpInfo {
        OpInfo {
            decompose: Some(|desc, parts| {
                O::from_desc(desc)?.decompose(parts);
                Ok(())
            }),
            ..self
        }
    }

    /// The same with a composition.
    #[must_use]
    pub(crate) const fn composing(self, composing: Composing) -> OpInfo {
        OpInfo { composing: Some(composing), ..self }
    }

    /// The same, of the gradient operator of that operator.
    #[must_use]
    pub const fn gradient_of(self, forward: &'static Schema) -> OpInfo {
        OpInfo { forward: Some(forward), ..self }
    }

    /// The entry of an operator that runs a sub-block.
    pub const fn control<O: Op + Control>(krate: &'static str, version: &'static str) -> OpInfo {
        OpInfo {
            // What comes out follows from the program, not from the slots alone.
            infer: |desc, _, _| O::from_desc(desc).map(|_| 0.into()),
            run: Run::Control(|desc, program| O::from_desc(desc)?.call(program)),
            ..OpInfo::base::<O>(krate, version)
        }
    }

    const fn base<O: Op>(krate: &'static str, version: &'static str) -> OpInfo {
        OpInfo {
            schema: O::SCHEMA,
            grad_kind: <O::Grad as GradRule<O>>::KIND,
            grad: rule::emit::<O>,
            check: check_described,
            infer: infer_pointwise::<O>,
            run: Run::Formula { others: None },
            lanes: None,
            decompose: None,
            composing: None,
            forward: None,
            krate,
            version,
        }
    }

    /// Slots, attributes and where they are declared.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// What kind of gradient rule it has.
    pub fn grad_kind(&self) -> GradKind {
        self.grad_kind
    }

    /// The crate that registered it.
    pub fn crate_name(&self) -> &'static str {
        self.krate
    }

    /// Whether it only makes sense in a program with others: it runs a sub-block, or takes or makes lists of tensors.
    pub fn needs_program(&self) -> bool {
        let list = |slot: &SlotDef| slot.array && !slot.sparse;
        self.is_control() || self.schema.inputs.iter().chain(self.schema.outputs).any(list)
    }

    /// Whether it is the gradient of another operator: it takes a gradient in.
    pub fn is_gradient(&self) -> bool {
        self.schema.is_gradient()
    }

    /// Emits the operators of its gradient.
    #[doc(hidden)]
    pub fn emit_grad(&self, g: &mut GradCx<'_>) -> Result<()> {
        match (self.grad_kind, self.composing) {
            (GradKind::Composed, Some(composing)) => composing.emit(g, &|_| true, &|_| true)?,
            (GradKind::Composed, None) => return Err(Error::internal("an operator without its composition")),
            (GradKind::Operator(gradient), Some(composing)) => {
                (self.grad)(g)?;
                composing.emit_rest(gradient, g)?;
            }
            _ => (self.grad)(g)?,
        }
        g.failed.take().map_or(Ok(()), Err)
    }

    /// Checks slots and attributes of a description: unknown ones, wrong numbers of variables, types and bounds.
    ///
    /// # Errors
    /// The first fault, naming slot or attribute.
    pub fn check(&self, desc: &OpDesc) -> Result<()> {
        // An empty slot equals an absent one.
        for (slot, _) in desc.inputs.iter().filter(|(_, args)| !args.is_empty()) {
            known("input", &slot, self.schema.inputs, |s| s.name)?;
        }
        for (slot, _) in desc.outputs.iter().filter(|(_, args)| !args.is_empty()) {
            known("output", &slot, self.schema.outputs, |s| s.name)?;
        }
        for (name, value) in desc.attrs.iter() {
            known("attribute", &name, self.schema.attrs, |a| a.name)
                .map_err(|e| Error::attr(&name, format!("{value} is refused: {}", e.message())))?;
        }
        (self.check)(&self.schema, desc)?;
        match desc.attrs.iter().find(|(_, value)| value.has_nan()) {
            Some((name, _)) => {
                Err(Error::new(ErrorKind::Attr, format!("attribute `{name}` is NaN: {NO_NAN}")))
            }
            None => Ok(()),
        }
    }

    /// Variables whose elements it reads, not only their shapes.
    #[doc(hidden)]
    pub fn reads<'a>(&self, desc: &'a OpDesc) -> impl Iterator<Item = Var> + 'a {
        let inputs = self.schema.inputs;
        let shape_only = move |name: &str| inputs.iter().any(|slot| slot.shape_only && slot.name == name);
        let slots = desc.inputs.iter().filter(move |(name, _)| !shape_only(name));
        slots.flat_map(|(_, args)| args).copied().filter(|var| *var != Var::EMPTY)
    }

    /// Whether it has a kernel for all that it takes; all others have but a formula.
    pub fn has_kernel(&self) -> bool {
        matches!(self.run, Run::Kernel(_))
    }

    #[doc(hidden)]
    pub fn run(&self) -> Run {
        self.run
    }

    /// How it runs its sub-block, if it has one.
    ///
    /// # Errors
    /// Slots that do not fit each other.
    #[doc(hidden)]
    pub fn call(&self, desc: &OpDesc, program: &Program) -> Result<Option<Call>> {
        match self.run {
            Run::Control(call) => call(desc, program).map(Some),
            Run::Kernel(_) | Run::Formula { .. } => Ok(None),
        }
    }

    /// Whether it runs a sub-block.
    #[doc(hidden)]
    pub fn is_control(&self) -> bool {
        matches!(self.run, Run::Control(_))
    }

    #[doc(hidden)]
    pub fn lanes(&self) -> Option<&LaneEntry> {
        self.lanes.as_ref()
    }

    /// The composition that it has, its own or by its forward operator's.
    pub(crate) fn own_composition(&self) -> Option<Composing> {
        self.composing
    }

    /// The operator that it is the gradient operator of, where it is declared so.
    pub(crate) fn forward(&self) -> Option<&'static Schema> {
        self.forward
    }

    /// What says which elementwise operators it consists of.
    #[doc(hidden)]
    pub fn decompose(&self) -> Option<DecomposeFn> {
        self.decompose
    }

    fn place(&self) -> String {
        format!("{} {} ({}:{})", self.krate, self.version, self.schema.file, self.schema.line)
    }
}

/// The formula of an operator. Its lanes are those of its slots, which block functions rely on.
const fn lanes_of<O: Op + Lanes>() -> LaneEntry {
    assert!(are_alike(&O::SCHEMA, &O::SLOTS), "`Lanes::SLOTS` is not the operator's schema");
    LaneEntry::of::<O>()
}

/// Whether a formula meets the same slots in both.
const fn are_alike(one: &Schema, other: &Schema) -> bool {
    slots_are_alike(one.inputs, other.inputs) && slots_are_alike(one.outputs, other.outputs)
}

const fn slots_are_alike(one: &[SlotDef], other: &[SlotDef]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut i = 0;
    while i < one.len() {
        let (a, b) = (&one[i], &other[i]);
        if a.arity as u8 != b.arity as u8 || a.shape_only != b.shape_only {
            return false;
        }
        i += 1;
    }
    true
}

/// Refuses a name that is not among those declared.
fn known<T>(side: &str, name: &str, declared: &[T], name_of: fn(&T) -> &'static str) -> Result<()> {
    if declared.iter().any(|d| name_of(d) == name) {
        return Ok(());
    }
    let names: Vec<_> = declared.iter().map(name_of).collect();
    let hint = did_you_mean(name, names.iter().copied());
    let has = if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
    Err(Error::new(ErrorKind::Slot, format!("there is no {side} `{name}`; {has}{hint}")))
}

/// `lease` is that of the bufs.
fn frame<O: Op>(desc: &OpDesc, lease: Lease, buf: BufOf<'_>) -> Result<Box<dyn Kernel + Send>>
where
    for<'a> O::Of<Buf<'a>>: Kernel,
    O::Of<Buf<'static>>: Send,
{
    Ok(Box::new(Frame { kernel: O::gather::<Buf<'static>>(desc, buf)?, lease }))
}

/// A kernel bound to memory. Who wrote it may have it run code when it is dropped; that gets at no memory.
struct Frame<K> {
    kernel: K,
    lease: Lease,
}
impl<K: Kernel> Kernel for Frame<K> {
    #[inline]
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.kernel.run(cx)
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.kernel.scratch_bytes(workers)
    }
}
impl<K> Drop for Frame<K> {
    fn drop(&mut self) {
        self.lease.end();
    }
}
