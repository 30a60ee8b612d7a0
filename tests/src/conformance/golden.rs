//! Converts the reference's program into autobwd's form: its names, and the rows of table A3 that change the golden
//! side. Must not read autobwd's program.

use std::collections::{BTreeMap, HashSet};

use autobwd::{Attr, BlockId, DType, OpDesc, Program, Var};
use serde_json::Value;

use super::{
    Answer, CorpusStep, Difference, build,
    structure::{BlockOutline, OpOutline, ProgramOutline},
};

const EMPTY: &str = "@EMPTY@";

/// Parses a golden program: contributions in the root block do not name the block.
pub(super) fn parse(program: &Value) -> Result<Program, Difference> {
    Ok(Program::from_json(&root_renames(&program.to_string()))?)
}

/// The reference's result, in autobwd's names.
pub(super) fn answer(step: &CorpusStep) -> Result<Answer, Difference> {
    let recorded = step.recorded()?.into_iter();
    Ok(recorded.map(|(var, grad)| (var, grad.map(|name| root_renames(&name)))).collect())
}

fn root_renames(text: &str) -> String {
    text.replace("@RENAME@block0@", "@RENAME@")
}

/// Whether only values are compared: by rows 14 and 15 (the reference has differentiated an increment, or a cast to an
/// integer dtype), or if the reference loses a gradient in a loop or a branch (row 9).
pub(super) fn by_value_only(golden: &Program, forward: &Program) -> bool {
    let added = || build::new_ops(golden, Some(forward));
    let is_read = |name: &str| added().any(|op| op.reads().any(|v| golden.name(v) == name));
    if added().any(|op| loses_gradients(golden, op)) {
        return true;
    }
    build::new_ops(forward, None).any(|op| match op.ty.as_str() {
        // Its gradient is an increment by the negative step.
        "increment" => added().any(|op| op.ty == "increment"),
        "cast" => {
            let integer = match op.attrs.get("out_dtype") {
                Some(Attr::I32(code)) => DType::from_code(*code).is_some_and(|dtype| !dtype.is_float()),
                _ => false,
            };
            integer && op.writes().any(|v| is_read(&format!("{}@GRAD", forward.name(v))))
        }
        _ => false,
    })
}

/// Row 9: an empty gradient of a branch; or a gradient of a loop whose carried gradient does not reach the previous
/// step, or is not written although the previous step reads it.
fn loses_gradients(golden: &Program, op: &OpDesc) -> bool {
    let is_empty = |id: BlockId| golden.block(id).is_some_and(|b| b.forward.is_some() && b.ops.is_empty());
    if op.attrs.blocks().any(is_empty) {
        return true;
    }
    let (outs, read) = (op.inputs.get("Out"), op.inputs.get("Out@GRAD"));
    let is_of = |grad: Var, v: Var| base(golden.name(grad)) == Some(golden.name(v));
    let reaches = |v: Var, grad: Var| read.iter().any(|read| *read == grad || is_of(*read, v));
    let pairs = op.inputs.get("X").iter().zip(op.outputs.get("X@GRAD"));
    let mut carried = pairs.filter(|(v, _)| op.ty == "while_grad" && outs.contains(v));
    carried.any(|(v, grad)| (*grad != Var::EMPTY) != reaches(*v, *grad))
}

/// Removes meaningless names of the reference's loops: undeclared gradients read as zeros, but are passed by name; the
/// dtype of a carried gradient that its block declares is never set.
pub(super) fn clean_loops(golden: &mut Program) {
    let ids =
        golden.blocks().iter().flat_map(|b| &b.ops).flat_map(|op| op.attrs.blocks()).collect::<Vec<_>>();
    for id in std::iter::once(BlockId::ROOT).chain(ids) {
        let names = golden.clone();
        let float = |grad: Var| {
            let var = base(names.name(grad)).and_then(|base| names.find(base));
            var.and_then(|var| names.lookup(id, var)).map(|desc| desc.dtype).filter(|dtype| dtype.is_float())
        };
        let Some(block) = golden.block_mut(id) else { continue };
        for op in block.ops.iter_mut().filter(|op| op.ty == "while_grad") {
            let (read, none): (Vec<Var>, Vec<Var>) =
                op.inputs.get("Out@GRAD").iter().partition(|v| names.lookup(id, **v).is_some());
            op.inputs.set("Out@GRAD", read);
            if let Some(Attr::Strs(texts)) = op.attrs.get("original_output_grad") {
                let is_read = |text: &&String| !none.iter().any(|v| names.name(*v) == *text);
                let texts = texts.iter().filter(is_read).cloned().collect();
                op.attrs.set("original_output_grad", Attr::Strs(texts));
            }
        }
        let unset = block.vars.iter().filter(|(_, desc)| desc.dtype == DType::Bool);
        let unset: Vec<(Var, DType)> = unset.filter_map(|(var, _)| Some((*var, float(*var)?))).collect();
        for (var, dtype) in unset {
            block.vars.get_mut(&var).into_iter().for_each(|desc| desc.dtype = dtype);
        }
    }
}

