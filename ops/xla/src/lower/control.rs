//! Control flow: branches as `if`, loops and recurrences as `while`.
//!
//! The planner has divided an operator with a block into a plan of one step and the values that enter and leave it. A loop
//! carries these, and tensors for stacked outputs and saved step state, whose first dimension counts the steps; so the
//! number of steps must be known where either exists.
//!
//! With checkpoints, the gradient reruns the steps between them.

use std::cell::RefCell;

use autobwd::{__private::internals::*, BlockId, Error, ErrorKind, Result, op::StepCount, program::Var};
use autobwd_backward::trips;
use autobwd_plan::{CarriedInput, GraphValue, Instruction, StepPlan, SubBlockPlan, ValueId, ValueSource};

use super::{
    graph_lowering::GraphLowering,
    hlo::{Hlo, HloDType, HloType, WhileText},
};

/// The outputs of an operator with a block, and the step state that it saves.
type StepOutputs = (Vec<Hlo>, Option<LoweredSteps>);

/// The saved step state of an operator with a block, or that of one of its steps.
#[derive(Clone)]
pub(super) struct LoweredSteps {
    /// The number of steps of a loop.
    count: Option<usize>,
    /// The condition of a branch.
    condition: Option<Hlo>,
    /// Offsets of the values, by which gradients find them.
    offsets: Vec<usize>,
    /// The values, in all steps.
    values: Vec<Hlo>,
    /// The state that operators in the block have saved.
    nested: Vec<(Var, LoweredSteps)>,
}

impl LoweredSteps {
    /// All values, those of operators in the block last.
    fn all(&self) -> Vec<Hlo> {
        let nested = self.nested.iter().flat_map(|(_, nested)| nested.all());
        self.condition.iter().chain(&self.values).cloned().chain(nested).collect()
    }

    /// The same with other values.
    fn with(&self, values: &mut impl Iterator<Item = Hlo>) -> LoweredSteps {
        let condition = self.condition.as_ref().and_then(|_| values.next());
        let own = values.take(self.values.len()).collect();
        let nested = self.nested.iter().map(|(var, nested)| (*var, nested.with(values))).collect();
        LoweredSteps { count: self.count, condition, offsets: self.offsets.clone(), values: own, nested }
    }

    fn at(&self, offset: usize) -> Option<&Hlo> {
        self.values.get(self.offsets.iter().position(|known| *known == offset)?)
    }

    /// The state of a step.
    fn step(&self, index: &Hlo) -> LoweredSteps {
        self.with(&mut self.all().into_iter().map(|value| value.at(index)))
    }
}

/// What a step has computed.
struct StepValues {
    /// By loop-carried value: its value at the end.
    carried: Vec<Option<Hlo>>,
    stacks: Vec<Hlo>,
    /// Terms of sums.
    sums: Vec<Option<Hlo>>,
    saved: LoweredSteps,
}

/// What a step reads besides captured values.
struct StepArguments<'s> {
    /// By loop-carried value.
    carried: &'s [Hlo],
    /// The position in sequences.
    index: Option<Hlo>,
    /// The state that the step of another operator has saved.
    saved: Option<LoweredSteps>,
}

#[cold]
fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("it has no form in StableHLO: {why}"))
}

impl<'a> GraphLowering<'a> {
    /// Lowers an operator that runs a block.
    pub(super) fn control(&mut self, node: &'a Instruction, call: &'a SubBlockPlan) -> Result<()> {
        if call.inputs.carried.iter().any(|each| each.is_list()) {
            return Err(refused("its steps change a tensor array"));
        }
        if call.inputs.outer.iter().any(|(_, _, meta)| meta.array) {
            return Err(refused("its steps read a tensor array"));
        }
        let saved = call.inputs.scopes.and_then(|id| self.saved.get(&id).cloned());
        let (outputs, left) = match (call.steps, &saved) {
            (StepCount::If(_), _) => {
                let condition = call.inputs.condition.map(|id| self.read(id).reshape(&[]));
                let condition = condition.ok_or_else(|| refused("a branch without condition"))?;
                self.branch(node, call, &condition, None)?
            }
            (StepCount::Recorded { .. }, Some(saved)) if let Some(condition) = &saved.condition => {
                self.branch(node, call, condition, Some(saved.clone()))?
            }
            (StepCount::Recorded { .. }, None) => {
                return Err(refused("the steps of its forward operator are not saved"));
            }
            _ => self.repeat(node, call, saved.as_ref())?,
        };
        let mut outputs = outputs.into_iter();
        let ids: Vec<ValueId> = node.outputs.iter().filter_map(|(_, id)| *id).collect();
        for id in ids {
            if self.graph.values[id].meta.array {
                self.saved.extend(left.clone().map(|left| (id, left)));
            } else if let Some(value) = outputs.next() {
                self.write(id, value)?;
            }
        }
        Ok(())
    }

