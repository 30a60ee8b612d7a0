//! Values computed while a program is planned, see [`constant_inputs`](super::constant_inputs).

use std::{mem, rc::Rc};

use rustc_hash::FxHashMap;

use super::{Graph, Instruction, ValueId, ValueSource};
use autobwd_core::{
    __private::{Memory, Place},
    BlockId, Cx, OpDesc, OpInfo, OpInfoMap, Program, Result,
};

/// The values computed so far.
#[derive(Default)]
pub(crate) struct Constants {
    pub(super) known: FxHashMap<ValueId, Evaluated>,
    pub(super) bytes: usize,
    pub(super) cx: Option<Cx>,
    /// Values in slots declared `constant`.
    pub(super) used: Vec<ValueId>,
}

/// Runs an instruction of a graph on memory from a function.
pub(crate) type RunInstruction =
    fn(&Graph, &Instruction, &Cx, &mut dyn FnMut(ValueId) -> Result<Option<Place>>) -> Result<()>;

pub(super) type Evaluated = Result<Rc<Memory>, Unknown>;

/// The reason why a value is unknown: a value that it depends on.
#[derive(Clone)]
pub(super) struct Unknown {
    pub(super) value: ValueId,
    pub(super) why: Rc<str>,
}

impl Constants {
    /// The values that an operator needs, in order of evaluation, or why its result is unknown.
    pub(super) fn pending(&self, node: &Instruction) -> Result<Vec<ValueId>, Unknown> {
        let mut pending = vec![];
        for value in node.reads() {
            match self.known.get(&value) {
                None => pending.push(value),
                Some(Err(unknown)) => return Err(unknown.clone()),
                Some(Ok(_)) => {}
            }
        }
        Ok(pending)
    }

    /// Removes the operators that only computed constants.
    pub(super) fn prune(&self, graph: &mut Graph) {
        if self.used.is_empty() || graph.tail.is_some() {
            return;
        }
        let mut uses = vec![0_usize; graph.values.len()];
        graph.instructions.iter().flat_map(used_inputs).for_each(|v| uses[v] += 1);
        graph.fetches.iter().chain(&graph.ends).for_each(|v| uses[*v] += 1);
        let (mut removed, mut next) = (vec![false; graph.instructions.len()], self.used.clone());
        while let Some(value) = next.pop() {
            let ValueSource::Instruction(position) = graph.values[value].source else { continue };
            let node = &graph.instructions[position];
            let is_idle =
                |v: ValueId| uses[v] == 0 && !graph.values[v].in_scope && !graph.values[v].meta.array;
            if removed[position] || node.sub_block.is_some() || !node.writes().all(is_idle) {
                continue;
            }
            removed[position] = true;
            for input in used_inputs(node) {
                uses[input] -= 1;
                next.push(input);
            }
        }
        for (node, _) in graph.instructions.iter().zip(&removed).filter(|(_, removed)| **removed) {
            node.writes().for_each(|v| graph.values[v].source = ValueSource::Unread);
        }
        let nodes = mem::take(&mut graph.instructions).into_iter().zip(removed);
        graph.instructions = nodes.filter(|(_, removed)| !removed).map(|(node, _)| node).collect();
        graph.index_writers();
    }
}

/// Inputs in slots that are not declared `constant`.
fn used_inputs(node: &Instruction) -> impl Iterator<Item = ValueId> + '_ {
    let inputs = node.runs().0.schema().inputs;
    let used = move |slot: &Option<usize>| slot.is_none_or(|slot| !inputs[slot].constant);
    node.inputs.iter().filter(move |(slot, _)| used(slot)).filter_map(|(_, value)| *value)
}

/// Whether an operator of the block, or of a block in it, has a value in a slot declared `constant`.
pub(super) fn reads_constants(program: &Program, ops: &OpInfoMap, block: BlockId) -> Result<bool> {
    let mut next = vec![block];
    while let Some(block) = next.pop() {
        for op in program.block(block).into_iter().flat_map(|block| &block.ops) {
            let info = ops.get(&op.ty)?;
            // A composition may contain operators that read constants.
            if has_constants(info, op) || info.is_composed() {
                return Ok(true);
            }
            next.extend(op.attrs.blocks());
        }
    }
    Ok(false)
}

fn has_constants(info: &OpInfo, op: &OpDesc) -> bool {
    info.schema().inputs.iter().any(|slot| slot.constant && !op.inputs.get(slot.name).is_empty())
}
