//! Captures and inputs of a sub-block: the values copied in, as whole tensors, and the values read in place.

use std::{collections::HashSet, sync::Arc};

use crate::value_graph::{
    GraphBuilder, InitialValue, ValueId, ValueSource, Wires, constants::reads_constants,
    control::StepStateLayout,
};
use autobwd_core::{
    __private::internals::*, Block, BlockCall, CarriedInit, CarriedValue, DType, Dim, Dims, Error, ErrorKind,
    Meta, OpDesc, OpInfoMap, Program, Result, StepCount, Var, VarKind,
};

/// The inputs of a sub-block, as values of the outer block.
#[derive(Clone, Debug, Default)]
pub struct BlockInputs {
    /// The condition of the first step.
    pub condition: Option<ValueId>,
    /// Captured values, read in place: outer values and tensor arrays.
    pub outer: Vec<(Var, ValueId, Meta)>,
    pub carried: Vec<CarriedInput>,
    /// The index of the captured condition for further steps.
    pub repeat: Option<usize>,
    /// The sequence, and its element in the step.
    pub slices: Vec<(ValueId, Var, Meta)>,
    /// The number of steps, with the name of a sequence of that length, unless the operator itself gives it.
    pub count: Option<(Option<Var>, Dim)>,
    /// The saved step state of another operator.
    pub scopes: Option<ValueId>,
}

/// The initial value of a loop-carried variable.
#[derive(Clone, Debug)]
pub struct CarriedInput {
    pub carried: CarriedValue,
    /// Zeros if there is none.
    pub first: Option<ValueId>,
    /// Unknown if a branch computes it and it has no initial value.
    pub meta: Option<Meta>,
    /// Whether steps read it; tensor arrays are read in place.
    pub read: bool,
}

/// The values copied into a block before a step, as values of the block's plan.
#[derive(Debug, Default)]
pub struct StepInputs {
    /// By carried value: its input in the block, if the step reads it and it is not a tensor array.
    pub starts: Vec<Option<ValueId>>,
    /// By sequence: the step's element.
    pub slices: Vec<ValueId>,
    /// Values of saved step state, with their offsets.
    pub stored: Vec<(ValueId, usize)>,
    /// Step scopes of inner operators, which are moved into and out of saved step state.
    pub nested: Vec<Var>,
}

impl CarriedInput {
    pub fn is_list(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.array)
    }
}

impl BlockInputs {
    pub fn inputs(&self) -> Wires {
        let outer = self.outer.iter().map(|(_, id, _)| *id);
        let firsts = self.carried.iter().filter_map(|each| each.first);
        let slices = self.slices.iter().map(|(id, ..)| *id);
        let single = self.condition.into_iter().chain(self.scopes);
        single.chain(outer).chain(firsts).chain(slices).map(|id| (None, Some(id))).collect()
    }

    /// The values given to a step, and the destinations of copied ones; of saved step state, the values that the block
    /// reads.
    pub fn step_inputs(
        &self,
        record: Option<&StepStateLayout>,
        reads: &[(Var, bool)],
    ) -> (Vec<InitialValue>, StepInputs) {
        let mut given = vec![];
        let mut give = |var: Var, meta: &Meta, source: ValueSource, record: Option<Arc<StepStateLayout>>| {
            given.push(InitialValue { var, meta: meta.clone(), source, record });
            given.len() - 1
        };
        for (k, (var, _, meta)) in self.outer.iter().enumerate() {
            give(*var, meta, ValueSource::Outer(k), None);
        }
        let mut inputs = StepInputs::default();
        for each in &self.carried {
            let meta = each.meta.clone().filter(|_| each.read);
            // It may differ from step to step.
            let meta = meta.map(|meta| meta.with_constant(None));
            inputs.starts.push(meta.map(|meta| give(each.carried.start, &meta, ValueSource::Feed, None)));
        }
        for (_, var, meta) in &self.slices {
            inputs.slices.push(give(*var, meta, ValueSource::Feed, None));
        }
        for (entry, at) in record.into_iter().flat_map(|record| record.read(reads)) {
            let id = give(entry.var, &entry.meta, ValueSource::Feed, None);
            inputs.stored.extend(at.map(|at| (id, at)));
        }
        for (var, nested) in record.into_iter().flat_map(|record| &record.nested) {
            give(*var, &Meta::scopes(), ValueSource::Feed, nested.clone());
            inputs.nested.push(*var);
        }
        (given, inputs)
    }
}

/// The values required at the end of a step, as positions; `None` if the block neither receives nor computes one.
#[derive(Clone, Debug, Default)]
pub struct StepEnds {
    pub vars: Vec<Var>,
    pub carried: Vec<Option<usize>>,
    pub stacks: Vec<Option<usize>>,
    pub sums: Vec<Option<usize>>,
}

