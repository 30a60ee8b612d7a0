//! Operators with compositions: the operators of the composition are lowered in place.

use autobwd::{__private::internals::*, BlockId, Meta, Program, Result, Var, VarDesc};
use autobwd_ops::model::infer_shapes;
use autobwd_plan::{Instruction, Plan, PlanRequest, ValueId};

use super::{graph_lowering::GraphLowering, hlo::Hlo};

/// Lowers an operator by its composition, in a program of its own; `false` if it has none. Where a kernel of the host
/// computes with 16-bit operands in single precision, so does the composition.
///
/// # Errors
/// Those of the composition and of its operators.
pub(super) fn lower(work: &mut GraphLowering<'_>, node: &Instruction) -> Result<bool> {
    let (mut program, mut desc) = (Program::new(), (*node.desc).clone());
    let (mut feeds, mut fetches) = (vec![], vec![]);
    let widens = node.info.has_kernel() && !node.info.takes_any_dtype();
    let type_of = |id: ValueId| {
        // Row-sparse tensors are dense.
        let mut meta = work.graph.values[id].meta.clone();
        meta.rows = None;
        if widens {
            meta.dtype = meta.dtype.arithmetic();
        }
        meta
    };
    let slots = [(node.info.schema().inputs, &mut desc.inputs, &node.inputs, true)];
    for (schema, args, wires, is_input) in
        slots.into_iter().chain([(node.info.schema().outputs, &mut desc.outputs, &node.outputs, false)])
    {
        let mut wires = wires.iter().map(|(_, id)| *id);
        for slot in schema {
            let vars: Vec<Var> = args.get(slot.name).to_vec();
            if vars.is_empty() {
                continue;
            }
            let own = vars.iter().map(|_| match wires.next().flatten() {
                None => Var::EMPTY,
                Some(id) => {
                    let known = if is_input { &mut feeds } else { &mut fetches };
                    declare(work, &mut program, id, &type_of, known)
                }
            });
            let own: Vec<Var> = own.collect();
            args.set(slot.name, own);
        }
    }
    let Some(parts) = work.ops.composition_in(&mut program, BlockId::ROOT, &desc)? else { return Ok(false) };
    program.root_mut().ops = parts;
    infer_shapes(&mut program, work.ops);
    let metas: Vec<(&str, Meta)> = feeds.iter().map(|(var, id)| (program.name(*var), type_of(*id))).collect();
    let names: Vec<&str> = fetches.iter().map(|(var, _)| program.name(*var)).collect();
    let plan = Plan::new(&program, work.ops, &PlanRequest::graph_only(&metas, &|_| None, &names))?;
    let mut inner = GraphLowering::new(&program, work.ops, work.f, &plan.graph);
    inner.depth = work.depth + 1;
    for (value, (_, id)) in plan.graph.feeds.iter().zip(&feeds) {
        let (outer, meta) = (work.read(*id), type_of(*id));
        let is_set = outer.is_set();
        inner.values[*value] =
            Some(if is_set { outer.convert(meta.dtype) } else { Hlo::unset(work.f, &meta) });
    }
    inner.lower_or_fail()?;
    for (end, (_, id)) in plan.graph.ends.iter().zip(fetches) {
        let value = inner.read(*end);
        // `XShape` has dimensions but no value.
        if value.is_set() {
            let dtype = work.graph.values[id].meta.dtype;
            work.write(id, if dtype.is_half() { value.convert(dtype) } else { value })?;
        }
    }
    Ok(true)
}

/// The variable for a value, declared.
fn declare(
    work: &GraphLowering<'_>,
    program: &mut Program,
    id: ValueId,
    type_of: &impl Fn(ValueId) -> Meta,
    known: &mut Vec<(Var, ValueId)>,
) -> Var {
    if let Some((var, _)) = known.iter().find(|(_, known)| *known == id) {
        return *var;
    }
    let value = &work.graph.values[id];
    let var = program.fresh(value.name(work.program));
    let meta = type_of(id).with_constant(None).in_slot("");
    program.root_mut().vars.insert(var, VarDesc::of(meta));
    known.push((var, id));
    var
}
