//! A net that runs over time, and its gradient.

use indexmap::IndexSet;
use rustc_hash::FxHashSet;

use super::{NetOp, Operator, list::within_depth};
use autobwd_core::{Error, ErrorKind, OpContext, Result, error::did_you_mean};

/// A step net that runs over time: once for every part of its sequences along their first dimension.
///
/// In step `t`, a step input `x` is `xs[t]`; a pre-memory is what the memory was in the step before, at first its boot
/// memory; what a step output is in all steps makes a sequence. All other variables that the step net reads are those
/// outside, the same in every step. What the step net writes stays in the scope of its step: `h` of step 3 of `rnn` is
/// called `rnn@3/h`. That is where the gradient finds it.
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
    step_inputs: Vec<Link>,
    memories: Vec<Memory>,
    step_outputs: Vec<Link>,
}

/// A sequence outside, and its part in every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The sequence.
    pub outer: String,
    /// What the step net calls its part.
    pub inner: String,
}

/// What a step leaves to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The variable outside that the first step finds.
    pub boot: String,
    /// What the step net calls what it finds.
    pub pre: String,
    /// What the step net calls what it leaves.
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

    /// With a sequence outside of which the step net reads a part as `inner`.
    ///
    /// # Errors
    /// The step net writes `inner`, or it is a step input or pre-memory already.
    pub fn step_input(mut self, outer: impl Into<String>, inner: impl Into<String>) -> Result<RnnOp> {
        let link = Link { outer: outer.into(), inner: inner.into() };
        self.free("step input", &link.inner)?;
        self.step_inputs.push(link);
        Ok(self)
    }

    /// With a memory that the step net writes as `state`, and finds as `pre` in the step after; in the first step, `pre`
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
        let memory = Memory { boot: boot.into(), pre: pre.into(), state: state.into() };
        self.free("pre-memory", &memory.pre)?;
        self.written("memory", &memory.state)?;
        self.memories.push(memory);
        Ok(self)
    }

    /// With a sequence of what the step net writes as `inner`.
    ///
    /// # Errors
    /// The step net does not write `inner`; the sequence is a step output already.
    pub fn step_output(mut self, inner: impl Into<String>, outer: impl Into<String>) -> Result<RnnOp> {
        let link = Link { outer: outer.into(), inner: inner.into() };
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
        self.error("it has no step input, so nothing says how many steps there are".into())
    }

    pub(super) fn same_name(&self) -> Error {
        self.error("another one of that name has steps in the same scope; give it a name of its own".into())
    }

    /// Its name, which the variables of its steps bear.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What runs in every step.
    pub fn step(&self) -> &NetOp {
        &self.step
    }

    /// Sequences that steps read parts of.
    pub fn step_inputs(&self) -> &[Link] {
        &self.step_inputs
    }

    /// What steps leave to the next.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// Sequences that steps write parts of.
    pub fn step_outputs(&self) -> &[Link] {
        &self.step_outputs
    }

    /// What the step net is given in every step.
    fn given(&self) -> impl Iterator<Item = &str> {
        let links = self.step_inputs.iter().map(|link| &*link.inner);
        links.chain(self.memories.iter().map(|memory| &*memory.pre))
    }

    /// Names of the step net that belong to the step.
    pub(super) fn locals(&self) -> FxHashSet<&str> {
        let written = self.step.outputs().into_iter().chain(self.step.intermediates());
        written.chain(self.given()).collect()
    }

    /// Variables outside that are the same in every step.
    pub fn shared(&self) -> Vec<&str> {
        let given: IndexSet<&str> = self.given().collect();
        self.step.inputs().into_iter().filter(|name| !given.contains(name)).collect()
    }

    /// Variables outside that it reads.
    pub fn inputs(&self) -> Vec<&str> {
        let sequences = self.step_inputs.iter().map(|link| &*link.outer);
        let boots = self.memories.iter().map(|memory| &*memory.boot);
        let all: IndexSet<&str> = sequences.chain(boots).chain(self.shared()).collect();
        all.into_iter().collect()
    }

    /// Variables outside that it writes.
    pub fn outputs(&self) -> Vec<&str> {
        self.step_outputs.iter().map(|link| &*link.outer).collect()
    }

    pub(super) fn depth(&self) -> usize {
        1 + self.step.depth()
    }
}

/// The gradient of an [`RnnOp`]: gradients of its step net, which run over the steps in reverse and read what the steps
/// have left. Made by [`backward`](super::backward()).
///
/// The last steps have gradients of their own, because less arrives there: nothing comes from a step behind.
#[derive(Clone, Debug, PartialEq)]
pub struct RnnGradOp {
    pub(super) forward: RnnOp,
    /// The gradient of the last step, of the one before, …; the last of them is that of all steps before, too.
    pub(super) steps: Vec<GradStep>,
    /// By step output of the forward operator: its gradient, if it arrives.
    pub(super) output_grads: Vec<Option<String>>,
    /// By step input: where its gradient goes.
    pub(super) input_grads: Vec<Option<String>>,
    /// By memory: where the gradient of the boot memory goes.
    pub(super) boot_grads: Vec<Option<String>>,
    /// Of what steps share: the variable, and where its gradient goes.
    pub(super) shared_grads: Vec<(String, String)>,
}

/// The gradient of a step net.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GradStep {
    pub(super) op: Operator,
    /// What arrives, under the name that it has in the step.
    pub(super) arrivals: Vec<(Arrival, String)>,
    /// By variable shared: all contributions to its gradient.
    pub(super) parts: Vec<Vec<String>>,
}

impl GradStep {
    pub(super) fn writes(&self, name: &str) -> bool {
        self.op.outputs().contains(&name) || self.op.intermediates().contains(&name)
    }
}

/// Where a gradient comes from that arrives at a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arrival {
    /// The gradient of that step output.
    Output(usize),
    /// The gradient of that pre-memory of the step behind.
    Memory(usize),
}

impl RnnGradOp {
    /// The operator that it is the gradient of.
    pub fn forward(&self) -> &RnnOp {
        &self.forward
    }

    /// The gradients of the step net, that of the last step first; the last of them is that of all steps before, too.
    pub fn steps(&self) -> impl Iterator<Item = &Operator> {
        self.steps.iter().map(|step| &step.op)
    }

    /// Variables outside that it reads, beside what the steps of the forward operator have left.
    pub fn inputs(&self) -> Vec<&str> {
        let arriving = self.output_grads.iter().flatten().map(String::as_str);
        arriving.chain(self.forward.inputs()).collect()
    }

    /// Variables outside that it writes.
    pub fn outputs(&self) -> Vec<&str> {
        let links = self.input_grads.iter().flatten().chain(self.boot_grads.iter().flatten());
        links.chain(self.shared_grads.iter().map(|(_, grad)| grad)).map(String::as_str).collect()
    }

    /// What it writes, in the order in which the gradient of a program writes it.
    pub(super) fn writes_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let shared = self.shared_grads.iter_mut().rev().map(|(_, grad)| grad);
        let boots = self.boot_grads.iter_mut().rev().flatten();
        boots.chain(shared).chain(self.input_grads.iter_mut().rev().flatten())
    }

    pub(super) fn depth(&self) -> usize {
        1 + self.steps().map(Operator::depth).max().unwrap_or(0)
    }
}
