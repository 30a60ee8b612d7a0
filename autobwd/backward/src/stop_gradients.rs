//! Classification of `stop_gradient` marks: explicit ones, and those inherited from inputs.
//!
//! The reference marks the outputs of operators with only marked inputs. A loop overwrites such a variable if it is
//! loop-carried: the mark then describes its initial value, not the value that the body computes from parameters.

use rustc_hash::{FxHashMap, FxHashSet};

use autobwd_core::{
    __private::{Lookup, internals::*},
    BlockCall, BlockId, CarriedInit, GradKind, OpDesc, OpInfo, OpInfoMap, Program, Result, StepCount, Var,
};

/// The marked variables of a block that affect gradients.
#[derive(Default)]
pub(super) struct StopGradients {
    /// Variables with an inherited mark: operators compute their initial values from marked variables only, and a
    /// sub-block overwrites them with a differentiable value.
    pub(super) of_data: Vec<Var>,
    /// The other ones that are computed from a differentiable variable.
    pub(super) cut: Vec<Var>,
    /// Marked variables of sub-blocks that are computed from a differentiable variable.
    pub(super) within: Vec<(BlockId, Var)>,
}

/// Classifies the marks of a block. `no_grad` says, by variable, whether it has no gradient, regardless of these marks.
///
/// # Errors
/// Unknown operators.
pub(super) fn find(
    ops: &OpInfoMap,
    program: &Program,
    block: BlockId,
    no_grad: &[bool],
) -> Result<StopGradients> {
    let mut found = StopGradients::default();
    let Some(own) = program.block(block) else { return Ok(found) };
    let mut sweep =
        StopGradientPass { ops, program, no_grad, within: vec![], known_within: FxHashSet::default() };
    let marked =
        |var: Var| own.vars.get(&var).is_some_and(|desc| desc.stop_gradient && desc.dtype.is_float());
    let written = || own.ops.iter().flat_map(OpDesc::writes);
    if program.blocks().len() == 1 && !written().any(marked) {
        return Ok(found);
    }
    let mut infos = Lookup::new(ops);
    let mut known = Differentiability::of_table(block, program.name_count());
    // By variable: whether its mark is explicit.
    let mut explicit = vec![false; program.name_count()];
    for op in &own.ops {
        let info = infos.get(op.ty)?;
        let Some(call) = info.call(op, program)? else {
            let of_marked =
                op.reads().all(|v| program.lookup(block, v).is_none_or(|desc| desc.stop_gradient));
            let varies = sweep.op(&mut known, info, op);
            for var in op.writes() {
                explicit[var.index()] |= !of_marked;
                found.cut.extend(Some(var).filter(|v| varies && marked(*v)));
            }
            continue;
        };
        let ends = sweep.call(&known, &call)?;
        for (out, end) in outputs(&call) {
            let mut varies = ends.get(&end) == Some(&true);
            if varies && marked(out) {
                let first = out == end && op.reads().any(|v| v == out);
                // A variable of the scope carries the mark of its declaration.
                let declared = own.vars.get(&out).is_some_and(|desc| desc.persistable);
                varies = first && !declared && !explicit[out.index()] && !is(no_grad, out);
                if varies { &mut found.of_data } else { &mut found.cut }.push(out);
            }
            known.insert(out, varies);
        }
    }
    found.cut.retain(|v| !is(no_grad, *v));
    found.within = sweep.within;
    Ok(found)
}

fn is(set: &[bool], var: Var) -> bool {
    set.get(var.index()).copied().unwrap_or(false)
}

/// The outputs of an operator with a sub-block, each with its name in the block at the end.
fn outputs(call: &BlockCall) -> impl Iterator<Item = (Var, Var)> + '_ {
    let lasts = call.carried.iter().filter_map(|c| Some((c.last?, c.end)));
    lasts.chain(call.stacks.iter().map(|(inner, outer)| (*outer, *inner)))
}

/// Whether the values computed so far by a block and its enclosing blocks depend on a differentiable variable.
struct Differentiability<'a> {
    around: Option<&'a Differentiability<'a>>,
    block: BlockId,
    /// By variable; empty in sub-blocks, which mention few of the variables.
    table: Vec<Option<bool>>,
    /// In sub-blocks.
    varies: FxHashMap<Var, bool>,
}

