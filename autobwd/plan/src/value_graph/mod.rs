//! The value graph (SSA): every write of a variable makes a new value, of known dtype and shape.

pub(crate) mod block_inputs;
mod builder;
mod captures;
mod composed;
mod constant_inputs;
pub(crate) mod constants;
mod control;
pub(crate) mod decompose;
mod dynamic_shapes;
mod request;
pub(crate) mod step_state;
pub(crate) mod sub_block;
pub(crate) mod widening;

pub use request::{InitialValue, PlanRequest};

use std::sync::Arc;

use smallvec::SmallVec;

use crate::value_graph::decompose::DecomposedOp;
use autobwd_core::{
    __private::{Lookup, internals::*},
    Error, ErrorKind, Meta, OpDesc, OpInfo, OpInfoMap, Program, Result, Role, ScratchDef, SlotDef, Slots,
    Var,
    tensor::padded,
};

use crate::feeds::check_names;
use crate::value_graph::{
    builder::GraphBuilder,
    constants::{Constants, RunInstruction},
    step_state::StepStateLayout,
    sub_block::{DynamicTail, SubBlockPlan},
    widening::WidenedValues,
};

/// Index of a value.
pub type ValueId = usize;

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// A feed.
    Feed,
    /// The scope, at the start of the run.
    Scope,
    /// The outer block, by index among the captured values.
    Outer(usize),
    /// None yet: an empty tensor array.
    Empty,
    /// An operator.
    Instruction(usize),
    /// A copied value; readers read the original instead.
    Copy(ValueId),
    /// No operator, since it has no reader.
    Unread,
    /// Scratch memory of an operator.
    Scratch,
}

/// One definition (SSA value) of a variable.
#[derive(Clone, Debug)]
pub struct GraphValue {
    pub var: Var,
    pub meta: Meta,
    pub source: ValueSource,
    /// Whether the variable lives in the scope.
    pub in_scope: bool,
    /// For step scopes that are read: the layout of saved step state.
    pub layout: Option<Arc<StepStateLayout>>,
}

/// Values in the slots of an operator, flat and in the order of its schema, each with its slot number; `None` for
/// `@EMPTY@`. Values of an operator with a block are unordered and have no slot number.
pub type Wires = SmallVec<[(Option<usize>, Option<ValueId>); 6]>;

/// The values of these slots; `value` maps a variable to its value.
pub(crate) fn wires(
    schema: &[SlotDef],
    slots: &Slots,
    mut value: impl FnMut(Var) -> Result<ValueId>,
) -> Result<Wires> {
    let mut wires = Wires::new();
    for (number, slot) in schema.iter().enumerate() {
        for var in slots.get(slot.name) {
            wires.push((Some(number), if *var == Var::EMPTY { None } else { Some(value(*var)?) }));
        }
    }
    Ok(wires)
}

fn first_in(wires: &Wires, slot: usize) -> Option<ValueId> {
    wires.iter().find(|(number, _)| *number == Some(slot))?.1
}

/// Scratch values of an operator.
pub type ScratchValues = SmallVec<[ValueId; 1]>;

/// One operator to run.
#[derive(Debug)]
pub struct Instruction {
    /// Position in the block, for messages.
    pub index: usize,
    /// Shared by the parts of its decomposition.
    pub desc: Arc<OpDesc>,
    pub info: &'static OpInfo,
    pub inputs: Wires,
    pub outputs: Wires,
    /// Scratch memory: of its kernel, in the order of the schema, and of widened values.
    pub scratch: ScratchValues,
    /// The part of scratch memory in which its kernel finds 16-bit values as `f32`; empty if it has none.
    pub(crate) widened: WidenedValues,
    /// The elementwise operator that runs instead, as a part of the decomposition of `desc`.
    pub(crate) part: Option<Box<DecomposedOp>>,
    /// Its sub-block, if it runs one.
    pub sub_block: Option<Box<SubBlockPlan>>,
    /// Whether it is part of the composition of the operator at `index`.
    pub(crate) in_composition: bool,
}

