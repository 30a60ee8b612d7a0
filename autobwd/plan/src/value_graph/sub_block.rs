//! The plan of a sub-block: a plan within the plan, run once for each step.

use std::sync::Arc;

use crate::Plan;
use autobwd_core::{BlockCall, BlockId, Meta, StepCount, Var, tensor::padded};

use super::{
    ValueId,
    block_inputs::{BlockInputs, StepEnds, StepInputs},
    step_state::{SavedValue, StateVar, StepStateLayout},
};

/// A block planned as one step: the values copied in before, and its outputs.
#[derive(Debug)]
pub struct StepPlan {
    pub plan: Plan,
    pub inputs: StepInputs,
    pub ends: StepEnds,
}

impl StepPlan {
    /// Dtype and shape of a required value, by position.
    pub(super) fn end_meta(&self, position: usize) -> Meta {
        self.plan.graph.values[self.plan.graph.ends[position]].meta.clone()
    }

    /// The required value of a variable.
    pub(super) fn end_value(&self, var: Var) -> Option<ValueId> {
        Some(self.plan.graph.ends[self.ends.vars.iter().position(|v| *v == var)?])
    }

    /// The carried inputs of a step with their offsets in saved state, and its total size in bytes.
    pub(super) fn carried_inputs(&self) -> (Vec<SavedValue>, usize) {
        let (mut saved, mut bytes) = (vec![], 0);
        for value in self.inputs.carried.iter().copied().flatten() {
            saved.push(SavedValue { value, offset: bytes });
            bytes += padded(self.plan.graph.values[value].meta.bytes().unwrap_or(0));
        }
        (saved, bytes)
    }
}

/// A sub-block with its plan. Its `inputs` are values of the outer plan; its saved values are its own.
#[derive(Debug)]
pub struct SubBlockPlan {
    pub step: StepPlan,
    pub steps: StepCount,
    /// The number of steps, if known.
    pub count: Option<usize>,
    pub inputs: BlockInputs,
    /// Whether its steps save their state.
    pub saves_steps: bool,
    /// Whether a later operator consumes the same step scopes.
    pub shares_steps: bool,
    /// The values that a step saves.
    pub saved: Vec<SavedValue>,
    /// Bytes saved per step.
    pub saved_bytes: usize,
    /// Number of steps per saved step.
    pub save_interval: usize,
    /// The steps that it reruns to restore their state.
    pub replay: Option<Box<ReplayPlan>>,
}

impl SubBlockPlan {
    /// Bytes of memory while it runs: the arena of a step, and after it the arena of rerun steps.
    pub fn arena_bytes(&self) -> usize {
        let rerun = self.replay.as_ref().map_or(0, |replay| replay.sub_block.arena_bytes());
        padded(self.step.plan.memory.arena_bytes).saturating_add(rerun)
    }

    /// Bytes of all saved steps, if their number is known.
    pub fn saved_state_bytes(&self) -> usize {
        let steps = match self.steps {
            // The steps are saved by another operator.
            StepCount::Recorded { .. } => None,
            // A branch may run.
            StepCount::If(_) => Some(1),
            _ => self.count,
        };
        steps.map_or(0, |steps| steps.div_ceil(self.save_interval).saturating_mul(self.saved_bytes))
    }
}

/// A sub-block that the backward pass reruns from the inputs of every n-th step.
#[derive(Debug)]
pub struct ReplayPlan {
    pub block: BlockId,
    pub sub_block: SubBlockPlan,
    /// The carried inputs of a saved step.
    pub carried: Vec<SavedValue>,
}

impl ReplayPlan {
    /// Bytes of the steps that are rerun at a time.
    pub fn saved_state_bytes(&self) -> usize {
        let SubBlockPlan { save_interval, count, saved_bytes, .. } = self.sub_block;
        count.map_or(0, |count| count.min(save_interval).saturating_mul(saved_bytes))
    }
}

/// An operator whose output shapes are known when it has run, and the operators after it, planned then.
#[derive(Debug)]
pub struct DynamicTail {
    /// Position of the operator in its block.
    pub index: usize,
    pub op: DynamicOp,
    /// Values before the later operators that these read, apart from the scope.
    pub captured: Vec<ValueId>,
    /// Variables of the scope that the later operators read or write, with their dtype and shape if accessed before.
    pub in_scope: Vec<(Var, Option<Meta>)>,
    /// Variables required at the end.
    pub ends: Vec<Var>,
}

/// Why the output shapes of an operator are not known before.
#[derive(Debug)]
pub enum DynamicOp {
    /// It runs a block whose steps have different shapes.
    Steps(Arc<DynamicSteps>),
    /// It is the last operator of the plan, and its kernel decides the shapes of these outputs.
    Kernel(Vec<ValueId>),
}

impl DynamicTail {
    /// Position of the first operator that is not part of the plan.
    pub(crate) fn first_unplanned(&self) -> usize {
        self.index + usize::from(matches!(self.op, DynamicOp::Kernel(_)))
    }
}

/// An operator with a block that is planned step by step at run time.
#[derive(Debug)]
pub struct DynamicSteps {
    pub call: BlockCall,
    /// Whether a later operator consumes the same step scopes.
    pub shares_steps: bool,
    pub inputs: BlockInputs,
    /// The layout of another operator's saved step state, if known.
    pub layout: Option<Arc<StepStateLayout>>,
    /// The variables that steps read from that state.
    pub reads: Vec<StateVar>,
    /// The variables that its own steps save, if any.
    pub saved: Option<Vec<StateVar>>,
    /// Dtypes and shapes of sums.
    pub sums: Vec<Meta>,
}
