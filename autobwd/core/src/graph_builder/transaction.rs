//! Guards that restore the state of a builder, also on a panic.

use super::Builder;
use crate::BlockId;

/// Removes blocks, operators and variables that were added to a program during its lifetime when it is dropped, unless
/// it is [committed](Transaction::commit). [`Builder::transaction`] starts one. A program that [`edit`](Builder::edit)
/// or [`set_program`](Builder::set_program) has replaced meanwhile stays.
///
/// The record of an expression that failed meanwhile stays ([`Builder::program`]): its error has not been reported
/// elsewhere, and the expression may still be used as part of the model.
#[must_use = "dropped at the end of the statement, it takes back nothing"]
pub struct Transaction {
    builder: Builder,
    before: Savepoint,
    /// The transaction of the startup program, which receives initialisers.
    startup: Option<Box<Transaction>>,
    committed: bool,
}

struct Savepoint {
    block: BlockId,
    replaced: usize,
    blocks: usize,
    /// The block to which operators are appended and its ancestors, with their numbers of variables and operators.
    lens: Vec<(BlockId, usize, usize)>,
}

impl Transaction {
    pub(super) fn new(builder: &Builder) -> Transaction {
        let (program, block) = (builder.snapshot(), builder.block());
        let (mut lens, mut at) = (vec![], Some(block));
        while let Some((id, block)) = at.and_then(|id| Some((id, program.block(id)?))) {
            lens.push((id, block.vars.len(), block.ops.len()));
            at = block.parent.filter(|parent| parent.index() < id.index());
        }
        let before =
            Savepoint { block, replaced: builder.times_replaced(), blocks: program.blocks().len(), lens };
        let startup = builder.own_startup().map(|startup| Box::new(Transaction::new(startup)));
        Transaction { builder: builder.clone(), before, startup, committed: false }
    }

    /// Keeps the additions.
    pub fn commit(mut self) {
        self.committed = true;
        self.startup.take().into_iter().for_each(|startup| startup.commit());
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        let Savepoint { block, replaced, blocks, lens } = &self.before;
        self.builder.set_block(*block);
        if self.builder.times_replaced() != *replaced {
            return;
        }
        self.builder.change(|program| {
            program.truncate_blocks(*blocks);
            for (id, vars, ops) in lens {
                if let Some(block) = program.block_mut(*id) {
                    block.vars.truncate(*vars);
                    block.ops.truncate(*ops);
                }
            }
        });
    }
}

/// Appends operators to another block during its lifetime.
pub(super) struct BlockGuard<'a> {
    builder: &'a Builder,
    before: BlockId,
}

impl BlockGuard<'_> {
    pub(super) fn new(builder: &Builder, block: BlockId) -> BlockGuard<'_> {
        BlockGuard { builder, before: builder.set_block(block) }
    }
}

impl Drop for BlockGuard<'_> {
    fn drop(&mut self) {
        self.builder.set_block(self.before);
    }
}
