//! Rules of backends: operators in terms of a backend's own values.

use std::{collections::BTreeMap, fmt};

use crate::{Op, OpDesc, Result, Role, Var};

/// An operator in a backend, written on its struct with the backend's values in the slots: `impl Rule<Hlo> for
/// Transpose2<Hlo>`.
///
/// A backend has rules for primitive operators. It lowers every other operator by its formula or its
/// [composition](crate::Composition), unless it has a *native form*: a rule for an operator that has a composition as
/// well, where the backend knows something better.
pub trait Rule<V> {
    /// Whether the rule supports these attributes, dtypes and shapes; otherwise the operator's formula or composition
    /// is used.
    fn fits(&self) -> bool {
        true
    }

    /// Sets the outputs from the inputs. Before, an output has the dtype and the dimensions that its value must have.
    /// Outputs that nothing reads may remain as they are.
    fn apply(&mut self);
}

/// The value in a slot of an operator, by the name of the slot.
pub type FillSlot<'a, V> = &'a mut dyn FnMut(Role, &'static str, Var) -> Result<V>;

/// Takes an output, with the index of its slot.
pub type PutOutput<'a, V> = &'a mut dyn FnMut(usize, V);

/// The rule of an operator, for any operator.
pub struct AnyRule<V> {
    fits: fn(&OpDesc, FillSlot<'_, V>) -> Result<bool>,
    apply: fn(&OpDesc, FillSlot<'_, V>, PutOutput<'_, V>) -> Result<bool>,
}

impl<V> Clone for AnyRule<V> {
    fn clone(&self) -> AnyRule<V> {
        *self
    }
}
impl<V> Copy for AnyRule<V> {}
impl<V> fmt::Debug for AnyRule<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyRule")
    }
}

impl<V> AnyRule<V> {
    /// The rule of an operator, with its type in programs.
    pub const fn of<O: Op>() -> (&'static str, AnyRule<V>)
    where
        O::Of<V>: Rule<V>,
    {
        let rule = AnyRule {
            fits: |desc, fill| Ok(O::from_desc_with::<V>(desc, fill)?.fits()),
            apply: |desc, fill, put| {
                let mut op = O::from_desc_with::<V>(desc, fill)?;
                let fits = op.fits();
                if fits {
                    op.apply();
                    O::outputs(op, put);
                }
                Ok(fits)
            },
        };
        (O::SCHEMA.name, rule)
    }

    /// Whether the rule supports an operator, whose slots hold values of known types.
    ///
    /// # Errors
    /// Invalid attributes, and the errors of `fill`.
    pub fn fits(self, desc: &OpDesc, fill: FillSlot<'_, V>) -> Result<bool> {
        (self.fits)(desc, fill)
    }

    /// Applies the rule to a described operator; `false` if the rule does not support the operator.
    ///
    /// # Errors
    /// Invalid attributes, and the errors of `fill`.
    pub fn apply(self, desc: &OpDesc, fill: FillSlot<'_, V>, put: PutOutput<'_, V>) -> Result<bool> {
        (self.apply)(desc, fill, put)
    }
}

/// Rules by the type of operators.
pub type Rules<V> = BTreeMap<&'static str, AnyRule<V>>;
