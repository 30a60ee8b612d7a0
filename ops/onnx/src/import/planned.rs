//! Parameters that decide, together with shapes, about what must be known when a program is planned.

use std::collections::{HashMap, HashSet};

use autobwd::{OpDesc, OpInfoMap, Program, Result, Tensor, VarDesc, program::Var};

use super::fold::{FOLDED_FLOATS, assign_value};

/// Writes small parameters as constants of the program if sizes are computed from them when it is planned: values of the
/// scope are not known then. `kept` are the values of the scope, by name.
pub(super) fn write_constants(program: &mut Program, kept: &mut Vec<(String, Tensor)>) -> Result<()> {
    let ops = OpInfoMap::linked()?;
    let mut writers: HashMap<Var, Vec<&OpDesc>> = HashMap::new();
    let mut needed = vec![];
    for op in program.blocks().iter().flat_map(|block| &block.ops) {
        op.writes().for_each(|var| writers.entry(var).or_default().push(op));
        let constant = ops.get(&op.ty)?.schema().inputs.iter().filter(|slot| slot.constant);
        needed.extend(constant.flat_map(|slot| op.inputs.get(slot.name)).copied());
    }
    let mut seen: HashSet<Var> = needed.iter().copied().collect();
    while let Some(var) = needed.pop() {
        for op in writers.get(&var).into_iter().flatten() {
            let with_elements =
                ops.get(&op.ty)?.schema().inputs.iter().filter(|slot| slot.constant || !slot.shape_only);
            let read = with_elements.flat_map(|slot| op.inputs.get(slot.name)).copied();
            needed.extend(read.filter(|var| seen.insert(*var)));
        }
    }
    let is_small = |(name, value): &(String, Tensor)| {
        let var = program.find(name).filter(|var| seen.contains(var))?;
        let is_parameter = program.root().vars.get(&var).is_some_and(|desc| desc.parameter);
        let is_small = (1..=FOLDED_FLOATS).contains(&value.numel());
        (is_parameter && is_small && !value.to_f64s().iter().any(|x| x.is_nan())).then_some(var)
    };
    let (mut constants, mut others) = (vec![], vec![]);
    for entry in std::mem::take(kept) {
        match is_small(&entry) {
            Some(var) => constants.push((var, entry.1)),
            None => others.push(entry),
        }
    }
    *kept = others;
    let root = program.root_mut();
    for (var, tensor) in constants {
        let shape = tensor.dims().iter().map(|dim| *dim as i32).collect();
        root.ops.insert(0, assign_value(&tensor, shape, var)?.into());
        if let Some(desc) = root.vars.get_mut(&var) {
            *desc = VarDesc { persistable: false, parameter: false, stop_gradient: true, ..desc.clone() };
        }
    }
    Ok(())
}
