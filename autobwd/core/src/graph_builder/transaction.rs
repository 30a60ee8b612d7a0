//! Transactions: changes of a program that are undone as a whole.

use super::Builder;
use crate::BlockId;

/// Undoes all changes of a program and of its startup program during its lifetime when it is dropped, unless it is
/// [committed](Transaction::commit). [`Builder::transaction`] starts one.
///
/// The record of an expression that failed meanwhile stays ([`Builder::program`]): its error has not been reported
/// elsewhere, and the expression may still be used as part of the model. [`abort`](Transaction::abort) removes it.
#[must_use = "dropped at the end of the statement, it undoes nothing"]
pub struct Transaction {
    builder: Builder,
    before: Savepoint,
    /// The transaction of the startup program, which receives initialisers.
    startup: Option<Box<Transaction>>,
    committed: bool,
}

struct Savepoint {
    block: BlockId,
    /// The number of programs that had been replaced since the first open transaction.
    replaced: usize,
    blocks: usize,
    /// The block to which operators are appended and its ancestors, with their numbers of variables and operators.
    lens: Vec<(BlockId, usize, usize)>,
    /// Whether no expression had failed.
    sound: bool,
}

impl Transaction {
    pub(super) fn new(builder: &Builder) -> Transaction {
        let (program, block) = (builder.snapshot(), builder.block());
        let (mut lens, mut at) = (vec![], Some(block));
        while let Some((id, block)) = at.and_then(|id| Some((id, program.block(id)?))) {
            lens.push((id, block.vars.len(), block.ops.len()));
            at = block.parent.filter(|parent| parent.index() < id.index());
        }
        let before = Savepoint {
            block,
            replaced: builder.open_transaction(),
            blocks: program.blocks().len(),
            lens,
            sound: builder.check().is_ok(),
        };
        let startup = builder.own_startup().map(|startup| Box::new(Transaction::new(startup)));
        Transaction { builder: builder.clone(), before, startup, committed: false }
    }

    /// Keeps the changes.
    pub fn commit(mut self) {
        self.committed = true;
        self.startup.take().into_iter().for_each(|startup| startup.commit());
    }

    /// Undoes the changes, and forgets expressions that failed meanwhile: for functions that report their error
    /// themselves.
    pub fn abort(self) {
        if self.before.sound {
            self.builder.forget_failure();
        }
    }

    fn undo(&self) {
        let Savepoint { block, replaced, blocks, ref lens, .. } = self.before;
        self.builder.set_block(block);
        self.builder.restore_replaced(replaced);
        self.builder.change(|program| {
            program.truncate_blocks(blocks);
            for (id, vars, ops) in lens {
                if let Some(block) = program.block_mut(*id) {
                    block.vars.truncate(*vars);
                    block.ops.truncate(*ops);
                }
            }
        });
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.committed {
            self.undo();
        }
        self.builder.close_transaction();
    }
}
