//! `RnnOp`: a net that runs over time, and its gradient.

use indexmap::IndexSet;

use super::{NetOp, list::within_depth};
use autobwd_core::{
    __private::{did_you_mean, internals::*},
    Error, ErrorKind, OpContext, Result,
    desc::GRAD,
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
    pub(super) starts: Vec<StepValue>,
    pub(super) outputs: Vec<StepOutput>,
}

/// A value that a step starts with: an element of a sequence, or a value of the step that ran before, a memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepValue {
    /// Its name in the step.
    pub(super) name: String,
    /// For a memory: its name in the step that ran before.
    pub(super) state: Option<String>,
    /// The outer sequence, or the value of a memory in the first step, the boot memory.
    pub(super) outer: Option<String>,
}

/// An outer sequence, and the step's value that is its element.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepOutput {
    pub(super) value: String,
    pub(super) sequence: String,
}

impl StepValue {
    /// The outer sequence, if it is an element of one.
    pub(super) fn sequence(&self) -> Option<&str> {
        self.outer.as_deref().filter(|_| self.state.is_none())
    }
}

impl RnnOp {
    /// A step net without sequences and memories.
    ///
    /// # Errors
    /// Nets nested more than 64 deep.
    pub fn new(name: impl Into<String>, step: NetOp) -> Result<RnnOp> {
        let rnn = RnnOp { name: name.into(), step, starts: vec![], outputs: vec![] };
        within_depth(rnn.depth())?;
        Ok(rnn)
    }

    /// Adds a step input: the step net reads the elements of the sequence `outer` as `inner`.
    ///
    /// # Errors
    /// The step net writes `inner`, or it is a step input or pre-memory already.
    pub fn step_input(self, outer: impl Into<String>, inner: impl Into<String>) -> Result<RnnOp> {
        self.start("step input", StepValue { name: inner.into(), state: None, outer: Some(outer.into()) })
    }

    /// Adds a memory that the step net writes as `state` and reads as `pre` in the next step; in the first step, `pre`
    /// is `boot`.
    ///
    /// # Errors
    /// The step net writes `pre`, it is a step input or pre-memory already, or the step net does not write `state`.
    pub fn memory(
        self,
        boot: impl Into<String>,
        pre: impl Into<String>,
        state: impl Into<String>,
    ) -> Result<RnnOp> {
        let state = state.into();
        self.written("memory", &state)?;
        let value = StepValue { name: pre.into(), state: Some(state), outer: Some(boot.into()) };
        self.start("pre-memory", value)
    }

    /// Adds a step output: the values of `inner` are stacked to the sequence `outer`.
    ///
    /// # Errors
    /// The step net does not write `inner`; the sequence is a step output already.
    pub fn step_output(mut self, inner: impl Into<String>, outer: impl Into<String>) -> Result<RnnOp> {
        let output = StepOutput { value: inner.into(), sequence: outer.into() };
        self.written("step output", &output.value)?;
        if self.outputs().contains(&&*output.sequence) {
            return Err(self.error(format!("`{}` is a step output already", output.sequence)));
        }
        self.outputs.push(output);
        Ok(self)
    }

    fn start(mut self, role: &str, start: StepValue) -> Result<RnnOp> {
        let name = &start.name;
        let is_given = self.given().any(|known| known == name);
        let why = match is_given {
            true => "is a step input or pre-memory already",
            false if self.step.writes(name) => "is written by the step net",
            false => {
                self.starts.push(start);
                return Ok(self);
            }
        };
        Err(self.error(format!("`{name}` cannot be a {role}: it {why}")))
    }

    fn written(&self, role: &str, inner: &str) -> Result<()> {
        if self.step.writes(inner) {
            return Ok(());
        }
        let hint = did_you_mean(inner, self.step.written());
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

    /// The variables given to the step net in every step.
    fn given(&self) -> impl Iterator<Item = &str> {
        self.starts.iter().map(|start| &*start.name)
    }

    /// Names of the step net that belong to the step.
    pub(super) fn locals(&self) -> impl Iterator<Item = &str> {
        self.step.written().chain(self.given())
    }

    /// The gradients of outer variables, if all are computed.
    pub(super) fn gradients(&self) -> Vec<StepsGradient> {
        let gradient = |of: &str, value: &str, kind| {
            let [grad, of, value] = [format!("{of}{GRAD}"), of.into(), value.into()];
            StepsGradient { grad, of, value, kind }
        };
        let starts = self.starts.iter().filter_map(|start| {
            let kind =
                if start.state.is_some() { StepsGradientKind::First } else { StepsGradientKind::Stacked };
            Some(gradient(start.outer.as_deref()?, &start.name, kind))
        });
        let shared = self.shared().into_iter();
        starts.chain(shared.map(|name| gradient(name, name, StepsGradientKind::Summed))).collect()
    }

    /// Outer variables that are the same in every step.
    pub fn shared(&self) -> Vec<&str> {
        let given: IndexSet<&str> = self.given().collect();
        self.step.inputs().into_iter().filter(|name| !given.contains(name)).collect()
    }

    /// Outer variables that it reads: sequences and boot memories, then shared variables.
    pub fn inputs(&self) -> Vec<&str> {
        let outer = self.starts.iter().filter_map(|start| start.outer.as_deref());
        let all: IndexSet<&str> = outer.chain(self.shared()).collect();
        all.into_iter().collect()
    }

    /// Outer variables that it writes: the sequences of its step outputs.
    pub fn outputs(&self) -> Vec<&str> {
        self.outputs.iter().map(|output| &*output.sequence).collect()
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
    pub(super) results: Vec<StepsGradient>,
}

/// The gradient of a step net.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GradStep {
    pub(super) net: NetOp,
    /// Upstream gradients.
    pub(super) starts: Vec<StepValue>,
    /// By result: the step's contributions.
    pub(super) parts: Vec<Vec<String>>,
}

/// The gradient of an outer variable, from the contributions of the steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepsGradient {
    /// Its name.
    pub(super) grad: String,
    /// The outer variable.
    pub(super) of: String,
    /// The name of the variable, or of its part, in the step.
    pub(super) value: String,
    pub(super) kind: StepsGradientKind,
}

/// The way in which an outer variable's gradient follows from the contributions of the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StepsGradientKind {
    /// The contributions are the elements of a sequence.
    Stacked,
    /// It is the contribution of the first step.
    First,
    /// It is the sum of all contributions.
    Summed,
}

impl GradStep {
    /// Names that belong to the step, besides those of the forward operator.
    pub(super) fn locals(&self) -> impl Iterator<Item = &str> {
        self.starts.iter().map(|start| &*start.name).chain(self.net.written())
    }
}

impl RnnGradOp {
    /// The forward operator.
    pub fn forward(&self) -> &RnnOp {
        &self.forward
    }

    /// The gradients of the step net, that of the last step first; the last one serves all remaining steps.
    pub fn steps(&self) -> impl Iterator<Item = &NetOp> {
        self.steps.iter().map(|step| &step.net)
    }

    /// Outer variables that it reads, apart from the saved state of the forward operator's steps.
    pub fn inputs(&self) -> Vec<&str> {
        let starts = self.steps.first().into_iter().flat_map(|step| &step.starts);
        starts.filter_map(StepValue::sequence).chain(self.forward.inputs()).collect()
    }

    /// Outer variables that it writes.
    pub fn outputs(&self) -> Vec<&str> {
        self.results.iter().map(|result| &*result.grad).collect()
    }

    pub(super) fn depth(&self) -> usize {
        1 + self.steps().map(NetOp::depth).max().unwrap_or(0)
    }
}
