//! Choice of the forward operators to recompute so that a run fits into a memory budget.
//!
//! Must not trust an estimate: the planner decides whether a choice fits. The candidate sets, cheapest first, do not
//! depend on the budget, so a larger budget never costs more time. A small program tries all sets, a larger one those
//! found by dynamic programming (`cut_points`) and, for less memory, by segments.

mod cost_model;
mod cut_points;
mod segments;

use std::iter;

use crate::{FinishedBackward, checkpoints::RecomputeCost, recompute::ForwardReads};
use autobwd_core::{
    __private::internals::*, BlockId, Cost, Error, ErrorKind, Meta, OpInfoMap, Program, Result, Var,
    operators::Assign,
};
use autobwd_plan::{Plan, PlanRequest};
use cost_model::CostModel;

/// Number of sets up to which all are tried (all sets of twelve operators); fewer where planning takes longer.
const ALL: usize = 1 << 12;
const ALL_TIMES_OPERATORS: usize = 1 << 16;
/// The same for training steps, which are built one after another to try them.
const ALL_OF_STEP: usize = 1 << 8;

/// Operators to recompute.
pub(super) struct RecomputeSet {
    /// By operator of the program.
    pub(super) again: Vec<bool>,
    /// Estimated.
    pub(super) cost: Cost,
    /// Smallest budget in bytes for which it is tried.
    pub(super) least: usize,
}

/// A backward pass for which sets of operators to recompute are found.
pub(super) struct BudgetedBackward<'a> {
    pub(super) ops: &'a OpInfoMap,
    pub(super) program: &'a Program,
    pub(super) done: &'a FinishedBackward,
    pub(super) needs: &'a ForwardReads,
    /// The loss, which a run fetches.
    pub(super) loss: Var,
    pub(super) feeds: &'a [(&'a str, Meta)],
}

impl BudgetedBackward<'_> {
    /// Chooses, by operator of the program, which operators to recompute, so that a run with these feeds that fetches
    /// the loss and all gradients has an arena within the budget.
    ///
    /// # Errors
    /// The errors of planning; a budget that no choice meets, with the smallest budget that one does meet.
    pub(super) fn choose(&self, budget: usize) -> Result<(Vec<bool>, RecomputeCost)> {
        let gradients = self.done.grads.iter().flatten().copied();
        let fetches: Vec<Var> = iter::once(self.loss).chain(gradients).collect();
        let plan = |again: &[bool]| self.plan(again, &[], &fetches);
        let all_kept = self.require_known(plan(&self.nothing())?)?;
        let kept_arena_bytes = all_kept.memory.arena_bytes;
        let model = CostModel::new(self.program, self.done, self.needs, &all_kept)?;
        let mut sets = match kept_arena_bytes <= budget {
            true => vec![model.set(vec![false; model.costs.len()])],
            false => sets(&model, ALL),
        };

        let mut reached = usize::MAX;
        for set in sets.iter().filter(|set| set.least <= budget) {
            let arena_bytes = plan(&set.again)?.memory.arena_bytes;
            reached = reached.min(arena_bytes);
            if arena_bytes <= budget {
                let planned = RecomputeCost {
                    again: set.cost,
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

    /// Sets of operators to recompute in a training step that fetches the loss, cheapest first, beginning with the
    /// empty set. Each gradient of `parameters` is needed until its update only.
    ///
    /// # Errors
    /// The errors of planning.
    pub(super) fn sets_of_step(&self, parameters: &[Var]) -> Result<Vec<(RecomputeSet, RecomputeCost)>> {
        let gradients = parameters.iter().zip(&self.done.grads);
        let updated: Vec<(Var, Var)> =
            gradients.filter_map(|(p, gradient)| Some((*p, (*gradient)?))).collect();
        let all_kept = self.require_known(self.plan(&self.nothing(), &updated, &[self.loss])?)?;
        let model = CostModel::new(self.program, self.done, self.needs, &all_kept)?;
        let forward = model.cost(&vec![true; model.costs.len()]);
        let kept_arena_bytes = all_kept.memory.arena_bytes;
        let with_cost = |set: RecomputeSet| {
            let cost = RecomputeCost { again: set.cost, forward, arena_bytes: set.least, kept_arena_bytes };
            (set, cost)
        };
        Ok(sets(&model, ALL_OF_STEP).into_iter().map(with_cost).collect())
    }

    fn nothing(&self) -> Vec<bool> {
        vec![false; self.program.root().ops.len()]
    }

    /// The plan of a run that recomputes these operators, and overwrites these parameters by their gradients.
    fn plan(&self, again: &[bool], updated: &[(Var, Var)], fetches: &[Var]) -> Result<Plan> {
        let (mut draft, mut done) = (self.program.clone(), self.done.clone());
        done.recompute(&mut draft, self.needs, again);
        done.put_into(&mut draft);
        let updates =
            updated.iter().map(|(parameter, gradient)| Assign { x: *gradient, out: *parameter }.into());
        draft.root_mut().ops.extend(updates);
        let kept = |name: &str| Some(self.program.root().vars.get(&self.program.find(name)?)?.meta());
        let fetches: Vec<&str> = fetches.iter().map(|var| self.program.name(*var)).collect();
        Plan::new(&draft, self.ops, &PlanRequest::new(self.feeds, &kept, &fetches, false))
    }

    /// A budget is for a plan that is complete before the run.
    fn require_known(&self, plan: Plan) -> Result<Plan> {
        let Some(late) = &plan.graph.tail else { return Ok(plan) };
        let text = "a memory budget needs shapes that are known before the run, and this operator has a shape that \
                    is known only at run time; name the checkpoints with `Recompute::Named`";
        let e = Error::new(ErrorKind::Budget, text);
        Err(match self.program.root().ops.get(late.index) {
            Some(op) => e.at_op(|| self.program.describe_op(BlockId::ROOT, late.index, op)),
            None => e,
        })
    }
}

/// Sets without useless recomputation, cheapest first: all, if there are at most `most`.
fn sets(model: &CostModel, most: usize) -> Vec<RecomputeSet> {
    let mut sets = all_sets(model, most).unwrap_or_else(|| {
        let mut sets = cut_points::sets(model);
        let smallest = sets.iter().map(|set| model.arena_bytes(&set.again)).min().unwrap_or(0);
        sets.extend(segments::sets(model, smallest));
        sets
    });
    sets.sort_by_key(|set| (set.cost.picoseconds(), set.least));
    sets.dedup_by(|a, b| a.again == b.again);
    sets
}

/// Every set without useless recomputation, if there are not too many.
fn all_sets(model: &CostModel, most: usize) -> Option<Vec<RecomputeSet>> {
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
        if sets.len() > most.min(ALL_TIMES_OPERATORS / count) {
            return None;
        }
    }
    Some(sets.into_iter().map(|again| model.set(again)).collect())
}
