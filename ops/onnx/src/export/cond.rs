//! Branches of a condition and its opposite as one `If`.

use std::collections::HashSet;

use autobwd::{
    __private::internals::*,
    BlockId, OpDesc, Result,
    op::BlockCall,
    operators::{Cast, ConditionalBlock, LogicalNot},
    program::Var,
};
use autobwd_ops::select::SelectInput;

use super::{
    ProgramWriter,
    conditional_block::{BranchOutput, Side, own_output, starts},
};

/// A block that runs if a condition holds, one that runs otherwise, and the selections between their results.
///
/// Separately, each needs zeros for the case that it does not run, in shapes that may be unknown.
pub(super) struct Choice {
    ops: [OpDesc; 2],
    condition: Var,
    opposite: Var,
    calls: [BlockCall; 2],
    selections: Vec<BranchOutput>,
    /// Variables that nothing but the selections reads.
    hidden: HashSet<Var>,
}

/// The operator before `at` that writes a variable last.
fn writer(ops: &[OpDesc], at: usize, var: Var) -> Option<(usize, &OpDesc)> {
    ops[..at].iter().enumerate().rfind(|(_, op)| op.writes().any(|written| written == var))
}

impl Choice {
    /// The choice that begins with an operator; `ends` are the variables that are read after the block.
    pub(super) fn at(writer: &ProgramWriter<'_>, block: BlockId, at: usize, ends: &[Var]) -> Option<Choice> {
        let ops = &writer.program.block(block)?.ops;
        let branch = |at: usize| ops.get(at)?.as_op::<ConditionalBlock>();
        let (yes, no) = (branch(at)?, branch(at + 1)?);
        if !is_result_of(ops, at, no.cond, yes.cond, |op| Some(op.as_op::<LogicalNot>()?.x)) {
            return None;
        }
        let mut selections = vec![];
        for op in &ops[at + 2..] {
            let Some(SelectInput { x, mask, out }) = op.as_op() else { break };
            let &[Some(from_no), Some(from_yes)] = &x[..] else { break };
            let fits = yes.out.contains(&from_yes)
                && no.out.contains(&from_no)
                && !yes.out.iter().chain(&no.out).any(|out| *out == mask)
                && is_result_of(ops, at, mask, yes.cond, |op| Some(op.as_op::<Cast>()?.x));
            if !fits {
                break;
            }
            selections.push(BranchOutput { out, after: [from_yes, from_no], like: out });
        }
        let next = at + 2 + selections.len();
        let mut hidden: HashSet<Var> = selections.iter().flat_map(|selection| selection.after).collect();
        let own = &writer.program.block(block)?.vars;
        hidden.retain(|var| own.get(var).is_some_and(|desc| !desc.persistable) && !ends.contains(var));
        let gradients = writer.program.blocks().iter().filter(|other| other.forward == Some(block));
        for op in gradients.flat_map(|gradient| &gradient.ops).chain(&ops[..at + 2]).chain(&ops[next..]) {
            for var in writer.ops.get(&op.ty).ok()?.reads(op) {
                hidden.remove(&var);
            }
        }
        let call = |op: &OpDesc| writer.ops.get(&op.ty).ok()?.call(op, writer.program).ok().flatten();
        let calls = [call(&ops[at])?, call(&ops[at + 1])?];
        let ops = [ops[at].clone(), ops[at + 1].clone()];
        Some(Choice { ops, condition: yes.cond, opposite: no.cond, calls, selections, hidden })
    }

    /// The number of operators.
    pub(super) fn len(&self) -> usize {
        2 + self.selections.len()
    }
}

/// Whether a variable holds, before the operator `at`, what an operator has computed from the present value of another.
fn is_result_of(
    ops: &[OpDesc],
    at: usize,
    var: Var,
    of: Var,
    input: impl Fn(&OpDesc) -> Option<Var>,
) -> bool {
    let Some((computed, op)) = writer(ops, at, var) else { return false };
    input(op) == Some(of) && writer(ops, at, of).is_none_or(|(changed, _)| changed < computed)
}

impl ProgramWriter<'_> {
    pub(super) fn choice(&mut self, choice: &Choice) -> Result<()> {
        let conditions = [self.condition(choice.condition)?, self.condition(choice.opposite)?];
        for ((op, call), condition) in choice.ops.iter().zip(&choice.calls).zip(conditions) {
            self.save(op, call, self.graph.values.clone(), Some(condition), vec![]);
        }
        let [yes, no] = &choice.calls;
        let mut outputs: Vec<BranchOutput> = vec![];
        for output in yes.carried.iter().chain(&no.carried).map(own_output) {
            let is_new = outputs.iter().all(|known| known.out != output.out);
            if is_new && !choice.hidden.contains(&output.out) {
                outputs.push(output);
            }
        }
        outputs.extend(choice.selections.iter().cloned());
        let values = &self.graph.values;
        let side = |call| Side { call, inputs: starts(call, values), forward: None };
        let sides = [Some(side(yes)), Some(side(no))];
        self.if_node(conditions[0], sides, &outputs)
    }
}
