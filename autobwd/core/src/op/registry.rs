//! Registry entries of operators.
//!
//! Entries are plain data with function pointers, collected at link time; creating one runs no code.
//!
//! `OpInfo` and `LaneEntry` have private fields, and constructors that take the operator's type, so block function,
//! schema and attributes match. The traits that the macro implements (`Op`, `Describe`, `Lanes`) can be implemented
//! wrongly by hand, but stay memory-safe: a formula reaches the slots of its schema only, its attributes are cloned,
//! and a description is plain data.

mod declaration;
mod formula;
mod infer;
mod lookup;
mod map;
mod reference;
mod shape_cache;

use infer::{infer, infer_gradient, infer_integers, infer_pointwise};
pub use lookup::Lookup;
pub use map::{LeftOut, OpInfoMap};
pub use shape_cache::ShapeCache;

use super::{
    CompositionEntry, Decomposition, GradRequest, Peephole, PeepholeEntry, derived::check_derivative, rule,
};
use crate::{
    BlockCall, Buf, Control, Cx, Decompose, Dim, Error, ErrorKind, GradCx, GradKind, GradRule, Infer,
    IntegerLanes, Kernel, Lanes, Meta, Op, OpDesc, Parts, Program, Result, Schema, SlotDef, Var,
    error::did_you_mean,
    lanes::{IntegerKernel, LaneEntry},
    runtime::panics::catch_panic,
    schema::{BufOf, check_described, const_for},
    tensor::Lease,
};

