//! Compositions: operators in terms of others.
//!
//! A gradient operator with `grad_of` inherits the composition of its forward operator, if it reads all inputs of that
//! operator. Backends use compositions for operators that they have no rule for (`OpInfoMap::composition`).

mod backend_rule;
mod blocks;
mod composed;
pub(crate) mod nesting;

pub use backend_rule::{AnyRule, FillSlot, PutOutput, Rule, Rules};
pub use composed::Composed;
use smallvec::SmallVec;

use crate::{
    BlockId, Builder, Describe, Error, ErrorKind, Expr, Meta, Op, OpDesc, OpInfo, OpInfoMap, Result, Role,
    Schema, Var, VarDesc,
    op::{CompositionEntry, ImplProbe, LoopForm, OpSequence, OpSequenceFn, SequenceInput, unread_input},
};

/// The composition of an operator in terms of others, in a few lines of mathematics, written on `LayerNorm<Expr>`.
///
/// One declaration has four uses. [`grad = Composed`](crate::Composed) differentiates it: an operator without a
/// gradient kernel, or the gradient of a gradient operator, needs no rule of its own. `check_sample` compares kernel
/// and gradient with it. [`OpInfoMap::composition`](crate::OpInfoMap::composition) replaces the operator by it, for
/// consumers that do not support the operator. And an operator that is declared `composed` has no kernel: its
/// composition runs in its place.
///
/// It contains no operator of its own type, whatever its attributes, not even within the compositions of others. Its only
/// control flow is recurrences over sequences, such as `autobwd_ops::control::scan`. Where the composition is
/// differentiated, they are [unrolled](Builder::unrolls_loops), which needs a known number of steps.
///
/// ```standalone_crate
/// use autobwd::{Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, Result, Var, register_op};
/// use autobwd_ops::Math;
///
/// /// `out = x / √(1 + x²)`, elementwise.
/// #[register_op(grad = Composed)]
/// pub struct Squash<V = Var> {
///     /// Any shape.
///     #[input]
///     pub x: V,
///     /// Same shape as `x`.
///     #[output(like = x)]
///     pub out: V,
/// }
/// impl Kernel for Squash<Buf<'_>> {
///     fn run(&mut self, _: &Cx) -> Result<()> {
///         let x = self.x.slice::<f64>()?;
///         self.out.slice_mut()?.iter_mut().zip(x).for_each(|(out, x)| *out = x / x.hypot(1.0));
///         Ok(())
///     }
/// }
/// impl Composition for Squash<Expr> {
///     fn compose(&mut self) {
///         self.out = &self.x / (self.x.square() + 1.0).sqrt();
///     }
/// }
/// use autobwd::check::{out, uniform};
/// autobwd::samples!(Squash, [Squash { x: uniform([2, 3]), out: out() }]);
/// ```
pub trait Composition {
    /// Sets the outputs from the inputs. It may also set optional outputs that are not wanted.
    fn compose(&mut self);
}

