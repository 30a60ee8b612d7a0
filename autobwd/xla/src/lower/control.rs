//! Control flow: branches as `if`, loops and recurrences as `while`.

use autobwd::{Error, ErrorKind, Result};
use autobwd_plan::{Instruction, SubBlockPlan};

use super::graph::GraphLowering;

impl<'a> GraphLowering<'a> {
    /// Lowers an operator that runs a block.
    pub(super) fn control(&mut self, _: &'a Instruction, _: &'a SubBlockPlan) -> Result<()> {
        Err(Error::new(ErrorKind::Format, "control flow has no form in StableHLO yet"))
    }
}