pub(crate) type MetaOf<'a> = &'a dyn Fn(Var) -> Result<Meta>;
pub(crate) type PutMeta<'a> = &'a mut dyn FnMut(Var, Meta);
type BindKernelFn = fn(&OpDesc, Lease, BufOf<'_>) -> Result<Box<dyn Kernel + Send>>;
type BlockCallFn = fn(&OpDesc, &Program) -> Result<BlockCall>;
type DecomposeFn = fn(&OpDesc, &mut Parts<'_>) -> Result<()>;
type CheckFn = fn(&Schema, &OpDesc) -> Result<()>;
type InferFn = fn(&OpDesc, MetaOf<'_>, PutMeta<'_>) -> Result<Dim>;

/// The reason why attributes must not be NaN.
const NO_NAN: &str = "programs with NaN cannot be compared; let an operator compute it";

/// The way an operator runs.
#[derive(Clone, Copy, Debug)]
pub enum Implementation {
    /// Its kernel, bound to memory.
    Kernel(BindKernelFn),
    /// Its formula, in a fused kernel.
    Formula {
        /// The kernel for inputs that are row-sparse or integers.
        others: Option<BindKernelFn>,
    },
    /// The operators of its composition, in its place.
    Composition,
    /// It runs its sub-block.
    Control(BlockCallFn),
}

/// What defines an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Meaning {
    /// A formula for one element: [`Pointwise`](crate::Pointwise).
    ByFormula,
    /// Other operators: [`Composition`](crate::Composition), its own or, for a gradient operator, the derivative of the
    /// composition of its forward operator.
    ByComposition,
    /// It is declared `primitive`: a backend translates it by a [rule](crate::Rule).
    Primitive,
    /// The run of a block.
    RunsBlock,
    /// Its kernel alone: no backend translates it.
    ByKernel,
}

/// The registry entry of one operator.
pub struct OpInfo {
    schema: Schema,
    grad_kind: GradKind,
    grad: fn(&mut GradCx<'_>) -> Result<()>,
    check: CheckFn,
    infer: InferFn,
    run: Implementation,
    lanes: Option<LaneEntry>,
    decompose: Option<DecomposeFn>,
    composing: Option<CompositionEntry>,
    forward: Option<&'static Schema>,
    infallible: bool,
    any_dtype: bool,
    factors: bool,
    halves: bool,
    elementwise_update: bool,
    primitive: bool,
    peephole: Option<PeepholeEntry>,
    krate: &'static str,
    version: &'static str,
}
inventory::collect!(OpInfo);

impl OpInfo {
    /// The entry of an operator with a shape rule and a kernel.
    pub const fn kernel<O>(krate: &'static str, version: &'static str) -> OpInfo
    where
        O: Op,
        O::Of<Meta>: Infer,
        // For every lifetime: a kernel for `Buf<'static>` only, which could keep its memory, does not compile.
        for<'a> O::Of<Buf<'a>>: Kernel,
        O::Of<Buf<'static>>: Send,
    {
        OpInfo {
            infer: infer::<O>,
            run: Implementation::Kernel(bind_kernel::<O>),
            lanes: None,
            ..OpInfo::base::<O>(krate, version)
        }
    }

    /// The entry of a gradient operator with a kernel, whose shape rule is inferred from the rule of its forward
    /// operator.
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
            run: Implementation::Kernel(bind_kernel::<O>),
            lanes: None,
            ..OpInfo::base::<O>(krate, version)
        }
    }

    /// The entry of an operator with a shape rule that runs by its composition.
    pub const fn composed<O: Op>(krate: &'static str, version: &'static str) -> OpInfo
    where
        O::Of<Meta>: Infer,
    {
        let run = Implementation::Composition;
        OpInfo { infer: infer::<O>, run, lanes: None, ..OpInfo::base::<O>(krate, version) }
    }

    /// The entry of a gradient operator that runs by its composition, with the shape rule inferred from the rule of its
    /// forward operator.
    pub const fn composed_gradient<O: Op, F: Op>(krate: &'static str, version: &'static str) -> OpInfo
    where
        F::Of<Meta>: Infer,
    {
        let run = Implementation::Composition;
        OpInfo { infer: infer_gradient::<O, F>, run, lanes: None, ..OpInfo::base::<O>(krate, version) }
    }

    /// The entry of an operator with a formula, and a kernel for sparse inputs.
    pub const fn pointwise_and_kernel<O: Op + Lanes>(krate: &'static str, version: &'static str) -> OpInfo
    where
        for<'a> O::Of<Buf<'a>>: Kernel,
        O::Of<Buf<'static>>: Send,
    {
        OpInfo {
            run: Implementation::Formula { others: Some(bind_kernel::<O>) },
            ..OpInfo::pointwise::<O>(krate, version)
        }
    }

    /// The entry of an operator with a formula, and another for integers.
    pub const fn pointwise_and_integers<O: Op + IntegerLanes>(
        krate: &'static str,
        version: &'static str,
    ) -> OpInfo {
        OpInfo {
            infer: infer_integers::<O>,
            run: Implementation::Formula { others: Some(IntegerKernel::kernel::<O>) },
            ..OpInfo::pointwise::<O>(krate, version)
        }
    }

    /// The entry of an operator with a formula.
    pub const fn pointwise<O: Op + Lanes>(krate: &'static str, version: &'static str) -> OpInfo {
        OpInfo { lanes: Some(lanes_of::<O>()), ..OpInfo::base::<O>(krate, version) }
    }

    /// The entry of a derivative. Formulas of derivatives of gradient operators are interpreted: they are many, long
    /// and rarely run.
    pub(crate) const fn derivative<O: Op + Lanes>(of: &Schema) -> OpInfo {
        let lanes = if of.is_gradient() { LaneEntry::interpreted::<O>() } else { lanes_of::<O>() };
        let (krate, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        OpInfo { lanes: Some(lanes), check: check_derivative, ..OpInfo::base::<O>(krate, version) }
    }

    /// Adds the decomposition of an operator into elementwise ones.
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

    /// Adds a composition.
    #[must_use]
    pub(crate) const fn composing(self, composing: CompositionEntry) -> OpInfo {
        OpInfo { composing: Some(composing), ..self }
    }

    /// Records the forward operator of a gradient operator.
    #[must_use]
    pub const fn gradient_of(self, forward: &'static Schema) -> OpInfo {
        OpInfo { forward: Some(forward), ..self }
    }

    /// Records that its kernel accepts all data.
    #[must_use]
    pub const fn infallible(self) -> OpInfo {
        OpInfo { infallible: true, ..self }
    }

    /// Records that its kernel takes elements of every dtype as they are.
    #[must_use]
    pub const fn any_dtype(self) -> OpInfo {
        OpInfo { any_dtype: true, ..self }
    }

    /// Records that its inputs are factors of products, which take 16 bits as they are.
    #[must_use]
    pub const fn factors(self) -> OpInfo {
        OpInfo { factors: true, ..self }
    }

    /// Records that its kernel takes and gives 16-bit floating point numbers as they are.
    #[must_use]
    pub const fn halves(self) -> OpInfo {
        OpInfo { halves: true, ..self }
    }

    /// Records that it is an update which treats every element of a parameter alone.
    #[must_use]
    pub const fn elementwise_update(self) -> OpInfo {
        OpInfo { elementwise_update: true, ..self }
    }

    /// Records that backends have a rule for it.
    #[must_use]
    pub const fn primitive(self) -> OpInfo {
        OpInfo { primitive: true, ..self }
    }

    /// Records that one operator can replace it and the operator after it.
    #[must_use]
    pub const fn peephole<O: Peephole<Then>, Then: Op>(self) -> OpInfo {
        OpInfo { peephole: Some(PeepholeEntry::of::<O, Then>()), ..self }
    }

    /// The entry of an operator that runs a sub-block.
    pub const fn control<O: Op + Control>(krate: &'static str, version: &'static str) -> OpInfo {
        OpInfo {
            // The output shapes depend on the program, not only on the slots.
            infer: |desc, _, _| O::from_desc(desc).map(|_| 0.into()),
            run: Implementation::Control(|desc, program| O::from_desc(desc)?.call(program)),
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
            run: Implementation::Formula { others: None },
            lanes: None,
            decompose: None,
            composing: None,
            forward: None,
            infallible: false,
            any_dtype: false,
            factors: false,
            halves: false,
            elementwise_update: false,
            primitive: false,
            peephole: None,
            krate,
            version,
        }
    }

    /// Slots, attributes and their source locations.
    pub const fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Its kind of gradient rule.
    pub fn grad_kind(&self) -> GradKind {
        self.grad_kind
    }

    /// The crate that registered it.
    pub fn crate_name(&self) -> &'static str {
        self.krate
    }

    /// Whether it is meaningful only in a program with others: it runs a sub-block, or reads or writes arrays of
    /// tensors.
    pub fn needs_program(&self) -> bool {
        let list = |slot: &SlotDef| slot.array && !slot.sparse;
        self.is_control() || self.schema.inputs.iter().chain(self.schema.outputs).any(list)
    }

    /// Whether it is a gradient operator: one of its inputs is a gradient.
    pub fn is_gradient(&self) -> bool {
        self.schema.is_gradient()
    }

    /// Emits the operators of its gradient; returns the variables that the operator leaves unchanged.
    pub(crate) fn emit_grad(&self, request: GradRequest<'_>) -> Result<Vec<Var>> {
        let mut g = GradCx::new(request);
        // Gradient operators copy attributes: one that the description leaves out must not get their defaults.
        match self.with_defaults(g.forward()) {
            None => self.emit_gradients(&mut g)?,
            Some(fwd) => g.with_forward(&fwd, |g| self.emit_gradients(g))?,
        }
        g.finish()
    }

    fn emit_gradients(&self, g: &mut GradCx<'_>) -> Result<()> {
        match (self.grad_kind, self.composing) {
            (GradKind::Composed, Some(composing)) => composing.emit(g, &|_| true, &|_| true)?,
            (GradKind::Composed, None) => return Err(Error::internal("an operator without its composition")),
            (GradKind::Operator(gradient), Some(composing)) => {
                self.authored("gradient rule", || (self.grad)(g))?;
                composing.emit_rest(gradient, g)?;
            }
            _ => self.authored("gradient rule", || (self.grad)(g))?,
        }
        Ok(())
    }

    /// Checks slots and attributes of a description: unknown names, wrong numbers of variables, types and bounds.
    ///
    /// # Errors
    /// The first fault, with the slot or attribute.
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
    pub fn reads<'a>(&self, desc: &'a OpDesc) -> impl Iterator<Item = Var> + 'a {
        let inputs = self.schema.inputs;
        let shape_only = move |name: &str| inputs.iter().any(|slot| slot.shape_only && slot.name == name);
        let slots = desc.inputs.iter().filter(move |(name, _)| !shape_only(name));
        slots.flat_map(|(_, args)| args).copied().filter(|var| *var != Var::EMPTY)
    }

    /// Whether its kernel may fail on its data: it is not declared `infallible`.
    pub fn may_fail(&self) -> bool {
        !self.infallible
    }

    /// Whether its kernel takes elements of every dtype as they are: it is declared `any_dtype`. Other kernels get 16-bit
    /// floating point numbers as `f32`, and their results are rounded.
    pub fn takes_any_dtype(&self) -> bool {
        self.any_dtype
    }

    /// Whether its kernel takes inputs of 16 bits as they are: it is declared to take `any_dtype` or `halves`, or to
    /// multiply `factors`.
    pub fn takes_halves(&self) -> bool {
        self.any_dtype || self.factors || self.halves
    }

    /// Whether its kernel gives results of 16 bits as they are: it is declared to take `any_dtype` or `halves`.
    pub fn gives_halves(&self) -> bool {
        self.any_dtype || self.halves
    }

    /// Whether it is declared an `elementwise_update`: with a part of parameter, gradient and state in its slots, it
    /// computes that part of the result.
    pub fn is_elementwise_update(&self) -> bool {
        self.elementwise_update
    }

    /// What defines the operator. Its kernel, if there is one, computes the same faster.
    pub fn meaning(&self) -> Meaning {
        match self.run {
            Implementation::Control(_) => Meaning::RunsBlock,
            _ if self.primitive => Meaning::Primitive,
            _ if self.lanes.is_some() => Meaning::ByFormula,
            _ if self.composing.is_some() => Meaning::ByComposition,
            _ => Meaning::ByKernel,
        }
    }

    /// Whether it has a kernel for all inputs.
    pub fn has_kernel(&self) -> bool {
        matches!(self.run, Implementation::Kernel(_))
    }

    /// Whether the operators of its [`Composition`](crate::Composition) run in its place.
    pub fn is_composed(&self) -> bool {
        matches!(self.run, Implementation::Composition)
    }

    pub(crate) fn run(&self) -> Implementation {
        self.run
    }

    /// The run of its sub-block, if it has one.
    ///
    /// # Errors
    /// Inconsistent slots.
    pub(crate) fn call(&self, desc: &OpDesc, program: &Program) -> Result<Option<BlockCall>> {
        match self.run {
            Implementation::Control(call) => {
                self.authored("`impl Control`", || call(desc, program)).map(Some)
            }
            Implementation::Kernel(_) | Implementation::Formula { .. } | Implementation::Composition => {
                Ok(None)
            }
        }
    }

    /// Whether it runs a sub-block.
    pub fn is_control(&self) -> bool {
        matches!(self.run, Implementation::Control(_))
    }

    pub(crate) fn lanes(&self) -> Option<&LaneEntry> {
        self.lanes.as_ref()
    }

    /// Its composition, which may be the composition of its forward operator.
    pub(crate) fn own_composition(&self) -> Option<CompositionEntry> {
        self.composing
    }

    /// The declared forward operator of a gradient operator.
    pub fn forward(&self) -> Option<&'static Schema> {
        self.forward
    }

    /// Whether it has a decomposition into elementwise operators.
    pub fn is_decomposed(&self) -> bool {
        self.decompose.is_some()
    }

    /// The elementwise operators of its decomposition; none if it has none. `meta` returns the types of its variables.
    ///
    /// # Errors
    /// Inconsistent slots; a panic.
    pub(crate) fn decompose(
        &self,
        desc: &OpDesc,
        meta: &dyn Fn(Var) -> Option<Meta>,
    ) -> Result<Decomposition> {
        let mut parts = Parts::new(meta);
        self.decompose
            .map_or(Ok(()), |decompose| self.authored("decomposition", || decompose(desc, &mut parts)))?;
        Ok(parts.decomposition)
    }

    /// Runs code of the operator's author; a panic is an error that names the operator.
    pub(crate) fn authored<T>(&self, part: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_panic(work)
            .unwrap_or_else(|panic| Err(panic.of_operator(self.schema.name, &self.place(), part)))
    }

    /// Package and source line of its registration.
    pub(crate) fn place(&self) -> String {
        format!("{} {} ({}:{})", self.krate, self.version, self.schema.file, self.schema.line)
    }
}

