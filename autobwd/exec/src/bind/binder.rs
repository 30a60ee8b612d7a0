//! The binder: makes the instructions of a plan, and the bound blocks of its operators with sub-blocks.

use std::{collections::BTreeMap, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    bind::{
        bound_block::{BoundBlock, BoundInstruction, BoundInstructions, CapturedValue, CellBinding},
        bound_step::{BoundInputs, BoundStep},
        control_flow::BlockCallKernel,
        copy::CopyKernel,
        dynamic::{BoundDynamicOp, DynamicKernel},
        dynamic_loop::DynamicLoop,
        journal::Journal,
        observed_kernel::ObservedKernel,
        segment::BindOptions,
    },
    observer::{ObservedOp, ObservedValue},
    scope::BoundScope,
};
use autobwd_core::{
    __private::{
        AccessMode, Arena, Binder, FusedKernel, FusedKernels, Memory, Place, ValueCell, internals::*,
    },
    BlockId, Buf, Error, Kernel, Meta, OpDesc, Origin, Program, Result, SlotDef, Var, VarDesc, VarKind,
    tensor::{TensorArray, padded},
};
use autobwd_plan::{
    DynamicOp, DynamicTail, GraphValue, InitialValue, Instruction, Location, Plan, StepPlan, SubBlockPlan,
    ValueId, ValueSource, Wires, kernel_binding,
};

/// Binds the plan of a block. Only the root block has a scope.
pub(crate) fn bind(
    program: &Program,
    block: BlockId,
    plan: &Plan,
    arena: &Memory,
    scope: Option<&mut BoundScope<'_>>,
    outer: &[CapturedValue],
    options: BindOptions<'_>,
) -> Result<BoundInstructions> {
    let graph = &plan.graph;
    let locations = &plan.memory.locations;
    let workers = options.cx.threads();
    let mut binder = InstructionBinder {
        program,
        block,
        plan,
        arena,
        scope,
        outer,
        options,
        cells: FxHashMap::default(),
        sub_block_bytes: 0,
    };
    let journal = binder.journal()?;
    let mut bound = BoundInstructions {
        instructions: vec![],
        constants: 0,
        cells: vec![],
        tail: None,
        scratch_bytes: journal.bytes(),
        journal,
        lent_bytes: 0,
    };
    // In the order of the groups they follow.
    let mut copies = plan.memory.copies.iter().peekable();
    for (first, groups) in plan.instruction_groups() {
        let node = groups[0].nodes.start;
        let mut place = |v| binder.place(v, locations[v]);
        let fused = groups.iter().filter_map(|group| Some((group, group.space.as_ref()?)));
        let fused = fused.map(|(group, space)| {
            kernel_binding::fused_kernel(
                graph,
                &graph.instructions[group.nodes.clone()],
                space,
                workers,
                &mut place,
            )
        });
        let mut kernel: Box<dyn Kernel + Send> = match fused.collect::<Result<Vec<_>>>()? {
            fused if fused.is_empty() => binder.kernel(node, &graph.instructions[node])?,
            fused => {
                bound.scratch_bytes += fused.iter().map(FusedKernel::scratch_bytes).sum::<usize>();
                Box::new(FusedKernels::new(fused)?)
            }
        };
        if options.is_observed() {
            let op = binder.observed(&graph.instructions[node])?;
            kernel = Box::new(ObservedKernel { kernel, op, observers: options.observers.clone() });
        }
        bound.lent_bytes = bound.lent_bytes.max(kernel.scratch_bytes(workers));
        bound.instructions.push(BoundInstruction { kernel, node });
        if first < plan.constants {
            bound.constants = bound.instructions.len();
        }
        while let Some(copy) = copies.next_if(|copy| copy.after < first + groups.len()) {
            let kernel = Box::new(binder.copy(copy.value, copy.from, copy.to)?);
            bound.instructions.push(BoundInstruction { kernel, node });
        }
    }
    // Without operators, values that are required at the end are still copied.
    for copy in copies {
        let kernel = Box::new(binder.copy(copy.value, copy.from, copy.to)?);
        bound.instructions.push(BoundInstruction { kernel, node: 0 });
    }
    if let Some(tail) = &graph.tail {
        bound.tail = Some(Box::new(binder.dynamic_kernel(tail)?));
    }
    // A value required at the end may be one that was given at the start.
    graph.ends.iter().filter(|id| graph.values[**id].meta.array).for_each(|id| drop(binder.cell(*id)));
    bound.scratch_bytes = bound.scratch_bytes.saturating_add(binder.sub_block_bytes);
    // The caller fills the inputs of a step.
    let given = |v: &GraphValue| matches!(v.source, ValueSource::Feed | ValueSource::Outer(_));
    let given: FxHashSet<Var> = plan.graph.values.iter().filter(|v| given(v)).map(|v| v.var).collect();
    for (var, cell) in binder.cells {
        bound.cells.push(CellBinding { var, cell, own: !given.contains(&var) });
    }
    Ok(bound)
}