    /// The values of loop-carried variables at the start; zeros without one.
    fn first_values(&self, call: &SubBlockPlan) -> Result<Vec<Hlo>> {
        let (graph, ends) = (&call.step.plan.graph, &call.step.ends.carried);
        let first = |(each, end): (&CarriedInput, &Option<usize>)| {
            let end = end.map(|k| &graph.values[graph.ends[k]].meta);
            match (each.first, end.or(each.meta.as_ref())) {
                (Some(id), _) => Ok(self.read(id)),
                (None, Some(meta)) => Ok(self.f.zeros(&HloType::of(meta))),
                (None, None) => Err(refused("a state of unknown shape")),
            }
        };
        call.inputs.carried.iter().zip(ends).map(first).collect()
    }

    /// Types of the operator's sums or stacks: those of its outputs, which follow the final values of states.
    fn output_types(&self, node: &Instruction, call: &SubBlockPlan) -> (Vec<HloType>, Vec<HloType>) {
        let lasts = call.inputs.carried.iter().filter(|each| each.carried.last.is_some()).count();
        let ids = node.outputs.iter().filter_map(|(_, id)| *id).skip(lasts);
        let mut types = ids.map(|id| HloType::of(&self.graph.values[id].meta));
        let stacks = types.by_ref().take(call.step.ends.stacks.len()).collect();
        (stacks, types.take(call.step.ends.sums.len()).collect())
    }

    /// Final values of states, as the operator's outputs.
    fn last_values(call: &SubBlockPlan, carried: &[Hlo]) -> Vec<Hlo> {
        let wanted = call.inputs.carried.iter().zip(carried).filter(|(each, _)| each.carried.last.is_some());
        wanted.map(|(_, value)| value.clone()).collect()
    }

    /// One step or none.
    fn branch(
        &mut self,
        node: &Instruction,
        call: &'a SubBlockPlan,
        condition: &Hlo,
        saved: Option<LoweredSteps>,
    ) -> Result<StepOutputs> {
        let first = self.first_values(call)?;
        let (_, sum_types) = self.output_types(node, call);
        let (f, outcome) = (self.f, RefCell::new(Err(refused("a branch"))));
        let types = RefCell::new(vec![]);
        let results = condition.branch(
            || {
                let step = self.step(node, call, StepArguments { carried: &first, index: None, saved });
                let values = step.as_ref().map_or(vec![], |step| {
                    let ended = step.carried.iter().zip(&first);
                    let carried =
                        ended.map(|(end, first)| end.clone().unwrap_or_else(|| first.full_like(0.0)));
                    let sums = step.sums.iter().zip(&sum_types);
                    let sums = sums.map(|(term, ty)| term.clone().unwrap_or_else(|| f.zeros(ty)));
                    carried.chain(sums).chain(step.saved.all()).collect()
                });
                types.replace(values.iter().map(|value: &Hlo| value.ty().clone()).collect());
                *outcome.borrow_mut() = step.map(|step| step.saved);
                values
            },
            || {
                let rest = types.borrow().iter().skip(first.len()).map(|ty| f.zeros(ty)).collect::<Vec<_>>();
                let known = types.borrow().len().min(first.len());
                first[..known].iter().cloned().chain(rest).collect()
            },
        );
        let template = outcome.into_inner()?;
        let (carried, rest) = results.split_at(first.len().min(results.len()));
        let (sums, left) = rest.split_at(sum_types.len().min(rest.len()));
        let left = std::iter::once(condition.clone()).chain(left.iter().cloned());
        let saved = LoweredSteps { condition: Some(condition.clone()), ..template };
        let outputs = Self::last_values(call, carried).into_iter().chain(sums.iter().cloned()).collect();
        Ok((outputs, call.saves_steps.then(|| saved.with(&mut { left }))))
    }

