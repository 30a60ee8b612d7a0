//! `RnnOp`: a net that runs over time, and its gradient.

use indexmap::IndexSet;
use rustc_hash::FxHashSet;

use super::{NetOp, Operator, list::within_depth};
use autobwd_core::{
    __private::{did_you_mean, internals::*},
    Error, ErrorKind, OpContext, Result,
};

/// A step net that runs over time: once for every element of its sequences along their first dimension.
///
/// In step `t`, a step input `x` is `xs[t]`. A pre-memory is the memory of the previous step, or the boot memory in the
/// first one. A step output is stacked over all steps to a sequence. All other inputs of the step net are outer
/// variables, the same in every step. Variables of the step net are stored in the scope of the step, where the gradient
/// reads them: `h` of step 3 of `rnn` is called `rnn@3/h`.
///
/// ```
/// use autobwd::net::{NetOp, Operator, RnnOp};
/// use autobwd_ops::elementwise::ElementwiseAdd;
///
/// let add = Operator::of(ElementwiseAdd { x: "x", y: "before", out: "total", axis: -1 });
/// let sums = RnnOp::new("sums", NetOp::new("step", [add])?)?
///     .step_input("xs", "x")?
///     .memory("start", "before", "total")?
///     .step_output("total", "totals")?;
/// assert_eq!(sums.to_string(), "\
/// rnn sums(xs, start) -> totals
///   x = xs[t]
///   before = total[t-1], at first start
///   net step(x, before) -> total
///     total = elementwise_add(X=x, Y=before, axis=-1)
///   totals[t] = total
/// ");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RnnOp {
    name: String,
    step: NetOp,
    step_inputs: Vec<StepLink>,
    memories: Vec<StepMemory>,
    step_outputs: Vec<StepLink>,
}

/// An outer sequence, and its element in every step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLink {
    /// The sequence.
    pub outer: String,
    /// The name of the element in the step net.
    pub inner: String,
}

/// A value carried from step to step (memory).
#[derive(Clone, Debug, PartialEq)]
pub struct StepMemory {
    /// The outer variable with the initial value.
    pub boot: String,
    /// The name of the previous value in the step net.
    pub pre: String,
    /// The name of the new value in the step net.
    pub state: String,
}

impl RnnOp {
    /// A step net without sequences and memories.
    ///
    /// # Errors
    /// Nets nested more than 64 deep.
    pub fn new(name: impl Into<String>, step: NetOp) -> Result<RnnOp> {
        let (step_inputs, memories, step_outputs) = Default::default();
        let rnn = RnnOp { name: name.into(), step, step_inputs, memories, step_outputs };
        within_depth(rnn.depth())?;
        Ok(rnn)
    }

    /// Adds a step input: the step net reads the elements of the sequence `outer` as `inner`.
    ///
    /// # Errors
    /// The step net writes `inner`, or it is a step input or pre-memory already.
    pub fn step_input(mut self, outer: impl Into<String>, inner: impl Into<String>) -> Result<RnnOp> {
        let link = StepLink { outer: outer.into(), inner: inner.into() };
        self.free("step input", &link.inner)?;
        self.step_inputs.push(link);
        Ok(self)
    }

    /// Adds a memory that the step net writes as `state` and reads as `pre` in the next step; in the first step, `pre`
    /// is `boot`.
    ///
    /// # Errors
    /// The step net writes `pre`, it is a step input or pre-memory already, or the step net does not write `state`.
    pub fn memory(
        mut self,
        boot: impl Into<String>,
        pre: impl Into<String>,
        state: impl Into<String>,
    ) -> Result<RnnOp> {
        let memory = StepMemory { boot: boot.into(), pre: pre.into(), state: state.into() };
        self.free("pre-memory", &memory.pre)?;
        self.written("memory", &memory.state)?;
        self.memories.push(memory);
        Ok(self)
    }

