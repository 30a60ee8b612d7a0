//! The value graph (SSA): every write of a variable makes a new value, of known dtype and shape.

pub(crate) mod captures;
mod composed;
pub(crate) mod constants;
pub(crate) mod control;
pub(crate) mod decompose;
pub(crate) mod dynamic_shapes;
mod request;

pub use request::{InitialValue, PlanRequest};

use std::sync::Arc;

use smallvec::SmallVec;

use crate::value_graph::decompose::DecomposedOp;
use autobwd_core::{
    __private::Lookup, __private::did_you_mean, __private::internals::*, Block, BlockId, Dim, Error,
    ErrorKind, Meta, OpDesc, OpInfo, OpInfoMap, Program, Result, Role, Schema, ScratchDef, SlotDef, Slots,
    Var, VarDesc, VarKind, tensor::padded,
};

use crate::value_graph::{
    constants::{Constants, RunInstruction},
    control::{StepStateLayout, SubBlockPlan},
    dynamic_shapes::DynamicTail,
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
    pub record: Option<Arc<StepStateLayout>>,
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
    /// Scratch memory of its kernel, in the order of the schema.
    pub scratch: ScratchValues,
    /// The elementwise operator that runs instead, as a part of the decomposition of `desc`.
    pub(crate) part: Option<Box<DecomposedOp>>,
    /// Its sub-block, if it runs one.
    pub sub_block: Option<Box<SubBlockPlan>>,
    /// Whether it is part of the composition of the operator at `index`.
    pub(crate) in_composition: bool,
}

impl Instruction {
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
    schema: &Schema,
    inputs: &Wires,
    outputs: &Wires,
) -> ScratchValues {
    let define = |scratch: &ScratchDef| {
        let (slots, wires) = match scratch.role {
            Role::Input => (schema.inputs, inputs),
            Role::Output => (schema.outputs, outputs),
        };
        let number = slots.iter().position(|slot| slot.name == scratch.like)?;
        let meta = values[first_in(wires, number)?].meta.clone().dense().in_slot(scratch.field);
        values.push(GraphValue {
            var: Var::EMPTY,
            meta,
            source: ValueSource::Scratch,
            in_scope: false,
            record: None,
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
                record: None,
            }
        };
        let number = |var: Var| Ok(var.index() - 1);
        let reads = wires(info.schema().inputs, &desc.inputs, number)?;
        let writes = wires(info.schema().outputs, &desc.outputs, number)?;
        let fetches = (0..metas.len()).filter(|k| !inputs[*k]).collect();
        let mut values = metas.iter().zip(inputs).enumerate().map(value).collect();
        let scratch = scratch_values(&mut values, info.schema(), &reads, &writes);
        let node = Instruction {
            index: 0,
            desc: Arc::new(desc.clone()),
            info,
            inputs: reads,
            outputs: writes,
            scratch,
            part: None,
            sub_block: None,
            in_composition: false,
        };
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
        let mut left = vec![false; program.name_count()];
        let later = needed_ops().flat_map(|(_, op)| op.reads()).chain(request.ends.iter().copied());
        later.for_each(|v| left[v.index()] = true);
        let mut infos = Lookup::new(ops);
        let mut build = GraphBuilder {
            program,
            block,
            ops,
            request,
            left,
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
        build.given();
        for (index, desc) in needed_ops() {
            let at = |e: Error| e.at_op(|| program.describe_op(request.block, index, desc));
            build.node(index, desc, infos.get(desc.ty).map_err(at)?).map_err(at)?;
            if let Some(tail) = build.tail.take() {
                build.end_early(tail, needed_ops().filter(|(i, _)| *i >= index).map(|(_, op)| op))?;
                return Ok(build.graph);
            }
        }
        build.fetches()?;
        build.constants.prune(&mut build.graph);
        Ok(build.graph)
    }
}

pub(crate) struct GraphBuilder<'a> {
    pub(crate) program: &'a Program,
    block: &'a Block,
    pub(crate) ops: &'a OpInfoMap,
    pub(crate) request: &'a PlanRequest<'a>,
    /// By variable: whether it has a reader.
    pub(crate) left: Vec<bool>,
    /// The current definition of a variable.
    pub(crate) current: Vec<Option<ValueId>>,
    pub(crate) graph: Graph,
    /// The operator before which the plan ends.
    pub(crate) tail: Option<DynamicTail>,
    /// Whether verification has checked slots and attributes.
    checked: bool,
    /// Values computed for slots declared `constant`.
    pub(crate) constants: Constants,
    pub(crate) run: RunInstruction,
}