/// Binds operators of dynamic shape, which have memory of their own.
pub(crate) fn bind_step(
    program: &Program,
    block: BlockId,
    step: &StepPlan,
    outer: &[CapturedValue],
    options: BindOptions<'_>,
) -> Result<BoundStep> {
    let arena = Arena::Own(Memory::zeroed(step.plan.memory.arena_bytes)?);
    bind_step_in(program, block, step, arena, outer, options)
}

/// Binds a block that runs one step in an arena.
fn bind_step_in(
    program: &Program,
    block: BlockId,
    step: &StepPlan,
    arena: Arena,
    outer: &[CapturedValue],
    options: BindOptions<'_>,
) -> Result<BoundStep> {
    let bound = bind(program, block, &step.plan, &arena, None, outer, options)?;
    BoundStep::new(step, BoundBlock::new(program, block, &step.plan, arena, bound, options.cx)?)
}

struct InstructionBinder<'a, 's> {
    program: &'a Program,
    block: BlockId,
    plan: &'a Plan,
    arena: &'a Memory,
    scope: Option<&'a mut BoundScope<'s>>,
    outer: &'a [CapturedValue],
    options: BindOptions<'a>,
    cells: FxHashMap<Var, Arc<ValueCell>>,
    /// Bytes of memory of sub-blocks.
    sub_block_bytes: usize,
}

impl InstructionBinder<'_, '_> {
    /// The memory of a value; `None` for a block register.
    fn place(&mut self, value: ValueId, location: Location) -> Result<Option<Place>> {
        let GraphValue { meta, source, .. } = &self.plan.graph.values[value];
        let written = *source != ValueSource::Scope;
        match location {
            Location::Register => Ok(None),
            // SAFETY: `BoundBlock` owns the arena and the instructions bound to it, which it drops first. They run in
            // order, while the block is borrowed mutably; the arena itself is accessed between them only.
            #[allow(unsafe_code)]
            Location::Arena(at) => unsafe { self.arena.place(at, meta.bytes().unwrap_or(0)) }.map(Some),
            Location::Scope(var) => match (&mut self.scope, self.options.planner) {
                (Some(scope), _) => scope.place(self.program.name(var), meta, written).map(Some),
                (None, Some(planner)) if self.block == BlockId::ROOT => planner.place(var, written).map(Some),
                _ => Err(Error::internal("a sub-block looks for a value in the scope")),
            },
            Location::Outer(k) => match self.outer.get(k) {
                Some(CapturedValue::Tensor(place)) => Ok(Some(*place)),
                _ => Err(Error::internal("a sub-block looks for a tensor that is not there")),
            },
            Location::Cell(_) => Err(Error::internal("a tensor array was asked for its place")),
        }
    }

    /// The values of the scope to restore if a step fails; sub-blocks write none.
    fn journal(&mut self) -> Result<Journal> {
        let (plan, program) = (self.plan, self.program);
        let Some(scope) = &mut self.scope else { return Ok(Journal::default()) };
        let tail = plan.graph.tail.as_ref();
        let end = match self.options.is_observed() || tail.is_some() {
            true => plan.groups.len(),
            false => plan.may_fail.iter().rposition(|may_fail| *may_fail).map_or(0, |last| last + 1),
        };
        let nodes = plan.groups[..end].iter().flat_map(|group| &plan.graph.instructions[group.nodes.clone()]);
        let values = nodes.flat_map(Instruction::writes).map(|id| &plan.graph.values[id]);
        let mut overwritten: BTreeMap<&str, Meta> =
            values.filter(|v| v.in_scope).map(|v| (program.name(v.var), v.meta.clone())).collect();
        if let Some(tail) = tail {
            let written = program.root().ops[tail.index..].iter().flat_map(OpDesc::writes);
            for var in written.filter(|var| tail.in_scope.iter().any(|(in_scope, _)| in_scope == var)) {
                let declared = || program.root().vars.get(&var).map(VarDesc::meta);
                let known = scope.scope().meta(program.name(var)).or_else(declared);
                // A value of unknown shape does not exist yet, and cannot be written by operators of dynamic shape.
                overwritten.extend(
                    known.filter(|meta| meta.bytes().is_some()).map(|meta| (program.name(var), meta)),
                );
            }
        }
        let place = |(name, meta): (&str, Meta)| Ok((scope.place(name, &meta, true)?, meta));
        Journal::new(&overwritten.into_iter().map(place).collect::<Result<Vec<_>>>()?)
    }

    fn memory(&mut self, value: ValueId, location: Location) -> Result<Place> {
        self.place(value, location)?.ok_or_else(|| Error::internal("a block register has no memory"))
    }

