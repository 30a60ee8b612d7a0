//! Inputs and outputs of a sub-block: the values copied into a step, the values read in place, and the values required
//! at the end of a step.

use std::{collections::HashSet, sync::Arc};

use super::{
    ValueId, ValueSource, Wires,
    request::InitialValue,
    step_state::{SavedValue, StateVar, StepStateLayout},
};
use autobwd_core::{
    __private::internals::*, BlockCall, CarriedValue, Dim, Error, ErrorKind, Meta, OpDesc, Program, Result,
    Var,
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
    pub carried: Vec<Option<ValueId>>,
    /// By sequence: the step's element.
    pub slices: Vec<ValueId>,
    /// Values of saved step state.
    pub restored: Vec<SavedValue>,
    /// Step scopes of inner operators, which are moved into and out of saved step state.
    pub nested: Vec<Var>,
}

impl CarriedInput {
    pub fn is_list(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.array)
    }
}

impl BlockInputs {
    /// The number of steps, if known.
    pub fn step_count(&self) -> Option<usize> {
        self.count.and_then(|(_, steps)| steps.get())
    }

    pub fn values(&self) -> Wires {
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
        layout: Option<&StepStateLayout>,
        reads: &[StateVar],
    ) -> (Vec<InitialValue>, StepInputs) {
        let mut given = vec![];
        let mut give = |var: Var, meta: &Meta, source: ValueSource, layout: Option<Arc<StepStateLayout>>| {
            given.push(InitialValue { var, meta: meta.clone(), source, layout });
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
            inputs.carried.push(meta.map(|meta| give(each.carried.start, &meta, ValueSource::Feed, None)));
        }
        for (_, var, meta) in &self.slices {
            inputs.slices.push(give(*var, meta, ValueSource::Feed, None));
        }
        for (entry, offset) in layout.into_iter().flat_map(|layout| layout.entries_of(reads)) {
            let value = give(entry.var, &entry.meta, ValueSource::Feed, None);
            inputs.restored.extend(offset.map(|offset| SavedValue { value, offset }));
        }
        for (var, nested) in layout.into_iter().flat_map(|layout| &layout.nested) {
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
        inputs: &BlockInputs,
        given: &[InitialValue],
        saved: &[StateVar],
    ) -> StepEnds {
        let own = program.block(call.block).map_or(&[][..], |block| &block.ops);
        let mut computed: HashSet<Var> = given.iter().map(|given| given.var).collect();
        let saved_ends: Vec<Var> =
            saved.iter().map(|saved| saved.var).filter(|v| !computed.contains(v)).collect();
        computed.extend(own.iter().flat_map(OpDesc::writes));
        let vars: Vec<Var> = call.ends().filter(|v| computed.contains(v)).chain(saved_ends).collect();
        let find = |var: Var| vars.iter().position(|v| *v == var);
        StepEnds {
            carried: inputs.carried.iter().map(|each| find(each.carried.end)).collect(),
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
