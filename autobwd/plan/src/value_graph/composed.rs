//! Operators that run by their composition: its operators take their place, with the shapes known by then.

use autobwd_core::{
    __private::{internals::*, within_composition},
    BlockId, Error, ErrorKind, OpDesc, Program, Result, Var,
};

use super::{GraphValue, Instruction, builder::GraphBuilder};

impl GraphBuilder<'_> {
    /// Adds the operators of a composition.
    ///
    /// # Errors
    /// Those of the composition and of its operators; one that contains itself.
    pub(super) fn compose(&mut self, index: usize, desc: &OpDesc) -> Result<()> {
        let (first, mut next) = (self.graph.instructions.len(), self.current.len());
        let meta = |var: Var| Some(self.graph.values[self.current[var.index()]?].meta.clone());
        let mut fresh = |_: &str| {
            next += 1;
            Var::stand_in(next - 1)
        };
        let parts = self.ops.composed(desc, &meta, &mut fresh)?;
        self.current.resize(next, None);
        within_composition(desc, || parts.iter().try_for_each(|part| self.part(index, part)))?;
        self.graph.instructions[first..].iter_mut().for_each(|node| node.in_composition = true);
        Ok(())
    }

    fn part(&mut self, index: usize, part: &OpDesc) -> Result<()> {
        let added = self.ops.get(&part.ty).and_then(|info| {
            info.check(part)?;
            self.node(index, part, info)
        });
        added.map_err(|e| match e.kind() {
            // It names the circle, or the operator with the fault.
            ErrorKind::Operator => e,
            kind => Error::new(kind, format!("operator `{}` of the composition: {}", part.ty, e.message())),
        })
    }
}

impl GraphValue {
    /// The name of its variable. Values between the operators of a composition have none.
    pub fn name<'p>(&self, program: &'p Program) -> &'p str {
        if self.var.index() < program.name_count() {
            program.name(self.var)
        } else {
            "a value of the composition"
        }
    }
}

impl Instruction {
    /// The operator of the program, for messages: this one, or the one whose composition it is part of.
    pub fn described<'a>(&'a self, program: &'a Program, block: BlockId) -> &'a OpDesc {
        let composed = program.block(block).and_then(|block| block.ops.get(self.index));
        composed.filter(|_| self.in_composition).unwrap_or(&self.desc)
    }
}
