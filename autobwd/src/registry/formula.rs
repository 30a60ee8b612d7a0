//! An operator's formula, as data.

use super::OpInfo;
use crate::{
    Lanes, OpDesc, Result,
    lanes::{Formula, LaneEntry},
};

impl OpInfo {
    /// The same, of an operator that has a formula beside its kernel, for regions.
    #[must_use]
    pub const fn with_formula<O: Lanes>(self) -> OpInfo {
        OpInfo { lanes: Some(LaneEntry::of::<O>()), ..self }
    }

    /// Its formula as data, with these attributes: what each output is computed from. `None` if it has none.
    ///
    /// # Errors
    /// As [`check`](OpInfo::check).
    pub fn formula(&self, desc: &OpDesc) -> Result<Option<Formula>> {
        self.check(desc)?;
        self.lanes.as_ref().map(|lanes| lanes.formula(desc)).transpose()
    }
}
