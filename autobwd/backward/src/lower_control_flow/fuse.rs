//! Construction of a block that computes a step together with its gradient: the operators of both blocks one after
//! another, on variables with new names.

use rustc_hash::{FxHashMap, FxHashSet};

use autobwd_core::{
    __private::internals::*,
    Attr, BlockId, OpDesc, Origin, Program, Var, VarDesc,
    operators::{Assign, FillZerosLike, Sum},
};

/// A block under construction that computes a step and its gradient.
pub(super) struct LoopFusion<'a> {
    program: &'a mut Program,
    into: BlockId,
    /// The gradient block.
    from: BlockId,
    /// New names of the variables of the step and its gradient.
    renamed: FxHashMap<Var, Var>,
    /// The variables that it computes itself.
    computed: FxHashSet<Var>,
    ops: Vec<OpDesc>,
}

impl<'a> LoopFusion<'a> {
    /// An empty block `into`, for a step and its gradient block `from`.
    pub(super) fn new(program: &'a mut Program, into: BlockId, from: BlockId) -> LoopFusion<'a> {
        let (renamed, computed) = Default::default();
        LoopFusion { program, into, from, renamed, computed, ops: vec![] }
    }

    fn current(&self, var: Var) -> Var {
        self.renamed.get(&var).copied().unwrap_or(var)
    }

    pub(super) fn rename(&mut self, from: Var, to: Var) {
        self.renamed.insert(from, to);
    }

    /// Declares a variable with the dtype and shape that another one has in a step.
    pub(super) fn declare_like(&mut self, var: Var, like: Var) {
        let Some(desc) = self.program.lookup(self.from, like).cloned() else { return };
        let desc = VarDesc { persistable: false, parameter: false, gradient_of: None, ..desc };
        self.program.block_mut(self.into).map(|block| block.vars.insert(var, desc));
    }

    fn own_like(&mut self, var: Var) -> Var {
        let own = self.program.fresh_var(&format!("{}@AGAIN@", self.program.name(var)));
        self.declare_like(own, var);
        own
    }

    /// A new gradient in the shape of a variable, without that variable's `stop_gradient` mark: a state initialised
    /// with data still passes gradients from step to step.
    pub(super) fn own_gradient(&mut self, like: Var) -> Var {
        let own = self.own_like(like);
        if let Some(desc) = self.program.block_mut(self.into).and_then(|block| block.vars.get_mut(&own)) {
            desc.stop_gradient = !desc.dtype.is_float();
        }
        own
    }

    /// The new name of a variable that the block computes.
    fn output(&mut self, var: Var) -> Var {
        let current = self.current(var);
        if self.computed.contains(&current) {
            return current;
        }
        let own = self.own_like(var);
        self.computed.insert(own);
        self.rename(var, own);
        own
    }

    pub(super) fn zeros(&mut self, var: Var, like: Var) {
        let x = self.current(like);
        let own = self.own_gradient(like);
        self.rename(var, own);
        self.ops.push(FillZerosLike { x, out: own }.into());
    }

    /// Zeros in the enclosing block.
    pub(super) fn outer_zeros(&mut self, like: Var, zeros: &mut Vec<OpDesc>) -> Var {
        let var = self.program.fresh_var(&format!("{}@ZEROS@", self.program.name(like)));
        let parent = self.program.block(self.into).and_then(|block| block.parent).unwrap_or(BlockId::ROOT);
        if let Some(desc) = self.program.lookup(parent, like) {
            let desc = VarDesc::new(desc.dtype, desc.dims.clone());
            self.program.block_mut(parent).map(|block| block.vars.insert(var, desc));
        }
        zeros.push(FillZerosLike { x: like, out: var }.into());
        var
    }

    /// Sets a variable to the step's value of a name, or to zeros.
    pub(super) fn assign(&mut self, inner: Var, outer: Var, like: Var) {
        let op = match self.renamed.get(&inner) {
            Some(now) => Assign { x: *now, out: outer }.into(),
            None => FillZerosLike { x: self.current(like), out: outer }.into(),
        };
        self.ops.push(op);
    }

    /// The same, for a new variable.
    pub(super) fn copy_out(&mut self, inner: Var, like: Var) -> Var {
        let own = self.own_gradient(like);
        self.assign(inner, own, like);
        own
    }

    /// The partial sum plus the step's value of a name.
    pub(super) fn sum(&mut self, partial_sum: Var, inner: Var, like: Var) -> Var {
        let own = self.own_gradient(like);
        let x = [partial_sum].into_iter().chain(self.renamed.get(&inner).copied());
        self.ops.push(Sum::description(x, own));
        own
    }

    /// Appends the operators of a block, renamed.
    pub(super) fn append(&mut self, from: BlockId) {
        for mut op in self.program.block(from).map_or(vec![], |block| block.ops.clone()) {
            if op.attrs.blocks().next().is_some() {
                // A variable that a sub-block updates has one name before and after.
                let changed: Vec<Var> = op.writes().filter(|w| op.reads().any(|r| r == *w)).collect();
                for var in changed {
                    let now = self.current(var);
                    let own = self.output(var);
                    if own != now {
                        self.ops.push(Assign { x: now, out: own }.into());
                    }
                }
            }
            op.inputs.args_mut().for_each(|v| *v = self.current(*v));
            for var in op.outputs.args_mut().filter(|v| **v != Var::EMPTY) {
                *var = self.output(*var);
            }
            self.blocks(&mut op, self.into);
            self.ops.push(OpDesc { origin: Origin::Model, ..op });
        }
    }

    /// Gives an operator renamed copies of its sub-blocks.
    fn blocks(&mut self, op: &mut OpDesc, parent: BlockId) {
        let blocks: Vec<BlockId> = op.attrs.blocks().collect();
        if blocks.is_empty() {
            return;
        }
        let copies: Vec<BlockId> = blocks.into_iter().map(|block| self.copy(block, parent)).collect();
        let attrs: Vec<_> = op.attrs.iter().map(|(name, attr)| (name, attr.clone())).collect();
        let mut copies = copies.into_iter();
        for (name, attr) in attrs {
            let renamed = match attr {
                Attr::Block(_) => copies.next().map(Attr::Block),
                Attr::Blocks(blocks) => Some(Attr::Blocks(copies.by_ref().take(blocks.len()).collect())),
                Attr::Strs(names) => {
                    Some(Attr::Strs(names.into_iter().map(|name| self.current_name(name)).collect()))
                }
                _ => None,
            };
            if let Some(renamed) = renamed {
                op.attrs.set(name, renamed);
            }
        }
    }

    fn current_name(&self, name: String) -> String {
        self.program.find(&name).map_or(name, |var| self.program.name(self.current(var)).to_string())
    }

    fn copy(&mut self, of: BlockId, parent: BlockId) -> BlockId {
        let into = self.program.add_block(Some(parent), None);
        let Some(block) = self.program.block(of).cloned() else { return into };
        let mut ops = block.ops;
        for op in &mut ops {
            op.inputs.args_mut().chain(op.outputs.args_mut()).for_each(|v| *v = self.current(*v));
            self.blocks(op, into);
        }
        let vars: Vec<_> = block.vars.iter().map(|(var, desc)| (self.current(*var), desc.clone())).collect();
        if let Some(copy) = self.program.block_mut(into) {
            copy.ops = ops;
            copy.vars.extend(vars);
        }
        into
    }

    pub(super) fn finish(self) -> BlockId {
        let (into, ops) = (self.into, self.ops);
        if let Some(block) = self.program.block_mut(into) {
            block.ops = ops;
        }
        into
    }
}
