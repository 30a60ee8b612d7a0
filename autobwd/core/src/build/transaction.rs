//! Guards that put a builder back into the state that it was in, also when a panic passes through.

use super::Builder;
use crate::BlockId;

/// Blocks, operators and variables that are added to a program while this lives are taken back when it is dropped, unless
/// it is [committed](Transaction::commit). [`Builder::transaction`] starts one. A program that
/// [`edit`](Builder::edit) or [`set_program`](Builder::set_program) has replaced meanwhile stays.
///
/// An expression that has failed meanwhile stays remembered ([`Builder::program`]): the error has been reported to
/// nobody else, and whoever holds the expression may still take it for a part of the model.
#[must_use = "dropped at the end of the statement, it takes back nothing"]
pub struct Transaction {
    builder: Builder,
    before: State,
    /// The start-up program, to which initialisers go.
    startup: Option<Box<Transaction>>,
    committed: bool,
}

struct State {
    block: BlockId,
    replaced: usize,
    blocks: usize,
    /// The block that operators go to and those around it, with how many variables and operators they have.
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
            State { block, replaced: builder.times_replaced(), blocks: program.blocks().len(), lens };
        let startup = builder.own_startup().map(|startup| Box::new(Transaction::new(startup)));
        Transaction { builder: builder.clone(), before, startup, committed: false }
    }

    /// Keeps what was added.
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
        let State { block, replaced, blocks, lens } = &self.before;
        self.builder.go_to(*block);
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

/// Has operators go to another block while it lives.
pub(super) struct Within<'a> {
    builder: &'a Builder,
    before: BlockId,
}

impl Within<'_> {
    pub(super) fn new(builder: &Builder, block: BlockId) -> Within<'_> {
        Within { builder, before: builder.go_to(block) }
    }
}

impl Drop for Within<'_> {
    fn drop(&mut self) {
        self.builder.go_to(self.before);
    }
}
