//! A model as PaddlePaddle saves it.

use std::path::Path;

use autobwd::{
    Builder, Error, ErrorKind, Executor, Feed, OpInfoMap, Program, Result, Scope, Tensor,
    program::{Var, VarDesc},
};

use prost::Message;

use crate::{
    export::export,
    files::{ModelFiles, decode_parameters, decode_program, parameter_bytes},
    import::ImportedProgram,
    info::{ParameterInfo, ParameterInfos, read_infos, write_infos},
    training,
};

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
    /// Loads a model: `inference` or `inference.pdmodel` for files that begin with `inference`, or a folder with
    /// `__model__`. Parameters are in `inference.pdiparams`, in `__params__` or in one file each.
    ///
    /// Attributes that only select an implementation are dropped. Files before 2.6 do not mark parameters: floating point
    /// tensors that operators read and none writes are marked, except statistics; those that `.pdiparams.info` calls
    /// not trainable are frozen. Declared shapes of intermediate values are replaced by inferred ones.
    ///
    /// # Errors
    /// Those of the file system; other files, and files that end early; everything that is unknown to the linked
    /// operators, as one list: operators, inputs, attributes that are not at their default, dtypes, kinds of variables;
    /// all faults that verification finds; parameters that do not fit the program. Nothing is loaded by half.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        let files = ModelFiles::at(path.as_ref());
        let ops = OpInfoMap::linked()?;
        let ImportedProgram { program, feeds, fetches } = files.read_program(ops)?;
        let scope = files.read_parameters(&program)?;
        Ok(Model { program, feeds, fetches, scope })
    }

    /// Loads a model from the bytes of its files: `.pdmodel`, `.pdiparams` and `.pdiparams.info`.
    ///
    /// # Errors
    /// As [`load`](Model::load).
    pub fn from_bytes(program: &[u8], parameters: Option<&[u8]>, infos: Option<&[u8]>) -> Result<Model> {
        let infos = || infos.map_or_else(|| Ok(ParameterInfos::new()), read_infos);
        let ImportedProgram { program, feeds, fetches } =
            decode_program(program, infos, OpInfoMap::linked()?, "the program")?;
        let scope = decode_parameters(parameters.unwrap_or_default(), &program, "the parameters")?;
        Ok(Model { program, feeds, fetches, scope })
    }

    /// The bytes of `.pdmodel`, `.pdiparams` and `.pdiparams.info`, as [`save`](Model::save) writes them.
    ///
    /// # Errors
    /// As [`save`](Model::save).
    pub fn to_bytes(&self) -> Result<[Vec<u8>; 3]> {
        let file = export(&self.program, OpInfoMap::linked()?, &self.feeds, &self.fetches)?;
        let parameters = parameter_bytes(&self.program, &self.scope)?;
        Ok([file.encode_to_vec(), parameters, write_infos(&self.infos())])
    }

    /// Saves the model for PaddlePaddle 2.6: `path.pdmodel`, `path.pdiparams` and `path.pdiparams.info`, for
    /// `paddle.static.load_inference_model`. Operators that PaddlePaddle does not know are written in terms of those
    /// that it knows ([`OpInfoMap::composition`]).
    ///
    /// # Errors
    /// Everything that PaddlePaddle cannot express, as one list: operators without such a composition, attributes, slots;
    /// values that the scope does not hold; those of the file system.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let [program, parameters, infos] = self.to_bytes()?;
        ModelFiles::at(path.as_ref()).write(&program, &parameters, &infos)
    }

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

    /// What the file about parameters says.
    fn infos(&self) -> ParameterInfos {
        let info = |(var, desc): (&Var, &VarDesc)| {
            let trainable = !desc.stop_gradient;
            let info = ParameterInfo {
                stop_gradient: !(desc.parameter && trainable),
                trainable: desc.parameter.then_some(trainable),
            };
            (self.program.name(*var).to_string(), info)
        };
        let kept = self.program.root().vars.iter().filter(|(_, desc)| desc.persistable);
        kept.map(info).collect()
    }
}
