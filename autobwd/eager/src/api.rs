//! The functions of the tape, and the engine as builders see it.

use std::{borrow::Cow, num::NonZero, panic::Location, rc::Rc, sync::Arc, thread};

use autobwd_core::{
    __private::{DescribeFn, Engine, TapeNode, internals::*},
    Builder, Error, ErrorKind, Expr, Meta, OpDesc, OpInfo, OpInfoMap, OpKey, Result, Var,
    graph_builder::{Function, Value},
};

use crate::{
    engine::{Eager, engine},
    queue::{BackwardWalk, GradientTarget, Queue},
};

/// An eager builder: expressions are evaluated immediately, with as many threads as there are cores.
pub fn eager() -> Builder {
    eager_with_threads(thread::available_parallelism().map_or(1, NonZero::get))
}

/// As [`eager`], with that many threads, including the caller's, at most 1,024. Results do not depend on the number.
pub fn eager_with_threads(threads: usize) -> Builder {
    Builder::with_engine(Rc::new(Eager::new(threads.max(1))), None)
}

/// As [`eager_with_threads`], with these operators instead of those linked into this binary.
pub fn eager_with_ops(ops: OpInfoMap, threads: usize) -> Builder {
    Builder::with_engine(Rc::new(Eager::new(threads.max(1))), Some(ops))
}

/// As [`Expr::backward`], for a value of any shape. `seed` is its upstream gradient (ones when `None`); `look` sees the
/// queue before every step.
///
/// # Errors
/// A seed of another dtype or shape; the errors of `backward`.
#[track_caller]
pub fn backward_with(of: &Expr, seed: Option<&Expr>, look: &mut dyn FnMut(&Queue<'_>)) -> Result<()> {
    let (value, seed) = (of.with_history()?, seed.map(Expr::value).transpose()?);
    walk(of.builder(), value, of.seed(seed)?, Location::caller(), look)
}

/// The backward pass from a value to all leaves.
pub(crate) fn walk(
    builder: &Builder,
    of: &Value,
    seed: Value,
    site: &'static Location<'static>,
    look: &mut dyn FnMut(&Queue<'_>),
) -> Result<()> {
    let walked = builder.recording(false, || {
        let mut walk = BackwardWalk::new(builder, engine(builder)?, GradientTarget::Leaves, site);
        walk.start(of, seed)?;
        walk.run(look)
    });
    walked.map(drop)
}

/// Options of [`grad`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GradOptions<'a> {
    /// By output: its upstream gradient (cotangent); ones when `None`.
    pub seeds: Option<&'a [&'a Expr]>,
    /// Whether to record the gradients on the tape, so that they can be differentiated.
    pub create_graph: bool,
}

