//! The `recurrent` operator: a block that runs for every step of a sequence.

use crate::{
    BlockCall, BlockId, CarriedInit, CarriedValue, Control, Error, GradCx, GradRule, NoGrad, Program, Result,
    StepCount, Var, register_op,
};

/// The interval given by an attribute `checkpoint_every`.
pub(super) fn checkpoint_interval(steps: i32) -> Option<usize> {
    usize::try_from(steps).ok().filter(|steps| *steps > 0)
}

/// The variables of these names.
fn named(program: &Program, attr: &str, names: &[String], states: usize) -> Result<Vec<Var>> {
    if names.len() != states {
        return Err(Error::attr(
            attr,
            format!("{} names are given for {states} initial states", names.len()),
        ));
    }
    let find = |name: &String| program.find(name);
    let unknown = |name: &String| Error::attr(attr, format!("the program has no variable `{name}`"));
    names.iter().map(|name| find(name).ok_or_else(|| unknown(name))).collect()
}

/// Runs a block for every step of sequences, with time as the first dimension. In the block, the name of a sequence
/// means its current element, and the name of an output means the step's result; states are carried from step to step.
#[register_op(grad = RecurrentRule)]
pub struct Recurrent<V = Var> {
    /// Sequences of one length.
    #[input("inputs")]
    pub inputs: Vec<V>,
    /// Initial states.
    #[input("initial_states")]
    pub initial_states: Vec<V>,
    /// All other variables of enclosing blocks that the block reads.
    #[input("parameters")]
    pub parameters: Vec<V>,
    /// Sequences: the steps' results under these names, stacked.
    #[output("outputs")]
    pub outputs: Vec<V>,
    /// Final states.
    #[output("final_states")]
    pub final_states: Vec<Option<V>>,
    /// The saved step state for the gradient.
    #[output("step_scopes")]
    pub step_scopes: V,
    /// Names of the states in the block at the start of a step.
    #[attr(default = [])]
    pub ex_states: Vec<String>,
    /// Their names at the end of a step.
    #[attr(default = [])]
    pub states: Vec<String>,
    /// Whether there are states.
    #[attr(default = true)]
    pub has_states: bool,
    /// Whether there will be a gradient: then, the step state that it needs is saved.
    #[attr(default = true)]
    pub is_train: bool,
    /// Whether steps run from the last to the first.
    #[attr(default = false)]
    pub reverse: bool,
    /// The interval of steps that save their inputs; the gradient recomputes the steps between them. With no more steps
    /// than that, the interval is the square root of their number. 0: every step saves all that the gradient reads.
    #[attr(default = 0, min = 0)]
    pub checkpoint_every: i32,
    /// The step.
    #[block]
    pub sub_block: BlockId,
}
impl Control for Recurrent {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.sub_block, StepCount::Each { reverse: self.reverse });
        let count = self.initial_states.len();
        let before = named(program, "ex_states", &self.ex_states, count)?;
        let after = named(program, "states", &self.states, count)?;
        call.slices = self.inputs.iter().map(|x| (*x, *x, *x)).collect();
        for (i, first) in self.initial_states.iter().enumerate() {
            let first = CarriedInit::Value(*first, *first);
            let last = self.final_states.get(i).copied().flatten();
            call.carried.push(CarriedValue { first, start: before[i], end: after[i], last });
        }
        call.reads = self.parameters.clone();
        call.stacks = self.outputs.iter().map(|out| (*out, *out)).collect();
        call.scopes = Some(self.step_scopes);
        call.every = checkpoint_interval(self.checkpoint_every);
        Ok(call)
    }
}

/// The gradient of the step, in reverse order.
#[derive(Debug)]
pub struct RecurrentRule;
impl GradRule<Recurrent> for RecurrentRule {
    fn emit(fwd: &Recurrent, g: &mut GradCx<'_>) {
        let Some(block) = g.block() else { return };
        let wanted = |x: &Var| g.wanted(*x).filter(|_| block.computed.contains(x));
        let op = RecurrentGrad {
            inputs: fwd.inputs.clone(),
            initial_states: fwd.initial_states.clone(),
            parameters: fwd.parameters.clone(),
            outputs: fwd.outputs.clone(),
            doutputs: fwd.outputs.iter().map(|out| Some(g.grad(*out))).collect(),
            dfinal_states: fwd.final_states.iter().map(|last| last.map(|last| g.grad(last))).collect(),
            step_scopes: fwd.step_scopes,
            dstep_scopes: Some(fwd.step_scopes),
            dinputs: fwd.inputs.iter().map(wanted).collect(),
            dinitial_states: fwd.initial_states.iter().map(|x| g.wanted(*x)).collect(),
            dparameters: fwd.parameters.iter().map(wanted).collect(),
            ex_states: fwd.ex_states.clone(),
            states: fwd.states.clone(),
            has_states: fwd.has_states,
            is_train: fwd.is_train,
            reverse: fwd.reverse,
            sub_block: block.block,
        };
        g.push(op);
    }
}

/// The gradient of [`Recurrent`]: runs the gradient of the step on the saved step state, last to first. Gradients of
/// parameters are summed over the steps.
#[register_op(grad_of = Recurrent, grad = NoGrad)]
pub struct RecurrentGrad<V = Var> {
    pub inputs: Vec<V>,
    pub initial_states: Vec<V>,
    pub parameters: Vec<V>,
    #[input(shape_only)]
    pub outputs: Vec<V>,
    pub doutputs: Vec<Option<V>>,
    pub dfinal_states: Vec<Option<V>>,
    pub step_scopes: V,
    pub dstep_scopes: Option<V>,
    #[output]
    pub dinputs: Vec<Option<V>>,
    #[output]
    pub dinitial_states: Vec<Option<V>>,
    #[output]
    pub dparameters: Vec<Option<V>>,
    pub ex_states: Vec<String>,
    pub states: Vec<String>,
    pub has_states: bool,
    pub is_train: bool,
    pub reverse: bool,
    /// The gradient of the step.
    #[block]
    pub sub_block: BlockId,
}
impl Control for RecurrentGrad {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let mut call = BlockCall::new(self.sub_block, StepCount::Recorded { reverse: self.reverse });
        let grad = |v: Var| program.gradient_name(v).unwrap_or(Var::EMPTY);
        let count = self.initial_states.len();
        let before = named(program, "ex_states", &self.ex_states, count)?;
        let after = named(program, "states", &self.states, count)?;
        call.slices = self.inputs.iter().map(|x| (*x, *x, *x)).collect();
        for (out, dout) in self.outputs.iter().zip(&self.doutputs) {
            call.slices.extend(dout.map(|dout| (dout, grad(*out), *out)));
        }
        for (i, first) in self.initial_states.iter().enumerate() {
            let last = self.dfinal_states.get(i).copied().flatten();
            call.carried.push(CarriedValue {
                first: last.map_or(CarriedInit::ZerosLike(*first), |last| CarriedInit::Value(last, *first)),
                start: grad(after[i]),
                end: grad(before[i]),
                last: self.dinitial_states.get(i).copied().flatten(),
            });
        }
        call.reads = self.parameters.clone();
        for (x, dx) in self.inputs.iter().zip(&self.dinputs) {
            call.stacks.extend(dx.map(|dx| (grad(*x), dx)));
        }
        for (x, dx) in self.parameters.iter().zip(&self.dparameters) {
            call.sums.extend(dx.map(|dx| (grad(*x), dx, *x)));
        }
        call.scopes = Some(self.step_scopes);
        Ok(call)
    }
}