    /// The cell of a value that is not a tensor.
    fn cell(&mut self, value: ValueId) -> Arc<ValueCell> {
        let plan = self.plan;
        let var = plan.graph.values[value].var;
        let new = || {
            let of = |v: &&GraphValue| v.var == var;
            let outer = plan.graph.values.iter().filter(of).find_map(|v| match v.source {
                ValueSource::Outer(k) => self.outer.get(k),
                _ => None,
            });
            let is_array = |v: &VarDesc| v.kind == VarKind::TensorArray;
            match outer {
                Some(CapturedValue::Cell(cell)) => cell.clone(),
                _ if self.program.lookup(self.block, var).is_some_and(is_array) => {
                    Arc::new(ValueCell::Array(TensorArray::default()))
                }
                _ => Arc::new(ValueCell::Steps(Default::default())),
            }
        };
        self.cells.entry(var).or_insert_with(new).clone()
    }

    /// A slot of an operator that runs a sub-block.
    fn input(&mut self, binder: &mut Binder, value: ValueId) -> Result<Buf<'static>> {
        let meta = &self.plan.graph.values[value].meta;
        if meta.array {
            return Ok(binder.cell(meta, self.cell(value)));
        }
        let place = self.memory(value, self.plan.memory.locations[value])?;
        binder.input(meta, place, AccessMode::Read)
    }

    fn output(&mut self, binder: &mut Binder, value: ValueId) -> Result<Buf<'static>> {
        let meta = &self.plan.graph.values[value].meta;
        if meta.array {
            return Ok(binder.cell(meta, self.cell(value)));
        }
        let place = self.memory(value, self.plan.memory.locations[value])?;
        binder.output(meta, place)
    }

    fn kernel(&mut self, position: usize, node: &Instruction) -> Result<Box<dyn Kernel + Send>> {
        if let Some(sub_block) = &node.sub_block {
            let arena = self.plan.memory.sub_arenas.get(&position);
            let arena = arena.ok_or_else(|| Error::internal("a sub-block without an arena"))?;
            return Ok(Box::new(self.call(node, sub_block, *arena)?));
        }
        let plan = self.plan;
        let values = node.inputs.iter().chain(&node.outputs).filter_map(|(_, v)| *v);
        let arrays = values.filter(|v| plan.graph.values[*v].meta.array);
        let cells: Vec<_> = arrays.map(|v| (v, self.cell(v))).collect();
        kernel_binding::kernel(&plan.graph, node, &cells, &mut |v| self.place(v, plan.memory.locations[v]))
    }

    /// Binds an operator that runs a sub-block, with every input, so that no write overlaps a value that the block
    /// reads. The arena of the block is at that offset of this one's, and the arena of rerun steps after it.
    fn call(&mut self, node: &Instruction, plan: &SubBlockPlan, at: usize) -> Result<BlockCallKernel> {
        let block = node.desc.attrs.blocks().next().unwrap_or(BlockId::ROOT);
        let mut kernel = self.block_call(node, block, plan, at, &node.outputs)?;
        self.count_bytes(plan.saved_state_bytes());
        if let Some(replay) = &plan.replay {
            self.count_bytes(replay.saved_state_bytes());
            let at = at + padded(plan.step.plan.memory.arena_bytes);
            let rerun = self.block_call(node, replay.block, &replay.sub_block, at, &Wires::new())?;
            kernel.set_replay(rerun, replay)?;
        }
        Ok(kernel)
    }

    fn count_bytes(&mut self, bytes: usize) {
        self.sub_block_bytes = self.sub_block_bytes.saturating_add(bytes);
    }

    fn block_call(
        &mut self,
        node: &Instruction,
        block: BlockId,
        plan: &SubBlockPlan,
        at: usize,
        outputs: &Wires,
    ) -> Result<BlockCallKernel> {
        let outer = plan.inputs.outer.iter().map(|(_, id, _)| self.captured(*id));
        let outer = outer.collect::<Result<Vec<_>>>()?;
        // SAFETY: `BoundBlock` owns this arena and the instructions bound to it, the bound step among them, which it drops
        // first. The step uses its part during a call only, and the plan gives that part to nothing else meanwhile.
        #[allow(unsafe_code)]
        let arena = unsafe { self.arena.lend(at, plan.step.plan.memory.arena_bytes) }?;
        let step = bind_step_in(self.program, block, &plan.step, arena, &outer, self.options)?;
        self.count_bytes(step.block.bytes());
        let mut binder = Binder::default();
        let inputs = node.inputs.iter().filter_map(|(_, v)| *v);
        let inputs = inputs.map(|v| Ok((v, self.input(&mut binder, v)?))).collect::<Result<Vec<_>>>()?;
        let outputs = outputs.iter().filter_map(|(_, v)| *v);
        let outputs = outputs.map(|v| self.output(&mut binder, v)).collect::<Result<Vec<_>>>()?;
        binder.finish()?;
        let inputs = BoundInputs::new(&plan.inputs, inputs)?;
        let limit = self.options.loop_limit.unwrap_or(u64::MAX);
        let kernel = BlockCallKernel::new(plan, step, inputs, outputs, limit)?;
        self.count_bytes(kernel.total_bytes());
        Ok(kernel)
    }

    /// A captured outer value of a sub-block or of operators of dynamic shape.
    fn captured(&mut self, value: ValueId) -> Result<CapturedValue> {
        let plan = self.plan;
        match plan.graph.values[value].meta.array {
            true => Ok(CapturedValue::Cell(self.cell(value))),
            false => self.memory(value, plan.memory.locations[value]).map(CapturedValue::Tensor),
        }
    }

    fn dynamic_kernel(&mut self, tail: &Arc<DynamicTail>) -> Result<DynamicKernel> {
        let planner = self
            .options
            .planner
            .ok_or_else(|| Error::internal("no planner for the operators of dynamic shape"))?;
        let mut captured = vec![];
        for id in &tail.captured {
            let GraphValue { var, meta, source, layout, .. } = self.plan.graph.values[*id].clone();
            captured.push((InitialValue { var, meta, source, layout }, self.captured(*id)?));
        }
        let op = match &tail.op {
            DynamicOp::Steps(steps) => {
                let mut inputs = vec![];
                for id in steps.inputs.values().into_iter().filter_map(|(_, id)| id) {
                    inputs.push((id, self.input(&mut Binder::default(), id)?));
                }
                let outer = steps.inputs.outer.iter().map(|(_, id, _)| self.captured(*id));
                let outer = outer.collect::<Result<_>>()?;
                let inputs = BoundInputs::new(&steps.inputs, inputs)?;
                let steps = DynamicLoop::new(planner.clone(), steps.clone(), inputs, outer, &captured)?;
                BoundDynamicOp::Steps(Box::new(steps))
            }
            DynamicOp::Kernel(outputs) => {
                let output = |id: &ValueId| {
                    Ok((self.plan.graph.values[*id].var, self.input(&mut Binder::default(), *id)?))
                };
                BoundDynamicOp::Kernel(outputs.iter().map(output).collect::<Result<_>>()?)
            }
        };
        Ok(DynamicKernel::new(planner.clone(), self.block, tail.clone(), op, captured))
    }

    /// What observers see of an operator, in a plan without buffer reuse.
    fn observed(&mut self, node: &Instruction) -> Result<ObservedOp> {
        let (plan, mut binder) = (self.plan, Binder::default());
        let mut observe = |(slot, value): (&'static str, ValueId)| -> Result<ObservedValue> {
            let known = &self.plan.graph.values[value];
            let (name, meta) = (known.name(self.program).into(), known.meta.clone().in_slot(slot));
            let place = self.memory(value, self.plan.memory.locations[value])?;
            Ok(ObservedValue { name, buf: binder.input(&meta, place, AccessMode::Read)? })
        };
        let values = |wires: &Wires, slots: &'static [SlotDef]| {
            let slot = |number: &Option<usize>| number.map(|number| &slots[number]);
            let values = wires.iter().filter_map(|(number, value)| Some((slot(number), (*value)?)));
            // The memory of an input read only for its shape may hold another value by now.
            let values = values.filter(|(slot, _)| !slot.is_some_and(|slot| slot.shape_only));
            let tensors = values.filter(|(_, value)| !plan.graph.values[*value].meta.array);
            tensors.map(|(slot, value)| (slot.map_or("", |slot| slot.name), value)).collect::<Vec<_>>()
        };
        let (info, desc) = node.runs();
        let schema = info.schema();
        let inputs =
            values(&node.inputs, schema.inputs).into_iter().map(&mut observe).collect::<Result<_>>()?;
        let outputs =
            values(&node.outputs, schema.outputs).into_iter().map(&mut observe).collect::<Result<_>>()?;
        binder.finish()?;
        let of = if let Origin::Gradient { of } = node.desc.origin { Some(of) } else { None };
        let block = self.program.block(self.block).and_then(|b| b.forward).unwrap_or(self.block);
        let fwd = of.and_then(|of| Some((of, self.program.block(block)?.ops.get(of)?)));
        let forward = fwd.map(|(of, fwd)| self.program.describe_op(block, of, fwd).to_string());
        let ty = desc.ty.to_string();
        Ok(ObservedOp { block: self.block, index: node.index, ty, forward, inputs, outputs })
    }

    fn copy(&mut self, value: ValueId, from: Location, to: Location) -> Result<CopyKernel> {
        let (from, to) = (self.memory(value, from)?, self.memory(value, to)?);
        CopyKernel::new(&self.plan.graph.values[value].meta, from, to)
    }
}
