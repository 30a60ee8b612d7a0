//! Loading a published model from its files, tensor by tensor.

use std::collections::BTreeMap;
#[cfg(feature = "tuning")]
use std::collections::BTreeSet;

use autobwd::{Builder, DType, Error, ErrorKind, Executor, Meta, Program, Result, Scope, Tensor};
use autobwd_core::__private::Obstacles;
use autobwd_ops::{Model, quantization::Quantizer};
use serde_json::Value;

#[cfg(feature = "tuning")]
use crate::new_head::head_modules;
use crate::{
    Pretrained,
    config::Config,
    inputs::{Capacity, Inputs},
    layers::Layers,
    new_head::{encoder_name, encoder_scope, is_of_head},
    pretrained::Family,
    quantization::{plan_head, plan_linear},
    tensors::{TensorStream, TensorValues},
    vit, whisper,
};

/// A model. Of its files, headers are read, and no values.
pub(crate) struct Described {
    /// With a signature.
    pub(crate) program: Program,
    /// What initialises the parameters of a new head.
    startup: Option<Program>,
    values: TensorValues,
    /// The names of tensors of a head that the program does not have.
    pub(crate) unread: Vec<String>,
}

impl Pretrained {
    /// The names of tensors in the files that the model does not read: a head that its architecture does not have, such as
    /// the one that BERT was trained with next to its masked language model.
    ///
    /// # Errors
    /// As [`load`](Pretrained::load), before values are read.
    pub fn unread_tensors(&self) -> Result<Vec<String>> {
        Ok(self.described(None)?.unread)
    }

    /// The model, for a generation if it has a capacity.
    pub(crate) fn load_with(&self, capacity: Option<Capacity>) -> Result<Model> {
        self.read(self.described(capacity)?)
    }

    /// The model with its values.
    pub(crate) fn read(&self, described: Described) -> Result<Model> {
        let Described { program, startup, values, .. } = described;
        let mut model = Model::with_signature(program, Scope::new())?;
        if let Some(startup) = startup {
            Executor::with_threads(1).run(&startup, &mut model.scope, &[], &[])?;
        }
        self.read_values(&mut model, values)?;
        // A cache.
        model.scope.add_zeros(&model.program)?;
        Ok(model)
    }

    /// Describes the model, and requires that the files have its tensors.
    pub(crate) fn described(&self, capacity: Option<Capacity>) -> Result<Described> {
        // Errors of the configuration come first.
        let path = self.source.path_of("config.json");
        let config = self.config()?;
        let family = self.family(&path, &config)?;
        if !(self.dtype == DType::F32 || self.dtype.is_half()) {
            let text = format!("models are float32, float16 or bfloat16, not {}", self.dtype);
            return Err(Error::new(ErrorKind::DType, text));
        }
        let scope = scope(&config);
        let mut tensors = self.source.tensors()?;
        if let (Some(scope), Some(_)) = (scope, &self.new_head) {
            let is_scoped = tensors.metas.keys().any(|name| name.starts_with(&format!("{scope}.")));
            tensors = tensors.renamed(move |name| encoder_name(name, scope, is_scoped));
        }
        let TensorStream { mut metas, values } = tensors;
        let names: Vec<String> = metas.keys().cloned().collect();
        let net = Builder::new();
        let layers = Layers { net: &net, config: &config, names: &names, dtype: self.dtype };
        self.describe(&layers, family, capacity)?;
        let program = net.program()?.clone();
        // Files of an encoder alone leave its scope out, and have no head.
        let scope = scope.filter(|scope| layers.has(&format!("{scope}.")));
        let is_of_head = |name: &str| scope.is_some_and(|scope| is_of_head(name, scope));
        let unread = |name: &&String| is_of_head(name) && program.find(name).is_none();
        let unread: Vec<String> = names.iter().filter(unread).cloned().collect();
        unread.iter().for_each(|name| drop(metas.remove(name)));
        let is_drawn = |name: &str| self.new_head.is_some() && is_of_head(name);
        self.require_fitting(&program, &metas, is_drawn)?;
        let startup = match self.new_head {
            Some(_) => Some(without(net.startup().program()?.clone(), &metas)),
            None => None,
        };
        Ok(Described { program, startup, values, unread })
    }