/// The formula of an operator. Its lanes match its slots, which block functions rely on.
const fn lanes_of<O: Op + Lanes>() -> LaneEntry {
    assert!(are_alike(&O::SCHEMA, &O::SLOTS), "`Lanes::SLOTS` is not the operator's schema");
    LaneEntry::of::<O>()
}

/// Whether a formula uses the same slots in both.
const fn are_alike(one: &Schema, other: &Schema) -> bool {
    slots_are_alike(one.inputs, other.inputs) && slots_are_alike(one.outputs, other.outputs)
}

const fn slots_are_alike(one: &[SlotDef], other: &[SlotDef]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    const_for!(i, slot in one => {
        if slot.arity as u8 != other[i].arity as u8 || slot.shape_only != other[i].shape_only {
            return false;
        }
    });
    true
}

/// Returns an error for an undeclared name.
fn known<T>(side: &str, name: &str, declared: &[T], name_of: fn(&T) -> &'static str) -> Result<()> {
    if declared.iter().any(|d| name_of(d) == name) {
        return Ok(());
    }
    let names: Vec<_> = declared.iter().map(name_of).collect();
    let hint = did_you_mean(name, names.iter().copied());
    let has = if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
    Err(Error::new(ErrorKind::Slot, format!("there is no {side} `{name}`; {has}{hint}")))
}

