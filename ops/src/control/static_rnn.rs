//! `static_rnn`: recurrences over sequences, described step by step.

use std::collections::VecDeque;

use autobwd::{BlockId, Builder, Dims, Error, ErrorKind, Expr, New, Result, Var, VarDesc, emit, tensor::Dim};

use super::{
    Recurrent,
    while_loop::{asked, copy, overwritten, same, scopes},
};
use crate::shape::{Stack, at};

/// Describes one step of a recurrence: its sequence inputs, memories and outputs. [`static_rnn`] passes it to its
/// closure.
#[derive(Debug)]
pub struct StaticRnn {
    net: Builder,
    form: RnnLowering,
    length: Option<Dim>,
    checkpoint_every: i32,
    inputs: Vec<Expr>,
    memories: Vec<RnnMemory>,
    outputs: Vec<Expr>,
    lasts: Vec<Expr>,
    /// The first error of the step.
    failure: Option<Error>,
}

#[derive(Debug)]
enum RnnLowering {
    /// The step's block and the block around it.
    Program { block: BlockId, around: BlockId },
    /// Eager or unrolled: steps follow one after another.
    AtOnce {
        /// Steps done before this one.
        done: usize,
        reverse: bool,
        /// Memories of the step before.
        found: VecDeque<Expr>,
    },
}

#[derive(Debug)]
struct RnnMemory {
    first: Expr,
    before: Expr,
    after: Option<Expr>,
    last: Option<Expr>,
}

/// Runs `step` for every step of sequences whose first dimension is time, from the last to the first if `reverse`.
/// Returns the outputs as sequences, in the order of their [`step_output`](StaticRnn::step_output), then the last
/// values of memories.
///
/// Gradients flow back through time, also into variables of the surrounding block that the step reads. Variables of the
/// surrounding block that it overwrites, such as the running statistics of a layer, are carried from step to step and
/// stay overwritten.
///
/// In eager mode, it is a loop of Rust: `step` is called for every step.
///
/// All returned expressions fail, at least one, if the step fails, has no sequences or overwrites a parameter, if a
/// memory is never updated, and, in eager mode, if sequences have no steps.
///
/// ```
/// use autobwd::{Backward, Builder, DType, Executor, Feed, Scope, Tensor, append_backward};
/// use autobwd_ops::{Init, Math, control::static_rnn};
///
/// // h ← tanh(h · w + x), from 0.
/// let net = Builder::new();
/// let x = net.input("x", DType::F64, &[-1, 1, 2]);
/// let zero = net.input("zero", DType::F64, &[1, 2]);
/// let w = net.parameter("w", DType::F64, &[2, 2], |w| Init::Constant(0.5).emit(w, 0));
/// let states = static_rnn(&net, false, |rnn| {
///     let (x, h) = (rnn.step_input(&x), rnn.memory(&zero));
///     let next = (h.matmul(&w) + x).tanh();
///     rnn.update_memory(&h, &next);
///     rnn.step_output(&next);
/// });
/// let loss = states[0].mean().name();
/// let mut program = net.program()?.clone();
/// append_backward(&mut program, &loss, &Backward::default())?;
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([3, 1, 2], vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6])?;
/// let zero = Tensor::zeros(DType::F64, &[1, 2])?;
/// let feeds: &[(&str, &dyn Feed)] = &[("x", &x), ("zero", &zero)];
/// let fetched = executor.run(&program, &mut scope, feeds, &[&states[0].name(), "w@GRAD"])?;
/// assert_eq!((fetched[0].dims(), fetched[1].dims()), (&[3, 1, 2][..], &[2, 2][..]));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn static_rnn(net: &Builder, reverse: bool, step: impl FnMut(&mut StaticRnn)) -> Vec<Expr> {
    // Also for a step that has failed.
    let mut count = 0;
    let outcome = match net.unrolls_loops() {
        true => at_once(net, reverse, step, &mut count).map_err(asked(net)),
        false => of_program(net, reverse, step, &mut count),
    };
    match outcome {
        Ok(outputs) => outputs,
        Err(e) => vec![net.failed(e); count.max(1)],
    }
}

