//! Captures of a sub-block: the outer values that it reads, and the variables that it reads from saved step state.

use std::collections::HashSet;

use super::{
    ValueId,
    block_inputs::{BlockInputs, CarriedInput},
    builder::GraphBuilder,
    constants::reads_constants,
    step_state::StateVar,
};
use autobwd_core::{
    __private::internals::*, Block, BlockCall, CarriedInit, CarriedValue, DType, Dim, Dims, Error, ErrorKind,
    Meta, OpInfoMap, Program, Result, StepCount, Var, VarKind,
};

/// The variables that the steps of a forward block save for the backward pass.
pub(super) fn saved_vars(program: &Program, ops: &OpInfoMap, scopes: Var) -> Result<Vec<StateVar>> {
    let mut saved: Vec<StateVar> = vec![];
    let ops_of_program = program.blocks().iter().flat_map(|block| &block.ops);
    for op in ops_of_program.filter(|op| op.reads().any(|v| v == scopes)) {
        let Some(call) = ops.get(&op.ty)?.call(op, program)?.filter(BlockCall::is_recorded) else { continue };
        for read in state_reads(program, ops, &call)? {
            match saved.iter_mut().find(|known| known.var == read.var) {
                Some(known) => known.elements |= read.elements,
                None => saved.push(read),
            }
        }
    }
    Ok(saved)
}

/// The variables that a block reads from saved step state. In gradient blocks, gradients that have no writer are
/// omitted: they are zero.
pub(super) fn state_reads(program: &Program, ops: &OpInfoMap, call: &BlockCall) -> Result<Vec<StateVar>> {
    let supplied: HashSet<Var> = call.supplied().collect();
    let block = program.block(call.block).map_or(&[][..], |block| &block.ops);
    let mut elements = HashSet::new();
    for op in block {
        elements.extend(ops.get(&op.ty)?.reads(op));
    }
    let forward = program.block(call.block).and_then(|block| program.block(block.forward?));
    let is_saved = |var: Var| {
        let written = |block: &Block| block.ops.iter().any(|op| op.writes().any(|v| v == var));
        forward.is_none_or(|block| block.vars.contains_key(&var) || written(block))
    };
    let vars = program.captures(call.block).into_iter().filter(|v| !supplied.contains(v) && is_saved(*v));
    Ok(vars.map(|var| StateVar { var, elements: elements.contains(&var) }).collect())
}