impl GraphBuilder<'_> {
    /// Whether a variable lives in the scope.
    pub(crate) fn is_in_scope(&self, var: Var) -> bool {
        self.block.vars.get(&var).is_some_and(|d| d.persistable)
    }

    pub(crate) fn define(&mut self, var: Var, mut meta: Meta, source: ValueSource) -> ValueId {
        let kept = self.is_in_scope(var);
        if let Some(before) = self.current[var.index()].map(|id| &self.graph.values[id].meta)
            && meta.array
        {
            let either = |(a, b): (&Dim, &Dim)| if a == b { *a } else { Dim::UNKNOWN };
            meta.dims = before.dims.iter().zip(&*meta.dims).map(either).collect();
        }
        self.graph.values.push(GraphValue { var, meta, source, in_scope: kept, record: None });
        let id = self.graph.values.len() - 1;
        self.current[var.index()] = Some(id);
        id
    }

    pub(crate) fn desc(&self, var: Var) -> Option<&VarDesc> {
        self.program.lookup(self.request.block, var)
    }

    /// Adds the values available at the start.
    fn given(&mut self) {
        for given in self.request.initial {
            let id = self.define(given.var, given.meta.clone(), given.source);
            let value = &mut self.graph.values[id];
            (value.in_scope, value.record) = (false, given.record.clone());
            if given.source == ValueSource::Feed && !given.meta.array {
                self.graph.feeds.push(id);
            }
        }
    }

    fn feeds(&mut self) -> Result<()> {
        let request = self.request;
        for (name, meta) in request.feeds {
            let var = self
                .program
                .expect_var(name)
                .map_err(|e| Error::new(ErrorKind::Feed, format!("cannot feed: {e}")))?;
            let refuse =
                |why: String| Err(Error::new(ErrorKind::Feed, format!("`{name}` cannot be fed: {why}")));
            match self.desc(var) {
                Some(desc) if desc.persistable => {
                    return refuse("it is persistable; set it in the scope".into());
                }
                Some(desc) if desc.kind != VarKind::Tensor => {
                    return refuse("it is not a dense tensor".into());
                }
                Some(desc) if desc.dtype != meta.dtype => {
                    return refuse(format!(
                        "the program declares {}, but the tensor is {}",
                        desc.dtype, meta.dtype
                    ));
                }
                Some(desc) if !desc.dims.agrees(&meta.dims) => {
                    return refuse(format!(
                        "the program declares shape {}, but the tensor has shape {}",
                        desc.dims, meta.dims
                    ));
                }
                _ if meta.bytes().is_none() => {
                    return refuse(format!("its shape {} is unknown or too large", meta.dims));
                }
                _ if self.current[var.index()].is_some() => return refuse("it is fed twice".into()),
                _ => {}
            }
            let id = self.define(var, meta.clone(), ValueSource::Feed);
            self.graph.feeds.push(id);
        }
        Ok(())
    }

    /// The current value of a variable.
    pub(crate) fn value(&mut self, var: Var) -> Result<ValueId> {
        self.value_used(var, "read")
    }

    /// The same; errors name its use.
    fn value_used(&mut self, var: Var, used: &str) -> Result<ValueId> {
        if let Some(id) = self.current[var.index()] {
            return Ok(id);
        }
        let name = self.program.name(var);
        match self.desc(var) {
            Some(desc) if desc.kind == VarKind::TensorArray => {
                let meta = desc.meta();
                Ok(self.define(var, meta, ValueSource::Empty))
            }
            Some(_) if self.request.block != BlockId::ROOT => {
                let text = format!(
                    "`{name}` is {used}, but neither written before nor an input of the operator that runs the block"
                );
                Err(Error::new(ErrorKind::NoValue, text))
            }
            Some(desc) if desc.persistable => {
                let meta = (self.request.scope)(name).ok_or_else(|| {
                    let hint = "run the start-up program, or load or set it";
                    Error::new(ErrorKind::NoValue, format!("`{name}` has no value in the scope; {hint}"))
                })?;
                let declared = desc.meta();
                if !declared.agrees(&meta) {
                    let text = format!("`{name}` is {declared}, but the scope holds {meta}");
                    return Err(Error::new(ErrorKind::Shape, text));
                }
                Ok(self.define(var, meta.with_constant(None), ValueSource::Scope))
            }
            Some(_) => {
                let text = format!("`{name}` is {used}, but neither fed nor written before; feed it");
                Err(Error::new(ErrorKind::Feed, text))
            }
            None => {
                let known = self.program.root().vars.keys().map(|v| self.program.name(*v));
                let hint = did_you_mean(name, known);
                Err(Error::new(ErrorKind::UnknownVar, format!("`{name}` is {used}, but not declared{hint}")))
            }
        }
    }

    fn node(&mut self, index: usize, desc: &OpDesc, info: &'static OpInfo) -> Result<()> {
        if !self.checked {
            info.check(desc)?;
        }
        if let Some(call) = info.call(desc, self.program)? {
            call.faults(desc, self.program).into_iter().try_for_each(Err)?;
            return self.call(index, desc, info, &call);
        }
        let inputs = wires(info.schema().inputs, &desc.inputs, |var| self.value(var))?;
        self.constant_inputs(info, &inputs)?;
        if info.is_composed() {
            return self.compose(index, desc);
        }
        let mut metas: SmallVec<[(Var, Meta); 2]> = SmallVec::new();
        let of = |var: Var| match self.current[var.index()] {
            Some(id) => Ok(self.graph.values[id].meta.clone()),
            None => Err(Error::internal("an input without value")),
        };
        info.infer_checked(desc, &of, &mut |var, meta| match metas.iter_mut().find(|(v, _)| *v == var) {
            Some((_, known)) => *known = meta,
            None => metas.push((var, meta)),
        })?;
        let outputs = wires(info.schema().outputs, &desc.outputs, |var| {
            let Some(at) = metas.iter().position(|(v, _)| *v == var) else {
                let text = format!("`{}` is written to twice", self.program.name(var));
                return Err(Error::new(ErrorKind::Slot, text));
            };
            let (_, meta) = metas.remove(at);
            self.check_output(var, &meta)?;
            Ok(self.define(var, meta, ValueSource::Instruction(self.graph.instructions.len())))
        })?;
        let desc = Arc::new(desc.clone());
        let scratch = scratch_values(&mut self.graph.values, info.schema(), &inputs, &outputs);
        self.graph.instructions.push(Instruction {
            index,
            desc,
            info,
            inputs,
            outputs,
            scratch,
            part: None,
            sub_block: None,
            in_composition: false,
        });
        Ok(())
    }

    pub(crate) fn check_output(&self, var: Var, meta: &Meta) -> Result<()> {
        let (name, slot) = (self.program.name(var), meta.slot());
        if let Some(desc) = self.desc(var)
            && !desc.persistable
            && meta.bytes().is_some()
            && desc.allows(meta)
        {
            return Ok(());
        }
        if meta.bytes().is_none() {
            let text = format!("`{slot}`: the shape {} of `{name}` is unknown or too large", meta.dims);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let Some(desc) = self.desc(var) else {
            // Between the operators of a composition.
            if var.index() >= self.program.name_count() {
                return Ok(());
            }
            let text = format!("`{slot}`: `{name}` is not declared");
            return Err(Error::new(ErrorKind::UnknownVar, text));
        };
        let mut declared = vec![];
        if !desc.allows(meta) {
            declared.push((desc.meta(), "is declared"));
        }
        if desc.persistable {
            if meta.rows.is_some() {
                let text = format!("`{slot}` is {meta}, but `{name}` is kept in the scope as a dense tensor");
                return Err(Error::new(ErrorKind::Shape, text));
            }
            declared.extend((self.request.scope)(name).map(|meta| (meta, "is in the scope")));
        }
        for (known, how) in declared {
            if !known.agrees(meta) {
                let text = format!("`{slot}` is {meta}, but `{name}` {how} as {known}");
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(())
    }

    fn fetches(&mut self) -> Result<()> {
        let request = self.request;
        for name in request.fetches {
            let var = self
                .program
                .expect_var(name)
                .map_err(|e| Error::new(ErrorKind::Fetch, format!("cannot fetch: {e}")))?;
            let id =
                self.value_used(var, "fetched").map_err(|e| Error::new(ErrorKind::Fetch, e.message()))?;
            if self.graph.values[id].meta.array {
                let text = format!("`{name}` is fetched, but it is a tensor array; fetch an element of it");
                return Err(Error::new(ErrorKind::Fetch, text));
            }
            self.graph.ends.push(id);
        }
        for var in request.ends {
            let id = self.value(*var)?;
            self.graph.ends.push(id);
        }
        // A step's inputs stay until it ends, so that carried outputs can be copied there.
        let starts =
            self.request.initial.iter().zip(0..).filter(|(given, _)| given.source == ValueSource::Feed);
        let there =
            self.graph.ends.iter().copied().chain(starts.map(|(_, id)| id + self.request.feeds.len()));
        let tensors = there.filter(|id| !self.graph.values[*id].meta.array);
        self.graph.fetches.extend(tensors.collect::<Vec<_>>());
        Ok(())
    }
}
