//! A complete backward pass that becomes part of its program.

use crate::{
    path_ends::{missing, partial},
    preserve_overwritten::InsertedCopies,
    recompute::{self, ForwardReads},
    report::Gradients,
};
use autobwd_core::{
    __private::internals::*, BlockId, Error, ErrorKind, OpDesc, OpInfoMap, Origin, Program, Result, Var,
    Vars, verify::mark_valid,
};

/// A complete backward pass, not yet part of the program.
#[derive(Clone)]
pub(super) struct FinishedBackward {
    pub(super) copies: InsertedCopies,
    pub(super) ops: Vec<OpDesc>,
    pub(super) vars: Vars,
    /// Variables of gradient sub-blocks, whose operators are in place.
    pub(super) inner_vars: Vec<(BlockId, Vars)>,
    /// By requested variable.
    pub(super) grads: Vec<Option<Var>>,
    pub(super) targets: Vec<Var>,
    pub(super) no_grad: Vec<bool>,
    pub(super) stopped: Vec<Var>,
    pub(super) stopped_within: Vec<(BlockId, Var)>,
    /// Forward variables that are recomputed.
    pub(super) again: Vec<Var>,
}

impl FinishedBackward {
    pub(super) fn found(&self, ops: &OpInfoMap, program: &Program, asked: &[Var]) -> Gradients {
        let answers = || asked.iter().copied().zip(&self.grads);
        let pairs = answers().filter_map(|(var, grad)| Some((var, (*grad)?))).collect();
        let none: Vec<Var> = answers().filter(|(_, grad)| grad.is_none()).map(|(var, _)| var).collect();
        let produced = self.vars.values().filter_map(|desc| desc.gradient_of);
        let missing = missing(program, &self.targets, &self.no_grad, produced, Some(ops), &none);
        let partial = partial(program, &self.targets, &self.stopped, &self.stopped_within, &missing);
        Gradients { pairs, missing, partial, asked: asked.to_vec(), ..Gradients::default() }
    }

    /// Makes the copies that recomputed operators read.
    pub(super) fn needs(&mut self, ops: &OpInfoMap, program: &mut Program) -> Result<ForwardReads> {
        std::mem::take(&mut self.copies).insert(&mut program.root_mut().ops, &mut self.ops);
        ForwardReads::of(ops, program, &self.ops, self.grads.iter().flatten().copied())
    }

    /// Recomputes these operators instead of keeping their outputs.
    pub(super) fn recompute(&mut self, program: &mut Program, needs: &ForwardReads, again: &[bool]) {
        let appended = std::mem::take(&mut self.ops);
        let inserted = recompute::insert_recomputation(program, appended, &needs.batches(again), &[]);
        self.ops = inserted.ops;
        self.vars.extend(inserted.vars);
        self.again = inserted.again;
    }

    /// # Errors
    /// The result is not valid, as foreign gradient operators in the program may cause. Programs without gradient
    /// operators are verified by debug builds only.
    pub(super) fn commit(self, ops: &OpInfoMap, program: &mut Program) -> Result<()> {
        // Gradient operators from a file need not satisfy every rule of `verify` about their forward operators.
        let foreign = |op: &OpDesc| ops.forward_of(&op.ty).is_some() || op.origin != Origin::Model;
        let has_gradients = program.blocks().iter().any(|block| block.ops.iter().any(foreign));
        let before = (has_gradients || cfg!(debug_assertions)).then(|| program.clone());
        self.put_into(program);
        if let Some(before) = before
            && let Err(e) = ops.verify(program)
        {
            let text = format!("the backward pass is not valid\n{e}");
            *program = before;
            return Err(match has_gradients {
                true => Error::new(ErrorKind::NoGradient, format!("gradient operators do not fit: {text}")),
                false => Error::internal(text),
            });
        }
        mark_valid(ops, program);
        Ok(())
    }

    pub(super) fn put_into(mut self, program: &mut Program) {
        for (id, vars) in self.inner_vars {
            if let Some(block) = program.block_mut(id) {
                block.vars.extend(vars);
            }
        }
        let root = program.root_mut();
        self.copies.insert(&mut root.ops, &mut self.ops);
        root.vars.extend(self.vars);
        root.ops.extend(self.ops);
    }
}