    /// The modules of the new head, if there is one: what is trained as a whole next to adapters.
    #[cfg(feature = "tuning")]
    pub(crate) fn new_modules(&self, program: &Program) -> Result<BTreeSet<String>> {
        let scope = scope(&self.config()?).filter(|_| self.new_head.is_some());
        let names = || program.parameters().map(|var| program.name(var));
        Ok(scope.map(|scope| head_modules(names(), scope)).unwrap_or_default())
    }

    /// Describes the program, with its signature.
    fn describe(&self, layers: &Layers<'_>, family: Family, capacity: Option<Capacity>) -> Result<()> {
        let dims = match family {
            Family::Whisper => whisper::spectrogram_dims(layers),
            _ => vit::image_dims(layers),
        };
        let asked = |name: &&'static str| self.inputs.iter().any(|asked| asked == name);
        let asked = family.optional_inputs().iter().copied().filter(asked);
        if capacity.is_some() && !(family.has_decoder() && self.inputs.is_empty()) {
            let text = "texts are generated by models of type `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3`, \
                        `gemma3_text`, `t5` and `whisper`, without optional inputs";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let of_generation = if capacity.is_some() { family.generation_inputs() } else { &[] };
        let names = family.inputs().iter().copied().chain(asked).chain(of_generation.iter().copied());
        let inputs = Inputs::declare(layers.net, names, dims, capacity);
        let outputs = family.outputs(layers, &inputs);
        let path = self.source.path_of("config.json");
        layers.config.require_no_obstacles(&format!("cannot load `{}`", path.display()))?;
        let [inputs, outputs] = [&inputs.named, &outputs]
            .map(|named| named.iter().map(|(name, value)| (*name, value)).collect::<Vec<_>>());
        layers.net.set_signature(&inputs, &outputs)
    }

    /// Requires that the files have all tensors that the program declares, but for what is drawn, and no others.
    fn require_fitting(
        &self,
        program: &Program,
        metas: &BTreeMap<String, Meta>,
        is_drawn: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let mut obstacles = Obstacles::default();
        for (var, desc) in program.root().vars.iter().filter(|(_, desc)| desc.parameter) {
            let name = program.name(*var);
            match metas.get(name) {
                None if is_drawn(name) => {}
                None => obstacles.add("", format!("the tensor `{name}` is missing")),
                Some(meta) if meta.dims != desc.dims => {
                    obstacles.add("", format!("the tensor `{name}` is {}, not {}", meta.dims, desc.dims));
                }
                Some(_) => {}
            }
        }
        for name in metas.keys() {
            let declared = program.find(name).and_then(|var| program.root().vars.get(&var));
            if declared.is_none_or(|desc| !desc.persistable) {
                obstacles.add("", format!("the tensor `{name}` is unexpected"));
            }
        }
        obstacles.require_none(&format!("cannot load `{}`", self.source.path().display()))
    }

    /// Reads the values. Each is converted to the dtype that the program declares, and quantised, before the next one is
    /// read.
    fn read_values(&self, model: &mut Model, values: TensorValues) -> Result<()> {
        let mut quantizer = Quantizer::new(model);
        if let Some(quantization) = self.quantization {
            plan_linear(&mut quantizer, model, quantization)?;
        }
        if let Some(quantization) = self.head_quantization {
            plan_head(&mut quantizer, model, quantization)?;
        }
        for item in values {
            let (name, value) = item?;
            if model.program.find(&name).is_none() {
                continue;
            }
            let value = as_declared(&model.program, &name, value)?;
            if !quantizer.add(&name, &value)? {
                model.scope.set(&name, value);
            }
        }
        quantizer.finish(model).map(drop)
    }
}

/// A startup program without the operators that initialise what files have.
fn without(startup: Program, metas: &BTreeMap<String, Meta>) -> Program {
    let mut rest = startup.clone();
    rest.root_mut().ops.retain(|op| op.writes().all(|var| !metas.contains_key(startup.name(var))));
    rest
}

/// The scope of an encoder below a head.
fn scope(config: &Config) -> Option<&'static str> {
    config.value("model_type").and_then(Value::as_str).and_then(encoder_scope)
}

/// A value in the dtype that a program declares, if it can be converted.
fn as_declared(program: &Program, name: &str, value: Tensor) -> Result<Tensor> {
    let declared = program.find(name).and_then(|var| program.root().vars.get(&var)).map(|desc| desc.dtype);
    match declared.filter(|dtype| *dtype != value.dtype()) {
        Some(dtype) => Ok(value.converted_to(dtype)?.unwrap_or(value)),
        None => Ok(value),
    }
}
