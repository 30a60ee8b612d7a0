//! Decomposition of operators into elementwise ones.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::value_graph::{Graph, Instruction, ScratchValues, ValueId, Wires, widening::WidenedValues, wires};
use autobwd_core::{
    __private::{Decomposition, internals::*},
    Error, ErrorKind, OpDesc, OpInfo, OpInfoMap, Result, Shape, SlotDef, Slots, Var,
};

/// An elementwise operator that replaces part of an operator.
#[derive(Debug)]
pub(crate) struct DecomposedOp {
    pub(crate) info: &'static OpInfo,
    pub(crate) desc: OpDesc,
    /// Explicit dimensions of values that do not broadcast by default.
    pub(crate) aligned: SmallVec<[(ValueId, Shape); 1]>,
}

/// The parts of an operator, if it has any and its variables are whole tensors of one floating point dtype; values
/// between parts are new.
pub(crate) fn parts(
    graph: &mut Graph,
    ops: &OpInfoMap,
    node: &Instruction,
) -> Result<Option<Vec<Instruction>>> {
    if !node.info.is_decomposed() {
        return Ok(None);
    }
    let mut values = node.inputs.iter().chain(&node.outputs).filter_map(|(_, v)| *v);
    let dtype = values.clone().next().map(|v| graph.values[v].meta.dtype).filter(|dtype| dtype.is_float());
    if values.any(|v| !graph.is_whole_tensor(v) || Some(graph.values[v].meta.dtype) != dtype) {
        return Ok(None);
    }
    let inputs = known(node.info.schema().inputs, &node.desc.inputs, &node.inputs);
    let outputs = known(node.info.schema().outputs, &node.desc.outputs, &node.outputs);
    let meta = |var: Var| {
        let id = inputs.get(&var).or_else(|| outputs.get(&var))?;
        Some(graph.values[*id].meta.clone())
    };
    let Decomposition { ops: descs, aligned } = node.info.decompose(&node.desc, &meta)?;

    let wrong = |what: &str| {
        let text = format!("a part in the decomposition of operator `{}` {what}", node.desc.ty);
        Error::new(ErrorKind::Operator, text)
    };
    let written = descs.iter().enumerate().flat_map(|(i, desc)| desc.writes().map(move |var| (var, i)));
    let last_writer: FxHashMap<Var, usize> = written.collect();
    let mut now = inputs.clone();
    let mut nodes = vec![];
    for (i, desc) in descs.iter().enumerate() {
        let info = ops.get(&desc.ty)?;
        info.check(desc)?;
        if info.lanes().is_none() {
            return Err(wrong("is not elementwise"));
        }
        let schema = info.schema();
        let reads = wires(schema.inputs, &desc.inputs, |var| {
            now.get(&var).copied().ok_or_else(|| wrong("reads what the operator does not"))
        })?;
        let writes = wires(schema.outputs, &desc.outputs, |var| {
            let end = *outputs.get(&var).ok_or_else(|| wrong("writes what the operator does not"))?;
            let id = if last_writer.get(&var) == Some(&i) { end } else { graph.redefine(end) };
            if id != end {
                // The operator rounds its results only.
                let meta = &mut graph.values[id].meta;
                meta.dtype = meta.dtype.arithmetic();
            }
            now.insert(var, id);
            Ok(id)
        })?;
        let mut lined_up = SmallVec::new();
        for id in reads.iter().chain(&writes).filter_map(|(_, id)| *id) {
            let value = &graph.values[id];
            if let Some((_, dims)) = aligned.iter().find(|(var, _)| *var == value.var) {
                // Fused kernels rely on it.
                if value.meta.dims.numel().get() != dims.iter().copied().try_fold(1, usize::checked_mul) {
                    return Err(wrong("aligns another number of elements than its value has"));
                }
                lined_up.push((id, dims.clone()));
            }
        }
        let part = DecomposedOp { info, desc: desc.clone(), aligned: lined_up };
        nodes.push(Instruction {
            index: node.index,
            desc: node.desc.clone(),
            info: node.info,
            inputs: reads,
            outputs: writes,
            scratch: ScratchValues::new(),
            widened: WidenedValues::new(),
            part: Some(Box::new(part)),
            sub_block: None,
            in_composition: node.in_composition,
        });
    }
    Ok(Some(nodes).filter(|nodes| !nodes.is_empty()))
}

/// Variables in slots, with their values.
fn known(schema: &[SlotDef], slots: &Slots, wires: &Wires) -> FxHashMap<Var, ValueId> {
    // Wires are in the order of the schema.
    let vars = schema.iter().flat_map(|slot| slots.get(slot.name));
    vars.zip(wires).filter_map(|(var, (_, id))| Some((*var, (*id)?))).collect()
}
