//! The predictor: inference by several threads with shared weights.

use std::{fmt, sync::Arc};

use crate::{Executor, Feed, Scope, Session, scope::BoundScope};
use autobwd_core::{
    __private::internals::*, Attr, BlockId, Error, ErrorKind, Program, Result, Tensor, Var, VarDesc,
};

/// Runs a program for inference. Clones share the program and its weights, and each thread has its own.
///
/// A clone has threads and plans of its own, and the weights never change: a request takes no lock. The plans of the
/// most recent shapes are kept, so that batches of changing sizes are not planned again.
///
/// ```
/// use std::thread;
/// use autobwd::{Builder, DType, Executor, Scope, Tensor, exec::Predictor};
/// use autobwd_ops::{Math, nn::Linear};
///
/// let net = Builder::new();
/// let scores = Linear::builder(&net, 4, 2).seed(1).build().forward(&net.input("x", DType::F32, &[-1, 4]));
/// let mut scope = Scope::new();
/// Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
///
/// let predictor = Predictor::new(&net.program()?, scope, &[&scores.name()])?;
/// thread::scope(|threads| {
///     for batch in 1..4 {
///         let mut own = predictor.clone();
///         threads.spawn(move || -> autobwd::Result<()> {
///             let x = Tensor::zeros(DType::F32, &[batch, 4])?;
///             assert_eq!(own.predict(&[("x", &x)])?[0].dims(), [batch, 2]);
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// A model of `autobwd-ops` makes the predictor of its fetches by `Model::predictor`, which freezes the program first: constants
/// are folded, and convolutions are packed.
///
/// # Batch sizes
///
/// A batch of a size without a plan is planned first; [`cache_size`](Predictor::cache_size) sets how many plans are
/// kept. Sizes are not rounded up, because an operator may mix rows, as a mean of the batch does. A caller whose rows are
/// independent pads the batch by copies of its last row, and drops the rows after it: products and convolutions give a
/// row the same bits in each batch.
pub struct Predictor {
    executor: Executor,
    model: Arc<ServedModel>,
}

/// What clones share.
struct ServedModel {
    program: Program,
    scope: Scope,
    fetches: Vec<String>,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Predictor");
        text.field("fetches", &self.model.fetches).field("executor", &self.executor).finish_non_exhaustive()
    }
}

impl Clone for Predictor {
    /// A predictor with the same program and weights, which are not copied, and with threads and plans of its own.
    fn clone(&self) -> Predictor {
        Predictor {
            executor: self.executor.with_other_threads(self.executor.threads()),
            model: self.model.clone(),
        }
    }
}

impl Predictor {
    /// A predictor for these fetches, with one thread. `scope` has the weights.
    ///
    /// An operator in inference mode (`is_test`), such as a `batch_norm`, may name the statistics that it reads as its
    /// outputs, because it does not change them.
    ///
    /// # Errors
    /// A fetch that is not declared; an operator that writes a value of the scope, as updates of optimizers do:
    /// `Model::for_inference` of `autobwd-ops` removes them; memory runs out.
    pub fn new(program: &impl AsRef<Program>, mut scope: Scope, fetches: &[&str]) -> Result<Predictor> {
        let mut program = program.as_ref().clone();
        for name in fetches {
            let refuse = |e: String| Error::new(ErrorKind::Fetch, format!("cannot fetch: {e}"));
            program.expect_var(name).map_err(|e| refuse(e.to_string()))?;
        }
        discard_statistics(&mut program);
        refuse_writes(&program)?;
        scope.align()?;
        let fetches = fetches.iter().map(ToString::to_string).collect();
        let model = Arc::new(ServedModel { program, scope, fetches });
        Ok(Predictor { executor: Executor::with_threads(1), model })
    }

    /// Computes each request with that many threads, as [`Executor::with_threads`]. Where requests are many, one thread
    /// for each clone is faster.
    #[must_use]
    pub fn threads(self, threads: usize) -> Predictor {
        Predictor { executor: self.executor.with_other_threads(threads), ..self }
    }

    /// Sets the number of plans that each clone keeps with their memory, as [`Executor::cache_size`]: 16 by default.
    #[must_use]
    pub fn cache_size(self, plans: usize) -> Predictor {
        Predictor { executor: self.executor.cache_size(plans), ..self }
    }

    /// The weights.
    pub fn scope(&self) -> &Scope {
        &self.model.scope
    }

    /// Runs the program and returns copies of the fetches.
    ///
    /// # Errors
    /// As [`run`](Predictor::run); no memory.
    pub fn predict(&mut self, feeds: &[(&str, &dyn Feed)]) -> Result<Vec<Tensor>> {
        let count = self.model.fetches.len();
        let session = self.run(feeds)?;
        (0..count).map(|k| session.fetch_at(k)).collect()
    }

    /// Runs the program and returns its session, to read fetches without a copy: [`Session::slice`],
    /// [`Session::view`].
    ///
    /// # Errors
    /// The errors of [`Executor::prepare`] and [`Session::run`]. Later requests and other clones are not affected.
    pub fn run(&mut self, feeds: &[(&str, &dyn Feed)]) -> Result<&Session> {
        let ServedModel { program, scope, fetches } = &*self.model;
        let session = self.executor.session(program, BoundScope::Shared(scope), feeds, fetches)?;
        feeds.iter().try_for_each(|(name, fed)| session.feed(name, *fed))?;
        session.run_on(scope)?;
        Ok(session)
    }
}

fn persistable(program: &Program, var: Var) -> Option<&VarDesc> {
    program.root().vars.get(&var).filter(|desc| desc.persistable)
}

/// Redirects statistics that operators in inference mode write back unchanged to unread variables.
fn discard_statistics(program: &mut Program) {
    for index in 0..program.root().ops.len() {
        let op = &program.root().ops[index];
        if !matches!(op.attrs.get("is_test"), Some(Attr::Bool(true))) {
            continue;
        }
        let unchanged = |var: &Var| op.reads().any(|read| read == *var);
        let mut written: Vec<Var> = op.writes().filter(unchanged).collect();
        written.retain(|var| persistable(program, *var).is_some());
        for var in written {
            let Some(desc) = persistable(program, var).cloned() else { continue };
            let unread = program.fresh(&format!("{}@UNREAD", program.name(var)));
            program.root_mut().vars.insert(unread, VarDesc { persistable: false, ..desc });
            let outputs = program.root_mut().ops[index].outputs.args_mut();
            outputs.filter(|output| **output == var).for_each(|output| *output = unread);
        }
    }
}

/// An error for the first operator that writes a value of the scope.
fn refuse_writes(program: &Program) -> Result<()> {
    for (index, op) in program.root().ops.iter().enumerate() {
        if let Some(var) = op.writes().find(|var| persistable(program, *var).is_some()) {
            let name = program.name(var);
            let text = format!("a predictor shares `{name}` between threads, but this operator writes it");
            let error = Error::new(ErrorKind::Program, text);
            return Err(error.at_op(|| program.describe_op(BlockId::ROOT, index, op)));
        }
    }
    Ok(())
}