    /// As many steps as a condition, sequences or the saved steps of another operator say.
    fn repeat(
        &mut self,
        node: &Instruction,
        call: &'a SubBlockPlan,
        saved: Option<&LoweredSteps>,
    ) -> Result<StepOutputs> {
        let first = self.first_values(call)?;
        let (stack_types, sum_types) = self.output_types(node, call);
        let count = match call.steps {
            StepCount::Recorded { .. } => saved.and_then(|saved| saved.count),
            StepCount::While(_) if call.saves_steps => Some(self.trips(node)?),
            StepCount::While(_) => None,
            _ => call.count,
        };
        let zeros = |types: &[HloType]| types.iter().map(|ty| self.f.zeros(ty)).collect::<Vec<_>>();
        if count == Some(0) {
            let outputs = Self::last_values(call, &first).into_iter();
            let outputs = outputs.chain(zeros(&stack_types)).chain(zeros(&sum_types)).collect();
            let none =
                LoweredSteps { count, condition: None, offsets: vec![], values: vec![], nested: vec![] };
            return Ok((outputs, Some(none)));
        }
        let f = self.f;
        let counter = HloType::scalar(HloDType::I32);
        let mut text = WhileText::begin(f);
        let ran = text.state(&counter);
        let carried: Vec<Hlo> = first.iter().map(|first| text.state(first.ty())).collect();
        let stacks: Vec<Hlo> = stack_types.iter().map(|ty| text.state(ty)).collect();
        let sums: Vec<Hlo> = sum_types.iter().map(|ty| text.state(ty)).collect();
        let step = self.repeated_step(node, call, count, &ran, &carried, saved);
        let (step, position) = match step {
            Ok(step) => step,
            Err(e) => {
                text.abandon();
                return Err(e);
            }
        };
        let mut next = vec![&ran + 1.0];
        let ended = step.carried.iter().zip(&first);
        next.extend(ended.map(|(end, first)| end.clone().unwrap_or_else(|| first.full_like(0.0))));
        next.extend(stacks.iter().zip(&step.stacks).map(|(all, value)| all.set_at(&position, value)));
        let summed = sums.iter().zip(&step.sums);
        next.extend(summed.map(|(sum, term)| term.as_ref().map_or(sum.clone(), |term| sum + term)));
        let left = if call.saves_steps { step.saved.all() } else { vec![] };
        let steps = count.unwrap_or(0);
        let types: Vec<HloType> = left.iter().map(|value| value.ty().stacked(steps)).collect();
        for (ty, value) in types.iter().zip(&left) {
            let all = text.state(ty);
            next.push(all.set_at(&ran, value));
        }
        let body = text.end_body(&next);
        let initial: Vec<Hlo> = std::iter::once(f.zeros(&counter))
            .chain(first.iter().cloned())
            .chain(stack_types.iter().chain(&sum_types).chain(&types).map(|ty| f.zeros(ty)))
            .collect();
        let repeat = call.inputs.repeat;
        let results = body.finish(&initial, |states| match (count, repeat) {
            (Some(count), _) => states[0].less(&states[0].full_like(count as f64)),
            (None, Some(k)) => states[k + 1].reshape(&[]),
            (None, None) => states[0].less(&states[0].full_like(0.0)),
        });
        let mut results = results.into_iter().skip(1);
        let carried: Vec<Hlo> = results.by_ref().take(first.len()).collect();
        let others = results.by_ref().take(stack_types.len() + sum_types.len());
        let outputs =
            Self::last_values(call, &carried).into_iter().chain(others.collect::<Vec<_>>()).collect();
        let saved = LoweredSteps { count, ..step.saved };
        Ok((outputs, call.saves_steps.then(|| saved.with(&mut results))))
    }

    /// The number of steps of a loop that saves them.
    fn trips(&self, node: &Instruction) -> Result<usize> {
        let call = node.info.call(&node.desc, self.program)?;
        let call = call.ok_or_else(|| Error::internal("a loop without a block"))?;
        trips(self.ops, self.program, (self.block, node.index), &call).map_err(|why| {
            refused(&format!("its gradient needs the number of steps, which is not known: {why}"))
        })
    }

