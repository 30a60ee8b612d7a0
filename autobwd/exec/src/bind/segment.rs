//! Segments of operators of dynamic shape: planned at run time, once for every combination of shapes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use crate::{
    bind::{
        BindOptions, CapturedValue,
        bound_block::{ArenaRange, BlockEnd, BoundBlock},
        bound_step::BoundStep,
    },
    scope::{BoundScope, write_to_shared},
};
use autobwd_core::{
    __private::{Binder, Memory, Place, internals::*},
    BlockId, Cx, DType, Dims, Error, ErrorKind, Meta, OpInfoMap, Program, Result, Tensor, Var,
};
use autobwd_plan::{
    DynamicTail, InitialValue, Plan, PlanRequest, StepEnds, StepInputs, StepPlan, StepStateLayout,
};

/// Number of planned segments that keep their memory.
const BODIES: usize = 16;

/// The inputs of planning at run time.
pub(crate) struct SegmentPlanner {
    program: Program,
    ops: OpInfoMap,
    check_finite: bool,
    loop_limit: Option<u64>,
    /// Values of the scope.
    kept: FxHashMap<Var, ScopeValue>,
    /// Whether these are only read.
    shared: bool,
    /// Layouts of saved step state, referred to by index.
    records: Mutex<Vec<Arc<StepStateLayout>>>,
}

struct ScopeValue {
    meta: Meta,
    place: Place,
    /// Whether it has a value before these operators run.
    set: bool,
}

impl SegmentPlanner {
    /// A planner for the operators of dynamic shape in a program's root block.
    pub(crate) fn new(
        program: &Program,
        ops: &OpInfoMap,
        tail: &DynamicTail,
        scope: &mut BoundScope<'_>,
        options: BindOptions<'_>,
    ) -> Result<SegmentPlanner> {
        let mut kept = FxHashMap::default();
        for (var, now) in &tail.in_scope {
            let name = program.name(*var);
            let declared = program.root().vars.get(var).map(|desc| desc.meta());
            let known = now.clone().or_else(|| scope.scope().meta(name));
            let set = known.is_some();
            if let Some(meta) = known.or(declared.filter(|meta| meta.bytes().is_some())) {
                let place = scope.place(name, &meta, false)?;
                kept.insert(*var, ScopeValue { meta, place, set });
            }
        }
        let BindOptions { check_finite, loop_limit, .. } = options;
        let (program, ops, records) = (program.clone(), ops.clone(), Default::default());
        let shared = scope.is_shared();
        Ok(SegmentPlanner { program, ops, check_finite, loop_limit, kept, shared, records })
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Maximum number of steps of a loop.
    pub(crate) fn loop_limit(&self) -> u64 {
        self.loop_limit.unwrap_or(u64::MAX)
    }

    pub(crate) fn place(&self, var: Var, written: bool) -> Result<Place> {
        if self.shared && written {
            return Err(write_to_shared(self.program.name(var)));
        }
        self.kept.get(&var).map(|kept| kept.place).ok_or_else(|| {
            let name = self.program.name(var);
            let text = format!("the shape of `{name}` is not known before the run: set it in the scope");
            Error::new(ErrorKind::NoValue, text)
        })
    }

    fn meta(&self, name: &str) -> Option<Meta> {
        let kept = self.kept.get(&self.program.find(name)?)?;
        kept.set.then(|| kept.meta.clone())
    }

    /// Writes a value of the scope.
    pub(crate) fn keep(&self, var: Var, tensor: &Tensor) -> Result<()> {
        let (place, meta) = (self.place(var, true)?, tensor.meta());
        if let Some(kept) = self.kept.get(&var).filter(|kept| !kept.meta.agrees(&meta)) {
            let name = self.program.name(var);
            let text = format!("`{name}` is {meta}, but is in the scope as {}", kept.meta);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        Binder::default().output(&meta, place)?.bytes_mut()?.copy_from_slice(tensor.bytes());
        Ok(())
    }

    fn records(&self) -> MutexGuard<'_, Vec<Arc<StepStateLayout>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The layout of that index.
    pub(crate) fn record(&self, number: usize) -> Option<Arc<StepStateLayout>> {
        self.records().get(number).cloned()
    }

    /// The index of a layout.
    pub(crate) fn number(&self, record: StepStateLayout) -> usize {
        let mut records = self.records();
        let known = records.iter().rposition(|known| known.is(&record));
        known.unwrap_or_else(|| {
            records.push(Arc::new(record));
            records.len() - 1
        })
    }
}

/// The cache key of a segment: dtypes and shapes of its inputs, and the index of the layout of saved step state.
pub(crate) type SegmentKey = (Vec<(DType, Dims)>, Option<usize>);

/// The operators of a block from one position on, planned for each combination of shapes.
pub(crate) struct Segment {
    block: BlockId,
    first: usize,
    known: FxHashMap<SegmentKey, PlannedSegment>,
    /// Keys of segments with memory, least recently used first.
    recent: VecDeque<SegmentKey>,
}

struct PlannedSegment {
    plan: StepPlan,
    step: Option<BoundStep>,
}

/// A segment prepared for some shapes.
pub(crate) struct PreparedSegment<'a> {
    pub(crate) step: &'a mut BoundStep,
    plan: &'a StepPlan,
}

impl Segment {
    pub(crate) fn new(block: BlockId, first: usize) -> Segment {
        Segment { block, first, known: FxHashMap::default(), recent: VecDeque::new() }
    }

