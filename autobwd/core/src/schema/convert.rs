//! Functions called by generated conversions: loops and error messages.

use super::{Arity, Role, Schema, Slot};
use crate::{Error, ErrorKind, Meta, OpDesc, Result, Var};

fn in_slot(error: Error, role: Role, slot: &str) -> Error {
    let side = match role {
        Role::Input => "input",
        Role::Output => "output",
    };
    match error.kind() {
        ErrorKind::Slot if error.op().is_none() => {
            Error::new(ErrorKind::Slot, format!("{side} `{slot}` {}", error.message()))
        }
        _ => error,
    }
}

/// Fills a slot from a description.
///
/// # Errors
/// A wrong number of variables; an error of `fill`.
#[inline(never)]
pub fn gather_slot<W, S: Slot<W>>(
    desc: &OpDesc,
    role: Role,
    slot: &'static str,
    fill: &mut dyn FnMut(Role, &'static str, Var) -> Result<W>,
) -> Result<S> {
    let slots = match role {
        Role::Input => &desc.inputs,
        Role::Output => &desc.outputs,
    };
    S::fill(slots.get(slot), |var| fill(role, slot, var)).map_err(|e| in_slot(e, role, slot))
}

/// Fills a field of scratch memory. Programs have no variable for it, so it is requested as an output without one.
///
/// # Errors
/// The errors of `fill`.
pub fn gather_scratch<W>(
    field: &'static str,
    fill: &mut dyn FnMut(Role, &'static str, Var) -> Result<W>,
) -> Result<W> {
    fill(Role::Output, field, Var::EMPTY)
}

/// Checks slots and attributes of a description as conversion to an operator would, but from the schema alone, so that
/// it is compiled once.
///
/// # Errors
/// A wrong number of variables; an attribute of another type, out of its bounds, or missing without a default.
pub(crate) fn check_described(schema: &Schema, desc: &OpDesc) -> Result<()> {
    let slots = [(Role::Input, schema.inputs), (Role::Output, schema.outputs)];
    for (role, slot) in slots.into_iter().flat_map(|(role, slots)| slots.iter().map(move |slot| (role, slot)))
    {
        let fill = &mut |_, _, _| Ok(());
        match slot.arity {
            Arity::One => gather_slot::<(), ()>(desc, role, slot.name, fill)?,
            Arity::Optional => gather_slot::<(), Option<()>>(desc, role, slot.name, fill).map(drop)?,
            Arity::Many => gather_slot::<(), Vec<()>>(desc, role, slot.name, fill).map(drop)?,
            Arity::Holes => gather_slot::<(), Vec<Option<()>>>(desc, role, slot.name, fill).map(drop)?,
        }
    }
    schema.attrs.iter().try_for_each(|attr| (attr.check)(desc, attr))
}

/// Checks, for a gradient operator whose shape rule is `like`, that a gradient has dtype and shape of its slot.
///
/// # Errors
/// The check fails.
pub fn same_as<S: Slot<Meta>, G: Slot<Meta>>(slot: &S, gradient: &G) -> Result<()> {
    let (mut position, mut outcome) = (0, Ok(()));
    gradient.each(|meta| {
        if let (Some(of), Ok(())) = (slot.at(position), &outcome) {
            outcome = meta.same_as(of);
        }
        position += 1;
    });
    outcome
}

/// Yields the values of an output slot.
pub fn put_values<W, S: Slot<W>>(index: usize, content: S, put: &mut dyn FnMut(usize, W)) {
    content.take(|held| {
        if let Some(held) = held {
            put(index, held)
        }
    });
}
