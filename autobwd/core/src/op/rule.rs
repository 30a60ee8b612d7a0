//! Gradient rules: the operators that the gradient of one operator consists of.
//!
//! Must not know programs as a whole: relevance, accumulation and pruning belong to `backward`.
//!
//! A description may leave out attributes with defaults; a gradient rule sees it with the defaults of the forward
//! operator.

use smallvec::SmallVec;

use super::{Op, OpInfo, OpInfoMap};
use crate::{Arity, BlockId, Error, ErrorKind, Meta, OpDesc, Program, Result, Schema, SlotDef, Var, VarDesc};

/// The kind of a gradient rule.
#[derive(Clone, Copy, Debug)]
pub enum GradKind {
    /// One gradient operator; its slots declare what it reads and writes. The composition, if any, supplies the rest.
    Operator(&'static Schema),
    /// One gradient operator, derived from the formula.
    Derived(&'static OpInfo),
    /// The gradient of the composition.
    Composed,
    /// A rule that emits operators.
    Rule,
    /// There is no gradient; requiring one is an error, which gives the reason if the author of the operator did.
    None(Option<&'static str>),
    /// The gradient is zero by declaration: the branch is pruned.
    Zero,
}

impl GradKind {
    /// The end of a message that there is no gradient: the reason, if there is one.
    pub fn because(self) -> String {
        match self {
            GradKind::None(Some(reason)) => format!("; {reason}"),
            _ => String::new(),
        }
    }
}

/// The gradient rule of `F`. The type in `grad = …` implements it: automatically for an operator, by hand for a rule.
/// A function with the arguments of [`emit`](GradRule::emit) can stand in its place; its name starts with a lower-case
/// letter.
///
/// ```standalone_crate
/// use autobwd::{Float, GradCx, GradRule, Pointwise, Var, register_op};
/// use autobwd_ops::activation::Scale;
///
/// /// `out = x / 3`
/// #[register_op(grad = ThirdGrad, pointwise)]
/// pub struct Third<V = Var> {
///     /// Any shape.
///     #[input]
///     pub x: V,
///     /// Same shape.
///     #[output]
///     pub out: V,
/// }
/// impl<F: Float> Pointwise for Third<F> {
///     fn eval(&mut self) {
///         self.out = self.x / 3.0;
///     }
/// }
///
/// /// `dx = dout / 3`
/// pub struct ThirdGrad;
/// impl GradRule<Third> for ThirdGrad {
///     fn emit(fwd: &Third, g: &mut GradCx<'_>) {
///         let dout = g.grad(fwd.out);
///         if let Some(dx) = g.wanted(fwd.x) {
///             g.push(Scale { x: dout, out: dx, scale: 1.0 / 3.0, bias: 0.0, bias_after_scale: true });
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the gradient of `{F}`",
    label = "neither an operator nor a gradient rule for `{F}`",
    note = "name another `#[register_op]` struct, `NoGrad`, `ZeroGrad` or (for a formula) `Derived`, or write `impl GradRule<{F}> for {Self}`"
)]
pub trait GradRule<F: Op> {
    /// The kind of rule.
    const KIND: GradKind = GradKind::Rule;