impl StepEnds {
    /// The outputs of a step, and the saved values that are not inputs.
    pub fn new(
        program: &Program,
        call: &BlockCall,
        entering: &BlockInputs,
        given: &[InitialValue],
        leave: &[(Var, bool)],
    ) -> StepEnds {
        let own = program.block(call.block).map_or(&[][..], |block| &block.ops);
        let mut computed: HashSet<Var> = given.iter().map(|given| given.var).collect();
        let left = leave.iter().map(|(v, _)| *v).filter(|v| !computed.contains(v)).collect::<Vec<_>>();
        computed.extend(own.iter().flat_map(OpDesc::writes));
        let vars: Vec<Var> = call.ends().filter(|v| computed.contains(v)).chain(left).collect();
        let find = |var: Var| vars.iter().position(|v| *v == var);
        StepEnds {
            carried: entering.carried.iter().map(|each| find(each.carried.end)).collect(),
            stacks: call.stacks.iter().map(|(var, _)| find(*var)).collect(),
            sums: call.sums.iter().map(|(var, ..)| find(*var)).collect(),
            vars,
        }
    }
}

/// Rejects a carried value whose dtype or rank changes in a step.
pub fn check_carried(name: &str, before: &Meta, after: &Meta) -> Result<()> {
    if before.dtype == after.dtype && before.rank() == after.rank() {
        return Ok(());
    }
    let text = format!("a step changes `{name}` from {before} to {after}; dtype and rank must stay the same");
    Err(Error::new(ErrorKind::Shape, text))
}

/// Rejects a term that cannot be summed to an output of that dtype and shape.
pub fn check_term(program: &Program, var: Var, term: &Meta, out: Var, sum: &Meta) -> Result<()> {
    if (term.dtype, term.array) == (sum.dtype, sum.array) && term.dims.agrees(&sum.dims) {
        return Ok(());
    }
    let [var, out] = [var, out].map(|v| program.name(v));
    let text = format!("`{var}` is {term}, but its sum over the steps, `{out}`, is {sum}");
    Err(Error::new(ErrorKind::Shape, text))
}

/// The values of a forward block's steps that the backward pass reads, and whether it reads the elements.
pub(crate) fn recorded(program: &Program, ops: &OpInfoMap, scopes: Var) -> Result<Vec<(Var, bool)>> {
    let mut names: Vec<(Var, bool)> = vec![];
    for op in
        program.blocks().iter().flat_map(|block| &block.ops).filter(|op| op.reads().any(|v| v == scopes))
    {
        let Some(call) = ops.get(&op.ty)?.call(op, program)?.filter(BlockCall::is_recorded) else { continue };
        for (var, elements) in unsupplied(program, ops, &call)? {
            match names.iter_mut().find(|(v, _)| *v == var) {
                Some((_, e)) => *e |= elements,
                None => names.push((var, elements)),
            }
        }
    }
    Ok(names)
}

/// Variables that a block reads from saved state (`true` if it reads elements, not only the shape). In gradient blocks,
/// gradients without a writer are omitted: they are zero.
pub(crate) fn unsupplied(program: &Program, ops: &OpInfoMap, call: &BlockCall) -> Result<Vec<(Var, bool)>> {
    let supplied: HashSet<Var> = call.supplied().collect();
    let block = program.block(call.block).map_or(&[][..], |block| &block.ops);
    let mut elements = HashSet::new();
    for op in block {
        elements.extend(ops.get(&op.ty)?.reads(op));
    }
    let forward = program.block(call.block).and_then(|block| program.block(block.forward?));
    let left = |var: Var| {
        let written = |block: &Block| block.ops.iter().any(|op| op.writes().any(|v| v == var));
        forward.is_none_or(|block| block.vars.contains_key(&var) || written(block))
    };
    let names = program.captures(call.block).into_iter().filter(|v| !supplied.contains(v) && left(*v));
    Ok(names.map(|v| (v, elements.contains(&v))).collect())
}

