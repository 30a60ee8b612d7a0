//! Functions of the user's own, beside the registered operators.

use std::{panic::Location, sync::Arc};

use smallvec::SmallVec;

use super::Value;
use crate::{Error, ErrorKind, Meta, OpContext, Result, Tensor, tensor::Memory};

/// A differentiable function written in Rust: its value, and its gradient. `apply` calls it on the
/// eager tape.
pub trait Function: Send + Sync + 'static {
    /// What messages and pictures call it.
    fn name(&self) -> &'static str;

    /// The value of the function.
    ///
    /// # Errors
    /// Inputs that it does not take.
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor>;

    /// By input: the gradient of the loss, from that of the output. Of dtype and shape of the input; what is returned for
    /// a constant is ignored.
    ///
    /// # Errors
    /// There is no gradient.
    fn backward(&self, inputs: &[Tensor], output: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>>;
}

/// A function of the user's that was called.
pub struct Applied {
    /// The function.
    pub function: Arc<dyn Function>,
    /// The line of the call.
    pub site: &'static Location<'static>,
    /// Remembered if any of them has a derivative.
    pub inputs: SmallVec<[Value; 2]>,
    /// Of the output.
    pub meta: Meta,
    /// That of the output.
    pub memory: Memory,
}

impl Applied {
    /// For messages.
    pub fn describe(&self) -> OpContext {
        describe_function(&*self.function, self.site)
    }

    /// The gradients of the inputs, from that of the output.
    ///
    /// # Errors
    /// Those of the function; other gradients than there are inputs, or of other dtypes or shapes; an input that was
    /// overwritten.
    pub fn backward(&self, gradient: &Tensor) -> Result<Vec<Tensor>> {
        let inputs = self.inputs.iter().map(|input| {
            input.expect_version()?;
            input.tensor()
        });
        let output = Tensor::copy_of(&self.memory, 0, &self.meta)?;
        let found = self.function.backward(&inputs.collect::<Result<Vec<_>>>()?, &output, gradient)?;
        if found.len() != self.inputs.len() {
            let (n, inputs) = (found.len(), self.inputs.len());
            let text = format!("its backward returns {n} gradients for {inputs} inputs");
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        for (k, (input, gradient)) in self.inputs.iter().zip(&found).enumerate() {
            if input.has_derivative() && !input.meta().agrees(&gradient.meta()) {
                let text = format!(
                    "its backward returns {} as the gradient of input {k}, which is {}",
                    gradient.meta(),
                    input.meta()
                );
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(found)
    }
}

/// A function that was called, for messages.
pub fn describe_function(function: &dyn Function, site: &'static Location<'static>) -> OpContext {
    OpContext::called("function", function.name(), "called", site, &[])
}
