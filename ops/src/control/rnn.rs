use autobwd::{BlockId, Builder, Dim, Dims, Error, ErrorKind, Expr, Result, Var, VarDesc, emit};

use super::{
    Recurrent,
    loops::{copy, overwritten, same, scopes},
};

/// A step of a recurrence in the making: what it reads of sequences, what it remembers, what it contributes.
/// [`static_rnn`] hands it out.
pub struct StaticRnn {
    net: Builder,
    around: BlockId,
    block: BlockId,
    length: Option<Dim>,
    checkpoint_every: i32,
    inputs: Vec<Expr>,
    memories: Vec<Memory>,
    outputs: Vec<Expr>,
}

struct Memory {
    first: Expr,
    before: Expr,
    after: Option<Expr>,
    last: Option<Expr>,
}

/// Runs what `step` says for every step of sequences, whose first dimension is time; from the last to the first if
/// `reverse`. Returns what the steps contribute, as sequences, in the order in which they are named.
///
/// Gradients flow back through time, into what the step reads of the variables around it, too. What it overwrites of them,
/// such as the running statistics of a layer, goes from step to step and stays overwritten.
///
/// ```
/// use autobwd::{Backward, Builder, DType, Executor, Scope, Tensor, append_backward};
/// use autobwd_ops::{Init, Math, control::static_rnn};
///
/// // h ← tanh(h · w + x), from 0.
/// let net = Builder::new();
/// let x = net.input("x", DType::F64, &[-1, 1, 2])?;
/// let zero = net.input("zero", DType::F64, &[1, 2])?;
/// let w = net.parameter("w", DType::F64, &[2, 2], |w| Init::Constant(0.5).emit(w, 0))?;
/// let states = static_rnn(&net, false, |rnn| {
///     let (x, h) = (rnn.step_input(&x)?, rnn.memory(&zero)?);
///     let next = (&h.matmul(&w)? + &x)?.tanh()?;
///     rnn.update_memory(&h, &next)?;
///     rnn.step_output(&next)
/// })?;
/// let loss = states[0].mean()?.name();
/// let mut program = net.program().clone();
/// append_backward(&mut program, &loss, &Backward::default())?;
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program(), &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([3, 1, 2], vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6])?;
/// let feeds = [("x", &x), ("zero", &Tensor::zeros(DType::F64, &[1, 2])?)];
/// let fetched = executor.run(&program, &mut scope, &feeds, &[&states[0].name(), "w@GRAD"])?;
/// assert_eq!((fetched[0].dims(), fetched[1].dims()), (&[3, 1, 2][..], &[2, 2][..]));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of `step`; a step without sequences, or that overwrites a parameter; a memory that is never updated.
#[track_caller]
pub fn static_rnn(
    net: &Builder,
    reverse: bool,
    step: impl FnOnce(&mut StaticRnn) -> Result<()>,
) -> Result<Vec<Expr>> {
    let around = net.block();
    let (sub_block, mut rnn) = net.sub_block(|| {
        let block = net.block();
        let (inputs, memories, outputs) = (vec![], vec![], vec![]);
        let (net, length, checkpoint_every) = (net.clone(), None, 0);
        let mut rnn = StaticRnn { net, around, block, length, checkpoint_every, inputs, memories, outputs };
        step(&mut rnn)?;
        rnn.finish()?;
        Ok(rnn)
    })?;
    // What a step overwrites of the variables around it is remembered, too, under its own name.
    let remembered =
        |x: Expr| Memory { first: x.clone(), before: x.clone(), after: Some(x.clone()), last: Some(x) };
    rnn.memories.extend(overwritten(net, sub_block, &[]).into_iter().map(remembered));
    let own =
        |v: &Var| rnn.inputs.iter().chain(rnn.memories.iter().map(|m| &m.before)).all(|e| e.var() != *v);
    let read: Vec<Var> = net.program().outside(sub_block).into_iter().filter(own).collect();
    let mut lasts: Vec<Option<&Expr>> = rnn.memories.iter().map(|m| m.last.as_ref()).collect();
    if lasts.iter().all(Option::is_none) {
        lasts.clear();
    }
    emit(Recurrent {
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
    })?;
    Ok(rnn.outputs)
}

impl StaticRnn {
    /// Keeps, for the gradient, what every so many steps have found, and runs the steps in between again, to the same
    /// results: of a long sequence, that takes much less memory, and one more run through the steps.
    pub fn checkpoint_every(&mut self, steps: usize) {
        self.checkpoint_every = i32::try_from(steps).unwrap_or(i32::MAX);
    }

