//! Planning (compilation) of a program as a pure function of the program, its shapes and fetches: dead code
//! elimination, fusion and memory planning.
//!
//! Must not touch memory or run anything, except for the constants of `value_graph::constant_inputs`. Steps, in call
//! order: `value_graph::needed` → `Graph::build` → `relevance::leave_out` → `copy_elision::leave_out` →
//! `peephole::join` → `early_updates::reorder` → `fusion::group` (with `value_graph::decompose::parts`) →
//! `memory_planning::place` → `horizontal_fusion::mark`.
//!
//! From the plan on, a slot is an index into the operator's schema: in plans, formulas, fused kernels and instructions.
//! An operator without a kernel (`composed`) is one operator in programs, passes and tapes; the value graph has the
//! operators of its composition in its place, with the shapes known by then. Errors name the operator itself.
//!
//! # Constants
//!
//! A slot declared `constant` holds what a shape rule must know, such as the shape of a reshape that operators compute
//! from other shapes. While the value graph is built, its value is computed on demand: an operator's kernel runs, on
//! memory of its own, if all inputs whose elements it reads are known, and everything is small. Shape rules and kernels
//! read the elements from the `Meta` or `Buf` of the slot, which has no memory. Operators that only computed constants
//! are removed.
//!
//! A feed and a value of the scope are unknown; the error names the one that a constant depends on. Constants that a
//! sub-block captures, or that are saved for the backward pass, stay constants. Plans are cached by the shapes of
//! feeds, which determine the constants. While a program is built or verified, constants are unknown, and so are the
//! dimensions that depend on them.
//!
//! # Control flow
//!
//! The sub-block of an operator is planned for the given shapes, as a plan within the plan. The block reads outer
//! values in place; loop-carried values are copied within its arena. If shapes change from step to step, the plan ends
//! before that operator, and the rest is planned at run time.

// Plans are public for the packages that bind them to memory, not for users, who get reports.
#![allow(missing_docs)]

mod copy_elision;
mod early_updates;
mod failures;
mod feeds;
mod formulas;
mod fusion;
mod horizontal_fusion;
pub mod kernel_binding;
mod memory_planning;
mod offsets;
mod peephole;
mod relevance;
mod report;
mod value_graph;

pub use feeds::cut;
pub use fusion::{FusionGroup, IterationSpace, extent, group, is_native, operand_dims};
pub use memory_planning::{Location, MemoryPlan};
pub use value_graph::block_inputs::{
    BlockInputs, CarriedInput, StepEnds, StepInputs, check_carried, check_term,
};
pub use value_graph::step_state::{SavedValue, StateVar, StepStateField, StepStateLayout};
pub use value_graph::sub_block::{DynamicOp, DynamicSteps, DynamicTail, ReplayPlan, StepPlan, SubBlockPlan};
pub use value_graph::{
    Graph, GraphValue, InitialValue, Instruction, PlanRequest, ScratchValues, ValueId, ValueSource, Wires,
};

pub use report::{PlanReport, PlannedBuffer, PlannedInstruction};

use autobwd_core::{__private::span, OpInfoMap, Program, Result};
use formulas::Formulas;

/// A compiled program: operators in groups, and values with their locations.
#[derive(Debug)]
pub struct Plan {
    pub graph: Graph,
    pub groups: Vec<FusionGroup>,
    /// The number of leading groups that compute constants: they run once, at bind time.
    pub constants: usize,
    /// By group: whether it can fail for some data.
    pub may_fail: Vec<bool>,
    pub memory: MemoryPlan,
}

impl Plan {
    pub fn new(program: &Program, ops: &OpInfoMap, request: &PlanRequest<'_>) -> Result<Plan> {
        span!("plan", operators = program.root().ops.len());
        let needed = value_graph::needed(program, request);
        let mut graph = Graph::build(program, ops, request, &needed, kernel_binding::run)?;
        graph.addressable(program)?;
        if request.graph_only {
            let memory = MemoryPlan::default();
            return Ok(Plan { graph, groups: vec![], constants: 0, may_fail: vec![], memory });
        }
        if !request.unoptimized {
            let mut formulas = Formulas::default();
            relevance::leave_out(&mut graph, &mut formulas)?;
            copy_elision::leave_out(&mut graph, &mut formulas)?;
        }
        peephole::join(&mut graph, ops)?;
        if !request.unoptimized {
            early_updates::reorder(&mut graph, ops);
        }
        let (mut groups, constants) = fusion::group(&mut graph, ops, request.unoptimized)?;
        let layout = memory_planning::place(&graph, &groups, constants, request.unoptimized);
        if !request.unoptimized {
            horizontal_fusion::mark(&graph, &mut groups, constants, &layout);
        }
        let may_fail = failures::may_fail(&graph, ops);
        let group_may_fail =
            |group: &FusionGroup| group.space.is_none() && may_fail[group.nodes.clone()].contains(&true);
        let may_fail = groups.iter().map(group_may_fail).collect();
        Ok(Plan { graph, groups, constants, may_fail, memory: layout })
    }

    /// The groups of every instruction.
    pub fn instruction_groups(&self) -> impl Iterator<Item = (usize, &[FusionGroup])> {
        let mut first = 0;
        self.groups.chunk_by(|_, next| next.shares_instruction).map(move |groups| {
            first += groups.len();
            (first - groups.len(), groups)
        })
    }

    /// By value: the last group that reads its elements; one past the last group for fetches.
    pub fn last_reads(&self) -> Vec<Option<usize>> {
        memory_planning::last_reads(&self.graph, &self.groups)
    }
}