impl GraphBuilder<'_> {
    /// The inputs of an operator's block.
    pub(super) fn block_inputs(&mut self, call: &BlockCall) -> Result<BlockInputs> {
        let read: HashSet<Var> = self.program.captures(call.block).into_iter().collect();
        let condition = call.condition().map(|var| self.value(var)).transpose()?;
        let repeat = match call.steps {
            StepCount::While(var) => call.carried.iter().position(|carried| carried.start == var),
            _ => None,
        };
        let mut inputs = BlockInputs { condition, repeat, ..BlockInputs::default() };
        if let Some(condition) = condition {
            self.check_condition(condition)?;
        }
        self.outer_values(call, &read, &mut inputs)?;
        for carried in &call.carried {
            self.carried_input(*carried, read.contains(&carried.start), &mut inputs)?;
        }
        if let StepCount::Times(n) = call.steps {
            inputs.count = Some((None, n.into()));
        }
        for (sequence, element, like) in &call.slices {
            match self.existing_value(*sequence)? {
                Some(id) => self.sequence(*sequence, id, *element, read.contains(element), &mut inputs)?,
                None => inputs.carried.push(self.zero_elements(*element, *like)?),
            }
        }
        let scopes = call.scopes.filter(|_| call.is_recorded());
        inputs.scopes = scopes.map(|var| self.value(var)).transpose()?;
        Ok(inputs)
    }

    /// Adds the outer values that the block reads in place.
    fn outer_values(
        &mut self,
        call: &BlockCall,
        read: &HashSet<Var>,
        inputs: &mut BlockInputs,
    ) -> Result<()> {
        let constants = reads_constants(self.program, self.ops, call.block)?;
        for var in call.reads.iter().filter(|v| read.contains(v)) {
            let id = self.value(*var)?;
            if constants {
                self.find_constant(id);
            }
            inputs.outer.push((*var, id, self.graph.values[id].meta.clone()));
        }
        Ok(())
    }

    /// Adds a carried value; tensor arrays are changed in place, so they are outer values, too.
    fn carried_input(&mut self, carried: CarriedValue, read: bool, inputs: &mut BlockInputs) -> Result<()> {
        let (first, like) = match carried.first {
            CarriedInit::Value(var, like) => (self.existing_value(var)?, like),
            CarriedInit::ZerosLike(like) => (None, like),
        };
        let mut meta = match self.meta_of(first, like, carried.start) {
            Err(e) if read => return Err(e),
            meta => meta.ok(),
        };
        if let Some(meta) = meta.as_ref().filter(|meta| meta.array) {
            let id = first.map_or_else(|| self.value(carried.start), Ok)?;
            inputs.outer.push((carried.start, id, meta.clone()));
            let meta = Some(meta.clone());
            inputs.carried.push(CarriedInput { carried, first: Some(id), meta, read: false });
            return Ok(());
        }
        if let Some(meta) = &mut meta {
            meta.rows = None;
        }
        inputs.carried.push(CarriedInput { carried, first, meta, read });
        Ok(())
    }

    /// The elements of a sequence without writer: zeros in every step.
    fn zero_elements(&mut self, element: Var, like: Var) -> Result<CarriedInput> {
        let id = self.value(like)?;
        let meta = &self.graph.values[id].meta;
        let meta = Meta::new(meta.dtype, meta.dims.iter().skip(1).copied().collect::<Dims>());
        let first = CarriedInit::ZerosLike(like);
        let carried = CarriedValue { first, start: element, end: element, last: None };
        Ok(CarriedInput { carried, first: None, meta: Some(meta), read: true })
    }

    /// Adds a sequence; its first dimension is the number of steps.
    fn sequence(
        &self,
        sequence: Var,
        id: ValueId,
        element: Var,
        read: bool,
        inputs: &mut BlockInputs,
    ) -> Result<()> {
        let meta = &self.graph.values[id].meta;
        let name = self.program.name(sequence);
        let Some((steps, dims)) = meta.dims.split_first() else {
            let text = format!("`{name}` has no first dimension to iterate over");
            return Err(Error::new(ErrorKind::Shape, text));
        };
        if let Some((other, known)) = inputs.count.filter(|(_, known)| *known != *steps) {
            let text = match other {
                Some(other) => format!("`{}` has {known}", self.program.name(other)),
                None => format!("the block runs {known} times"),
            };
            let text = format!("`{name}` has {steps} steps, but {text}");
            return Err(Error::new(ErrorKind::Shape, text));
        }
        inputs.count = inputs.count.or(Some((Some(sequence), *steps)));
        if read {
            let meta = Meta::new(meta.dtype, dims.iter().copied().collect::<Dims>());
            inputs.slices.push((id, element, meta));
        }
        Ok(())
    }

    /// The value of a variable, if it has one.
    fn existing_value(&mut self, var: Var) -> Result<Option<ValueId>> {
        let persistable = self.desc(var).is_some_and(|desc| desc.persistable);
        match self.current[var.index()] {
            None if persistable => self.value(var).map(Some),
            id => Ok(id),
        }
    }

    /// Dtype and shape of a carried value; without a writer, those of another variable or of its declaration.
    pub(super) fn meta_of(&self, value: Option<ValueId>, like: Var, start: Var) -> Result<Meta> {
        if let Some(id) = value.or(self.current[like.index()]) {
            return Ok(self.graph.values[id].meta.clone());
        }
        let declared = self.desc(start).or_else(|| self.desc(like)).map(|desc| desc.meta());
        declared.filter(|meta| meta.bytes().is_some()).ok_or_else(|| {
            let text = format!("`{}` has no value and no known shape", self.program.name(like));
            Error::new(ErrorKind::NoValue, text)
        })
    }

    pub(super) fn is_list(&self, var: Var) -> bool {
        self.desc(var).is_some_and(|desc| desc.kind == VarKind::TensorArray)
    }

    /// Rejects a condition that is not one bool.
    fn check_condition(&self, id: ValueId) -> Result<()> {
        let value = &self.graph.values[id];
        if value.meta.dtype == DType::Bool && value.meta.dims.numel() == Dim::from(1) && !value.meta.array {
            return Ok(());
        }
        let name = value.name(self.program);
        let text = format!("the condition `{name}` is {}, not a bool of one element", value.meta);
        Err(Error::new(ErrorKind::DType, text))
    }
}
