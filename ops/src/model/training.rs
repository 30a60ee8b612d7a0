//! Between training and inference: frozen parameters, and operators that behave differently.

use std::collections::HashSet;

use autobwd::{
    Attr, BlockId, DType, Dims, Error, ErrorKind, OpDesc, OpInfoMap, Program, Result, VarDesc, op::Arity,
    program::Var,
};

use super::infer_shapes;

/// The attribute of operators that behave differently in training.
const IS_TEST: &str = "is_test";

/// [`Model::train`](super::Model::train).
pub(crate) fn train(program: &mut Program, frozen: &[&str]) -> Result<Vec<String>> {
    let parameters: Vec<Var> = program.parameters().collect();
    let names: Vec<&str> = parameters.iter().map(|var| program.name(*var)).collect();
    require_matches(frozen, &names)?;
    let is_frozen = |name: &&str| frozen.iter().any(|pattern| matches(pattern, name));
    let found: Vec<bool> = names.iter().map(is_frozen).collect();
    for (var, _) in parameters.iter().zip(found).filter(|(_, is_frozen)| *is_frozen) {
        if let Some(desc) = program.root_mut().vars.get_mut(var) {
            desc.stop_gradient = true;
        }
    }
    let frozen: HashSet<Var> = self::frozen(program).collect();
    let of_program: HashSet<Var> = parameters.iter().copied().collect();
    let trained: HashSet<Var> = parameters.iter().copied().filter(|var| !frozen.contains(var)).collect();
    set_is_test(program, |op| {
        let mut own = op.reads().filter(|var| of_program.contains(var)).peekable();
        (own.peek().is_none() || own.any(|var| trained.contains(&var))).then_some(false)
    })?;
    let names = parameters.iter().filter(|var| trained.contains(var));
    Ok(names.map(|var| program.name(*var).to_string()).collect())
}

/// [`Model::frozen`](super::Model::frozen).
pub(super) fn frozen(program: &Program) -> impl Iterator<Item = Var> + '_ {
    let is_frozen = |var: &Var| program.root().vars.get(var).is_some_and(|desc| desc.stop_gradient);
    program.parameters().filter(is_frozen)
}

/// Sets `is_test` where the operator has that attribute and `value` gives one.
pub(super) fn set_is_test(program: &mut Program, value: impl Fn(&OpDesc) -> Option<bool>) -> Result<()> {
    let ops = OpInfoMap::linked()?;
    let mut training = vec![];
    for b in 0..program.blocks().len() {
        let Some(block) = program.block_mut(BlockId::new(b)) else { continue };
        for (i, op) in block.ops.iter_mut().enumerate() {
            let has_it = ops.get(&op.ty).is_ok_and(|info| info.schema().attr(IS_TEST).is_some());
            if let Some(value) = value(op).filter(|_| has_it) {
                op.attrs.set(IS_TEST, Attr::Bool(value));
                training.extend((!value).then_some((b, i)));
            }
        }
    }
    for (b, i) in training {
        add_saved_outputs(program, ops, (BlockId::new(b), i));
    }
    // Statistics of a batch have no elements in inference mode.
    infer_shapes(program, ops);
    Ok(())
}

/// Adds the optional outputs that the gradient operator reads: the reference needs them in training, and files for
/// inference lack them.
fn add_saved_outputs(program: &mut Program, ops: &OpInfoMap, (block, i): (BlockId, usize)) {
    let Some(op) = program.block(block).map(|block| &block.ops[i]) else { return };
    let (ty, outputs) = (op.ty, op.outputs.clone());
    let (Ok(info), Ok(gradient)) = (ops.get(&ty), ops.get(&format!("{ty}_grad"))) else { return };
    let optional = info.schema().outputs.iter().filter(|slot| matches!(slot.arity, Arity::Optional));
    for slot in optional.filter(|slot| gradient.schema().input(slot.name).is_some()) {
        if outputs.get(slot.name).is_empty() {
            let var = program.fresh(&format!("{ty}.{}", slot.name));
            if let Some(block) = program.block_mut(block) {
                block.vars.insert(var, VarDesc::new(DType::F32, Dims::default()));
                block.ops[i].outputs.set(slot.name, [var]);
            }
        }
    }
}

/// Checks that each pattern matches one of the names.
pub(crate) fn require_matches(patterns: &[&str], names: &[impl AsRef<str>]) -> Result<()> {
    let is_unused = |pattern: &&&str| !names.iter().any(|name| matches(pattern, name.as_ref()));
    match patterns.iter().find(is_unused) {
        Some(pattern) => Err(Error::new(ErrorKind::UnknownVar, format!("no parameter matches `{pattern}`"))),
        None => Ok(()),
    }
}

/// Whether a name matches a pattern, in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    let mut left = name;
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, is_match) in [
            ("conv1_weights", "conv1_weights", true),
            ("conv1*", "conv1_weights", true),
            ("conv1*", "conv10", true),
            ("*weights", "conv1_weights", true),
            ("conv*_w*", "conv1_weights", true),
            ("conv*b*", "conv1_weights", false),
            ("conv1", "conv1_weights", false),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