    /// Adds a step output: the values of `inner` are stacked to the sequence `outer`.
    ///
    /// # Errors
    /// The step net does not write `inner`; the sequence is a step output already.
    pub fn step_output(mut self, inner: impl Into<String>, outer: impl Into<String>) -> Result<RnnOp> {
        let link = StepLink { outer: outer.into(), inner: inner.into() };
        self.written("step output", &link.inner)?;
        if self.step_outputs.iter().any(|known| known.outer == link.outer) {
            return Err(self.error(format!("`{}` is a step output already", link.outer)));
        }
        self.step_outputs.push(link);
        Ok(self)
    }

    fn free(&self, role: &str, inner: &str) -> Result<()> {
        let why = match self.given().any(|known| known == inner) {
            true => "is a step input or pre-memory already",
            false if self.step.writes(inner) => "is written by the step net",
            false => return Ok(()),
        };
        Err(self.error(format!("`{inner}` cannot be a {role}: it {why}")))
    }

    fn written(&self, role: &str, inner: &str) -> Result<()> {
        if self.step.writes(inner) {
            return Ok(());
        }
        let known = self.step.outputs().into_iter().chain(self.step.intermediates());
        let hint = did_you_mean(inner, known);
        Err(self.error(format!("`{inner}` cannot be a {role}: the step net does not write it{hint}")))
    }

    pub(super) fn error(&self, text: String) -> Error {
        Error::new(ErrorKind::Program, text).at_op(|| OpContext::new("recurrent operator", &self.name))
    }

    pub(super) fn no_sequence(&self) -> Error {
        self.error(
            "a step input is missing, which sets the number of steps; add one with `step_input`".into(),
        )
    }

    pub(super) fn same_name(&self) -> Error {
        self.error("another recurrent operator of the same scope has this name; rename one of them".into())
    }

    /// Its name, the prefix of its steps' variables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The net that runs in every step.
    pub fn step(&self) -> &NetOp {
        &self.step
    }

    /// Sequences whose elements the steps read.
    pub fn step_inputs(&self) -> &[StepLink] {
        &self.step_inputs
    }

    /// Values carried from step to step.
    pub fn memories(&self) -> &[StepMemory] {
        &self.memories
    }

    /// Sequences whose elements the steps write.
    pub fn step_outputs(&self) -> &[StepLink] {
        &self.step_outputs
    }

    /// The variables given to the step net in every step.
    pub(super) fn given(&self) -> impl Iterator<Item = &str> {
        let links = self.step_inputs.iter().map(|link| &*link.inner);
        links.chain(self.memories.iter().map(|memory| &*memory.pre))
    }

    /// Names of the step net that belong to the step.
    pub(super) fn locals(&self) -> FxHashSet<&str> {
        let written = self.step.outputs().into_iter().chain(self.step.intermediates());
        written.chain(self.given()).collect()
    }

    /// Outer variables that are the same in every step.
    pub fn shared(&self) -> Vec<&str> {
        let given: IndexSet<&str> = self.given().collect();
        self.step.inputs().into_iter().filter(|name| !given.contains(name)).collect()
    }

    /// Outer variables that it reads.
    pub fn inputs(&self) -> Vec<&str> {
        let sequences = self.step_inputs.iter().map(|link| &*link.outer);
        let boots = self.memories.iter().map(|memory| &*memory.boot);
        let all: IndexSet<&str> = sequences.chain(boots).chain(self.shared()).collect();
        all.into_iter().collect()
    }

    /// Outer variables that it writes.
    pub fn outputs(&self) -> Vec<&str> {
        self.step_outputs.iter().map(|link| &*link.outer).collect()
    }

    pub(super) fn depth(&self) -> usize {
        1 + self.step.depth()
    }
}

