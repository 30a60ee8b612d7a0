//! A model: a program with its inputs, its outputs and the values that it keeps.

mod lowering;
mod shapes;
mod training;

use autobwd::{Builder, Error, ErrorKind, Executor, Feed, Program, Result, Scope, Tensor, program::Var};

#[doc(hidden)]
pub use lowering::lower;
#[doc(hidden)]
pub use shapes::infer_shapes;
pub(crate) use training::matches;

/// A program with its inputs, its outputs and the values that it keeps.
#[derive(Debug)]
pub struct Model {
    /// The operators and variables.
    pub program: Program,
    /// The variables to feed, in order.
    pub feeds: Vec<String>,
    /// The variables to fetch, in order.
    pub fetches: Vec<String>,
    /// Parameters and other values that the program keeps.
    pub scope: Scope,
}

impl Model {
    /// Runs the model; `inputs` are in the order of `feeds`, results in the order of `fetches`.
    ///
    /// # Errors
    /// Another number of inputs; those of [`Executor::run`].
    pub fn run(&mut self, executor: &mut Executor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if inputs.len() != self.feeds.len() {
            let text = format!(
                "{} inputs are needed ({}), not {}",
                self.feeds.len(),
                self.feeds.join(", "),
                inputs.len()
            );
            return Err(Error::new(ErrorKind::Feed, text));
        }
        let feeds = self.feeds.iter().zip(inputs).map(|(name, input)| (name.as_str(), *input as &dyn Feed));
        let feeds: Vec<(&str, &dyn Feed)> = feeds.collect();
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        executor.run(&self.program, &mut self.scope, &feeds, &fetches)
    }

    /// Prepares the model for training: operators that behave differently then (`dropout`, `batch_norm`) are set to, and
    /// parameters whose name matches one of `frozen` are no longer trained. A pattern is a name in which `*` stands for
    /// any text. An operator all of whose parameters are frozen keeps its behaviour: the statistics of a frozen
    /// `batch_norm` do not change.
    ///
    /// Returns the names of the parameters that are trained. Parameters are the floating point tensors that the program
    /// keeps, reads and does not write, except those that are marked as not trained.
    ///
    /// # Errors
    /// A pattern that matches no parameter.
    pub fn train(&mut self, frozen: &[&str]) -> Result<Vec<String>> {
        training::train(&mut self.program, frozen)
    }

    /// A builder that continues the program, for a new head, a loss and an optimizer: its variables are found by name
    /// ([`Builder::expr`]).
    pub fn builder(&self) -> Builder {
        let builder = Builder::new();
        builder.set_program(self.program.clone());
        builder
    }

    /// The model for inference that a training program contains: the operators that `fetches` need, with `dropout` and
    /// `batch_norm` in inference mode, and their values in `scope`.
    ///
    /// # Errors
    /// Variables that are not declared.
    pub fn for_test(program: &Program, scope: &Scope, fetches: &[&str]) -> Result<Model> {
        let program = training::for_test(program, fetches)?;
        let mut kept = Scope::new();
        for (var, _) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
            let name = program.name(*var);
            if let Ok(value) = scope.get(name) {
                kept.set(name, value.clone());
            }
        }
        let read = program.captures(autobwd::BlockId::ROOT);
        let is_fed = |var: &Var| program.root().vars.get(var).is_some_and(|desc| !desc.persistable);
        let feeds = read.into_iter().filter(is_fed).map(|var| program.name(var).to_string()).collect();
        let fetches = fetches.iter().map(|name| name.to_string()).collect();
        Ok(Model { program, feeds, fetches, scope: kept })
    }
}
