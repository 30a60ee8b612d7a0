//! Segments of operators of dynamic shape: planned at run time, once for every combination of shapes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use crate::{
    bind::{
        bound_block::{ArenaRange, BlockEnd, BoundBlock, CapturedValue, arena_range},
        bound_step::BoundStep,
    },
    observer::Observers,
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
const MAX_BOUND_SEGMENTS: usize = 16;

/// Number of planned segments: data may decide on ever new shapes, and a plan is as large as the program.
const MAX_PLANNED_SEGMENTS: usize = 1024;

/// Options of execution.
#[derive(Clone, Copy)]
pub(crate) struct BindOptions<'a> {
    pub(crate) observers: &'a Observers,
    /// Maximum number of steps of a loop.
    pub(crate) loop_limit: Option<u64>,
    pub(crate) cx: &'a Cx,
    /// The planner for operators of dynamic shape.
    pub(crate) planner: Option<&'a Arc<SegmentPlanner>>,
}

impl BindOptions<'_> {
    /// Whether operators are watched, and so neither fused nor run in place.
    pub(crate) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }
}

/// Binds a step of a block. A parameter, since the binder itself makes the kernels that plan segments.
pub(crate) type BindStep =
    fn(&Program, BlockId, &StepPlan, &[CapturedValue], BindOptions<'_>) -> Result<BoundStep>;

/// The inputs of planning at run time.
pub(crate) struct SegmentPlanner {
    program: Program,
    ops: OpInfoMap,
    observers: Observers,
    loop_limit: Option<u64>,
    bind_step: BindStep,
    /// Values of the scope.
    scope_values: FxHashMap<Var, ScopeValue>,
    /// Whether these are only read.
    is_shared: bool,
    /// Layouts of saved step state, referred to by index.
    layouts: Mutex<Vec<Arc<StepStateLayout>>>,
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
        bind_step: BindStep,
    ) -> Result<SegmentPlanner> {
        let mut scope_values = FxHashMap::default();
        for (var, accessed) in &tail.in_scope {
            let name = program.name(*var);
            let declared = program.root().vars.get(var).map(|desc| desc.meta());
            let known = accessed.clone().or_else(|| scope.scope().meta(name));
            let set = known.is_some();
            if let Some(meta) = known.or(declared.filter(|meta| meta.bytes().is_some())) {
                let place = scope.place(name, &meta, false)?;
                scope_values.insert(*var, ScopeValue { meta, place, set });
            }
        }
        Ok(SegmentPlanner {
            program: program.clone(),
            ops: ops.clone(),
            observers: options.observers.clone(),
            loop_limit: options.loop_limit,
            bind_step,
            scope_values,
            is_shared: scope.is_shared(),
            layouts: Mutex::default(),
        })
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Maximum number of steps of a loop.
    pub(crate) fn loop_limit(&self) -> u64 {
        self.loop_limit.unwrap_or(u64::MAX)
    }

    pub(crate) fn place(&self, var: Var, written: bool) -> Result<Place> {
        if self.is_shared && written {
            return Err(write_to_shared(self.program.name(var)));
        }
        self.scope_values.get(&var).map(|value| value.place).ok_or_else(|| {
            let name = self.program.name(var);
            let text = format!("the shape of `{name}` is not known before the run: set it in the scope");
            Error::new(ErrorKind::NoValue, text)
        })
    }

    fn meta(&self, name: &str) -> Option<Meta> {
        let value = self.scope_values.get(&self.program.find(name)?)?;
        value.set.then(|| value.meta.clone())
    }

    /// Writes a value of the scope.
    pub(crate) fn write_to_scope(&self, var: Var, tensor: &Tensor) -> Result<()> {
        let place = self.place(var, true)?;
        let meta = tensor.meta();
        if let Some(known) = self.scope_values.get(&var).filter(|value| !value.meta.agrees(&meta)) {
            let name = self.program.name(var);
            let text = format!("`{name}` is {meta}, but is in the scope as {}", known.meta);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        Binder::default().output(&meta, place)?.bytes_mut()?.copy_from_slice(tensor.bytes());
        Ok(())
    }

    fn layouts(&self) -> MutexGuard<'_, Vec<Arc<StepStateLayout>>> {
        self.layouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The layout of that index.
    pub(crate) fn layout(&self, index: usize) -> Option<Arc<StepStateLayout>> {
        self.layouts().get(index).cloned()
    }

    /// The index of a layout.
    pub(crate) fn layout_index(&self, layout: StepStateLayout) -> usize {
        let mut layouts = self.layouts();
        let known = layouts.iter().rposition(|known| known.is(&layout));
        known.unwrap_or_else(|| {
            layouts.push(Arc::new(layout));
            layouts.len() - 1
        })
    }
}

/// The cache key of a segment: dtypes and shapes of its inputs, and the index of the layout of saved step state.
pub(crate) type SegmentKey = (Vec<(DType, Dims)>, Option<usize>);

/// The operators of a block from one position on, planned for each combination of shapes.
pub(crate) struct Segment {
    block: BlockId,
    first: usize,
    planned: FxHashMap<SegmentKey, PlannedSegment>,
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
        Segment { block, first, planned: FxHashMap::default(), recent: VecDeque::new() }
    }

    /// Prepares the segment for the shapes of a key; `describe` returns its inputs, the copied ones among them, and the
    /// values required at its end.
    pub(crate) fn prepare(
        &mut self,
        cx: &Cx,
        planner: &Arc<SegmentPlanner>,
        key: &SegmentKey,
        outer: &[CapturedValue],
        describe: impl FnOnce() -> (Vec<InitialValue>, StepInputs, StepEnds),
    ) -> Result<PreparedSegment<'_>> {
        if !self.planned.contains_key(key) {
            if self.planned.len() >= MAX_PLANNED_SEGMENTS {
                self.planned.retain(|_, planned| planned.step.is_some());
            }
            let (initial, inputs, ends) = describe();
            let plan = self.plan(planner, &initial, &ends)?;
            let plan = StepPlan { plan, inputs, ends };
            self.planned.insert(key.clone(), PlannedSegment { plan, step: None });
        }
        self.mark_used(key);
        let missing = || Error::internal("a segment without a plan");
        let PlannedSegment { plan, step } = self.planned.get_mut(key).ok_or_else(missing)?;
        if step.is_none() {
            let SegmentPlanner { observers, loop_limit, .. } = &**planner;
            let options = BindOptions { observers, loop_limit: *loop_limit, cx, planner: Some(planner) };
            let bound = (planner.bind_step)(&planner.program, self.block, plan, outer, options)?;
            cx.reserve(bound.block.lent_bytes)?;
            *step = Some(bound);
        }
        Ok(PreparedSegment { step: step.as_mut().ok_or_else(missing)?, plan })
    }

    fn plan(&self, planner: &SegmentPlanner, initial: &[InitialValue], ends: &StepEnds) -> Result<Plan> {
        let request = PlanRequest {
            block: self.block,
            first: self.first,
            initial,
            ends: &ends.vars,
            feeds: &[],
            scope: &|name| planner.meta(name),
            fetches: &[],
            unoptimized: !planner.observers.is_empty(),
            graph_only: false,
        };
        Plan::new(&planner.program, &planner.ops, &request)
    }

    /// Makes a key the most recently used one, and frees the memory of the least recently used one if there are too many.
    fn mark_used(&mut self, key: &SegmentKey) {
        match self.recent.iter().position(|recent| recent == key) {
            Some(position) => drop(self.recent.remove(position)),
            None if self.recent.len() < MAX_BOUND_SEGMENTS => {}
            None => {
                let oldest = self.recent.pop_front().and_then(|key| self.planned.get_mut(&key));
                oldest.map(|planned| planned.step.take());
            }
        }
        self.recent.push_back(key.clone());
    }

    /// The bound block of a key, if it still has memory.
    pub(crate) fn bound_block(&self, key: &SegmentKey) -> Option<&BoundBlock> {
        self.planned.get(key)?.step.as_ref().map(|step| &step.block)
    }

    /// Bytes of tensor memory in use now.
    pub(crate) fn bytes(&self) -> usize {
        self.planned.values().filter_map(|planned| planned.step.as_ref()).map(|step| step.block.bytes()).sum()
    }
}

impl PreparedSegment<'_> {
    /// A copied input by name: dtype, shape and location.
    pub(crate) fn input(&self, var: Var) -> Result<Option<(&Meta, ArenaRange)>> {
        let StepPlan { plan, inputs, .. } = self.plan;
        let mut ids = inputs.carried.iter().flatten().chain(&inputs.slices);
        let id = ids.find(|id| plan.graph.values[**id].var == var);
        id.map(|id| Ok((&plan.graph.values[*id].meta, arena_range(plan, *id)?))).transpose()
    }

    /// A required value after the run.
    pub(crate) fn end(&self, position: Option<usize>) -> Result<Option<(&Memory, &BlockEnd)>> {
        position.map(|k| self.step.block.end(k)).transpose()
    }

    /// The same, by name.
    pub(crate) fn end_of(&self, var: Var) -> Result<Option<(&Memory, &BlockEnd)>> {
        self.end(self.plan.ends.vars.iter().position(|v| *v == var))
    }
}