/// `fill_any_like` with value 0 and the dtype of its input, in the backward pass, reads as `fill_zeros_like`.
pub(super) fn read_zero_fills(golden: &mut ProgramOutline) {
    for block in &mut golden.blocks {
        let own = block.own_ops.min(block.ops.len());
        for op in &mut block.ops[own..] {
            let attr = |name: &str| op.attrs.get(name).map(String::as_str);
            let zero = attr("value").is_none_or(|v| v == "f32 0.0");
            let like_input = attr("dtype").is_none_or(|v| v == "i32 -1");
            if op.ty == "fill_any_like" && zero && like_input {
                op.ty = "fill_zeros_like".into();
                op.attrs.clear();
            }
        }
    }
}

/// Row 5: removes gradients that gradient blocks write for variables without gradient flow outside them, and the
/// operators that only serve these.
pub(super) fn remove_cut_gradients(golden: &mut ProgramOutline, forward: &Program, no_grad: &[&str]) {
    for b in 0..golden.blocks.len() {
        let Some(of) = golden.blocks[b].forward else { continue };
        let forward_number = golden.blocks[of].number;
        let is_cut = |name: &str| cut_outside(forward, forward_number, no_grad, base(name));
        let results = results(golden, b, &is_cut);
        let nested: HashSet<String> = mentioned_below(golden, b);
        remove(&mut golden.blocks[b], &is_cut, &|name| results.contains(name) || nested.contains(name));
    }
}

/// The variable whose gradient, or contribution to it, has this name.
fn base(name: &str) -> Option<&str> {
    name.split_once("@GRAD@").map(|(base, _)| base).or_else(|| name.strip_suffix("@GRAD"))
}

/// Whether a variable comes from outside a block, and has no gradient there.
fn cut_outside(forward: &Program, block: usize, no_grad: &[&str], name: Option<&str>) -> bool {
    let Some((name, var)) = name.and_then(|name| Some((name, forward.find(name)?))) else { return false };
    let mut at = forward.blocks().get(block);
    if at.is_none_or(|block| block.vars.contains_key(&var)) {
        return false;
    }
    while let Some(parent) = at.and_then(|block| block.parent) {
        at = forward.block(parent);
        if let Some(desc) = at.and_then(|block| block.vars.get(&var)) {
            return desc.stop_gradient || (parent == BlockId::ROOT && no_grad.contains(&name));
        }
    }
    false
}

/// The gradients that the owner of a gradient block takes out of it.
fn results(golden: &ProgramOutline, b: usize, is_cut: &dyn Fn(&str) -> bool) -> HashSet<String> {
    let owners = golden.blocks.iter().flat_map(|block| &block.ops).filter(|op| op.blocks.contains(&b));
    let inputs = owners.flat_map(|op| op.inputs.values().flatten());
    inputs.map(|name| format!("{name}@GRAD")).filter(|grad| !is_cut(grad)).collect()
}

/// All names in the blocks within a block.
fn mentioned_below(golden: &ProgramOutline, b: usize) -> HashSet<String> {
    let mut names = HashSet::new();
    let mut next: Vec<usize> = golden.blocks[b].ops.iter().flat_map(|op| op.blocks.clone()).collect();
    while let Some(block) = next.pop().and_then(|i| golden.blocks.get(i)) {
        names.extend(block.ops.iter().flat_map(OpOutline::names).map(str::to_string));
        next.extend(block.ops.iter().flat_map(|op| op.blocks.iter().copied()));
    }
    names
}

/// Removes outputs, then operators without outputs, then outputs that only those read, and so on; unmentioned variables
/// are removed as well.
fn remove(block: &mut BlockOutline, is_cut: &dyn Fn(&str) -> bool, is_needed: &dyn Fn(&str) -> bool) {
    let mentioned = |block: &BlockOutline| -> HashSet<String> {
        block.ops.iter().flat_map(OpOutline::names).map(str::to_string).collect()
    };
    let before = mentioned(block);
    let mut gone: HashSet<String> = before.iter().filter(|name| is_cut(name)).cloned().collect();
    while !gone.is_empty() {
        let mut served: HashSet<String> = HashSet::new();
        block.ops.retain_mut(|op| {
            let touched = op.outputs.values().flatten().any(|name| gone.contains(name));
            remove_outputs(&mut op.outputs, &gone);
            let keep = !touched || op.outputs.values().flatten().any(|name| name != EMPTY);
            if !keep {
                served.extend(op.inputs.values().flatten().cloned());
            }
            keep
        });
        let still_read: HashSet<&String> =
            block.ops.iter().flat_map(|op| op.inputs.values().flatten()).collect();
        served.retain(|name| !still_read.contains(name) && !is_needed(name));
        gone = served;
    }
    let after = mentioned(block);
    block.new_vars.retain(|name, _| after.contains(name) || !before.contains(name) || is_needed(name));
}