fn at_once(
    net: &Builder,
    reverse: bool,
    mut step: impl FnMut(&mut StaticRnn),
    count: &mut usize,
) -> Result<Vec<Expr>> {
    let (mut sequences, mut found, mut done) = (vec![], VecDeque::new(), 0);
    loop {
        let mut rnn = StaticRnn::new(net, RnnLowering::AtOnce { done, reverse, found });
        step(&mut rnn);
        *count = rnn.count();
        let length = rnn.complete()?;
        sequences.resize_with(rnn.outputs.len(), VecDeque::new);
        for (sequence, output) in sequences.iter_mut().zip(rnn.outputs) {
            if reverse { sequence.push_front(output) } else { sequence.push_back(output) }
        }
        found = rnn.memories.into_iter().filter_map(|m| m.after).collect();
        done += 1;
        if length.get().is_none_or(|length| length <= done) {
            let stacked = |x: VecDeque<Expr>| {
                let x = x.into_iter().map(Into::into).collect();
                emit(Stack { x, y: New, axis: 0 }).y
            };
            return Ok(sequences.into_iter().map(stacked).chain(rnn.lasts).collect());
        }
    }
}

#[track_caller]
fn of_program(
    net: &Builder,
    reverse: bool,
    mut step: impl FnMut(&mut StaticRnn),
    count: &mut usize,
) -> Result<Vec<Expr>> {
    let transaction = net.transaction();
    let around = net.block();
    let (sub_block, mut rnn) = net.sub_block(|| {
        let mut rnn = StaticRnn::new(net, RnnLowering::Program { block: net.block(), around });
        step(&mut rnn);
        *count = rnn.count();
        let length = rnn.complete()?;
        rnn.declare_outputs(length, around);
        Ok(rnn)
    })?;
    // Variables of the surrounding block that a step overwrites are memories, too, under their own names.
    let remembered =
        |x: Expr| RnnMemory { first: x.clone(), before: x.clone(), after: Some(x.clone()), last: Some(x) };
    rnn.memories.extend(overwritten(net, sub_block, &[])?.into_iter().map(remembered));
    let own =
        |v: &Var| rnn.inputs.iter().chain(rnn.memories.iter().map(|m| &m.before)).all(|e| e.var() != *v);
    let read: Vec<Var> = net.program()?.captures(sub_block).into_iter().filter(own).collect();
    let mut lasts: Vec<Option<&Expr>> = rnn.memories.iter().map(|m| m.last.as_ref()).collect();
    if lasts.iter().all(Option::is_none) {
        lasts.clear();
    }
    let op = emit(Recurrent {
        inputs: rnn.inputs.iter().map(Into::into).collect(),
        initial_states: rnn.memories.iter().map(|m| (&m.first).into()).collect(),
        parameters: read.into_iter().map(|v| net.existing(v).into()).collect(),
        outputs: rnn.outputs.iter().map(Into::into).collect(),
        final_states: lasts.iter().map(|last| last.map(Into::into)).collect(),
        step_scopes: scopes(net).into(),
        ex_states: rnn.memories.iter().map(|m| m.before.name()).collect(),
        states: rnn.memories.iter().filter_map(|m| m.after.as_ref()).map(Expr::name).collect(),
        has_states: !rnn.memories.is_empty(),
        is_train: true,
        reverse,
        checkpoint_every: rnn.checkpoint_every,
        sub_block,
    });
    op.step_scopes.check()?;
    transaction.commit();
    rnn.outputs.extend(rnn.lasts);
    Ok(rnn.outputs)
}

impl StaticRnn {
    fn new(net: &Builder, form: RnnLowering) -> StaticRnn {
        let (inputs, memories, outputs, lasts) = (vec![], vec![], vec![], vec![]);
        let (net, length, checkpoint_every, failure) = (net.clone(), None, 0, None);
        StaticRnn { net, form, length, checkpoint_every, inputs, memories, outputs, lasts, failure }
    }

    /// The number of values that the recurrence returns.
    fn count(&self) -> usize {
        self.outputs.len() + self.lasts.len()
    }

    /// Makes the recurrence fail if this is the first error of the step.
    #[track_caller]
    pub(super) fn fail(&mut self, error: Error) -> Expr {
        let failed = self.net.failed(error);
        self.failure = self.failure.take().or_else(|| failed.check().err());
        failed
    }