    /// The step of a loop, and its position in sequences.
    fn repeated_step(
        &mut self,
        node: &Instruction,
        call: &'a SubBlockPlan,
        count: Option<usize>,
        ran: &Hlo,
        carried: &[Hlo],
        saved: Option<&LoweredSteps>,
    ) -> Result<(StepValues, Hlo)> {
        let from_end = |at: &Hlo, count: usize| -at + (count as f64 - 1.0);
        let length = count.unwrap_or(0);
        let Some(saved) = saved else {
            let is_reversed = call.steps == StepCount::Each { reverse: true };
            let index = if is_reversed { from_end(ran, length) } else { ran.clone() };
            let arguments = StepArguments { carried, index: Some(index.clone()), saved: None };
            return Ok((self.step(node, call, arguments)?, index));
        };
        // The number of steps before it.
        let number = from_end(ran, length);
        let position = |call: &SubBlockPlan| match call.steps {
            StepCount::Recorded { reverse: true } | StepCount::Each { reverse: true } => {
                from_end(&number, call.count.unwrap_or(length))
            }
            _ => number.clone(),
        };
        let mut saved = saved.step(&number);
        if let Some(replay) = &call.replay {
            // The state of a step is its inputs: the step is run again.
            let rerun = &replay.sub_block;
            let start = |id: &Option<ValueId>| {
                let input = replay.carried.iter().find(|input| Some(input.value) == *id);
                let value = input.and_then(|input| saved.at(input.offset));
                value.cloned().unwrap_or_else(|| number.clone())
            };
            let carried: Vec<Hlo> = rerun.step.inputs.carried.iter().map(start).collect();
            let index = Some(position(rerun));
            saved = self.step(node, rerun, StepArguments { carried: &carried, index, saved: None })?.saved;
        }
        let index = position(call);
        let arguments = StepArguments { carried, index: Some(index.clone()), saved: Some(saved) };
        Ok((self.step(node, call, arguments)?, index))
    }

    /// Lowers a step.
    fn step(
        &mut self,
        node: &Instruction,
        call: &'a SubBlockPlan,
        arguments: StepArguments<'_>,
    ) -> Result<StepValues> {
        let StepPlan { plan, inputs, ends } = &call.step;
        let StepArguments { carried, index, saved } = arguments;
        let mut inner = GraphLowering::new(self.program, self.ops, self.f, &plan.graph);
        inner.block = node.desc.attrs.blocks().next().unwrap_or(BlockId::ROOT);
        inner.depth = self.depth;
        for (k, (_, id, _)) in call.inputs.outer.iter().enumerate() {
            inner.values[k] = Some(self.read(*id));
        }
        for (start, value) in inputs.carried.iter().zip(carried) {
            if let Some(start) = start {
                inner.values[*start] = Some(value.clone());
            }
        }
        for (id, (sequence, ..)) in inputs.slices.iter().zip(&call.inputs.slices) {
            let Some(index) = &index else { return Err(refused("a sequence without positions")) };
            inner.values[*id] = Some(self.read(*sequence).at(index));
        }
        if let Some(saved) = saved {
            for input in &inputs.restored {
                inner.values[input.value] = saved.at(input.offset).cloned();
            }
            for (var, nested) in &saved.nested {
                let given = |v: &GraphValue| v.var == *var && v.source == ValueSource::Feed;
                if let Some(id) = plan.graph.values.iter().position(given) {
                    inner.saved.insert(id, nested.clone());
                }
            }
        }
        inner.lower_or_fail()?;
        let end = |k: usize| inner.result(plan.graph.ends[k]);
        let optional = |ends: &[Option<usize>]| -> Result<Vec<Option<Hlo>>> {
            ends.iter().map(|k| k.map(end).transpose()).collect()
        };
        let values = call.saved.iter().map(|saved| inner.result(saved.value)).collect::<Result<_>>()?;
        let nested = inner.saved.iter().map(|(id, saved)| (plan.graph.values[*id].var, saved.clone()));
        let saved = LoweredSteps {
            count: None,
            condition: None,
            offsets: call.saved.iter().map(|saved| saved.offset).collect(),
            values,
            nested: if call.saves_steps { nested.collect() } else { vec![] },
        };
        Ok(StepValues {
            carried: optional(&ends.carried)?,
            stacks: optional(&ends.stacks)?.into_iter().flatten().collect(),
            sums: optional(&ends.sums)?,
            saved,
        })
    }
}