/// In a list, `@EMPTY@` keeps the position; a slot with one variable becomes empty, which equals absent.
fn remove_outputs(outputs: &mut BTreeMap<String, Vec<String>>, gone: &HashSet<String>) {
    outputs.retain(|_, args| args.len() > 1 || !args.iter().any(|name| gone.contains(name)));
    for name in outputs.values_mut().flatten().filter(|name| gone.contains(*name)) {
        *name = EMPTY.into();
    }
}

#[cfg(test)]
mod tests {
    use autobwd::OpInfoMap;

    use super::*;

    /// A loop over `h = h · w · s` whose weights have no gradient outside: only operators that carry `h@GRAD` stay in
    /// the gradient block.
    #[test]
    fn gradients_cut_outside_are_removed_with_what_serves_them() -> Result<(), Difference> {
        let var = |name: &str, stop: bool| {
            serde_json::json!({"name": name, "type": "lod_tensor", "dtype": "float64", "shape": [2], "persistable": false,
                "stop_gradient": stop, "is_parameter": false})
        };
        let op = |ty: &str, inputs: Value, outputs: Value, attrs: Value| serde_json::json!({"type": ty, "inputs": inputs, "outputs": outputs, "attrs": attrs});
        let none = || serde_json::json!({});
        let body = |block: usize| serde_json::json!({"sub_block": {"block": block}});
        let forward_body = serde_json::json!({"idx": 1, "parent_idx": 0, "vars": [var("p", false), var("q", false)],
        "ops": [
            op("mul", serde_json::json!({"X": ["w"], "Y": ["s"]}), serde_json::json!({"Out": ["p"]}), none()),
            op("mul", serde_json::json!({"X": ["h"], "Y": ["p"]}), serde_json::json!({"Out": ["q"]}), none()),
            op("assign", serde_json::json!({"X": ["q"]}), serde_json::json!({"Out": ["h"]}), none()),
        ]});
        let root = |more: Vec<Value>| {
            let mut ops = vec![op(
                "while",
                serde_json::json!({"X": ["h", "w", "s"]}),
                serde_json::json!({"Out": ["h"]}),
                body(1),
            )];
            ops.extend(more);
            let vars = [var("h", false), var("w", false), var("s", true)];
            serde_json::json!({"idx": 0, "parent_idx": -1, "vars": vars, "ops": ops})
        };
        let gradient = serde_json::json!({"idx": 2, "parent_idx": 0, "forward_block_idx": 1,
        "vars": [var("q@GRAD", false), var("p@GRAD", false), var("w@GRAD", false), var("s@GRAD", false)],
        "ops": [
            op("assign", serde_json::json!({"X": ["h@GRAD"]}), serde_json::json!({"Out": ["q@GRAD"]}), none()),
            op(
                "mul_grad",
                serde_json::json!({"X": ["h"], "Y": ["p"], "Out@GRAD": ["q@GRAD"]}),
                serde_json::json!({"X@GRAD": ["h@GRAD"], "Y@GRAD": ["p@GRAD"]}),
                none(),
            ),
            op(
                "mul_grad",
                serde_json::json!({"X": ["w"], "Y": ["s"], "Out@GRAD": ["p@GRAD"]}),
                serde_json::json!({"X@GRAD": ["w@GRAD"], "Y@GRAD": ["s@GRAD"]}),
                none(),
            ),
        ]});
        let owner = op(
            "while_grad",
            serde_json::json!({"X": ["h", "w", "s"], "Out@GRAD": ["h@GRAD"]}),
            serde_json::json!({"X@GRAD": ["h@GRAD", "@EMPTY@", "@EMPTY@"]}),
            body(2),
        );
        let forward = build::parse(&serde_json::json!({"blocks": [root(vec![]), forward_body.clone()]}))?;
        let golden = parse(&serde_json::json!({"blocks": [root(vec![owner]), forward_body, gradient]}))?;
        let mut outline = ProgramOutline::of(&OpInfoMap::default(), &golden, &forward)?;
        remove_cut_gradients(&mut outline, &forward, &["w"]);
        let left: Vec<String> =
            outline.blocks[2].ops.iter().flat_map(|op| op.outputs.values().flatten().cloned()).collect();
        assert_eq!(left, ["q@GRAD", "h@GRAD"]);
        assert_eq!(outline.blocks[2].new_vars.keys().collect::<Vec<_>>(), ["q@GRAD"]);
        Ok(())
    }
}
