//! Gradients in flight during the backward pass, and their accumulation.
//!
//! Without recording, a gradient in flight is a bare buffer; it becomes a value when it reaches a leaf, a hook or a
//! caller.

use std::{mem, panic::Location, ptr, sync::Arc};

use crate::engine::Eager;
use autobwd_core::{
    __private::{Memory, PreparedOp, SourceValue, internals::*},
    Builder, Error, Meta, OpKey, Result, Tensor, Var,
    graph_builder::Value,
    operators::ElementwiseAdd,
};

/// A gradient in flight.
pub(super) enum Gradient {
    /// A gradient that may be shared; with its memory, if it is temporary.
    Value(Value, Option<Arc<Memory>>),
    /// An unshared buffer: the elements of a dense tensor.
    Loose(Memory),
}

impl Default for Gradient {
    /// None.
    fn default() -> Gradient {
        Gradient::Loose(Memory::default())
    }
}

impl Gradient {
    pub(super) fn of(value: Value) -> Gradient {
        let shared = value.shared();
        Gradient::Value(value, shared)
    }

    /// Its dtype and shape, as the gradient of `of`.
    pub(super) fn meta<'m>(&'m self, of: &'m Value) -> &'m Meta {
        match self {
            Gradient::Value(value, _) => value.meta(),
            Gradient::Loose(_) => of.meta(),
        }
    }

    /// Whether it is sparse (rows of a tensor).
    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self, Gradient::Value(value, _) if value.meta().rows.is_some())
    }

    #[inline]
    pub(super) fn memory(&self) -> Result<&Memory> {
        match self {
            Gradient::Value(value, shared) => value.memory(shared.as_ref()),
            Gradient::Loose(memory) => Ok(memory),
        }
    }

    /// The gradient as a value, which may be shared; a bare buffer gets dtype and shape from `meta`.
    pub(super) fn share(&mut self, meta: &Meta) -> Result<&Value> {
        if let Gradient::Loose(memory) = self {
            let given = SourceValue::of(String::new(), meta.clone(), mem::take(memory), false);
            *self = Gradient::of(given.into());
        }
        self.value()
    }

    /// The elements, unshared; copied if they are shared. A bare buffer gets dtype and shape from `meta`.
    #[inline]
    fn own_memory(&mut self, meta: &Meta) -> Result<&mut Memory> {
        if let Gradient::Value(value, shared) = self {
            *self = Gradient::Loose(Tensor::memory_of(value.memory(shared.as_ref())?, meta)?);
        }
        match self {
            Gradient::Loose(memory) => Ok(memory),
            Gradient::Value(..) => Err(Error::internal("a gradient that is shared")),
        }
    }

    pub(super) fn value(&self) -> Result<&Value> {
        match self {
            Gradient::Value(value, _) => Ok(value),
            Gradient::Loose(_) => Err(Error::internal("a gradient that is not a value")),
        }
    }
}

/// A value with its gradient so far.
pub(crate) struct PendingGradient<'a> {
    pub(super) of: &'a Value,
    pub(super) derivative: Gradient,
    /// Contributions that are added at the end, because some are sparse, or because the sum is rounded once.
    pub(super) more: Vec<Gradient>,
}

impl<'a> PendingGradient<'a> {
    /// Without contributions.
    pub(super) fn of(of: &'a Value) -> PendingGradient<'a> {
        PendingGradient { of, derivative: Gradient::default(), more: vec![] }
    }
}

/// Sums contributions.
pub(super) struct Adder<'a> {
    pub(super) builder: &'a Builder,
    pub(super) eager: &'a Eager,
    pub(super) forgets: bool,
    /// The operator that adds two contributions, for the dtype and shape of the last ones.
    pub(super) ready: Option<(&'a Meta, Arc<PreparedOp>)>,
    pub(super) site: &'static Location<'static>,
}

impl<'a> Adder<'a> {
    /// Adds a contribution to a gradient, in the order of a program.
    pub(super) fn add(&mut self, entry: &mut PendingGradient<'a>, mut derivative: Gradient) -> Result<()> {
        let PendingGradient { of, derivative: sum, more } = entry;
        if sum.is_sparse() || derivative.is_sparse() || of.meta().dtype.is_half() {
            more.push(derivative);
            return Ok(());
        }
        let (meta, site) = (of.meta(), of.node().call().map_or(self.site, |call| call.site));
        if self.ready.as_ref().is_none_or(|(known, _)| !ptr::eq(*known, meta)) {
            self.ready = Some((meta, self.for_terms(meta, site)?));
        }
        let Some((_, ready)) = &self.ready else { return Ok(()) };
        if self.forgets {
            self.eager.compute_over(ready, sum.own_memory(meta)?, derivative.memory()?, site)?;
        } else {
            let terms = [sum.share(meta)?, derivative.share(meta)?];
            *sum = Gradient::of(Value::of(self.eager.run(ready, &terms, &[], site)?, 0));
        }
        Ok(())
    }

    /// The operator that adds two contributions of that dtype and shape.
    fn for_terms(&self, term: &Meta, site: &'static Location<'static>) -> Result<Arc<PreparedOp>> {
        let [x, y, out] = [1, 2, 3].map(Var::stand_in);
        let desc = ElementwiseAdd::of_equal_shapes(x, y, out);
        let (mut words, terms) = (OpKey::of(&desc), [term.clone(), term.clone()]);
        terms.iter().for_each(|term| words.meta(term));
        self.eager.ready(self.builder, &words, &mut || Ok(desc.clone()), &terms, site)
    }
}
