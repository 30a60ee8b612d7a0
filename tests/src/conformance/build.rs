//! Replays calls: the expected outcome by table A3, and the outcome in autobwd.

use std::collections::HashMap;

use autobwd::{
    Attr, Backward, BlockId, OpDesc, OpInfoMap, Program, Var, append_backward,
    backward::{GradientOptions, Recompute, gradients},
    program::{AttrMap, Block, Slots},
};
use serde_json::Value;

use super::{Answer, CorpusCall, CorpusStep, Difference, attributes::relevant};

/// Parses a program.
pub(super) fn parse(program: &Value) -> Result<Program, Difference> {
    Ok(Program::from_json(&program.to_string())?)
}

/// The operators after the end of an earlier state of a program.
pub(super) fn new_ops<'a>(
    program: &'a Program,
    before: Option<&'a Program>,
) -> impl Iterator<Item = &'a OpDesc> {
    let old = move |block: usize| before.and_then(|p| p.blocks().get(block)).map_or(0, |b| b.ops.len());
    program.blocks().iter().enumerate().flat_map(move |(i, block)| block.ops.iter().skip(old(i)))
}

/// The expected outcome of a call.
pub(super) enum Expected {
    /// An error, for this reason.
    Refused(String),
    /// The recorded program.
    Recorded,
    /// The true derivative, although the reference fails.
    Derivative,
}

/// The rules for whole calls: unknown names and non-scalar losses are errors in any case (rows 6 and 12); an error of
/// the reference is an error, unless the cause is a missing gradient maker (row 10) or recomputation over control flow
/// (row 11).
///
/// # Errors
/// A program that cannot be read.
pub(super) fn expected(step: &CorpusStep) -> Result<Expected, Difference> {
    let (call, forward) = (&step.call, parse(&step.forward)?);
    let desc = |name: &str| forward.find(name).and_then(|v| forward.root().vars.get(&v));
    if let Some(unknown) = call.names().into_iter().find(|name| desc(name).is_none()) {
        return Ok(Expected::Refused(format!("the program has no variable `{unknown}`")));
    }
    if let CorpusCall::AppendBackward { loss, .. } = call
        && let Some(desc) = desc(loss)
        && desc.dims.numel() != 1
    {
        return Ok(Expected::Refused(format!("the loss `{loss}` has shape {}", desc.dims)));
    }
    Ok(match step.error.as_ref().map(|e| e.class.as_str()) {
        None => Expected::Recorded,
        Some("RuntimeError") => Expected::Derivative,
        Some("Exception") if call.recomputes() => Expected::Derivative,
        Some(class) => Expected::Refused(format!("the reference raises {class}")),
    })
}

/// Makes a call on a program, allowing missing gradients (row 13).
pub(super) fn run_call(ops: &OpInfoMap, program: &mut Program, call: &CorpusCall) -> autobwd::Result<Answer> {
    let no_grad = call.no_grad();
    match call {
        CorpusCall::AppendBackward { loss, parameter_list, checkpoints, .. } => {
            let kept: Vec<&str> = checkpoints.iter().flatten().map(String::as_str).collect();
            let asked: Option<Vec<&str>> =
                parameter_list.as_ref().map(|names| names.iter().map(String::as_str).collect());
            let backward = Backward {
                parameters: asked.as_deref(),
                no_grad: &no_grad,
                recompute: Recompute::Named(&kept),
                allow_missing: true,
                ops: Some(ops),
            };
            let found = append_backward(program, loss, &backward)?;
            let name = |v: &Var| program.name(*v).to_string();
            Ok(found.pairs.iter().map(|(var, grad)| (name(var), Some(name(grad)))).collect())
        }
        CorpusCall::Gradients { targets, inputs, target_gradients, .. } => {
            let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
            let asked: Vec<&str> = inputs.iter().map(String::as_str).collect();
            let given: Option<Vec<Option<&str>>> =
                target_gradients.as_ref().map(|given| given.iter().map(Option::as_deref).collect());
            let target_gradients = given.as_deref();
            let options = GradientOptions { target_gradients, no_grad: &no_grad, ops: Some(ops) };
            let found = gradients(program, &targets, &asked, &options)?;
            let grad = |input: &String| found.of(program.find(input)?).map(|v| program.name(v).to_string());
            Ok(inputs.iter().map(|input| (input.clone(), grad(input))).collect())
        }
    }
}

/// A completed call of autobwd.
pub(super) struct BuiltCase {
    /// The call in autobwd's names.
    pub(super) call: CorpusCall,
    pub(super) answer: Answer,
    /// The result of the reference.
    pub(super) recorded: Answer,
    /// Whether the reference has no correct values for it.
    pub(super) derivative: bool,
}

