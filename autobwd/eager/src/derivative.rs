//! Gradients in flight during the backward pass, and their accumulation.

use std::{mem, panic::Location, ptr, sync::Arc};

use crate::engine::Eager;
use autobwd_core::{
    Builder, Error, Meta, Result, Tensor, Var, Words,
    build::{Given, Ready, Value},
    operators::ElementwiseAdd,
    tensor::Memory,
};

/// A gradient in flight.
pub(super) enum Derivative {
    /// A gradient that may be shared; with its memory, if it is temporary.
    Value(Value, Option<Arc<Memory>>),
    /// An unshared buffer: the elements of a whole tensor.
    Loose(Memory),
}

impl Default for Derivative {
    /// None.
    fn default() -> Derivative {
        Derivative::Loose(Memory::default())
    }
}

impl Derivative {
    pub(super) fn of(value: Value) -> Derivative {
        let shared = value.shared();
        Derivative::Value(value, shared)
    }

    /// Its dtype and shape, as the gradient of `of`.
    pub(super) fn meta<'m>(&'m self, of: &'m Value) -> &'m Meta {
        match self {
            Derivative::Value(value, _) => value.meta(),
            Derivative::Loose(_) => of.meta(),
        }
    }

    /// Whether it is sparse (rows of a tensor).
    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self, Derivative::Value(value, _) if value.meta().rows.is_some())
    }

    #[inline]
    pub(super) fn memory(&self) -> Result<&Memory> {
        match self {
            Derivative::Value(value, shared) => value.memory(shared.as_ref()),
            Derivative::Loose(memory) => Ok(memory),
        }
    }

    /// The gradient as a value, which may be shared; a bare buffer gets dtype and shape from `meta`.
    pub(super) fn share(&mut self, meta: &Meta) -> Result<&Value> {
        if let Derivative::Loose(memory) = self {
            let given = Given::of(String::new(), meta.clone(), mem::take(memory), false);
            *self = Derivative::of(given.into());
        }
        self.value()
    }

    /// The elements, unshared; copied if they are shared. A bare buffer gets dtype and shape from `meta`.
    #[inline]
    fn loose(&mut self, meta: &Meta) -> Result<&mut Memory> {
        if let Derivative::Value(value, shared) = self {
            *self = Derivative::Loose(Tensor::memory_of(value.memory(shared.as_ref())?, meta)?);
        }
        match self {
            Derivative::Loose(memory) => Ok(memory),
            Derivative::Value(..) => Err(Error::internal("a derivative that others have")),
        }
    }

    pub(super) fn value(&self) -> Result<&Value> {
        match self {
            Derivative::Value(value, _) => Ok(value),
            Derivative::Loose(_) => Err(Error::internal("a derivative that is no value")),
        }
    }
}

/// A value with its gradient so far.
pub(crate) struct Entry<'a> {
    pub(super) of: &'a Value,
    pub(super) derivative: Derivative,
    /// Contributions that could not be added yet, because some are sparse.
    pub(super) more: Vec<Derivative>,
}

impl<'a> Entry<'a> {
    /// Without contributions.
    pub(super) fn of(of: &'a Value) -> Entry<'a> {
        Entry { of, derivative: Derivative::default(), more: vec![] }
    }
}

/// Sums contributions.
pub(super) struct Adder<'a> {
    pub(super) builder: &'a Builder,
    pub(super) eager: &'a Eager,
    pub(super) forgets: bool,
    /// The operator that adds two contributions, for the dtype and shape of the last ones.
    pub(super) ready: Option<(&'a Meta, Arc<Ready>)>,
    pub(super) site: &'static Location<'static>,
}

impl<'a> Adder<'a> {
    /// Adds a contribution to a gradient, in the order of a program.
    pub(super) fn add(&mut self, entry: &mut Entry<'a>, mut derivative: Derivative) -> Result<()> {
        let Entry { of, derivative: sum, more } = entry;
        if sum.is_sparse() || derivative.is_sparse() {
            more.push(derivative);
            return Ok(());
        }
        let (meta, site) = (of.meta(), of.node.call().map_or(self.site, |call| call.site));
        if self.ready.as_ref().is_none_or(|(known, _)| !ptr::eq(*known, meta)) {
            self.ready = Some((meta, self.for_terms(meta, site)?));
        }
        let Some((_, ready)) = &self.ready else { return Ok(()) };
        if self.forgets {
            self.eager.compute_over(ready, sum.loose(meta)?, derivative.memory()?, site)?;
        } else {
            let terms = [sum.share(meta)?, derivative.share(meta)?];
            *sum = Derivative::of(Value::of(self.eager.run(ready, &terms, &[], site)?, 0));
        }
        Ok(())
    }

    /// The operator that adds two contributions of that dtype and shape.
    fn for_terms(&self, term: &Meta, site: &'static Location<'static>) -> Result<Arc<Ready>> {
        let [x, y, out] = [1, 2, 3].map(Var::stand_in);
        let desc = ElementwiseAdd::of_equal_shapes(x, y, out);
        let (mut words, terms) = (Words::of(&desc), [term.clone(), term.clone()]);
        terms.iter().for_each(|term| words.meta(term));
        self.eager.ready(self.builder, &words, &mut || Ok(desc.clone()), &terms, site)
    }
}