/// Composes an operator: `input` returns its inputs, `unset` is the initial value of outputs. Returns the expression of
/// each output, by slot.
type CompositionFn = fn(
    &OpDesc,
    &mut dyn FnMut(&'static str, Var) -> Result<Expr>,
    &Expr,
) -> Result<Vec<(&'static str, Var, Expr)>>;

/// The line of the operator that `T` instantiates, for inputs of these dtypes and shapes.
fn line_of<T>(
    ops: &OpInfoMap,
    op: &OpDesc,
    meta: &dyn Fn(Var) -> Option<Meta>,
    loops: LoopForm,
) -> Result<OpSequence>
where
    T: Composition + Describe<Expr>,
    T::Op: Op<Of<Expr> = T>,
{
    line(ops, composed::<T>, op, meta, loops)
}

fn line(
    ops: &OpInfoMap,
    compose: CompositionFn,
    op: &OpDesc,
    meta: &dyn Fn(Var) -> Option<Meta>,
    loops: LoopForm,
) -> Result<OpSequence> {
    let info = ops.get(&op.ty)?;
    // A composition may rely on what the shape rule accepts.
    let mut inferred = vec![];
    info.infer(op, &|var| meta(var).ok_or_else(unknown_shapes), &mut |var, meta| inferred.push((var, meta)))?;
    let builder = if ops.is_linked() { Builder::new() } else { Builder::with_ops(ops.clone()) };
    builder.set_loop_form(loops);
    let mut inputs = vec![];
    let input = &mut |slot: &'static str, outer| {
        let meta = meta(outer).ok_or_else(unknown_shapes)?;
        let expr = builder.variable(BlockId::ROOT, "x", VarDesc::of(meta));
        inputs.push(SequenceInput { slot: slot.into(), outer, inner: expr.var() });
        Ok(expr)
    };
    let outputs = info.authored("composition", || compose(op, input, &builder.existing(Var::EMPTY)))?;
    if info.is_composed() {
        for (slot, outer, expr) in &outputs {
            let found = expr.check()?.meta();
            match inferred.iter().find(|(var, expected)| var == outer && !expected.agrees(&found)) {
                None => {}
                Some((_, expected)) => {
                    let ty = op.ty;
                    let text = format!(
                        "the composition of `{ty}` computes {found} for `{slot}`, but the shape rule says {expected}"
                    );
                    return Err(Error::new(ErrorKind::Operator, text));
                }
            }
        }
    }
    let outputs = outputs.into_iter().map(|(slot, outer, expr)| SequenceInput {
        slot: slot.into(),
        outer,
        inner: expr.var(),
    });
    Ok(OpSequence { program: (*builder.program()?).clone(), outputs: outputs.collect(), inputs })
}

fn unknown_shapes() -> Error {
    let text = "the composition needs the shapes of its inputs, which only a program declares";
    Error::new(ErrorKind::NoGradient, text)
}

/// Composes the operator that `T` instantiates.
fn composed<T>(
    desc: &OpDesc,
    input: &mut dyn FnMut(&'static str, Var) -> Result<Expr>,
    unset: &Expr,
) -> Result<Vec<(&'static str, Var, Expr)>>
where
    T: Composition + Describe<Expr>,
    T::Op: Op<Of<Expr> = T>,
{
    let fill = &mut |role, slot, var| match role {
        Role::Input => input(slot, var),
        Role::Output => Ok(unset.clone()),
    };
    let schema = const { &<T::Op as Op>::SCHEMA };
    let mut op = <T::Op as Op>::from_desc_with::<Expr>(desc, fill)?;
    op.compose();
    let mut outputs = SmallVec::new();
    <T::Op as Op>::outputs(op, &mut |slot, expr| outputs.push((slot, expr)));
    by_variable(schema, desc, outputs)
}

/// The expression of each output, from expressions in the order of slots.
fn by_variable(
    schema: &Schema,
    desc: &OpDesc,
    outputs: SmallVec<[(usize, Expr); 2]>,
) -> Result<Vec<(&'static str, Var, Expr)>> {
    let args =
        schema.outputs.iter().map(|slot| desc.outputs.get(slot.name).iter().filter(|v| **v != Var::EMPTY));
    let (mut args, mut found) = (args.collect::<SmallVec<[_; 4]>>(), vec![]);
    for (slot, expr) in outputs {
        let Some(var) = args.get_mut(slot).and_then(Iterator::next) else { continue };
        if expr.check()?.var() == Var::EMPTY {
            return Err(not_set(schema.outputs[slot].name));
        }
        found.push((schema.outputs[slot].name, *var, expr));
    }
    Ok(found)
}

fn not_set(output: &str) -> Error {
    Error::new(ErrorKind::Slot, format!("the composition does not set output `{output}`"))
}

impl<T: Composition + Describe<Expr>> ImplProbe<T>
where
    T::Op: Op<Of<Expr> = T>,
{
    /// It is implemented.
    pub const COMPOSITION: Option<OpSequenceFn> = Some(line_of::<T>);
}

impl OpInfo {
    /// Adds the composition of the operator or of its forward operator, if there is one.
    #[must_use]
    pub const fn composition(
        self,
        own: Option<OpSequenceFn>,
        of_forward: Option<(OpSequenceFn, &'static Schema)>,
    ) -> OpInfo {
        let emit = composed::emit;
        match (own, of_forward) {
            (Some(compose), _) => self.composing(CompositionEntry { compose, forward: None, emit }),
            // A gradient operator that does not read all inputs needs a composition of its own.
            (None, Some((compose, forward))) if unread_input(forward, self.schema()).is_none() => {
                self.composing(CompositionEntry { compose, forward: Some(forward), emit })
            }
            (None, _) => self,
        }
    }
}