/// The replay of a case: autobwd's program, and its names.
pub(super) struct CaseReplay<'a> {
    ops: &'a OpInfoMap,
    pub(super) program: Program,
    pub(super) made: Vec<BuiltCase>,
    /// Recorded gradients of later calls without a path in autobwd.
    pub(super) zeros: Vec<String>,
    /// The golden program so far; only its size is used.
    reference: Program,
    /// The number of blocks of the model itself; other blocks of the golden program have no counterpart.
    own_blocks: usize,
    /// From golden names to autobwd's.
    names: HashMap<String, String>,
}

impl<'a> CaseReplay<'a> {
    /// Starts with the program before the first call.
    pub(super) fn start(ops: &'a OpInfoMap, step: &CorpusStep) -> Result<CaseReplay<'a>, Difference> {
        let mut program = parse(&step.forward)?;
        for id in block_ids(&program) {
            let Some(block) = program.block_mut(id) else { continue };
            for op in &mut block.ops {
                op.attrs = known(ops, op)?;
            }
        }
        let own_blocks = program.blocks().len();
        Ok(CaseReplay {
            ops,
            program,
            made: vec![],
            zeros: vec![],
            reference: Program::new(),
            own_blocks,
            names: HashMap::new(),
        })
    }

    pub(super) fn ops(&self) -> &'a OpInfoMap {
        self.ops
    }

    /// autobwd's name for a golden one.
    pub(super) fn name(&self, golden: &str) -> String {
        self.names.get(golden).cloned().unwrap_or_else(|| golden.to_string())
    }

    /// A call in autobwd's names.
    pub(super) fn translate(&self, call: &CorpusCall) -> CorpusCall {
        call.renamed(|name| self.name(name))
    }

    /// The result of the last call.
    pub(super) fn last_answer(&self) -> &[(String, Option<String>)] {
        self.made.last().map_or(&[], |made| &made.answer)
    }

    /// Makes a call that must succeed, and records the names of its results.
    pub(super) fn call(
        &mut self,
        call: CorpusCall,
        step: &CorpusStep,
        derivative: bool,
    ) -> Result<(), Difference> {
        let answer = run_call(self.ops, &mut self.program, &call)
            .map_err(|e| Difference::new(format!("the call was refused: {e}")))?;
        let recorded = step.recorded()?;
        for (var, golden) in &recorded {
            let var = self.name(var);
            let own = answer.iter().find(|(v, _)| *v == var).and_then(|(_, grad)| grad.clone());
            match (golden, own) {
                (Some(golden), Some(own)) => {
                    self.names.insert(golden.clone(), own);
                }
                // Later calls are compared by value, and a missing path means zero.
                (Some(golden), None) if !self.made.is_empty() => self.zeros.push(golden.clone()),
                (Some(_), None) => return Err(Difference::new(format!("`{var}` has no gradient"))),
                (None, _) => {}
            }
        }
        let after = step.backward.as_ref().unwrap_or(&step.forward);
        self.reference = parse(after)?;
        self.made.push(BuiltCase { call, answer, recorded, derivative });
        Ok(())
    }

    /// Appends the operators that the model gains before a later call; the golden program's gradient operators before
    /// them are skipped.
    pub(super) fn extend(&mut self, step: &CorpusStep) -> Result<(), Difference> {
        let next = parse(&step.forward)?;
        let first_new = self.reference.blocks().len();
        let mut ids: Vec<BlockId> = vec![];
        for block in &next.blocks()[first_new.min(next.blocks().len())..] {
            let map = |id: Option<BlockId>| id.map(|id| self.block(id, first_new, &ids)).transpose();
            let (parent, forward) = (map(block.parent)?, map(block.forward)?);
            ids.push(self.program.add_block(parent, forward));
        }
        self.append(&next, next.root(), self.reference.root().clone(), BlockId::ROOT, first_new, &ids)?;
        for (i, id) in ids.iter().enumerate() {
            self.append(&next, &next.blocks()[first_new + i], Block::default(), *id, first_new, &ids)?;
        }
        Ok(())
    }

    /// Appends the operators of a block of `next` that are not in `old` to a block of autobwd's program.
    fn append(
        &mut self,
        next: &Program,
        block: &Block,
        old: Block,
        to: BlockId,
        first_new: usize,
        ids: &[BlockId],
    ) -> Result<(), Difference> {
        let known_before = |name: &str| self.reference.find(name).is_some_and(|v| old.vars.contains_key(&v));
        let new_vars: Vec<_> = block.vars.iter().filter(|(v, _)| !known_before(next.name(**v))).collect();
        let mut vars = vec![];
        for (var, desc) in new_vars {
            vars.push((self.var(next, *var), desc.clone()));
        }
        let mut appended = vec![];
        for op in block.ops.iter().skip(old.ops.len()) {
            let mut attrs = AttrMap::default();
            for (name, value) in known(self.ops, op)?.iter() {
                attrs.set(name, self.attr(value, first_new, ids)?);
            }
            let (inputs, outputs) = (self.slots(next, &op.inputs), self.slots(next, &op.outputs));
            appended.push(OpDesc { inputs, outputs, attrs, ..OpDesc::new(op.ty) });
        }
        if let Some(block) = self.program.block_mut(to) {
            for (var, desc) in vars {
                if !block.vars.contains_key(&var) {
                    block.vars.insert(var, desc);
                }
            }
            block.ops.extend(appended);
        }
        Ok(())
    }