/// The gradient of an [`RnnOp`]: gradients of its step net, which run over the steps in reverse and read their saved
/// state. [`backward`](super::backward()) returns it.
///
/// The last steps have separate gradients, because they have fewer upstream gradients: no step follows them.
#[derive(Clone, Debug, PartialEq)]
pub struct RnnGradOp {
    pub(super) forward: RnnOp,
    /// The gradients of the last step, of the one before, …; the last entry serves all remaining steps.
    pub(super) steps: Vec<GradStep>,
    /// By step output of the forward operator: its upstream gradient, if any.
    pub(super) output_grads: Vec<Option<String>>,
    /// By step input: the name of its gradient.
    pub(super) input_grads: Vec<Option<String>>,
    /// By memory: the name of the boot memory's gradient.
    pub(super) boot_grads: Vec<Option<String>>,
    /// Shared variables, and the names of their gradients.
    pub(super) shared_grads: Vec<(String, String)>,
}

/// The gradient of a step net.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GradStep {
    pub(super) op: Operator,
    /// Upstream gradients, with their names in the step.
    pub(super) arrivals: Vec<(UpstreamSource, String)>,
    /// By shared variable: all contributions to its gradient.
    pub(super) parts: Vec<Vec<String>>,
}

impl GradStep {
    pub(super) fn writes(&self, name: &str) -> bool {
        self.op.outputs().contains(&name) || self.op.intermediates().contains(&name)
    }
}

/// The source of a step's upstream gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum UpstreamSource {
    /// The gradient of that step output.
    Output(usize),
    /// The gradient of that pre-memory in the following step.
    Memory(usize),
}

impl RnnGradOp {
    /// The forward operator.
    pub fn forward(&self) -> &RnnOp {
        &self.forward
    }

    /// The gradients of the step net, that of the last step first; the last one serves all remaining steps.
    pub fn steps(&self) -> impl Iterator<Item = &Operator> {
        self.steps.iter().map(|step| &step.op)
    }

    /// Outer variables that it reads, apart from the saved state of the forward operator's steps.
    pub fn inputs(&self) -> Vec<&str> {
        let arriving = self.output_grads.iter().flatten().map(String::as_str);
        arriving.chain(self.forward.inputs()).collect()
    }

    /// Outer variables that it writes.
    pub fn outputs(&self) -> Vec<&str> {
        let links = self.input_links().map(|(_, grad)| grad).chain(self.boot_links().map(|(_, grad)| grad));
        links.chain(self.shared_grads.iter().map(|(_, grad)| &**grad)).collect()
    }

    /// Sequences whose gradients it writes, with the names of these.
    pub(super) fn input_links(&self) -> impl Iterator<Item = (&StepLink, &str)> {
        let links = self.forward.step_inputs.iter().zip(&self.input_grads);
        links.filter_map(|(link, grad)| Some((link, grad.as_deref()?)))
    }

    /// Memories whose boot gradients it writes, with the names of these.
    pub(super) fn boot_links(&self) -> impl Iterator<Item = (&StepMemory, &str)> {
        let memories = self.forward.memories.iter().zip(&self.boot_grads);
        memories.filter_map(|(memory, grad)| Some((memory, grad.as_deref()?)))
    }

    /// Names that belong to one step of the gradient.
    pub(super) fn locals<'a>(&'a self, step: &'a GradStep) -> FxHashSet<&'a str> {
        let mut local = self.forward.locals();
        local.extend(step.arrivals.iter().map(|(_, name)| &**name));
        local.extend(step.op.outputs().into_iter().chain(step.op.intermediates()));
        local
    }

    /// Its outputs, in the order in which a program's gradient writes them.
    pub(super) fn writes_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let shared = self.shared_grads.iter_mut().rev().map(|(_, grad)| grad);
        let boots = self.boot_grads.iter_mut().rev().flatten();
        boots.chain(shared).chain(self.input_grads.iter_mut().rev().flatten())
    }

    pub(super) fn depth(&self) -> usize {
        1 + self.steps().map(Operator::depth).max().unwrap_or(0)
    }
}
