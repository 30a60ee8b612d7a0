//! Gradient rules: what one operator contributes to the backward part.
//!
//! Must not know programs as a whole: which operators matter, accumulation and pruning belong to `backward`.

use smallvec::SmallVec;

use super::{Op, OpInfo, OpInfoMap};
use crate::{Arity, BlockId, Error, ErrorKind, Meta, OpDesc, Program, Result, Schema, SlotDef, Var, VarDesc};

/// What kind of rule an operator has.
#[derive(Clone, Copy, Debug)]
pub enum GradKind {
    /// One gradient operator; the slots that it declares are the request. What it leaves out, the composition supplies, if
    /// there is one.
    Operator(&'static Schema),
    /// One gradient operator, made from the formula.
    Derived(&'static OpInfo),
    /// The gradient of the composition.
    Composed,
    /// A rule that emits operators.
    Rule,
    /// There is no gradient; needing one is an error.
    None,
    /// The gradient is zero: the branch is pruned, knowingly.
    Zero,
}

/// How the gradient of `F` comes about. The type in `grad = …` implements it: an operator by naming itself, a rule by
/// hand.
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
    /// What kind of rule it is.
    const KIND: GradKind = GradKind::Rule;

    /// Emits the operators that compute the gradients of `fwd`'s inputs from those of its outputs.
    fn emit(fwd: &F, g: &mut GradCx<'_>);
}

/// There is no gradient: needing one is an error that names operator, variable and source line.
#[derive(Debug)]
pub struct NoGrad;
impl<F: Op> GradRule<F> for NoGrad {
    const KIND: GradKind = GradKind::None;
    fn emit(_: &F, _: &mut GradCx<'_>) {}
}

/// The gradient is zero everywhere (comparisons, `arg_max`): what leads there is pruned.
#[derive(Debug)]
pub struct ZeroGrad;
impl<F: Op> GradRule<F> for ZeroGrad {
    const KIND: GradKind = GradKind::Zero;
    fn emit(_: &F, _: &mut GradCx<'_>) {}
}

/// Naming an operator means: emit that operator, wired by slot name to whatever it declares.
#[diagnostic::do_not_recommend]
impl<F: Op, G: Op> GradRule<F> for G {
    const KIND: GradKind = GradKind::Operator(const { &G::SCHEMA });
    fn emit(_: &F, g: &mut GradCx<'_>) {
        g.push_wired(const { &F::SCHEMA }, const { &G::SCHEMA });
    }
}

/// The gradient of a sub-block: what its operators compute, from what, is told in terms of forward variables.
#[derive(Clone, Debug)]
pub struct GradBlock {
    /// The block.
    pub block: BlockId,
    /// Variables whose gradients it is given, in alphabetical order.
    pub given: Vec<Var>,
    /// Variables of others whose gradients it computes.
    pub computed: Vec<Var>,
}

/// Where the forward operator's variables are declared.
#[derive(Clone, Copy)]
pub struct Declared<'a> {
    #[doc(hidden)]
    pub block: BlockId,
    /// The variable that a stand-in has the value of.
    #[doc(hidden)]
    pub original: &'a dyn Fn(Var) -> Var,
}

/// What a gradient rule may ask, and where it puts its operators.
pub struct GradCx<'a> {
    #[doc(hidden)]
    pub ops: &'a OpInfoMap,
    #[doc(hidden)]
    pub fwd: &'a OpDesc,
    #[doc(hidden)]
    pub names: &'a mut Program,
    #[doc(hidden)]
    pub declared: Declared<'a>,
    /// Gradients of what the operator writes, and of what it reads: two things where it overwrites its input.
    #[doc(hidden)]
    pub of_output: &'a dyn Fn(Var) -> Var,
    #[doc(hidden)]
    pub wanted: &'a dyn Fn(Var) -> Option<Var>,
    #[doc(hidden)]
    pub arrives: &'a dyn Fn(Var) -> bool,
    #[doc(hidden)]
    pub block: Option<&'a GradBlock>,
    #[doc(hidden)]
    pub emitted: &'a mut Vec<OpDesc>,
    #[doc(hidden)]
    pub unchanged: Vec<Var>,
    /// The first error of [`compose`](GradCx::compose).
    #[doc(hidden)]
    pub failed: Option<Error>,
}

impl<'a> GradCx<'a> {
    /// Of an operator that runs a sub-block: the gradient of that block, if there is anything in it.
    pub fn block(&self) -> Option<&'a GradBlock> {
        self.block
    }

    /// The name of a variable.
    pub fn name(&self, var: Var) -> &str {
        self.names.name(var)
    }

    /// What the forward operator leaves unchanged.
    #[doc(hidden)]
    pub fn into_unchanged(self) -> Vec<Var> {
        self.unchanged
    }

    /// Dtype and shape of a variable of the forward operator, where they are declared.
    pub(crate) fn meta(&self, var: Var) -> Option<Meta> {
        self.names.lookup(self.declared.block, (self.declared.original)(var)).map(VarDesc::meta)
    }

    /// The forward operator as data.
    pub fn forward(&self) -> &OpDesc {
        self.fwd
    }

    /// The gradient of an output of the forward operator.
    pub fn grad(&self, output: Var) -> Var {
        (self.of_output)(output)
    }

    /// Whether anything that the targets depend on reads this output, so that a gradient may arrive at it. Rules that
    /// leave operators out where none does keep the backward part small; they need not ask.
    pub fn arrives(&self, output: Var) -> bool {
        (self.arrives)(output)
    }

    /// Where the gradient of an input goes, if anybody wants it.
    pub fn wanted(&self, input: Var) -> Option<Var> {
        (self.wanted)(input)
    }

    /// Declares that the operator leaves a variable as it was, although it writes to it (running statistics when a network
    /// is used): the gradient may read it as an input.
    pub fn unchanged(&mut self, var: Var) {
        self.unchanged.push(var);
    }

    /// Adds the gradient of the operator's [`Composition`](crate::Composition), as far as it comes from these output slots
    /// and goes to these input slots: for what a gradient operator leaves out.
    pub fn compose(&mut self, outputs: &[&str], inputs: &[&str]) {
        let composing = self.ops.get(&self.fwd.ty).map(OpInfo::own_composition);
        let outcome = composing.and_then(|composing| match composing {
            Some(composing) => {
                composing.emit(self, &|slot| outputs.contains(&slot), &|slot| inputs.contains(&slot))
            }
            None => Err(Error::new(
                ErrorKind::NoGradient,
                "its gradient rule asks for a composition, which it has not",
            )),
        });
        if let Err(e) = outcome {
            self.failed.get_or_insert(e);
        }
    }

    /// A new variable, for a value between two emitted operators.
    pub fn fresh(&mut self, what: &str) -> Var {
        self.names.fresh(what)
    }

    /// Adds an operator: `g.push(Scale { x: dout, out: dx, … })`.
    pub fn push(&mut self, op: impl Into<OpDesc>) {
        self.emitted.push(op.into());
    }

    /// Adds the gradient operator `G` of the operator, an `O`, as `grad = G` does, if any of its outputs is wanted: for a
    /// rule that emits others beside it.
    pub fn push_gradient<O: Op, G: Op>(&mut self, _: &O) {
        self.push_wired(const { &O::SCHEMA }, const { &G::SCHEMA });
        self.emitted.pop_if(|op| op.writes().next().is_none());
    }

    /// Adds the operator of that schema: slots named as the forward operator's get its variables, slots named
    /// `…@GRAD` their gradients, and it gets those of its attributes that it declares.
    fn push_wired(&mut self, forward: &'static Schema, schema: &'static Schema) {
        let mut op = OpDesc::new(schema.name);
        for slot in sorted(schema.inputs) {
            let args = match (forward.input(slot.name), forward.output(slot.name)) {
                (Some(_), _) => self.fwd.inputs.get(slot.name),
                (None, Some(_)) => self.fwd.outputs.get(slot.name),
                (None, None) => {
                    let of = slot.name.strip_suffix("@GRAD").map_or(&[][..], |of| self.fwd.outputs.get(of));
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
            op.inputs.append(slot.name, args.iter().copied());
        }
        for slot in sorted(schema.outputs) {
            let base = slot.name.strip_suffix("@GRAD").unwrap_or(slot.name);
            let wanted = self.fwd.inputs.get(base).iter().map(|v| self.wanted(*v));
            match slot.arity {
                Arity::Holes | Arity::Many => {
                    op.outputs.append(slot.name, wanted.map(|v| v.unwrap_or(Var::EMPTY)));
                }
                Arity::One | Arity::Optional => op.outputs.append(slot.name, wanted.flatten()),
            }
        }
        if self.fwd.attrs.iter().all(|(name, _)| schema.attr(&name).is_some()) {
            op.attrs = self.fwd.attrs.clone();
            self.emitted.push(op);
            return;
        }
        for attr in schema.attrs {
            if let Some(value) = self.fwd.attrs.get(attr.name) {
                op.attrs.set(attr.name, value.clone());
            }
        }
        self.emitted.push(op);
    }
}

/// Slots in the order that descriptions have them in.
pub(crate) fn sorted(slots: &'static [SlotDef]) -> SmallVec<[&'static SlotDef; 8]> {
    let mut sorted: SmallVec<[&SlotDef; 8]> = slots.iter().collect();
    sorted.sort_unstable_by_key(|slot| slot.name);
    sorted
}

/// The emitted operators of a rule, for the registry.
pub(crate) fn emit<O: Op>(g: &mut GradCx<'_>) -> Result<()> {
    if let GradKind::Operator(schema) = <O::Grad as GradRule<O>>::KIND {
        g.push_wired(const { &O::SCHEMA }, schema);
        return Ok(());
    }
    let fwd = O::from_desc(g.fwd)?;
    <O::Grad as GradRule<O>>::emit(&fwd, g);
    Ok(())
}
