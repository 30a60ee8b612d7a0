//! Values that models share.

use std::sync::{Arc, Mutex, PoisonError};

use autobwd::{
    Executor, Program, Result, Scope,
    program::{ProgramSignature, SignatureEntry},
};
use autobwd_ops::Model;
use pyo3::Python;

/// What the models made from one file share: the values of their programs, and the executor with its plans.
pub(crate) struct Values {
    pub(crate) scope: Scope,
    pub(crate) executor: Executor,
}

/// Values that several models and threads share, one at a time.
#[derive(Clone)]
pub(crate) struct SharedValues(Arc<Mutex<Values>>);

impl SharedValues {
    pub(crate) fn new(scope: Scope, executor: Executor) -> SharedValues {
        SharedValues(Arc::new(Mutex::new(Values { scope, executor })))
    }

    /// Works with the values while Python's other threads run. A thread that waits for the values must not hold Python's
    /// lock, which the thread that has them may need.
    pub(crate) fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Values) -> T + Send) -> T {
        // A run that panics leaves the scope as it was.
        py.detach(|| work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Values {
    /// Works with a program and these values as a model of the library.
    pub(crate) fn with_model<T>(
        &mut self,
        program: &Program,
        work: impl FnOnce(&Model) -> Result<T>,
    ) -> Result<T> {
        let ProgramSignature { inputs, outputs } = program.signature();
        let variables = |entries: &[SignatureEntry]| entries.iter().map(|e| e.variable.clone()).collect();
        let (feeds, fetches) = (variables(inputs), variables(outputs));
        let model =
            Model { program: program.clone(), feeds, fetches, scope: std::mem::take(&mut self.scope) };
        let outcome = work(&model);
        self.scope = model.scope;
        outcome
    }
}
