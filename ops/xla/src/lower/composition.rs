//! Operators with compositions: the operators of the composition are lowered in place.

use autobwd::{__private::internals::*, BlockId, Meta, Program, Result, Var, VarDesc};
use autobwd_ops::model::infer_shapes;
use autobwd_plan::{Instruction, Plan, PlanRequest, ValueId};

use super::graph_lowering::GraphLowering;

/// Lowers an operator by its composition, in a program of its own; `false` if it has none.
///
/// # Errors
/// Those of the composition and of its operators.
pub(super) fn lower(work: &mut GraphLowering<'_>, node: &Instruction) -> Result<bool> {
    let (mut program, mut desc) = (Program::new(), (*node.desc).clone());
    let (mut feeds, mut fetches) = (vec![], vec![]);
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
                Some(id) => declare(work, &mut program, id, if is_input { &mut feeds } else { &mut fetches }),
            });
            let own: Vec<Var> = own.collect();
            args.set(slot.name, own);
        }
    }
    let Some(parts) = work.ops.composition_in(&mut program, BlockId::ROOT, &desc)? else { return Ok(false) };
    program.root_mut().ops = parts;
    infer_shapes(&mut program, work.ops);
    let metas: Vec<(&str, Meta)> =
        feeds.iter().map(|(var, id)| (program.name(*var), dense_meta(work, *id))).collect();
    let names: Vec<&str> = fetches.iter().map(|(var, _)| program.name(*var)).collect();
    let plan = Plan::new(&program, work.ops, &PlanRequest::graph_only(&metas, &|_| None, &names))?;
    let mut inner = GraphLowering::new(&program, work.ops, work.f, &plan.graph);
    inner.depth = work.depth + 1;
    for (value, (_, id)) in plan.graph.feeds.iter().zip(&feeds) {
        inner.values[*value] = Some(work.read(*id));
    }
    inner.lower_or_fail()?;
    for (end, (_, id)) in plan.graph.ends.iter().zip(fetches) {
        let value = inner.read(*end);
        // `XShape` has dimensions but no value.
        if value.is_set() {
            work.write(id, value)?;
        }
    }
    Ok(true)
}

/// The variable for a value, declared.
fn declare(
    work: &GraphLowering<'_>,
    program: &mut Program,
    id: ValueId,
    known: &mut Vec<(Var, ValueId)>,
) -> Var {
    if let Some((var, _)) = known.iter().find(|(_, known)| *known == id) {
        return *var;
    }
    let value = &work.graph.values[id];
    let var = program.fresh(value.name(work.program));
    let meta = dense_meta(work, id).with_constant(None).in_slot("");
    program.root_mut().vars.insert(var, VarDesc::of(meta));
    known.push((var, id));
    var
}

/// The type of a value of the function, in which row-sparse tensors are dense.
fn dense_meta(work: &GraphLowering<'_>, id: ValueId) -> Meta {
    let mut meta = work.graph.values[id].meta.clone();
    meta.rows = None;
    meta
}