    fn var(&mut self, of: &Program, var: Var) -> Var {
        let name = self.name(of.name(var));
        self.program.var(&name)
    }

    fn slots(&mut self, of: &Program, slots: &Slots) -> Slots {
        let mut own = Slots::default();
        for (slot, args) in slots.iter() {
            let args: Vec<Var> = args.iter().map(|v| self.var(of, *v)).collect();
            own.set(slot, args);
        }
        own
    }

    fn attr(&self, value: &Attr, first_new: usize, ids: &[BlockId]) -> Result<Attr, Difference> {
        Ok(match value {
            Attr::Block(id) => Attr::Block(self.block(*id, first_new, ids)?),
            Attr::Blocks(all) => {
                Attr::Blocks(all.iter().map(|id| self.block(*id, first_new, ids)).collect::<Result<_, _>>()?)
            }
            other => other.clone(),
        })
    }

    /// autobwd's block for one of the golden program: the model's own blocks have the same number, new ones are in
    /// `ids`.
    fn block(&self, id: BlockId, first_new: usize, ids: &[BlockId]) -> Result<BlockId, Difference> {
        let new = id.index().checked_sub(first_new).and_then(|i| ids.get(i)).copied();
        new.or_else(|| Some(id).filter(|id| id.index() < self.own_blocks)).ok_or_else(|| {
            Difference::new(format!("block {} belongs to the reference's backward part", id.index()))
        })
    }
}

fn known(ops: &OpInfoMap, op: &OpDesc) -> Result<AttrMap, Difference> {
    relevant(&op.ty, ops.get(&op.ty).ok(), &op.attrs)
}

/// The ids of all referenced blocks, the root first.
fn block_ids(program: &Program) -> Vec<BlockId> {
    let mut ids = vec![BlockId::ROOT];
    ids.extend(program.blocks().iter().flat_map(|b| &b.ops).flat_map(|op| op.attrs.blocks()));
    ids.sort();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(blocks: Value) -> Value {
        serde_json::json!({ "blocks": blocks })
    }

    fn block(idx: usize, vars: &[&str], ops: &[Value]) -> Value {
        let var = |name: &&str| {
            serde_json::json!({"name": name, "type": "lod_tensor", "dtype": "float64", "shape": [2],
                "persistable": false, "stop_gradient": false, "is_parameter": false})
        };
        let parent = if idx == 0 { -1 } else { 0 };
        let vars: Vec<Value> = vars.iter().map(var).collect();
        serde_json::json!({"idx": idx, "parent_idx": parent, "vars": vars, "ops": ops})
    }

    fn op(ty: &str, x: &str, out: &str, sub_block: Option<usize>) -> Value {
        let attrs = match sub_block {
            Some(block) => serde_json::json!({"sub_block": {"block": block}}),
            None => serde_json::json!({}),
        };
        serde_json::json!({"type": ty, "inputs": {"X": [x]}, "outputs": {"Out": [out]}, "attrs": attrs})
    }

    /// The reference's backward pass is skipped; names of its results and numbers of blocks are translated.
    #[test]
    fn additions_to_the_model_have_names_of_their_own() -> Result<(), Difference> {
        let model = op("first", "x", "y", None);
        let forward = program(serde_json::json!([block(0, &["x", "y"], std::slice::from_ref(&model))]));
        let theirs = [model.clone(), op("first_grad", "y", "x@GRAD", Some(1))];
        let backward = [block(0, &["x", "y", "x@GRAD"], &theirs), block(1, &["t"], &[])];
        let grown = [&theirs[..], &[op("loop", "x@GRAD", "z", Some(2))]].concat();
        let later = program(serde_json::json!([
            block(0, &["x", "y", "x@GRAD", "z"], &grown),
            backward[1],
            block(2, &["u"], &[op("body", "x@GRAD", "u", None)]),
        ]));
        let step = |forward: Value, backward: Value| CorpusStep {
            call: CorpusCall::Gradients {
                targets: vec![],
                inputs: vec![],
                target_gradients: None,
                no_grad_set: None,
            },
            calls_before: 0,
            forward,
            backward: Some(backward),
            result: None,
            error: None,
        };
        let ops = OpInfoMap::default();
        let first = step(forward, program(serde_json::json!(backward)));
        let mut replay = CaseReplay::start(&ops, &first)?;
        replay.reference = parse(&program(serde_json::json!(backward)))?;
        replay.names.insert("x@GRAD".into(), "own".into());
        replay.extend(&step(later, Value::Null))?;
        let expected = program(serde_json::json!([
            block(0, &["x", "y", "z"], &[model, op("loop", "own", "z", Some(1))]),
            block(1, &["u"], &[op("body", "own", "u", None)]),
        ]));
        assert_eq!(replay.program, parse(&expected)?);
        Ok(())
    }
}
