//! Widening: a kernel that does not take every dtype gets 16-bit floating point values as `f32`, in scratch memory.
//!
//! Before the kernel runs, its inputs are converted; after it, its results are rounded (`kernel_binding`). Formulas need
//! no such memory: fused kernels convert block by block.

use smallvec::SmallVec;

use super::{Graph, GraphValue, Instruction, ScratchValues, ValueId, ValueSource};
use autobwd_core::Var;

/// By input, then by output: the scratch value that a kernel uses instead.
pub(crate) type WidenedValues = SmallVec<[Option<ValueId>; 6]>;

/// Gives an instruction that runs as a kernel the scratch values that it needs.
pub(crate) fn add(graph: &mut Graph, position: usize) {
    let node = &graph.instructions[position];
    if node.sub_block.is_some() || node.info.gives_halves() || !node.widened.is_empty() {
        return;
    }
    let (mut widened, mut added) = (WidenedValues::new(), ScratchValues::new());
    let mut known: SmallVec<[(ValueId, ValueId); 4]> = SmallVec::new();
    let shape_only =
        |slot: &Option<usize>| slot.is_some_and(|slot| node.info.schema().inputs[slot].shape_only);
    let mut wide = |values: &mut Vec<GraphValue>, value: ValueId| {
        let mut meta = values[value].meta.clone();
        if !meta.dtype.is_half() || meta.array {
            return None;
        }
        if let Some((_, wide)) = known.iter().find(|(id, _)| *id == value) {
            return Some(*wide);
        }
        meta.dtype = meta.dtype.arithmetic();
        let source = ValueSource::Scratch;
        values.push(GraphValue { var: Var::EMPTY, meta, source, in_scope: false, layout: None });
        known.push((value, values.len() - 1));
        added.push(values.len() - 1);
        Some(values.len() - 1)
    };
    let (values, takes_halves) = (&mut graph.values, node.info.takes_halves());
    for (slot, value) in &node.inputs {
        let converted = value.filter(|_| !takes_halves && !shape_only(slot));
        widened.push(converted.and_then(|value| wide(values, value)));
    }
    for (slot, value) in &node.outputs {
        let partner = slot.and_then(|slot| shared(node, values, slot, (*value)?));
        let partner = partner.and_then(|input| widened[input]);
        widened.push(partner.or_else(|| value.and_then(|value| wide(values, value))));
    }
    if widened.iter().any(Option::is_some) {
        let node = &mut graph.instructions[position];
        node.widened = widened;
        node.scratch.extend(added);
    }
}

/// The input whose scratch memory an output shares: the input that it may overwrite, if nothing else reads that.
fn shared(node: &Instruction, values: &[GraphValue], slot: usize, value: ValueId) -> Option<usize> {
    let partner = node.partner(slot)?;
    let at = node.inputs.iter().position(|(number, _)| *number == Some(partner))?;
    let input = node.inputs[at].1?;
    let [x, y] = [input, value].map(|id| &values[id].meta);
    let alike = x.dtype.is_half() && (x.dtype, &x.dims) == (y.dtype, &y.dims);
    let dense = [x, y].into_iter().all(|meta| meta.rows.is_none() && !meta.array);
    let once = node.inputs.iter().filter(|(_, v)| *v == Some(input)).count() == 1;
    (alike && dense && once && input != value).then_some(at)
}
