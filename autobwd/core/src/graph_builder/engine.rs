//! The interface of an eager engine, as builders and values use it.
//!
//! Must not know how operators run or how the backward pass works: that is the engine's part.

use std::{any::Any, panic::Location, sync::Arc};

use super::{Builder, DescribeFn, TapeNode, Value};
use crate::{Meta, OpContext, OpDesc, OpInfo, OpKey, Result, Role, Var, lanes::FormulaCall};

/// The engine of an eager [`Builder`].
pub trait Engine: Any {
    /// Runs the operator with this key, if it was prepared before for such inputs; otherwise `None`. Adds the inputs to
    /// the key. `overwritten` has the values that outputs overwrite, with the indices of these outputs.
    fn run_known(
        &self,
        key: &mut OpKey,
        inputs: &[&Value],
        overwritten: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Option<Result<Arc<TapeNode>>>;

    /// Prepares the operator with this key, which includes its inputs, and this description, and runs it.
    ///
    /// # Errors
    /// Invalid attributes, dtypes or shapes, with the operator; data that it rejects.
    fn run_described(
        &self,
        builder: &Builder,
        key: &OpKey,
        describe: DescribeFn<'_>,
        inputs: &[&Value],
        overwritten: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<TapeNode>>;

    /// Switches the recording of history on or off; returns the previous setting.
    fn record(&self, on: bool) -> bool;

    /// Whether a trace is being recorded.
    fn is_traced(&self) -> bool;

    /// Switches the check of every value for NaN and infinities.
    fn check_finite(&self, on: bool);

    /// The number of operators run so far.
    fn operators_run(&self) -> u64;

    /// Accumulates the gradients of a value into all leaves it was computed from; `seed` is the gradient of the value
    /// itself.
    ///
    /// # Errors
    /// An operator without gradient on the way; a needed value that has been overwritten.
    fn backward(
        &self,
        builder: &Builder,
        value: &Value,
        seed: Value,
        site: &'static Location<'static>,
    ) -> Result<()>;
}

/// A prepared operator: everything but its data is known, for inputs of certain dtypes and shapes. It can run many
/// times.
#[derive(Debug)]
pub struct PreparedOp {
    /// Its registry entry.
    pub info: &'static OpInfo,
    /// Its description; variable k + 1 stands for the k-th argument.
    pub desc: OpDesc,
    /// By input.
    pub inputs: Vec<Meta>,
    /// By output.
    pub outputs: Vec<Meta>,
    /// By input: whether its elements are read.
    pub reads: Vec<bool>,
    /// Whether gradients flow through it; if not, its results are constants.
    pub passes_derivatives: bool,
    /// Size in bytes, by output.
    pub sizes: Vec<usize>,
    /// By argument: the input or output that it is.
    pub args: Vec<(Role, usize)>,
    /// The compiled formula of an elementwise operator on few elements with operands of one shape. It is used even if
    /// the operator also has a kernel: both results are bit-identical.
    pub formula: Option<FormulaCall>,
    /// Further data of the engine.
    pub prepared: Box<dyn Any + Send + Sync>,
}

impl PreparedOp {
    /// The input or output that a variable of `desc` stands for.
    pub fn arg(&self, stand_in: Var) -> (Role, usize) {
        self.args[stand_in.index() - 1]
    }

    /// The operator as text, for messages.
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