    /// Emits the operators that compute the gradients of `fwd`'s inputs from the gradients of its outputs.
    fn emit(fwd: &F, g: &mut GradCx<'_>);
}

/// There is no gradient: requiring one is an error that names operator, variable and source line. A rule whose kind is
/// [`GradKind::None`] with a reason says that as well.
#[derive(Debug)]
pub struct NoGrad;
impl<F: Op> GradRule<F> for NoGrad {
    const KIND: GradKind = GradKind::None(None);
    fn emit(_: &F, _: &mut GradCx<'_>) {}
}

/// The gradient is zero everywhere (comparisons, `arg_max`): the branch is pruned.
#[derive(Debug)]
pub struct ZeroGrad;
impl<F: Op> GradRule<F> for ZeroGrad {
    const KIND: GradKind = GradKind::Zero;
    fn emit(_: &F, _: &mut GradCx<'_>) {}
}

/// An operator as a rule emits itself, with its slots connected by name.
#[diagnostic::do_not_recommend]
impl<F: Op, G: Op> GradRule<F> for G {
    const KIND: GradKind = GradKind::Operator(const { &G::SCHEMA });
    fn emit(_: &F, g: &mut GradCx<'_>) {
        g.push_wired(const { &F::SCHEMA }, const { &G::SCHEMA });
    }
}

/// The gradient of a sub-block, described in terms of forward variables.
#[derive(Clone, Debug)]
pub struct GradBlock {
    /// The block.
    pub block: BlockId,
    /// Variables whose gradients are its inputs, in alphabetical order.
    pub given: Vec<Var>,
    /// Variables of enclosing blocks whose gradients it computes.
    pub computed: Vec<Var>,
}

/// The declarations of the forward operator's variables.
#[derive(Clone, Copy)]
pub struct DeclaredVars<'a> {
    /// The block of the forward operator.
    pub block: BlockId,
    /// The variable whose value a stand-in has.
    pub original: &'a dyn Fn(Var) -> Var,
}

/// What a gradient rule is asked for.
#[allow(missing_debug_implementations)] // Most of it is functions.
pub struct GradRequest<'a> {
    /// All operators.
    pub ops: &'a OpInfoMap,
    /// The forward operator.
    pub fwd: &'a OpDesc,
    /// The program of its variables.
    pub names: &'a mut Program,
    /// Declarations of its variables.
    pub declared: DeclaredVars<'a>,
    /// Gradients of outputs, and below of inputs: they differ where an operator overwrites its input.
    pub of_output: &'a dyn Fn(Var) -> Var,
    /// The gradients of inputs that are wanted.
    pub wanted: &'a dyn Fn(Var) -> Option<Var>,
    /// Whether an output may have a gradient.
    pub arrives: &'a dyn Fn(Var) -> bool,
    /// The gradient of its block.
    pub block: Option<&'a GradBlock>,
    /// Receives the operators of the rule.
    pub emitted: &'a mut Vec<OpDesc>,
}

/// The context of a gradient rule: its queries, and the operators it emits.
pub struct GradCx<'a> {
    pub(crate) request: GradRequest<'a>,
    unchanged: Vec<Var>,
    /// The first error of [`compose`](GradCx::compose).
    pub(crate) failed: Option<Error>,
}

impl<'a> GradCx<'a> {
    /// Runs `rule` in this context with another description of the forward operator.
    pub(super) fn with_forward<T>(&mut self, fwd: &OpDesc, rule: impl FnOnce(&mut GradCx<'_>) -> T) -> T {
        let GradRequest { ops, declared, of_output, wanted, arrives, block, .. } = self.request;
        let (names, emitted) = (&mut *self.request.names, &mut *self.request.emitted);
        let request = GradRequest { ops, fwd, names, declared, of_output, wanted, arrives, block, emitted };
        let (unchanged, failed) = (std::mem::take(&mut self.unchanged), self.failed.take());
        let mut g = GradCx { request, unchanged, failed };
        let outcome = rule(&mut g);
        let GradCx { unchanged, failed, .. } = g;
        (self.unchanged, self.failed) = (unchanged, failed);
        outcome
    }

    /// For an operator that runs a sub-block: the gradient of that block, if it has any operators.
    pub fn block(&self) -> Option<&'a GradBlock> {
        self.request.block
    }

    /// The name of a variable.
    pub fn name(&self, var: Var) -> &str {
        self.request.names.name(var)
    }

    pub(super) fn new(request: GradRequest<'a>) -> GradCx<'a> {
        GradCx { request, unchanged: vec![], failed: None }
    }

    /// The variables that the forward operator leaves unchanged.
    ///
    /// # Errors
    /// The first error of [`compose`](GradCx::compose).
    pub(super) fn finish(self) -> Result<Vec<Var>> {
        self.failed.map_or(Ok(self.unchanged), Err)
    }

    /// Declared dtype and shape of a variable of the forward operator.
    pub(crate) fn meta(&self, var: Var) -> Option<Meta> {
        self.request
            .names
            .lookup(self.request.declared.block, (self.request.declared.original)(var))
            .map(VarDesc::meta)
    }

    /// The forward operator as data.
    pub fn forward(&self) -> &'a OpDesc {
        self.request.fwd
    }

    /// The gradient of an output of the forward operator.
    pub fn grad(&self, output: Var) -> Var {
        (self.request.of_output)(output)
    }

    /// Whether an output is read on the way to a target, so that it may have a gradient. A rule that omits operators
    /// where it does not keeps the backward pass small; the query is optional.
    pub fn arrives(&self, output: Var) -> bool {
        (self.request.arrives)(output)
    }

    /// The variable for the gradient of an input, if that gradient is wanted.
    pub fn wanted(&self, input: Var) -> Option<Var> {
        (self.request.wanted)(input)
    }

    /// Declares that the operator leaves a variable unchanged although it is an output (running statistics during
    /// inference): the gradient may read it as an input.
    pub fn unchanged(&mut self, var: Var) {
        self.unchanged.push(var);
    }