    /// Prepares the segment; `found` returns its inputs, the copied ones among them, and the values required at its
    /// end.
    pub(crate) fn ready(
        &mut self,
        cx: &Cx,
        planner: &Arc<SegmentPlanner>,
        key: &SegmentKey,
        outer: &[CapturedValue],
        found: impl FnOnce() -> (Vec<InitialValue>, StepInputs, StepEnds),
    ) -> Result<PreparedSegment<'_>> {
        let SegmentPlanner { program, ops, check_finite, loop_limit, .. } = &**planner;
        if !self.known.contains_key(key) {
            let (given, inputs, ends) = found();
            let (block, first) = (self.block, self.first);
            let kept = |name: &str| planner.meta(name);
            let (feeds, fetches, apart) = (&[], &[], *check_finite);
            let request = PlanRequest {
                block,
                first,
                initial: &given,
                ends: &ends.vars,
                feeds,
                scope: &kept,
                fetches,
                unoptimized: apart,
                graph_only: false,
            };
            let plan = Plan::new(program, ops, &request)?;
            let plan = StepPlan { plan, inputs, ends };
            self.known.insert(key.clone(), PlannedSegment { plan, step: None });
        }
        match self.recent.iter().position(|recent| recent == key) {
            Some(at) => drop(self.recent.remove(at)),
            None if self.recent.len() < BODIES => {}
            None => {
                let oldest = self.recent.pop_front().and_then(|key| self.known.get_mut(&key));
                oldest.map(|planned| planned.step.take());
            }
        }
        self.recent.push_back(key.clone());
        let lost = || Error::internal("a segment without a plan");
        let planned = self.known.get_mut(key).ok_or_else(lost)?;
        let PlannedSegment { plan, step } = planned;
        if step.is_none() {
            let (check_finite, loop_limit) = (*check_finite, *loop_limit);
            let options = BindOptions { check_finite, loop_limit, cx, planner: Some(planner) };
            let bound = BoundStep::new(program, self.block, plan, outer, options)?;
            cx.reserve(bound.body.lent_bytes)?;
            *step = Some(bound);
        }
        Ok(PreparedSegment { step: step.as_mut().ok_or_else(lost)?, plan })
    }

    /// The bound block of a key, if it still has memory.
    pub(crate) fn body(&self, key: &SegmentKey) -> Option<&BoundBlock> {
        self.known.get(key)?.step.as_ref().map(|step| &step.body)
    }

    /// Bytes of tensor memory in use now.
    pub(crate) fn bytes(&self) -> usize {
        self.known.values().filter_map(|planned| planned.step.as_ref()).map(|step| step.body.bytes()).sum()
    }
}

impl PreparedSegment<'_> {
    /// A copied input by name: dtype, shape and location.
    pub(crate) fn input(&self, var: Var) -> Result<Option<(&Meta, ArenaRange)>> {
        let StepPlan { plan, inputs, .. } = self.plan;
        let mut ids = inputs.starts.iter().flatten().chain(&inputs.slices);
        let found = ids.find(|id| plan.graph.values[**id].var == var);
        found.map(|id| Ok((&plan.graph.values[*id].meta, self.step.body.span(plan, *id)?))).transpose()
    }

    /// A required value after the run.
    pub(crate) fn end(&self, at: Option<usize>) -> Result<Option<(&Memory, &BlockEnd)>> {
        at.map(|k| self.step.body.end(k)).transpose()
    }

    /// The same, by name.
    pub(crate) fn end_of(&self, var: Var) -> Result<Option<(&Memory, &BlockEnd)>> {
        self.end(self.plan.ends.vars.iter().position(|v| *v == var))
    }
}
