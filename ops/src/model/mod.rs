//! A model: a program with its inputs, its outputs and the values that it keeps.

mod freeze;
mod inference;
mod lowering;
mod per_sample;
mod recognise;
mod shapes;
mod summary;
mod training;
mod vmap;

use autobwd::{
    Builder, Error, ErrorKind, Executor, Feed, Program, Result, Scope, Tensor,
    exec::Predictor,
    program::{ProgramSignature, SignatureEntry, Var},
};

#[doc(hidden)]
pub use lowering::lower;
pub use per_sample::per_sample;
pub use recognise::recognise;
#[doc(hidden)]
pub use shapes::infer_shapes;
pub use summary::ParameterSummary;
pub(crate) use training::{matches, require_matches};
pub use vmap::{VectorizedProgram, vmap};

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

    /// A server of the model's fetches, from several threads that share its weights: the model is
    /// [frozen](Model::freeze) first.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// use autobwd_ops::{Math, Model, nn::{BatchNorm, Conv2d}};
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 3, 8, 8]);
    /// let y = Conv2d::builder(&net, 3, 16, 3).build().forward(&x);
    /// let y = BatchNorm::builder(&net, 16).build().forward(&y).relu().mean_over(&[2, 3]);
    /// let mut scope = Scope::new();
    /// Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// let predictor = Model::for_inference(&*net.program()?, &scope, &[&y.name()])?.predictor()?;
    /// std::thread::scope(|threads| {
    ///     for batch in 1..4 {
    ///         let mut own = predictor.clone();
    ///         threads.spawn(move || -> autobwd::Result<()> {
    ///             let x = Tensor::zeros(DType::F32, &[batch, 3, 8, 8])?;
    ///             assert_eq!(own.predict(&[("x", &x)])?[0].dims(), [batch, 16]);
    ///             Ok(())
    ///         });
    ///     }
    /// });
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Model::freeze`] and of [`Predictor::new`].
    pub fn predictor(mut self) -> Result<Predictor> {
        self.freeze()?;
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        Predictor::new(&self.program, self.scope, &fetches)
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
    /// A pattern that matches no parameter: then none is frozen.
    pub fn train(&mut self, frozen: &[&str]) -> Result<Vec<String>> {
        training::train(&mut self.program, frozen)
    }

    /// The names of the parameters that are not trained: those that [`train`](Model::train) has frozen, and those that a
    /// loader has marked. An optimizer reports parameters without a path to the loss
    /// ([`MinimizeResult::untrained`](crate::optim::MinimizeResult::untrained)).
    pub fn frozen(&self) -> Vec<String> {
        training::frozen(&self.program).map(|var| self.program.name(var).to_string()).collect()
    }

    /// A builder that continues the program, for a new head, a loss and an optimizer: its variables are found by name
    /// ([`Builder::expr`]).
    pub fn builder(&self) -> Builder {
        let builder = Builder::new();
        builder.set_program(self.program.clone());
        builder
    }

    /// A program with a [`ProgramSignature`], and its values, as they were saved:
    ///
    /// ```
    /// use autobwd::{Builder, DType, Executor, Program, Scope, Tensor};
    /// use autobwd_ops::{Math, Model, nn::Linear, optim::{Adam, Optimizer}};
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 4]);
    /// let labels = net.input("labels", DType::I64, &[-1, 1]);
    /// let scores = Linear::builder(&net, 4, 2).build().forward(&x);
    /// Adam::new(0.01).minimize(&scores.mean_cross_entropy(&labels))?.complete()?;
    /// let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// // … train …
    /// net.set_signature(&[("image", &x), ("labels", &labels)], &[("scores", &scores)])?;
    /// let model = Model::for_inference(&*net.program()?, &scope, &["scores"])?;
    /// let folder = tempfile::tempdir()?;
    /// let (program, weights) = (folder.path().join("model.json"), folder.path().join("model.safetensors"));
    /// model.program.save(&program)?;
    /// model.scope.save(&weights)?;
    ///
    /// let mut scope = Scope::new();
    /// scope.load(&weights)?; // the parameters alone, without the state of Adam
    /// assert_eq!(scope.len(), 2);
    /// let mut model = Model::with_signature(Program::load(&program)?, scope)?;
    /// let image = Tensor::from_vec([1, 4], vec![1.0_f32; 4])?;
    /// let found = model.run_named(&mut executor, &[("image", &image)])?;
    /// assert_eq!((found[0].0.as_str(), found[0].1.dims()), ("scores", &[1, 2][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A program without signature.
    pub fn with_signature(program: Program, scope: Scope) -> Result<Model> {
        let ProgramSignature { inputs, outputs } = program.signature();
        if outputs.is_empty() {
            let text = "the program has no signature: set one, or name feeds and fetches";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let variables = |entries: &[SignatureEntry]| entries.iter().map(|e| e.variable.clone()).collect();
        let (feeds, fetches) = (variables(inputs), variables(outputs));
        Ok(Model { program, feeds, fetches, scope })
    }

    /// Runs a model with a signature; inputs and results have the names of the signature.
    ///
    /// # Errors
    /// An input that the signature does not have, or that is missing; those of [`Executor::run`].
    pub fn run_named(
        &mut self,
        executor: &mut Executor,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Vec<(String, Tensor)>> {
        let signature = self.program.signature();
        let mut feeds: Vec<(&str, &dyn Feed)> = vec![];
        for (name, input) in inputs {
            feeds.push((signature.input(name)?, *input));
        }
        let missing =
            signature.inputs.iter().find(|entry| inputs.iter().all(|(name, _)| *name != entry.name));
        if let Some(SignatureEntry { name, .. }) = missing {
            return Err(Error::new(
                ErrorKind::Feed,
                format!("the input `{name}` of the signature is not given"),
            ));
        }
        let fetches: Vec<&str> = signature.outputs.iter().map(|entry| entry.variable.as_str()).collect();
        let values = executor.run(&self.program, &mut self.scope, &feeds, &fetches)?;
        Ok(signature.outputs.iter().map(|entry| entry.name.clone()).zip(values).collect())
    }

    /// The model for inference that a training program contains: the operators that `fetches` need, with `dropout` and
    /// `batch_norm` in inference mode, and their values in `scope`. Nothing of the backward pass, the optimizer and
    /// random seeds is left, so that a run changes no value of the scope.
    ///
    /// Fetches are names of variables, or of outputs of the program's [`ProgramSignature`]; without any, they are all outputs of
    /// the signature. The model has the rest of the signature.
    ///
    /// # Errors
    /// Variables that are not declared; no fetches.
    pub fn for_inference(program: &Program, scope: &Scope, fetches: &[&str]) -> Result<Model> {
        let signature = program.signature();
        let outputs = signature.outputs.iter();
        let fetches: Vec<&str> = match fetches {
            [] => outputs.map(|entry| entry.variable.as_str()).collect(),
            fetches => fetches.iter().map(|name| signature.output(name).unwrap_or(name)).collect(),
        };
        if fetches.is_empty() {
            let text = "an inference model needs outputs: name them, or set the program's signature";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let mut pruned = inference::for_inference(program, &fetches)?;
        let mut kept = Scope::new();
        for (var, _) in pruned.root().vars.iter().filter(|(_, desc)| desc.persistable) {
            let name = pruned.name(*var);
            if let Some(value) = scope.find(name) {
                kept.set(name, value.clone());
            }
        }
        let read = pruned.captures(autobwd::BlockId::ROOT);
        let is_fed = |var: &Var| pruned.root().vars.get(var).is_some_and(|desc| !desc.persistable);
        let mut feeds: Vec<String> =
            read.into_iter().filter(is_fed).map(|var| pruned.name(var).to_string()).collect();
        let fetches: Vec<String> = fetches.iter().map(|name| name.to_string()).collect();

        let rest = |entries: &[SignatureEntry], of: &[String]| -> Vec<SignatureEntry> {
            entries.iter().filter(|entry| of.contains(&entry.variable)).cloned().collect()
        };
        let inputs = rest(&signature.inputs, &feeds);
        // In the order of the signature.
        feeds.sort_by_key(|feed| {
            inputs.iter().position(|input| input.variable == *feed).unwrap_or(inputs.len())
        });
        let outputs = rest(&signature.outputs, &fetches);
        pruned.set_signature(ProgramSignature { inputs, outputs })?;
        Ok(Model { program: pruned, feeds, fetches, scope: kept })
    }
}
