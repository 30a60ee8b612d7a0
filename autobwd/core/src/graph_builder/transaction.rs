//! Transactions: changes of a program that are undone as a whole.

use std::rc::Rc;

use super::Builder;
use crate::{BlockId, Program, Var};

/// Undoes all changes of a program and of its startup program during its lifetime when it is dropped, unless it is
/// [committed](Transaction::commit). [`Builder::transaction`] starts one.
///
/// The record of an expression that failed meanwhile stays ([`Builder::program`]): its error has not been reported
/// elsewhere, and the expression may still be used as part of the model. [`abort`](Transaction::abort) removes it.
#[must_use = "dropped at the end of the statement, it undoes nothing"]
pub struct Transaction {
    builder: Builder,
    /// The number of transactions that were open when it started.
    depth: usize,
    /// Whether no expression had failed.
    sound: bool,
    /// The transaction of the startup program, which receives initialisers.
    startup: Option<Box<Transaction>>,
    committed: bool,
}

/// Where a transaction started, and what it takes to go back.
pub(super) struct Savepoint {
    block: BlockId,
    blocks: usize,
    /// The block to which operators are appended and its ancestors, with their numbers of variables and operators.
    lens: Vec<(BlockId, usize, usize)>,
    /// The program at the first change since then that did not only add to it.
    pub(super) replaced: Option<Rc<Program>>,
    /// Variables that were marked `stop_gradient` before that change.
    pub(super) marked: Vec<(BlockId, Var)>,
}

impl Savepoint {
    /// Whether additions to a block are known from its length.
    pub(super) fn covers(&self, block: BlockId) -> bool {
        block.index() >= self.blocks || self.lens.iter().any(|(known, ..)| *known == block)
    }
}

impl Transaction {
    pub(super) fn new(builder: &Builder) -> Transaction {
        let (program, block) = (builder.snapshot(), builder.block());
        let (mut lens, mut at) = (vec![], Some(block));
        while let Some((id, block)) = at.and_then(|id| Some((id, program.block(id)?))) {
            lens.push((id, block.vars.len(), block.ops.len()));
            at = block.parent.filter(|parent| parent.index() < id.index());
        }
        let blocks = program.blocks().len();
        let savepoint = Savepoint { block, blocks, lens, replaced: None, marked: vec![] };
        let (depth, sound) = (builder.open_transaction(savepoint), builder.check().is_ok());
        let startup = builder.own_startup().map(|startup| Box::new(Transaction::new(startup)));
        Transaction { builder: builder.clone(), depth, sound, startup, committed: false }
    }

    /// Keeps the changes.
    pub fn commit(mut self) {
        self.committed = true;
        self.startup.take().into_iter().for_each(|startup| startup.commit());
    }

    /// Undoes the changes, and forgets expressions that failed meanwhile: for functions that report their error
    /// themselves.
    pub fn abort(self) {
        if self.sound {
            self.builder.forget_failure();
        }
    }

    fn undo(&self, savepoint: Savepoint) {
        let Savepoint { block, blocks, lens, replaced, marked } = savepoint;
        self.builder.set_block(block);
        replaced.into_iter().for_each(|program| self.builder.restore(program));
        self.builder.change(|program| {
            program.truncate_blocks(blocks);
            for (id, vars, ops) in lens {
                if let Some(block) = program.block_mut(id) {
                    block.vars.truncate(vars);
                    block.ops.truncate(ops);
                }
            }
            for (id, var) in marked {
                if let Some(desc) = program.block_mut(id).and_then(|block| block.vars.get_mut(&var)) {
                    desc.stop_gradient = false;
                }
            }
        });
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Without a savepoint, a transaction around this one has ended before, and with it this one.
        if let Some(savepoint) = self.builder.close_transaction(self.depth).filter(|_| !self.committed) {
            self.undo(savepoint);
        }
    }
}
