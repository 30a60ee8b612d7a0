//! The part of a training program that computes outputs, in inference mode.

use std::collections::HashSet;

use autobwd::{
    BlockId, OpDesc, Program, Result,
    program::{Block, Var},
};

use super::training::set_is_test;
use crate::dropout::DropoutOp;

/// The operators that `fetches` need, in inference mode.
///
/// # Errors
/// Variables that are not declared.
pub(super) fn for_inference(program: &Program, fetches: &[&str]) -> Result<Program> {
    let mut pruned = prune(program, fetches)?;
    set_is_test(&mut pruned, |_| Some(true))?;
    for block in (0..pruned.blocks().len()).map(BlockId::new) {
        let ops = pruned.block_mut(block).into_iter().flat_map(|block| &mut block.ops);
        for op in ops.filter(|op| op.is::<DropoutOp>()) {
            op.inputs.set("Seed", []);
        }
    }
    // Without those that count seeds.
    prune(&pruned, fetches)
}

/// The operators that `fetches` need.
///
/// # Errors
/// Variables that are not declared.
pub(super) fn prune(program: &Program, fetches: &[&str]) -> Result<Program> {
    let mut wanted: HashSet<Var> =
        fetches.iter().map(|name| program.expect_var(name)).collect::<Result<_>>()?;
    let ends = wanted.clone();
    let mut kept: Vec<OpDesc> = vec![];
    for op in program.root().ops.iter().rev() {
        if op.writes().any(|var| wanted.contains(&var)) {
            program.full_overwrites(BlockId::ROOT, op).for_each(|var| {
                wanted.remove(&var);
            });
            wanted.extend(op.reads());
            kept.push(op.clone());
        }
    }
    kept.reverse();
    let used: HashSet<Var> = kept.iter().flat_map(|op| op.reads().chain(op.writes())).chain(ends).collect();
    let mut pruned = program.clone();
    let run: HashSet<usize> = blocks_of(&pruned, &kept);
    for b in 0..pruned.blocks().len() {
        let Some(block) = pruned.block_mut(BlockId::new(b)) else { continue };
        match b {
            0 => {
                let declared = std::mem::take(&mut block.vars);
                for (var, desc) in declared.iter().filter(|(var, _)| used.contains(var)) {
                    block.vars.insert(*var, desc.clone());
                }
                block.ops = std::mem::take(&mut kept);
            }
            _ if run.contains(&b) => {}
            // Blocks of the backward pass; numbers of others do not change.
            _ => *block = Block { parent: block.parent, ..Block::default() },
        }
    }
    Ok(pruned)
}

/// The blocks that these operators run, and those that run within.
fn blocks_of(program: &Program, ops: &[OpDesc]) -> HashSet<usize> {
    let mut open: Vec<usize> =
        ops.iter().flat_map(|op| op.attrs.blocks()).map(|block| block.index()).collect();
    let mut found = HashSet::new();
    while let Some(index) = open.pop() {
        if found.insert(index)
            && let Some(block) = program.blocks().get(index)
        {
            open.extend(block.ops.iter().flat_map(|op| op.attrs.blocks()).map(|block| block.index()));
        }
    }
    found
}
