//! Choice of the forward operators to recompute so that a run fits into a memory budget.
//!
//! Must not trust an estimate: the planner decides whether a choice fits. The candidate sets, cheapest first, do not
//! depend on the budget, so a larger budget never costs more time. A small program tries all sets, a larger one those
//! found by dynamic programming (`cut_points`).

mod cost_model;
mod cut_points;

use std::iter;

use crate::{FinishedBackward, checkpoints::RecomputeCost, recompute::ForwardReads};
use autobwd_core::{
    __private::internals::*, BlockId, Error, ErrorKind, Meta, OpInfoMap, Program, Result, Var,
};
use autobwd_plan::{Plan, PlanRequest};
use cost_model::CostModel;

/// Number of sets up to which all are tried (all sets of twelve operators); fewer where planning takes longer.
const ALL: usize = 1 << 12;
const ALL_TIMES_OPERATORS: usize = 1 << 16;

/// Operators to recompute.
struct RecomputeSet {
    /// By operator of the program.
    again: Vec<bool>,
    /// Picoseconds, estimated.
    time: u64,
    /// Smallest budget in bytes for which it is tried.
    least: usize,
}

/// Chooses, by operator of the program, which operators to recompute, so that a run with these feeds that fetches the
/// loss and all gradients has an arena within the budget.
///
/// # Errors
/// The errors of planning; a budget that no choice meets, with the smallest budget that one does meet.
pub(super) fn choose(
    ops: &OpInfoMap,
    program: &Program,
    done: &FinishedBackward,
    needs: &ForwardReads,
    loss: Var,
    budget: usize,
    feeds: &[(&str, Meta)],
) -> Result<(Vec<bool>, RecomputeCost)> {
    let fetches: Vec<&str> =
        iter::once(&loss).chain(done.grads.iter().flatten()).map(|v| program.name(*v)).collect();
    let kept = |name: &str| Some(program.root().vars.get(&program.find(name)?)?.meta());
    let plan = |again: &[bool]| {
        let (mut draft, mut done) = (program.clone(), done.clone());
        done.recompute(&mut draft, needs, again);
        done.put_into(&mut draft);
        Plan::new(&draft, ops, &PlanRequest::new(feeds, &kept, &fetches, false))
    };
    let all_kept = plan(&vec![false; program.root().ops.len()])?;
    if let Some(late) = &all_kept.graph.tail {
        let text = "a memory budget needs shapes that are known before the run, and this operator has a shape that \
                    is known only at run time; name the checkpoints with `Recompute::Named`";
        let e = Error::new(ErrorKind::Budget, text);
        return Err(match program.root().ops.get(late.index) {
            Some(op) => e.at_op(|| program.describe_op(BlockId::ROOT, late.index, op)),
            None => e,
        });
    }
    let kept_arena_bytes = all_kept.memory.arena_bytes;
    let model = CostModel::new(program, done, needs, &all_kept)?;
    let mut sets = match kept_arena_bytes <= budget {
        true => vec![model.set(vec![false; model.costs.len()])],
        false => all_sets(&model).unwrap_or_else(|| cut_points::sets(&model)),
    };
    sets.sort_by_key(|set| (set.time, set.least));
    sets.dedup_by(|a, b| a.again == b.again);

    let mut reached = usize::MAX;
    for set in sets.iter().filter(|set| set.least <= budget) {
        let arena_bytes = plan(&set.again)?.memory.arena_bytes;
        reached = reached.min(arena_bytes);
        if arena_bytes <= budget {
            let planned = RecomputeCost {
                again: model.cost(&set.again),
                forward: model.cost(&vec![true; set.again.len()]),
                arena_bytes,
                kept_arena_bytes,
            };
            return Ok((set.again.clone(), planned));
        }
    }
    sets.retain(|set| set.least > budget);
    sets.sort_by_key(|set| set.least);
    for set in &sets {
        if set.least >= reached {
            break;
        }
        reached = reached.min(plan(&set.again)?.memory.arena_bytes.max(set.least));
    }
    let text = format!(
        "a budget of {budget} bytes cannot be met: a run takes at least {reached} bytes with recomputation and \
         {kept_arena_bytes} without; raise the budget or reduce the batch"
    );
    Err(Error::new(ErrorKind::Budget, text))
}

/// Every set without useless recomputation, if there are not too many.
fn all_sets(model: &CostModel) -> Option<Vec<RecomputeSet>> {
    let count = model.costs.len();
    let mut sets = vec![vec![false; count]];
    for op in model.candidates.iter().rev() {
        for i in 0..sets.len() {
            if model.is_needed(*op, &sets[i]) {
                let mut set = sets[i].clone();
                set[*op] = true;
                sets.push(set);
            }
        }
        if sets.len() > ALL.min(ALL_TIMES_OPERATORS / count) {
            return None;
        }
    }
    Some(sets.into_iter().map(|again| model.set(again)).collect())
}
