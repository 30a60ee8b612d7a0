//! User-defined functions with a gradient of their own.

use std::{panic::Location, sync::Arc};

use smallvec::SmallVec;

use super::Value;
use crate::{Error, ErrorKind, Meta, OpContext, Result, Tensor, tensor::Memory};

/// A differentiable function written in Rust: its value, and its gradient. `apply` calls it in eager mode.
pub trait Function: Send + Sync + 'static {
    /// Its name in messages and drawings.
    fn name(&self) -> &'static str;

    /// The value of the function.
    ///
    /// # Errors
    /// Inputs that it rejects.
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor>;

    /// The gradients of the inputs, in order, from the gradient of the output. Each has the dtype and shape of its
    /// input; gradients of constants are ignored.
    ///
    /// # Errors
    /// There is no gradient.
    fn backward(&self, inputs: &[Tensor], output: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>>;
}

/// A call of a user-defined function.
pub struct FunctionCall {
    /// The function.
    pub function: Arc<dyn Function>,
    /// The line of the call.
    pub site: &'static Location<'static>,
    /// The inputs, recorded if any of them has a gradient.
    pub inputs: SmallVec<[Value; 2]>,
    /// Dtype and shape of the output.
    pub meta: Meta,
    /// Memory of the output.
    pub memory: Memory,
}

impl FunctionCall {
    /// The call as text, for messages.
    pub fn describe(&self) -> OpContext {
        describe_function(&*self.function, self.site)
    }

    /// The gradients of the inputs, from the gradient of the output.
    ///
    /// # Errors
    /// The errors of the function; more or fewer gradients than inputs, or other dtypes or shapes; an overwritten
    /// input.
    pub fn backward(&self, gradient: &Tensor) -> Result<Vec<Tensor>> {
        let inputs = self.inputs.iter().map(|input| {
            input.expect_version()?;
            input.tensor()
        });
        let output = Tensor::copy_of(&self.memory, 0, &self.meta)?;
        let found = self.function.backward(&inputs.collect::<Result<Vec<_>>>()?, &output, gradient)?;
        if found.len() != self.inputs.len() {
            let (n, inputs) = (found.len(), self.inputs.len());
            let text = format!("`backward` returns {n} gradients for {inputs} inputs");
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        for (k, (input, gradient)) in self.inputs.iter().zip(&found).enumerate() {
            if input.requires_grad() && !input.meta().agrees(&gradient.meta()) {
                let text = format!(
                    "`backward` returns {} as the gradient of input {k}, which is {}",
                    gradient.meta(),
                    input.meta()
                );
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(found)
    }
}

/// The call of a function as text, for messages.
pub fn describe_function(function: &dyn Function, site: &'static Location<'static>) -> OpContext {
    OpContext::called("function", function.name(), "called", site, &[])
}
