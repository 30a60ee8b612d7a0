//! Derivatives on their way back, and adding them up.

use std::{mem, panic::Location, ptr, sync::Arc};

use crate::engine::Eager;
use autobwd_core::{
    Builder, Error, Meta, Result, Tensor, Var, Words,
    build::{Given, Ready, Value},
    operators::ElementwiseAdd,
    tensor::Memory,
};

/// A derivative on its way.
pub(super) enum Derivative {
    /// One that others may have, too; with its memory, if that does not stay.
    Value(Value, Option<Arc<Memory>>),
    /// What was computed on the way, and nobody else has: the elements of a whole tensor, and nothing else.
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

    /// What it is, as the derivative of that value.
    pub(super) fn meta<'m>(&'m self, of: &'m Value) -> &'m Meta {
        match self {
            Derivative::Value(value, _) => value.meta(),
            Derivative::Loose(_) => of.meta(),
        }
    }

    /// Whether it is rows of a tensor.
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

    /// The derivative as a value, which others may have, too: like `meta`, if it has been elements alone.
    pub(super) fn share(&mut self, meta: &Meta) -> Result<&Value> {
        if let Derivative::Loose(memory) = self {
            let given = Given::of(String::new(), meta.clone(), mem::take(memory), false);
            *self = Derivative::of(given.into());
        }
        self.value()
    }

    /// The elements, which others do not have: a copy of them, if they do; like `meta`.
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

/// A value with what has arrived so far.
pub(crate) struct Entry<'a> {
    pub(super) of: &'a Value,
    pub(super) derivative: Derivative,
    /// What could not be added at once: some are rows of a tensor.
    pub(super) more: Vec<Derivative>,
}

impl<'a> Entry<'a> {
    /// Nothing has arrived.
    pub(super) fn of(of: &'a Value) -> Entry<'a> {
        Entry { of, derivative: Derivative::default(), more: vec![] }
    }
}

/// Adds derivatives that arrive to those that are there.
pub(super) struct Adder<'a> {
    pub(super) builder: &'a Builder,
    pub(super) eager: &'a Eager,
    pub(super) forgets: bool,
    /// What adds two that are like those that were added last.
    pub(super) ready: Option<(&'a Meta, Arc<Ready>)>,
    pub(super) site: &'static Location<'static>,
}

impl<'a> Adder<'a> {
    /// Adds a derivative to what has arrived, in the order of a program.
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

    /// What adds two derivatives that are like that.
    fn for_terms(&self, term: &Meta, site: &'static Location<'static>) -> Result<Arc<Ready>> {
        let [x, y, out] = [1, 2, 3].map(Var::stand_in);
        let desc = ElementwiseAdd::of_equal_shapes(x, y, out);
        let (mut words, terms) = (Words::of(&desc), [term.clone(), term.clone()]);
        terms.iter().for_each(|term| words.meta(term));
        self.eager.ready(self.builder, &words, &mut || Ok(desc.clone()), &terms, site)
    }
}