    #[track_caller]
    fn settle(&mut self, outcome: Result<Expr>) -> Expr {
        match outcome {
            Ok(expr) => expr,
            Err(e) => self.fail(e),
        }
    }

    /// Checkpoints every `steps` steps: the gradient recomputes the steps in between, with the same results. For long
    /// sequences this takes much less memory and one more forward run. Eager mode saves all steps.
    pub fn checkpoint_every(&mut self, steps: usize) {
        self.checkpoint_every = i32::try_from(steps).unwrap_or(i32::MAX);
    }

    /// The current step of a sequence. Fails if the sequence has no first dimension or another length than earlier
    /// ones, and, in eager mode, if it has no steps.
    #[track_caller]
    pub fn step_input(&mut self, sequence: &Expr) -> Expr {
        let input = self.step_of(sequence);
        self.settle(input)
    }

    #[track_caller]
    fn step_of(&mut self, sequence: &Expr) -> Result<Expr> {
        let (dims, dtype) = (sequence.check()?.dims(), sequence.dtype());
        let Some((steps, dims)) = dims.split_first() else {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{sequence} has no first dimension to iterate over"),
            ));
        };
        if let Some(length) = self.length.filter(|length| !length.agrees(*steps)) {
            let text = format!("{sequence} has {steps} steps, but a sequence before it has {length}");
            return Err(Error::new(ErrorKind::Shape, text));
        }
        self.length = self.length.or(Some(*steps));
        let net = &self.net;
        let (block, around) = match &self.form {
            RnnLowering::Program { block, around } => (*block, *around),
            RnnLowering::AtOnce { done, reverse, .. } => {
                let Some(steps) = steps.get() else {
                    let text =
                        "the number of steps must be known, because this gradient is computed step by step";
                    return Err(Error::new(ErrorKind::NoGradient, text));
                };
                if *done >= steps {
                    let text = format!("{sequence} has no step {done} to compute eagerly");
                    return Err(Error::new(ErrorKind::Shape, text));
                }
                let step = i32::try_from(if *reverse { steps - 1 - done } else { *done });
                let too_long = |_| Error::new(ErrorKind::Shape, format!("{sequence} has too many steps"));
                return Ok(at(sequence, step.map_err(too_long)?));
            }
        };
        let stop_gradient =
            net.program()?.lookup(around, sequence.var()).is_some_and(|desc| desc.stop_gradient);
        // Within the block the name means one step, so the whole sequence is read under another name.
        let input = net.within(around, || {
            let input = copy(sequence);
            if stop_gradient { input.freeze() } else { input }
        });
        let dims: Dims = dims.iter().copied().collect();
        net.declare_in(block, &input, VarDesc { stop_gradient, ..VarDesc::new(dtype, dims) });
        self.inputs.push(input.clone());
        Ok(input)
    }

    /// The value from the step before; in the first step, `first`, a variable of the surrounding block. Fails for a
    /// variable of the step.
    #[track_caller]
    pub fn memory(&mut self, first: &Expr) -> Expr {
        let before = self.memory_before(first);
        self.settle(before)
    }

    #[track_caller]
    fn memory_before(&mut self, first: &Expr) -> Result<Expr> {
        first.check()?;
        let before = match &mut self.form {
            RnnLowering::AtOnce { found, .. } => {
                let found = found.pop_front().unwrap_or_else(|| first.clone());
                // Memories are identified by value.
                let taken = self.memories.iter().any(|m| m.before.is(&found));
                if taken { copy(&found) } else { found }
            }
            RnnLowering::Program { block, around } => {
                if self.net.program()?.lookup(*around, first.var()).is_none() {
                    let text = format!(
                        "{first} is computed within the step, so it has no value before the first step"
                    );
                    return Err(Error::new(ErrorKind::UnknownVar, text));
                }
                self.net.variable(*block, "memory", like(first))
            }
        };
        self.memories.push(RnnMemory {
            first: first.clone(),
            before: before.clone(),
            after: None,
            last: None,
        });
        Ok(before)
    }

    /// Sets the value of `memory` in the next step. The recurrence fails if `memory` is none of its memories, and for
    /// another dtype or shape.
    #[track_caller]
    pub fn update_memory(&mut self, memory: &Expr, next: &Expr) {
        if let Err(e) = self.set_memory(memory, next) {
            self.fail(e);
        }
    }

    #[track_caller]
    fn set_memory(&mut self, memory: &Expr, next: &Expr) -> Result<()> {
        self.memory_of(memory)?;
        same("a step changes dtype or shape of a memory", ("before it", "after it"), memory, next)?;
        let next = self.own(next)?;
        self.memory_of(memory)?.after = Some(next);
        Ok(())
    }

    /// Returns the value of that memory after the last step, after the sequences. The recurrence fails if `memory` is
    /// none of its memories or is not updated.
    #[track_caller]
    pub fn last_output(&mut self, memory: &Expr) {
        let last = self.last(memory);
        let last = self.settle(last);
        self.lasts.push(last);
    }

    fn last(&mut self, memory: &Expr) -> Result<Expr> {
        let (net, around) = (
            self.net.clone(),
            match &self.form {
                RnnLowering::Program { around, .. } => Some(*around),
                RnnLowering::AtOnce { .. } => None,
            },
        );
        let memory = self.memory_of(memory)?;
        let Some(after) = &memory.after else {
            let text = format!(
                "the memory with initial value {} is not updated before its last value is requested; call \
                 `update_memory` first",
                memory.first
            );
            return Err(Error::new(ErrorKind::Slot, text));
        };
        Ok(match around {
            Some(around) => {
                let new = || net.variable(around, "last", like(&memory.first));
                memory.last.get_or_insert_with(new).clone()
            }
            None => after.clone(),
        })
    }

    fn memory_of(&mut self, memory: &Expr) -> Result<&mut RnnMemory> {
        memory.check()?;
        let unknown = || {
            let text = format!("{memory} is not a memory of this recurrence");
            Error::new(ErrorKind::UnknownVar, text)
        };
        self.memories.iter_mut().find(|m| m.before.is(memory)).ok_or_else(unknown)
    }

    /// Returns a sequence of these values, one from each step.
    #[track_caller]
    pub fn step_output(&mut self, value: &Expr) {
        let output = self.own(value);
        let output = self.settle(output);
        self.outputs.push(output);
    }

    /// The operator can only take out values that the block itself wrote, each under its own name.
    #[track_caller]
    fn own(&self, value: &Expr) -> Result<Expr> {
        value.check()?;
        let RnnLowering::Program { block, .. } = self.form else { return Ok(value.clone()) };
        let written = self.net.program()?.block(block).is_some_and(|block| {
            block.vars.contains_key(&value.var())
                && block.ops.iter().any(|op| op.writes().any(|v| v == value.var()))
        });
        let taken = self.memories.iter().filter_map(|m| m.after.as_ref()).chain(&self.outputs);
        if written && !taken.into_iter().any(|x| x.is(value)) { Ok(value.clone()) } else { Ok(copy(value)) }
    }

    /// The number of steps, if the description of the step is complete.
    fn complete(&self) -> Result<Dim> {
        if let Some(first) = &self.failure {
            return Err(first.clone());
        }
        let Some(length) = self.length else {
            return Err(Error::new(ErrorKind::Slot, "a recurrence needs at least one sequence"));
        };
        if let Some(memory) = self.memories.iter().find(|m| m.after.is_none()) {
            let text = format!(
                "the memory with initial value {} is never updated; call `update_memory`",
                memory.first
            );
            return Err(Error::new(ErrorKind::Slot, text));
        }
        Ok(length)
    }

    fn declare_outputs(&self, length: Dim, around: BlockId) {
        for output in &self.outputs {
            let dims: Dims = std::iter::once(length).chain(output.dims().iter().copied()).collect();
            let desc = VarDesc { dims, ..like(output) };
            self.net.declare_in(around, output, desc);
        }
    }
}

/// A variable like `x`, with `stop_gradient` if it cannot have a gradient.
fn like(x: &Expr) -> VarDesc {
    let desc = VarDesc::new(x.dtype(), x.dims());
    VarDesc { stop_gradient: !desc.dtype.is_float(), ..desc }
}
