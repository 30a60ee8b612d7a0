//! Functions called by generated conversions: loops and error messages.

use smallvec::SmallVec;

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

/// Reads a slot from a description, without values.
///
/// # Errors
/// A wrong number of variables; an error of `visit`.
#[inline(never)]
pub fn gather_slot<S: Slot<()>>(
    desc: &OpDesc,
    role: Role,
    slot: &'static str,
    visit: &mut dyn FnMut(Role, &'static str, Var) -> Result<()>,
) -> Result<S> {
    let slots = match role {
        Role::Input => &desc.inputs,
        Role::Output => &desc.outputs,
    };
    S::fill(slots.get(slot), |var| visit(role, slot, var)).map_err(|e| in_slot(e, role, slot))
}

/// Visits a field of scratch memory. Programs have no variable for it, so it is visited as an output without one.
///
/// # Errors
/// The errors of `visit`.
pub fn visit_scratch(
    field: &'static str,
    visit: &mut dyn FnMut(Role, &'static str, Var) -> Result<()>,
) -> Result<()> {
    visit(Role::Output, field, Var::EMPTY)
}

/// Keeps what `fill` supplies for each variable. It does not depend on an operator's type, so that it is compiled once.
pub(crate) fn keep<W>(
    values: &mut SmallVec<[W; 4]>,
    fill: &mut dyn FnMut(Role, &'static str, Var) -> Result<W>,
) -> impl FnMut(Role, &'static str, Var) -> Result<()> {
    |role, slot, var| {
        values.push(fill(role, slot, var)?);
        Ok(())
    }
}

/// Takes values that [`keep`] has kept, in their order.
pub(crate) fn take_in_order<W>(values: &mut SmallVec<[W; 4]>) -> impl FnMut() -> W {
    values.reverse();
    || values.pop().expect("`Op::fill` asks for the values that `Op::read` has visited, and for no others")
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
        let visit = &mut |_, _, _| Ok(());
        match slot.arity {
            Arity::One => gather_slot::<()>(desc, role, slot.name, visit)?,
            Arity::Optional => gather_slot::<Option<()>>(desc, role, slot.name, visit).map(drop)?,
            Arity::Many => gather_slot::<Vec<()>>(desc, role, slot.name, visit).map(drop)?,
            Arity::Holes => gather_slot::<Vec<Option<()>>>(desc, role, slot.name, visit).map(drop)?,
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
