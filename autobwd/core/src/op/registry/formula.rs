//! An operator's formula as data.

use super::{Implementation, OpInfo, lanes_of};
use crate::{Lanes, Op, OpDesc, Result, lanes::Formula};

impl OpInfo {
    /// Adds a formula to an operator with a kernel, for fusion.
    #[must_use]
    pub const fn with_formula<O: Op + Lanes>(self) -> OpInfo {
        OpInfo { lanes: Some(lanes_of::<O>()), ..self }
    }

    /// Its formula as data, with these attributes: the expression of each output. `None` if it has no formula.
    ///
    /// # Errors
    /// As [`check`](OpInfo::check).
    pub fn formula(&self, desc: &OpDesc) -> Result<Option<Formula>> {
        self.check(desc)?;
        self.lanes.as_ref().map(|lanes| lanes.formula(desc)).transpose()
    }

    /// Whether it depends on the elements of that input slot. It does not if it reads the shape only, or if the slot
    /// does not occur in the formula that is its only implementation.
    ///
    /// # Errors
    /// Invalid attributes.
    pub(crate) fn reads_slot(&self, desc: &OpDesc, slot: &str) -> Result<bool> {
        let Some(input) = self.schema.input_number(slot) else { return Ok(true) };
        match (self.run, &self.lanes) {
            _ if self.schema.inputs[input].shape_only => Ok(false),
            (Implementation::Formula { others: None }, Some(lanes)) => {
                Ok(lanes.formula(desc)?.is_read(input))
            }
            _ => Ok(true),
        }
    }
}
