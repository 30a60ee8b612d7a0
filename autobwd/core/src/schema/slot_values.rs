//! Conversion of operator structs to keys and descriptions.

use std::fmt;

use smallvec::SmallVec;

use super::{Arity, AttrValue, Role, Slot};
use crate::{AttrMap, OpDesc, Result, Slots, Var, desc::OpKey};

/// The contents of an operator's struct: slot values in the order of its fields, and attributes.
#[derive(Debug)]
pub struct SlotValues<W> {
    pub(crate) ty: &'static str,
    pub(crate) values: SmallVec<[(Role, &'static str, Option<W>); 4]>,
    pub(crate) recorder: AttrRecorder,
}

/// Records the attributes of an operator as a key, and on request as data.
#[derive(Debug, Default)]
pub struct AttrRecorder {
    pub(crate) key: OpKey,
    attrs: Option<AttrMap>,
}

/// `Debug` for operators.
///
/// # Errors
/// The errors of the formatter.
pub fn debug_struct(
    name: &str,
    fields: &[(&str, &dyn fmt::Debug)],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mut text = f.debug_struct(name);
    fields.iter().for_each(|(name, field)| _ = text.field(name, field));
    text.finish()
}

impl<W> SlotValues<W> {
    #[inline]
    pub(crate) fn new(ty: &'static str, with_attrs: bool) -> SlotValues<W> {
        let mut recorder = AttrRecorder { key: OpKey::default(), attrs: with_attrs.then(AttrMap::default) };
        recorder.key.name(ty);
        SlotValues { ty, values: SmallVec::new(), recorder }
    }

    /// The recorder of attributes.
    pub fn recorder(&mut self) -> &mut AttrRecorder {
        &mut self.recorder
    }

    /// Takes the values of a slot and returns the empty slot.
    #[inline]
    pub fn slot<S: Slot<W>>(&mut self, role: Role, slot: &'static str, held: S) -> S::Of<()> {
        let (empty, first) = (held.map(|_| ()), self.values.len());
        let mut holes = false;
        held.take(|held| {
            holes |= held.is_none();
            self.values.push((role, slot, held));
        });
        if S::ARITY == Arity::One {
            return empty;
        }
        let words = &mut self.recorder.key;
        words.put((((self.values.len() - first) as u64) << 1) | u64::from(holes));
        if holes {
            self.values[first..].iter().for_each(|(.., held)| words.put(u64::from(held.is_some())));
        }
        empty
    }

    /// The operator as data, with variables from `name`.
    ///
    /// # Errors
    /// The errors of `name`.
    pub(crate) fn describe(
        self,
        name: &mut dyn FnMut(Role, &'static str, W) -> Result<Var>,
    ) -> Result<OpDesc> {
        let mut desc = OpDesc { attrs: self.recorder.attrs.unwrap_or_default(), ..OpDesc::new(self.ty) };
        for (role, slot, held) in self.values {
            let var = held.map_or(Ok(Var::EMPTY), |held| name(role, slot, held))?;
            let slots: &mut Slots = match role {
                Role::Input => &mut desc.inputs,
                Role::Output => &mut desc.outputs,
            };
            slots.push(slot, var);
        }
        Ok(desc)
    }
}

impl SlotValues<()> {
    /// The operator as data, with variables numbered in order of occurrence.
    pub(crate) fn describe_in_order(self) -> Result<OpDesc> {
        let mut number = 0;
        self.describe(&mut |_, _, ()| {
            number += 1;
            Ok(Var::stand_in(number))
        })
    }
}

impl AttrRecorder {
    /// Records an attribute.
    pub fn attr<A: AttrValue>(&mut self, name: &'static str, value: A) -> A {
        match &mut self.attrs {
            Some(attrs) => attrs.set(name, value.clone().into_attr()),
            None => value.words(&mut self.key),
        }
        value
    }

    /// Records all attributes.
    pub(crate) fn attrs(&mut self, attrs: &AttrMap) {
        for (name, attr) in attrs.iter() {
            self.key.name(name.as_str());
            self.key.attr(attr);
        }
        if let Some(own) = &mut self.attrs {
            own.clone_from(attrs);
        }
    }
}
