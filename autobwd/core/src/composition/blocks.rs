//! Compositions with blocks: a recurrence in a composition is one operator, whose step is copied into the program.

use rustc_hash::FxHashMap;

use crate::{Attr, BlockId, OpDesc, Program, Var, op::OpSequence};

/// Attributes of operators with blocks that are names of variables.
const NAMES: [&str; 2] = ["ex_states", "states"];

impl OpSequence {
    /// Completes operators that replace `op` in a block of a program: declares what they write, and copies the blocks
    /// that they run. `names` maps variables of the composition to variables of the program.
    pub(super) fn complete(
        &self,
        (program, block): (&mut Program, BlockId),
        op: &OpDesc,
        parts: &mut [OpDesc],
        names: FxHashMap<Var, Var>,
    ) {
        for (inner, outer) in &names {
            if let Some(desc) = self.program.root().vars.get(inner)
                && program.lookup(block, *outer).is_none()
                && let Some(block) = program.block_mut(block)
            {
                block.vars.insert(*outer, desc.clone());
            }
        }
        let mut copy = BlockCopy { from: &self.program, to: program, names, op };
        parts.iter_mut().for_each(|part| copy.blocks_of(part, block));
    }
}

/// Copies blocks from one program to another one.
struct BlockCopy<'a> {
    from: &'a Program,
    to: &'a mut Program,
    /// Variables of the other program by variables of the first.
    names: FxHashMap<Var, Var>,
    /// The operator that the composition replaces.
    op: &'a OpDesc,
}

impl BlockCopy<'_> {
    /// Copies the blocks of an operator into a block.
    fn blocks_of(&mut self, op: &mut OpDesc, parent: BlockId) {
        (op.site, op.origin) = (self.op.site, self.op.origin);
        let attrs: Vec<_> = op.attrs.iter().map(|(name, attr)| (name, attr.clone())).collect();
        for (name, attr) in attrs {
            match attr {
                Attr::Block(id) => op.attrs.set(name, Attr::Block(self.block(id, parent))),
                Attr::Blocks(ids) => {
                    let copies = ids.into_iter().map(|id| self.block(id, parent)).collect();
                    op.attrs.set(name, Attr::Blocks(copies));
                }
                Attr::Strs(vars) if NAMES.contains(&&*name) => {
                    let own = vars.iter().map(|var| match self.from.find(var) {
                        Some(var) => {
                            let own = self.own(var);
                            self.to.name(own).to_string()
                        }
                        None => var.clone(),
                    });
                    op.attrs.set(name, Attr::Strs(own.collect()));
                }
                _ => {}
            }
        }
    }

    fn block(&mut self, id: BlockId, parent: BlockId) -> BlockId {
        let new = self.to.add_block(Some(parent), None);
        let Some(block) = self.from.block(id) else { return new };
        let mut ops = block.ops.clone();
        for op in &mut ops {
            for arg in op.inputs.args_mut().chain(op.outputs.args_mut()).filter(|arg| **arg != Var::EMPTY) {
                *arg = self.own(*arg);
            }
            self.blocks_of(op, new);
        }
        let vars: Vec<_> = block.vars.iter().map(|(var, desc)| (self.own(*var), desc.clone())).collect();
        if let Some(copy) = self.to.block_mut(new) {
            copy.ops = ops;
            copy.vars.extend(vars);
        }
        new
    }

    /// The variable of the other program for a variable.
    fn own(&mut self, var: Var) -> Var {
        let BlockCopy { from, to, names, .. } = self;
        *names.entry(var).or_insert_with(|| {
            let name = from.name(var);
            to.fresh(name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_'))
        })
    }
}