impl GraphBuilder<'_> {
    /// The inputs of an operator's block.
    pub(crate) fn enter(&mut self, call: &BlockCall) -> Result<BlockInputs> {
        let program = self.program;
        let read: HashSet<Var> = program.captures(call.block).into_iter().collect();
        let condition = call.condition().map(|var| self.value(var)).transpose()?;
        let repeat = match call.steps {
            StepCount::While(var) => call.carried.iter().position(|each| each.start == var),
            _ => None,
        };
        let mut entering = BlockInputs { condition, repeat, ..BlockInputs::default() };
        if let Some(id) = entering.condition {
            self.is_boolean(id)?;
        }
        let constants = reads_constants(program, self.ops, call.block)?;
        for var in call.reads.iter().filter(|v| read.contains(v)) {
            let id = self.value(*var)?;
            if constants {
                self.find_constant(id);
            }
            entering.outer.push((*var, id, self.graph.values[id].meta.clone()));
        }
        for each in &call.carried {
            let (first, like) = match each.first {
                CarriedInit::Value(var, like) => (self.present(var)?, like),
                CarriedInit::ZerosLike(like) => (None, like),
            };
            let read = read.contains(&each.start);
            let mut meta = match self.meta_of(first, like, each.start) {
                Err(e) if read => return Err(e),
                meta => meta.ok(),
            };
            match &mut meta {
                Some(meta) if meta.array => {
                    // A tensor array is changed in place.
                    let id = first.map_or_else(|| self.value(each.start), Ok)?;
                    entering.outer.push((each.start, id, meta.clone()));
                    let (carried, first, meta) = (*each, Some(id), Some(meta.clone()));
                    entering.carried.push(CarriedInput { carried, first, meta, read: false });
                    continue;
                }
                Some(meta) => meta.rows = None,
                None => {}
            }
            entering.carried.push(CarriedInput { carried: *each, first, meta, read });
        }
        if let StepCount::Times(n) = call.steps {
            entering.count = Some((None, n.into()));
        }
        for (var, inner, like) in &call.slices {
            let Some(id) = self.present(*var)? else {
                // It has no writer: zeros in every step.
                let of = self.value(*like)?;
                let meta = &self.graph.values[of].meta;
                let meta = Meta::new(meta.dtype, meta.dims.iter().skip(1).copied().collect::<Dims>());
                let zeros = CarriedValue {
                    first: CarriedInit::ZerosLike(*like),
                    start: *inner,
                    end: *inner,
                    last: None,
                };
                entering.carried.push(CarriedInput {
                    carried: zeros,
                    first: None,
                    meta: Some(meta),
                    read: true,
                });
                continue;
            };
            let meta = self.graph.values[id].meta.clone();
            let (name, of) = (program.name(*var), &meta.dims);
            let Some((steps, dims)) = of.split_first() else {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!("`{name}` has no first dimension to iterate over"),
                ));
            };
            if let Some((other, known)) = entering.count.filter(|(_, known)| *known != *steps) {
                let text = match other {
                    Some(other) => format!("`{}` has {known}", program.name(other)),
                    None => format!("the block runs {known} times"),
                };
                let text = format!("`{name}` has {steps} steps, but {text}");
                return Err(Error::new(ErrorKind::Shape, text));
            }
            entering.count = entering.count.or(Some((Some(*var), *steps)));
            if read.contains(inner) {
                let meta = Meta::new(meta.dtype, dims.iter().copied().collect::<Dims>());
                entering.slices.push((id, *inner, meta));
            }
        }
        let scopes = call.scopes.filter(|_| call.is_recorded());
        entering.scopes = scopes.map(|var| self.value(var)).transpose()?;
        Ok(entering)
    }

    /// The value of a variable, if it has one.
    fn present(&mut self, var: Var) -> Result<Option<ValueId>> {
        let persistable = self.desc(var).is_some_and(|desc| desc.persistable);
        match self.current[var.index()] {
            None if persistable => self.value(var).map(Some),
            id => Ok(id),
        }
    }

    /// Dtype and shape of a carried value; without a writer, those of another variable or of its declaration.
    pub(crate) fn meta_of(&self, value: Option<ValueId>, like: Var, start: Var) -> Result<Meta> {
        if let Some(id) = value.or(self.current[like.index()]) {
            return Ok(self.graph.values[id].meta.clone());
        }
        let declared = self.desc(start).or_else(|| self.desc(like)).map(|desc| desc.meta());
        declared.filter(|meta| meta.bytes().is_some()).ok_or_else(|| {
            let text = format!("`{}` has no value and no known shape", self.program.name(like));
            Error::new(ErrorKind::NoValue, text)
        })
    }

    pub(crate) fn is_list(&self, var: Var) -> bool {
        self.desc(var).is_some_and(|desc| desc.kind == VarKind::TensorArray)
    }

    fn is_boolean(&self, id: ValueId) -> Result<()> {
        let value = &self.graph.values[id];
        if value.meta.dtype == DType::Bool && value.meta.dims.numel() == Dim::from(1) && !value.meta.array {
            return Ok(());
        }
        let name = value.name(self.program);
        let text = format!("the condition `{name}` is {}, not a bool of one element", value.meta);
        Err(Error::new(ErrorKind::DType, text))
    }
}