impl<'a> Differentiability<'a> {
    fn of_table(block: BlockId, name_count: usize) -> Differentiability<'a> {
        Differentiability { around: None, block, table: vec![None; name_count], varies: FxHashMap::default() }
    }

    fn get(&self, var: Var) -> Option<bool> {
        match self.table.get(var.index()) {
            Some(varies) => *varies,
            None => self.varies.get(&var).copied(),
        }
    }

    fn insert(&mut self, var: Var, varies: bool) {
        match self.table.get_mut(var.index()) {
            Some(known) => *known = Some(varies),
            None => _ = self.varies.insert(var, varies),
        }
    }
}

struct StopGradientPass<'a> {
    ops: &'a OpInfoMap,
    program: &'a Program,
    no_grad: &'a [bool],
    /// Marked variables of sub-blocks that are computed from a differentiable variable.
    within: Vec<(BlockId, Var)>,
    /// The same, since a loop is swept several times.
    known_within: FxHashSet<(BlockId, Var)>,
}

impl StopGradientPass<'_> {
    fn varies(&self, known: &Differentiability<'_>, var: Var) -> bool {
        match (known.get(var), known.around) {
            (Some(varies), _) => varies,
            (None, Some(around)) => self.varies(around, var),
            (None, None) => {
                let desc = self.program.lookup(known.block, var);
                let open = !self.own_mark(known.block, var) && !is(self.no_grad, var);
                open && desc.is_some_and(|desc| desc.dtype.is_float())
            }
        }
    }

    /// Whether a block marks one of its own variables; `no_grad` covers variables of enclosing blocks.
    fn own_mark(&self, block: BlockId, var: Var) -> bool {
        let own = self.program.block(block).and_then(|block| block.vars.get(&var));
        own.is_some_and(|desc| desc.stop_gradient)
    }

    /// Records the writes of an operator without sub-block. Returns whether it depends on a differentiable variable,
    /// regardless of marks.
    fn op(&mut self, known: &mut Differentiability<'_>, info: &OpInfo, op: &OpDesc) -> bool {
        let dead = matches!(info.grad_kind(), GradKind::Zero);
        let varies = !dead && op.reads().any(|v| self.varies(known, v));
        for var in op.writes() {
            let float = self.program.lookup(known.block, var).is_none_or(|desc| desc.dtype.is_float());
            let is_marked = self.own_mark(known.block, var);
            let cut = (known.block, var);
            let is_cut = varies && float && is_marked && known.around.is_some();
            if is_cut && self.known_within.insert(cut) {
                self.within.push(cut);
            }
            known.insert(var, varies && float && !is_marked);
        }
        varies
    }

    /// Whether the values that a sub-block computes depend on a differentiable variable, at the end of any step.
    fn call(&mut self, around: &Differentiability<'_>, call: &BlockCall) -> Result<FxHashMap<Var, bool>> {
        let ops = self.program.block(call.block).map_or(&[][..], |block| &block.ops);
        let mut starts: FxHashMap<Var, bool> = FxHashMap::default();
        for carried in &call.carried {
            starts.insert(
                carried.start,
                matches!(carried.first, CarriedInit::Value(v, _) if self.varies(around, v)),
            );
        }
        for (outer, inner, _) in &call.slices {
            starts.insert(*inner, self.varies(around, *outer));
        }
        loop {
            let mut known = Differentiability {
                around: Some(around),
                block: call.block,
                table: vec![],
                varies: starts.clone(),
            };
            for op in ops {
                let info = self.ops.get(&op.ty)?;
                match info.call(op, self.program)? {
                    None => _ = self.op(&mut known, info, op),
                    Some(inner) => {
                        let ends = self.call(&known, &inner)?;
                        known
                            .varies
                            .extend(outputs(&inner).map(|(out, end)| (out, ends.get(&end) == Some(&true))));
                    }
                }
            }
            let again = !matches!(call.steps, StepCount::If(_));
            let mut more = false;
            for carried in call.carried.iter().filter(|_| again) {
                let end = known.varies.get(&carried.end) == Some(&true);
                more |= end && starts.insert(carried.start, true) != Some(true);
            }
            if !more {
                return Ok(known.varies);
            }
        }
    }
}