    /// What the step reads of a sequence.
    ///
    /// # Errors
    /// A sequence without a first dimension, or of another length than those before.
    #[track_caller]
    pub fn step_input(&mut self, sequence: &Expr) -> Result<Expr> {
        let (net, around) = (&self.net, self.around);
        let (dims, dtype) = (sequence.dims(), sequence.dtype());
        let Some((steps, dims)) = dims.split_first() else {
            return Err(Error::new(ErrorKind::Shape, format!("{sequence} has no dimension to go through")));
        };
        if let Some(length) = self.length.filter(|length| !length.agrees(*steps)) {
            let text = format!("{sequence} has {steps} steps, but a sequence before it has {length}");
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let stop_gradient =
            net.program().lookup(around, sequence.var()).is_some_and(|desc| desc.stop_gradient);
        // In the block its name means a step: what is read as a whole has another name.
        let input = net.within(around, || -> Result<Expr> {
            let input = copy(sequence)?;
            Ok(if stop_gradient { input.stop_gradient() } else { input })
        })?;
        let dims: Dims = dims.iter().copied().collect();
        net.declare_in(self.block, &input, VarDesc { stop_gradient, ..VarDesc::new(dtype, dims) });
        self.length = self.length.or(Some(*steps));
        self.inputs.push(input.clone());
        Ok(input)
    }

    /// What the step before has remembered; `first`, a variable around the step, in the first one.
    ///
    /// # Errors
    /// A variable of the step.
    pub fn memory(&mut self, first: &Expr) -> Result<Expr> {
        if self.net.program().lookup(self.around, first.var()).is_none() {
            let text = format!("{first} is computed by the step: there is none before the first");
            return Err(Error::new(ErrorKind::UnknownVar, text));
        }
        let desc = VarDesc::new(first.dtype(), first.dims());
        let desc = VarDesc { stop_gradient: !desc.dtype.is_float(), ..desc };
        let before = self.net.variable(self.block, "memory", desc);
        self.memories.push(Memory { first: first.clone(), before: before.clone(), after: None, last: None });
        Ok(before)
    }

    /// Has the next step find `next` as that memory.
    ///
    /// # Errors
    /// What is no memory of this recurrence; another dtype or shape.
    #[track_caller]
    pub fn update_memory(&mut self, memory: &Expr, next: &Expr) -> Result<()> {
        self.memory_of(memory)?;
        same("a step changes a memory", ("before it", "after it"), memory, next)?;
        let next = self.own(next)?;
        self.memory_of(memory)?.after = Some(next);
        Ok(())
    }

    /// What that memory is after the last step: a variable around the step.
    ///
    /// # Errors
    /// What is no memory of this recurrence.
    pub fn last(&mut self, memory: &Expr) -> Result<Expr> {
        let (net, around) = (self.net.clone(), self.around);
        let memory = self.memory_of(memory)?;
        let desc = VarDesc::new(memory.first.dtype(), memory.first.dims());
        let desc = VarDesc { stop_gradient: !desc.dtype.is_float(), ..desc };
        Ok(memory.last.get_or_insert_with(|| net.variable(around, "last", desc)).clone())
    }

    fn memory_of(&mut self, memory: &Expr) -> Result<&mut Memory> {
        let unknown = || {
            let text = format!("{memory} is no memory of this recurrence");
            Error::new(ErrorKind::UnknownVar, text)
        };
        self.memories.iter_mut().find(|m| m.before.var() == memory.var()).ok_or_else(unknown)
    }

    /// Adds a sequence to what the recurrence returns: of these values, one after another.
    ///
    /// # Errors
    /// None that a user can make.
    #[track_caller]
    pub fn step_output(&mut self, value: &Expr) -> Result<()> {
        let output = self.own(value)?;
        self.outputs.push(output);
        Ok(())
    }

    /// What the operator takes out of the block is what the block itself has written, each under its own name.
    #[track_caller]
    fn own(&self, value: &Expr) -> Result<Expr> {
        let written = self.net.program().block(self.block).is_some_and(|block| {
            block.vars.contains_key(&value.var())
                && block.ops.iter().any(|op| op.writes().any(|v| v == value.var()))
        });
        let taken = self.memories.iter().filter_map(|m| m.after.as_ref()).chain(&self.outputs);
        let taken = taken.map(Expr::var).any(|v| v == value.var());
        if written && !taken { Ok(value.clone()) } else { copy(value) }
    }

    /// Declares the outputs around the step.
    fn finish(&self) -> Result<()> {
        let Some(length) = self.length else {
            return Err(Error::new(ErrorKind::Slot, "there is no sequence to go through"));
        };
        if let Some(memory) = self.memories.iter().find(|m| m.after.is_none()) {
            let text = format!("the memory that is {} at first is never updated", memory.first);
            return Err(Error::new(ErrorKind::Slot, text));
        }
        for output in &self.outputs {
            let dims: Dims = std::iter::once(length).chain(output.dims().iter().copied()).collect();
            let desc = VarDesc::new(output.dtype(), dims);
            let desc = VarDesc { stop_gradient: !desc.dtype.is_float(), ..desc };
            self.net.declare_in(self.around, output, desc);
        }
        Ok(())
    }
}