impl Instruction {
    /// An operator of the program that runs by its kernel or its formula.
    pub(crate) fn new(
        index: usize,
        desc: &OpDesc,
        info: &'static OpInfo,
        inputs: Wires,
        outputs: Wires,
    ) -> Instruction {
        let (desc, scratch) = (Arc::new(desc.clone()), ScratchValues::new());
        Instruction {
            index,
            desc,
            info,
            inputs,
            outputs,
            scratch,
            widened: WidenedValues::new(),
            part: None,
            sub_block: None,
            in_composition: false,
        }
    }

    /// The operator that runs; slots are numbered as in its schema.
    pub fn runs(&self) -> (&'static OpInfo, &OpDesc) {
        self.part.as_ref().map_or((self.info, &self.desc), |part| (part.info, &part.desc))
    }

    /// Inputs whose elements it reads.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + '_ {
        let schema = self.runs().0.schema();
        let shape_only = move |slot: usize| schema.inputs[slot].shape_only;
        self.inputs.iter().filter(move |(slot, _)| !slot.is_some_and(shape_only)).filter_map(|(_, v)| *v)
    }

    /// The first value in that input slot.
    pub fn input(&self, slot: usize) -> Option<ValueId> {
        first_in(&self.inputs, slot)
    }

    /// The first value in that output slot.
    pub fn output(&self, slot: usize) -> Option<ValueId> {
        first_in(&self.outputs, slot)
    }

    /// The input slot whose memory the output slot may reuse.
    pub(crate) fn partner(&self, slot: usize) -> Option<usize> {
        let schema = self.runs().0.schema();
        schema.input_number(schema.outputs[slot].inplace?)
    }

    pub fn writes(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().filter_map(|(_, v)| *v)
    }
}

/// A straight line of operators over values.
#[derive(Debug)]
pub struct Graph {
    pub instructions: Vec<Instruction>,
    pub values: Vec<GraphValue>,
    pub feeds: Vec<ValueId>,
    /// Values required at the end.
    pub(crate) fetches: Vec<ValueId>,
    /// The values of the request's fetches and ends.
    pub ends: Vec<ValueId>,
    /// The rest of the block, if the plan ends early.
    pub tail: Option<Arc<DynamicTail>>,
}

/// New values for the scratch memory of a kernel with these slot values.
pub(crate) fn scratch_values(
    values: &mut Vec<GraphValue>,
    info: &OpInfo,
    inputs: &Wires,
    outputs: &Wires,
) -> ScratchValues {
    let (schema, gives_halves) = (info.schema(), info.gives_halves());
    let define = |scratch: &ScratchDef| {
        let (slots, wires) = match scratch.role {
            Role::Input => (schema.inputs, inputs),
            Role::Output => (schema.outputs, outputs),
        };
        let number = slots.iter().position(|slot| slot.name == scratch.like)?;
        let mut meta = values[first_in(wires, number)?].meta.clone().dense().in_slot(scratch.field);
        if !gives_halves {
            meta.dtype = meta.dtype.arithmetic();
        }
        values.push(GraphValue {
            var: Var::EMPTY,
            meta,
            source: ValueSource::Scratch,
            in_scope: false,
            layout: None,
        });
        Some(values.len() - 1)
    };
    schema.scratch.iter().filter_map(define).collect()
}

/// The operators that fetches and variables of the scope need.
pub(crate) fn needed(program: &Program, request: &PlanRequest<'_>) -> Vec<bool> {
    let Some(block) = program.block(request.block) else { return vec![] };
    let mut wanted = vec![false; program.name_count()];
    request.ends.iter().for_each(|v| wanted[v.index()] = true);
    request.fetches.iter().filter_map(|name| program.find(name)).for_each(|v| wanted[v.index()] = true);
    let mut needed = vec![false; block.ops.len()];
    for (op, needed) in block.ops.iter().zip(&mut needed).skip(request.first).rev() {
        let kept = |v: Var| block.vars.get(&v).is_some_and(|d| d.persistable);
        *needed = op.writes().any(|v| wanted[v.index()] || kept(v));
        if *needed {
            program.full_overwrites(request.block, op).for_each(|v| wanted[v.index()] = false);
            op.reads().for_each(|v| wanted[v.index()] = true);
        }
    }
    needed
}