    /// Adds the gradient of the operator's [`Composition`](crate::Composition), from these output slots to these input
    /// slots: for the part that a gradient operator leaves out.
    pub fn compose(&mut self, outputs: &[&str], inputs: &[&str]) {
        let composing = self.request.ops.get(&self.forward().ty).map(OpInfo::own_composition);
        let outcome = composing.and_then(|composing| match composing {
            Some(composing) => {
                composing.emit(self, &|slot| outputs.contains(&slot), &|slot| inputs.contains(&slot))
            }
            None => Err(Error::new(
                ErrorKind::NoGradient,
                "the gradient rule asks for a composition, but the operator has none: write `impl Composition`",
            )),
        });
        if let Err(e) = outcome {
            self.failed.get_or_insert(e);
        }
    }

    /// A new variable, for a value between two emitted operators.
    pub fn fresh(&mut self, what: &str) -> Var {
        self.request.names.fresh(what)
    }

    /// Adds an operator: `g.push(Scale { x: dout, out: dx, … })`.
    pub fn push(&mut self, op: impl Into<OpDesc>) {
        self.request.emitted.push(op.into());
    }

    /// Adds the gradient operator `G` of the operator, an `O`, as `grad = G` does, if any of its outputs is wanted: for
    /// a rule that also emits other operators.
    pub fn push_gradient<O: Op, G: Op>(&mut self, _: &O) {
        self.push_wired(const { &O::SCHEMA }, const { &G::SCHEMA });
        self.request.emitted.pop_if(|op| op.writes().next().is_none());
    }

    /// Adds the operator with this schema. Slots with names of the forward operator's slots get their variables, slots
    /// named `…@GRAD` their gradients. Attributes are copied as far as it declares them.
    fn push_wired(&mut self, forward: &'static Schema, schema: &'static Schema) {
        let mut op = OpDesc::new(schema.name);
        for slot in sorted(schema.inputs) {
            let args = match (forward.input(slot.name), forward.output(slot.name)) {
                (Some(_), _) => self.forward().inputs.get(slot.name),
                (None, Some(_)) => self.forward().outputs.get(slot.name),
                (None, None) => {
                    let of =
                        slot.name.strip_suffix("@GRAD").map_or(&[][..], |of| self.forward().outputs.get(of));
                    let arriving = of.iter().map(|v| self.arrives(*v).then(|| self.grad(*v)));
                    match slot.arity {
                        Arity::One | Arity::Many => {
                            op.inputs.append(slot.name, of.iter().map(|v| self.grad(*v)))
                        }
                        Arity::Optional => op.inputs.append(slot.name, arriving.flatten()),
                        Arity::Holes => {
                            op.inputs.append(slot.name, arriving.map(|v| v.unwrap_or(Var::EMPTY)))
                        }
                    }
                    continue;
                }
            };
            if slot.constant && args.is_empty() {
                continue;
            }
            op.inputs.append(slot.name, args.iter().copied());
        }
        for slot in sorted(schema.outputs) {
            let base = slot.name.strip_suffix("@GRAD").unwrap_or(slot.name);
            let wanted = self.forward().inputs.get(base).iter().map(|v| self.wanted(*v));
            match slot.arity {
                Arity::Holes | Arity::Many => {
                    op.outputs.append(slot.name, wanted.map(|v| v.unwrap_or(Var::EMPTY)));
                }
                Arity::One | Arity::Optional => op.outputs.append(slot.name, wanted.flatten()),
            }
        }
        if self.forward().attrs.iter().all(|(name, _)| schema.attr(&name).is_some()) {
            op.attrs = self.forward().attrs.clone();
            self.request.emitted.push(op);
            return;
        }
        for attr in schema.attrs {
            if let Some(value) = self.forward().attrs.get(attr.name) {
                op.attrs.set(attr.name, value.clone());
            }
        }
        self.request.emitted.push(op);
    }
}

/// Slots in the order of descriptions.
pub(crate) fn sorted(slots: &'static [SlotDef]) -> SmallVec<[&'static SlotDef; 8]> {
    let mut sorted: SmallVec<[&SlotDef; 8]> = slots.iter().collect();
    sorted.sort_unstable_by_key(|slot| slot.name);
    sorted
}

/// Runs the rule of an operator, for the registry.
pub(crate) fn emit<O: Op>(g: &mut GradCx<'_>) -> Result<()> {
    // A constant condition: for other kinds, no code that reads the operator is compiled.
    if const { matches!(<O::Grad as GradRule<O>>::KIND, GradKind::Rule | GradKind::Derived(_)) } {
        let fwd = O::from_desc(g.forward())?;
        <O::Grad as GradRule<O>>::emit(&fwd, g);
    } else if let GradKind::Operator(schema) = <O::Grad as GradRule<O>>::KIND {
        g.push_wired(const { &O::SCHEMA }, schema);
    }
    Ok(())
}
