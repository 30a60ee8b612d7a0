//! An operator's formula, as data.

use super::{OpInfo, Run, lanes_of};
use crate::{Lanes, Op, OpDesc, Result, lanes::Formula};

impl OpInfo {
    /// The same, of an operator that has a formula beside its kernel, for regions.
    #[must_use]
    pub const fn with_formula<O: Op + Lanes>(self) -> OpInfo {
        OpInfo { lanes: Some(lanes_of::<O>()), ..self }
    }

    /// Its formula as data, with these attributes: what each output is computed from. `None` if it has none.
    ///
    /// # Errors
    /// As [`check`](OpInfo::check).
    pub fn formula(&self, desc: &OpDesc) -> Result<Option<Formula>> {
        self.check(desc)?;
        self.lanes.as_ref().map(|lanes| lanes.formula(desc)).transpose()
    }

    /// Whether it depends on the elements in that input slot: not if it needs their shape alone, or runs by nothing but a
    /// formula in which the slot does not occur.
    ///
    /// # Errors
    /// Attributes that the operator does not take.
    #[doc(hidden)]
    pub fn reads_slot(&self, desc: &OpDesc, slot: &str) -> Result<bool> {
        let Some(input) = self.schema.input_number(slot) else { return Ok(true) };
        match (self.run, &self.lanes) {
            _ if self.schema.inputs[input].shape_only => Ok(false),
            (Run::Formula { others: None }, Some(lanes)) => Ok(lanes.formula(desc)?.is_read(input)),
            _ => Ok(true),
        }
    }
}