impl Graph {
    /// A graph of one operator; variable k + 1 is value k. `inputs` says which of them it reads.
    pub fn of_one(desc: &OpDesc, info: &'static OpInfo, metas: &[Meta], inputs: &[bool]) -> Result<Graph> {
        let value = |(k, (meta, input)): (usize, (&Meta, &bool))| {
            let source = if *input { ValueSource::Feed } else { ValueSource::Instruction(0) };
            GraphValue {
                var: Var::stand_in(k + 1),
                meta: meta.clone(),
                source,
                in_scope: false,
                layout: None,
            }
        };
        let number = |var: Var| Ok(var.index() - 1);
        let reads = wires(info.schema().inputs, &desc.inputs, number)?;
        let writes = wires(info.schema().outputs, &desc.outputs, number)?;
        let fetches = (0..metas.len()).filter(|k| !inputs[*k]).collect();
        let mut values = metas.iter().zip(inputs).enumerate().map(value).collect();
        let scratch = scratch_values(&mut values, info, &reads, &writes);
        let node = Instruction { scratch, ..Instruction::new(0, desc, info, reads, writes) };
        Ok(Graph { instructions: vec![node], values, feeds: vec![], fetches, ends: vec![], tail: None })
    }

    /// Rejects values whose total size cannot be addressed; thus no partial sum overflows.
    pub(crate) fn addressable(&self, program: &Program) -> Result<()> {
        let bytes = |value: &GraphValue| value.meta.bytes().map_or(0, padded);
        let total = self.values.iter().map(bytes).fold(0, usize::saturating_add);
        if total <= isize::MAX as usize / 8 {
            return Ok(());
        }
        let largest = self.values.iter().max_by_key(|value| bytes(value));
        let largest = largest.map_or(String::new(), |value| {
            format!("; the largest is `{}`, {}", value.name(program), value.meta)
        });
        let text = format!("the values of the program take more memory than can be addressed{largest}");
        Err(Error::new(ErrorKind::Shape, text))
    }

    /// Another definition of the same variable.
    pub(crate) fn redefine(&mut self, value: ValueId) -> ValueId {
        self.values.push(self.values[value].clone());
        self.values.len() - 1
    }

    /// Updates the writer index of every value to the current positions of operators.
    pub(crate) fn index_writers(&mut self) {
        for (position, node) in self.instructions.iter().enumerate() {
            node.writes().for_each(|v| self.values[v].source = ValueSource::Instruction(position));
        }
    }

    pub(crate) fn is_whole_tensor(&self, value: ValueId) -> bool {
        let meta = &self.values[value].meta;
        meta.rows.is_none() && !meta.array
    }

    pub(crate) fn build(
        program: &Program,
        ops: &OpInfoMap,
        request: &PlanRequest<'_>,
        needed: &[bool],
        run: RunInstruction,
    ) -> Result<Graph> {
        let no_block =
            || Error::new(ErrorKind::Program, format!("there is no block {}", request.block.index()));
        let block = program.block(request.block).ok_or_else(no_block)?;
        let needed_ops = || block.ops.iter().enumerate().filter(|(i, _)| needed[*i]);
        let mut has_reader = vec![false; program.name_count()];
        let reads = needed_ops().flat_map(|(_, op)| op.reads()).chain(request.ends.iter().copied());
        reads.for_each(|v| has_reader[v.index()] = true);
        let mut infos = Lookup::new(ops);
        let mut build = GraphBuilder {
            program,
            block,
            ops,
            request,
            has_reader,
            current: vec![None; program.name_count()],
            graph: Graph {
                instructions: vec![],
                values: vec![],
                feeds: vec![],
                fetches: vec![],
                ends: vec![],
                tail: None,
            },
            tail: None,
            checked: program.is_verified(),
            constants: Constants::default(),
            run,
        };
        build.feeds()?;
        check_names(program, request.feeds)?;
        build.given();
        for (index, desc) in needed_ops() {
            let at = |e: Error| e.at_op(|| program.describe_op(request.block, index, desc));
            build.node(index, desc, infos.get(desc.ty).map_err(at)?).map_err(at)?;
            if let Some(tail) = build.tail.take() {
                let first = tail.first_unplanned();
                build.end_early(tail, needed_ops().filter(|(i, _)| *i >= first).map(|(_, op)| op))?;
                return Ok(build.graph);
            }
        }
        build.fetches()?;
        build.constants.prune(&mut build.graph);
        Ok(build.graph)
    }
}
