//! What computes expressions at once, as builders and values see it.
//!
//! Must not know how operators are run, nor how derivatives are put together: that is the engine's.

use std::{any::Any, panic::Location, sync::Arc};

use super::{Builder, MakeDesc, Node, Value};
use crate::{Meta, OpContext, OpDesc, OpInfo, Result, Role, Var, Words, lanes::FormulaCall};

/// What an eager [`Builder`] computes with.
pub trait Engine: Any {
    /// Runs the operator that has these words, if it was prepared before for inputs like these; `None` if it was not. The
    /// words get those of the inputs. `into` are the outputs, by number, that overwrite a value.
    fn run_known(
        &self,
        words: &mut Words,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Option<Result<Arc<Node>>>;

    /// Prepares the operator that has these words, those of its inputs among them, and this description, and runs it.
    ///
    /// # Errors
    /// Whatever does not fit, with the operator; data that it cannot take.
    fn run_described(
        &self,
        builder: &Builder,
        words: &Words,
        desc: MakeDesc<'_>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<Node>>;

    /// Whether operators remember what they read, from now on; returns whether they did.
    fn record(&self, on: bool) -> bool;

    /// Whether a trace is being recorded.
    fn is_traced(&self) -> bool;

    /// Whether every value is checked for NaN and infinities from now on.
    fn check_finite(&self, on: bool);

    /// How many operators were run.
    fn operators_run(&self) -> u64;

    /// Adds the derivative of a value to all leaves that it was computed from; `seed` is the derivative of whatever comes
    /// after it.
    ///
    /// # Errors
    /// An operator on the way without gradient; a value that is needed and has been overwritten.
    fn backward(
        &self,
        builder: &Builder,
        of: &Value,
        seed: Value,
        site: &'static Location<'static>,
    ) -> Result<()>;
}

/// An operator for inputs of certain dtypes and shapes, with everything known but its data: ready to be run again and again.
#[derive(Debug)]
pub struct Ready {
    /// Its entry.
    pub info: &'static OpInfo,
    /// Variable k + 1 stands for the k-th argument.
    pub desc: OpDesc,
    /// By input.
    pub inputs: Vec<Meta>,
    /// By output.
    pub outputs: Vec<Meta>,
    /// By input: whether its elements are read.
    pub reads: Vec<bool>,
    /// Whether derivatives may pass: an operator that lets none through makes constants.
    pub passes_derivatives: bool,
    /// By output, in bytes.
    pub sizes: Vec<usize>,
    /// By argument: which of the inputs or of the outputs it is.
    pub args: Vec<(Role, usize)>,
    /// What computes it where it is one formula over a few elements, of operands of one shape, whether or not it has a kernel
    /// beside it: both give the same bits.
    pub formula: Option<FormulaCall>,
    /// What else the engine keeps with it.
    pub prepared: Box<dyn Any + Send + Sync>,
}

impl Ready {
    /// Which input or output a variable of `desc` stands for.
    pub fn arg(&self, stand_in: Var) -> (Role, usize) {
        self.args[stand_in.index() - 1]
    }

    /// The operator in words, for messages.
    pub fn describe(&self, site: &'static Location<'static>) -> OpContext {
        let mut slots = vec![];
        for (slots_of, side) in
            [(&self.desc.inputs, &self.inputs[..]), (&self.desc.outputs, &self.outputs[..])]
        {
            for (slot, args) in slots_of.iter() {
                let metas = args.iter().filter(|v| **v != Var::EMPTY);
                let metas: Vec<_> = metas.map(|v| side[self.args[v.index() - 1].1].to_string()).collect();
                slots.push(format!("{slot} = {}", metas.join(", ")));
            }
        }
        OpContext::called("operator", self.desc.ty.as_str(), "run", site, &slots)
    }
}