/// `lease` belongs to the buffers.
fn bind_kernel<O: Op>(desc: &OpDesc, lease: Lease, buf: BufOf<'_>) -> Result<Box<dyn Kernel + Send>>
where
    for<'a> O::Of<Buf<'a>>: Kernel,
    O::Of<Buf<'static>>: Send,
{
    let kernel = O::from_desc_with::<Buf<'static>>(desc, buf)?;
    Ok(Box::new(BoundKernel { kernel, lease, name: const { O::SCHEMA.name } }))
}

/// A kernel bound to memory. User code may run when it is dropped, but cannot access the memory then.
struct BoundKernel<K> {
    kernel: K,
    lease: Lease,
    name: &'static str,
}
impl<K: Kernel> Kernel for BoundKernel<K> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        run_caught(&mut self.kernel, self.name, cx)
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.kernel.scratch_bytes(workers)
    }
}

/// Runs a kernel; a panic is an error. It is compiled once for all kernels.
fn run_caught(kernel: &mut dyn Kernel, name: &str, cx: &Cx) -> Result<()> {
    catch_panic(|| kernel.run(cx))
        .unwrap_or_else(|panic| Err(panic.error(&format!("the kernel of `{name}`"))))
}

impl<K> Drop for BoundKernel<K> {
    fn drop(&mut self) {
        self.lease.end();
    }
}