/// Gradients of the sum of all elements of `outputs` with respect to each of `inputs`: `None` if no path leads there;
/// [`missing`](crate::missing) gives the reason. Gradients of leaves are not changed, and only operators on a path run.
///
/// # Errors
/// Variables of a program; no outputs; seeds that do not fit; an operator on the path without gradient; an overwritten
/// value that a gradient needs.
#[track_caller]
pub fn grad(outputs: &[&Expr], inputs: &[&Expr], how: &GradOptions<'_>) -> Result<Vec<Option<Expr>>> {
    let site = Location::caller();
    let values =
        |exprs: &[&Expr]| exprs.iter().map(|e| Ok(e.value()?.clone())).collect::<Result<Vec<Value>>>();
    let (roots, inputs) = (values(outputs)?, values(inputs)?);
    let seeds = how.seeds.map(values).transpose()?;
    let Some(builder) = outputs.first().map(|e| e.builder()) else {
        return Err(Error::new(ErrorKind::NoGradient, "no outputs to differentiate are given"));
    };
    if let Some(seeds) = seeds.as_ref().filter(|seeds| seeds.len() != roots.len()) {
        let text = format!("{} seeds are given for {} outputs", seeds.len(), roots.len());
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    let goal = GradientTarget::inputs(&roots, &inputs);
    let goal = builder.recording(how.create_graph, || {
        let mut walk = BackwardWalk::new(builder, engine(builder)?, goal, site);
        for (i, (root, expr)) in roots.iter().zip(outputs).enumerate() {
            walk.start(root, expr.seed(seeds.as_ref().map(|seeds| &seeds[i]))?)?;
        }
        walk.run(&mut |_| {})
    })?;
    Ok(goal.found().into_iter().map(|value| Some(builder.hold(value?))).collect())
}

/// Calls a user-defined function; [`backward`](Expr::backward) differentiates it by its [`Function::backward`].
///
/// ```
/// use autobwd::{Result, Tensor, tape::{Function, apply}};
/// use autobwd_ops as _;
///
/// /// `x · y`
/// struct Product;
/// impl Function for Product {
///     fn name(&self) -> &'static str {
///         "product"
///     }
///     fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
///         Tensor::scalar(inputs[0].item()? * inputs[1].item()?)
///     }
///     fn backward(&self, inputs: &[Tensor], _: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
///         let (x, y, d) = (inputs[0].item()?, inputs[1].item()?, gradient.item()?);
///         Ok(vec![Tensor::scalar(d * y)?, Tensor::scalar(d * x)?])
///     }
/// }
///
/// let tape = autobwd::eager();
/// let x = tape.leaf("x", Tensor::scalar(2.0)?);
/// let y = apply(Product, &[&x, &apply(Product, &[&x, &x])]);
/// y.backward()?;
/// assert_eq!((y.item()?, x.gradient()?.item()?), (8.0, 12.0));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// The result is a failed expression for variables of a program, without inputs, if [`Function::forward`] fails, and
/// during a trace, because a program has operators only.
#[track_caller]
pub fn apply(function: impl Function, inputs: &[&Expr]) -> Expr {
    let site = Location::caller();
    let Some(first) = inputs.first() else {
        let text = format!("function `{}` is called without inputs", function.name());
        return Builder::new().failed(Error::new(ErrorKind::Slot, text));
    };
    let values = inputs.iter().map(|input| input.value()).collect::<Result<Vec<_>>>();
    let found = values.and_then(|values| engine(first.builder())?.apply(Arc::new(function), &values, site));
    match found {
        Ok(value) => first.builder().hold(value),
        Err(e) => first.builder().failed(e),
    }
}

/// The inputs in slots declared `constant`, by position, with their slots.
fn constant_inputs(info: &OpInfo, desc: &OpDesc) -> Vec<(&'static str, usize)> {
    let slots = info.schema().inputs.iter().filter(|slot| slot.constant);
    let constants = slots.flat_map(|slot| desc.inputs.get(slot.name).iter().map(|var| (slot.name, *var)));
    let mut constants: Vec<(&'static str, Var)> = constants.filter(|(_, var)| *var != Var::EMPTY).collect();
    if constants.is_empty() {
        return vec![];
    }
    let mut inputs: Vec<Var> = desc.inputs.args().filter(|var| *var != Var::EMPTY).collect();
    inputs.sort_unstable_by_key(|var| var.index());
    constants.sort_unstable_by_key(|(_, var)| var.index());
    let position = |var: Var| inputs.binary_search_by_key(&var.index(), |input| input.index()).ok();
    constants.into_iter().filter_map(|(slot, var)| Some((slot, position(var)?))).collect()
}

impl Engine for Eager {
    #[inline]
    fn run_known(
        &self,
        words: &mut OpKey,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Option<Result<Arc<TapeNode>>> {
        for input in inputs {
            words.meta(input.meta());
        }
        self.cache.borrow().get(words).map(|ready| self.run(ready, inputs, into, site))
    }

    fn run_described(
        &self,
        builder: &Builder,
        words: &OpKey,
        desc: DescribeFn<'_>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<TapeNode>> {
        let mut metas: Vec<Meta> = inputs.iter().map(|value| value.meta().clone()).collect();
        let described = desc()?;
        let mut key = Cow::Borrowed(words);
        for (slot, i) in constant_inputs(builder.ops()?.get(&described.ty)?, &described) {
            // An operator with constants is prepared for their elements, and found here only.
            let (Some(meta), Some(value)) = (metas.get_mut(i), inputs.get(i)) else { continue };
            meta.clone().in_slot(slot).small()?;
            let elements = value.tensor()?.to_f64s();
            elements.iter().for_each(|x| key.to_mut().element(*x));
            *meta = meta.clone().with_constant(Some(elements.into()));
        }
        let ready = self.ready(builder, &key, &mut || Ok(described.clone()), &metas, site)?;
        self.run(&ready, inputs, into, site)
    }

    fn record(&self, on: bool) -> bool {
        self.records.replace(on)
    }

    fn is_traced(&self) -> bool {
        self.listener.borrow().is_some()
    }

    fn check_finite(&self, on: bool) {
        self.checks_finite.set(on);
    }

    fn operators_run(&self) -> u64 {
        self.runs.get()
    }

    fn backward(
        &self,
        builder: &Builder,
        of: &Value,
        seed: Value,
        site: &'static Location<'static>,
    ) -> Result<()> {
        walk(builder, of, seed, site, &mut |_| {})
    }
}
