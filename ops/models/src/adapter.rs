//! Adapters in the files of peft.

use std::{collections::BTreeSet, path::Path};

use autobwd::{
    DType, Error, ErrorKind, Result, Scope, Tensor,
    tensor::{load_tensors, save_tensors, write_atomically},
};
use autobwd_core::__private::Obstacles;
use autobwd_ops::{Math, Model};
use serde_json::{Map, Value, json};

use crate::{
    file::{read_object, refused},
    lora::{Lora, transformers_module},
};

/// What the names of all tensors in an adapter's file start with.
const PREFIX: &str = "base_model.model.";

/// Keys of configurations whose values other than these change an adapter in a way that is not supported.
fn required() -> [(&'static str, Value); 12] {
    [
        ("peft_type", json!("LORA")),
        ("bias", json!("none")),
        ("use_dora", json!(false)),
        ("use_qalora", json!(false)),
        ("use_bdlora", json!(null)),
        ("lora_bias", json!(false)),
        ("layer_replication", json!(null)),
        ("megatron_config", json!(null)),
        ("target_parameters", json!(null)),
        ("trainable_token_indices", json!(null)),
        ("alora_invocation_tokens", json!(null)),
        ("loftq_config", json!({})),
    ]
}

/// A trained adapter: its configuration, and the values of its branches and saved modules.
///
/// ```
/// use autobwd_models::{Adapter, Pretrained};
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3");
/// let adapter = Adapter::read(format!("{folder}/adapter"))?;
/// // As branches, which can be trained on; or added to the weights.
/// let mut with_branches = Pretrained::open(folder).load()?;
/// adapter.attach(&mut with_branches)?;
/// let mut merged = Pretrained::open(folder).load()?;
/// adapter.merge(&mut merged)?;
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let trained = Adapter::of(&with_branches, &adapter.lora)?;
/// trained.save(folder)?;
/// assert_eq!(Adapter::read(folder)?.lora.targets, adapter.lora.targets);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Its configuration.
    pub lora: Lora,
    /// Whether the weights of its modules are `[inputs, outputs]`, as GPT-2 has them.
    fan_in_fan_out: bool,
    /// Values by the names that programs give them, sorted.
    values: Vec<(String, Tensor)>,
}

impl Adapter {
    /// Reads a folder that peft has written: `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// Files that cannot be read; one list of all keys of the configuration whose values are not supported.
    pub fn read(folder: impl AsRef<Path>) -> Result<Adapter> {
        let folder = folder.as_ref();
        let path = folder.join("adapter_config.json");
        let keys = read_object(&path)?;
        let lora = config(&path, &keys)?;
        let fan_in_fan_out = keys.get("fan_in_fan_out").and_then(Value::as_bool).unwrap_or(false);
        let file = folder.join("adapter_model.safetensors");
        let mut values = vec![];
        for (name, value) in load_tensors(&file)? {
            let own = name.strip_prefix(PREFIX);
            let own =
                own.ok_or_else(|| refused(&file, format!("`{name}` does not start with `{PREFIX}`")))?;
            values.push((own.to_string(), value));
        }
        Ok(Adapter { lora, fan_in_fan_out, values })
    }

    /// The adapter that a model has, with its present values.
    ///
    /// # Errors
    /// A model without branches.
    pub fn of(model: &Model, lora: &Lora) -> Result<Adapter> {
        let program = &model.program;
        let parameters: BTreeSet<&str> = program.parameters().map(|var| program.name(var)).collect();
        // Not the state of an optimizer, and not sums of gradients.
        let is_own = |name: &str| {
            let module = name.rsplit_once('.').map_or("", |(module, _)| module);
            let is_branch = module.ends_with(".lora_A") || module.ends_with(".lora_B");
            parameters.contains(name) && (is_branch || lora.saves(module))
        };
        let own = model.scope.iter().filter(|(name, _)| is_own(name));
        let mut values: Vec<_> = own.map(|(name, value)| (name.to_string(), value.clone())).collect();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        match values.iter().any(|(name, _)| name.ends_with(".lora_A.weight")) {
            true => {
                let fan_in_fan_out = !lora.input_first_modules(&model.program).is_empty();
                Ok(Adapter { lora: lora.clone(), fan_in_fan_out, values })
            }
            false => Err(Error::new(ErrorKind::Program, "the model has no adapter")),
        }
    }

    /// Adds the branches to a model, as [`Lora::attach`] does, with the values of the adapter. Returns the names of the
    /// parameters that are trained.
    ///
    /// # Errors
    /// Those of [`Lora::attach`]; one list of all values that are missing, unexpected, or of another shape: the model is
    /// then unchanged.
    pub fn attach(&self, model: &mut Model) -> Result<Vec<String>> {
        let (extended, values) = self.fitted(model)?;
        model.program = extended.program;
        let trained = values.iter().map(|(name, _)| name.clone()).collect();
        values.into_iter().for_each(|(name, value)| model.scope.set(&name, value));
        model.scope.convert_to(&model.program)?;
        Ok(trained)
    }

    /// The model with branches, without values, and the values of all parameters that are trained.
    fn fitted(&self, model: &Model) -> Result<(Model, Vec<(String, Tensor)>)> {
        let mut extended =
            Model { program: model.program.clone(), feeds: vec![], fetches: vec![], scope: Scope::new() };
        let trained = self.lora.attach(&mut extended)?;
        let mut obstacles = Obstacles::default();
        let mut values = vec![];
        for name in &trained {
            let known = extended.scope.find(name).or_else(|| model.scope.find(name)).map(Tensor::dims);
            match (self.value(name), known) {
                (None, _) => obstacles.add("", format!("the adapter has no `{name}`")),
                (Some(own), Some(known)) if own.dims() != known => {
                    obstacles.add("", format!("`{name}` is {:?}, not {known:?}", own.dims()));
                }
                (Some(own), _) => values.push((name.clone(), own.clone())),
            }
        }
        let is_of_model = |name: &String| trained.iter().any(|own| own == name || adapter_name(own) == *name);
        for (name, _) in self.values.iter().filter(|(name, _)| !is_of_model(name)) {
            obstacles.add("", format!("the model has no parameter `{name}`"));
        }
        obstacles.require_none("the adapter does not fit the model")?;
        Ok((extended, values))
    }

    /// Adds the branches to the weights of a model, `W + s · B · A`, and takes the values of saved modules.
    ///
    /// # Errors
    /// As [`attach`](Adapter::attach); weights that are quantised.
    pub fn merge(&self, model: &mut Model) -> Result<()> {
        let (_, values) = self.fitted(model)?;
        let input_first = self.lora.input_first_modules(&model.program);
        let mut merged = vec![];
        for (name, value) in &values {
            let Some(module) = name.strip_suffix(".lora_A.weight") else {
                if !name.ends_with(".lora_B.weight") {
                    merged.push((name.clone(), value.clone()));
                }
                continue;
            };
            let weight_name = format!("{module}.weight");
            let weight = model.scope.get(&weight_name)?;
            let tape = autobwd::eager();
            let b = self.value(&format!("{module}.lora_B.weight"));
            let b = b.ok_or_else(|| Error::new(ErrorKind::NoValue, format!("`{module}` has no `lora_B`")))?;
            if !weight.dtype().is_float() {
                let text = format!("`{weight_name}` is quantised: adapters are merged before");
                return Err(Error::new(ErrorKind::DType, text));
            }
            // The product in 32 bits, and rounded once, whatever the dtypes of the files are.
            let [a, b] = [value, b].map(|factor| tape.constant(factor.clone()).cast(DType::F32));
            let (_, scale) = self.lora.of_module(module);
            let change = (b.matmul(&a) * scale).cast(weight.dtype());
            let is_input_first = input_first.iter().any(|known| known == module);
            let change = if is_input_first { change.transpose(&[1, 0]) } else { change };
            let sum = tape.constant(weight.clone()) + change;
            merged.push((weight_name, sum.tensor()?.clone()));
        }
        merged.into_iter().for_each(|(name, value)| model.scope.set(&name, value));
        Ok(())
    }

    /// Writes a folder that peft reads, which must exist; each file is replaced as a whole.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        let named: Vec<(String, &Tensor)> = self
            .values
            .iter()
            .map(|(name, value)| (format!("{PREFIX}{}", adapter_name(name)), value))
            .collect();
        let named = named.iter().map(|(name, value)| (name.as_str(), *value));
        save_tensors(folder.join("adapter_model.safetensors"), named)?;
        let lora = &self.lora;
        let list = |names: &[String]| if names.is_empty() { Value::Null } else { json!(names) };
        let targets = match &lora.pattern {
            None => json!(lora.targets),
            Some(pattern) if lora.targets.is_empty() => json!(pattern),
            // Files have names or a pattern.
            Some(_) => json!(self.modules().collect::<Vec<_>>()),
        };
        // A pattern says the layers itself, and so do names that are written out.
        let has_layers = lora.pattern.is_none() && !lora.layers.is_empty();
        let pattern = |entries: Vec<(&String, Value)>| {
            Value::Object(entries.into_iter().map(|(name, value)| (name.clone(), value)).collect())
        };
        let config = json!({
            "peft_type": "LORA", "r": lora.rank, "lora_alpha": lora.alpha, "use_rslora": lora.is_rank_stabilized,
            "target_modules": targets, "exclude_modules": list(&lora.excluded),
            "layers_to_transform": if has_layers { json!(lora.layers) } else { Value::Null },
            "layers_pattern": if has_layers { list(&lora.layer_lists) } else { Value::Null },
            "bias": "none", "fan_in_fan_out": self.fan_in_fan_out, "lora_dropout": lora.dropout,
            "inference_mode": true, "use_dora": false, "init_lora_weights": true, "task_type": null,
            "base_model_name_or_path": null,
            "modules_to_save": list(&lora.saved_modules),
            "rank_pattern": pattern(lora.ranks.iter().map(|(name, rank)| (name, json!(rank))).collect()),
            "alpha_pattern": pattern(lora.alphas.iter().map(|(name, alpha)| (name, json!(alpha))).collect()),
        });
        write_atomically(folder.join("adapter_config.json"), format!("{config:#}\n").as_bytes())
    }

    /// The modules with a branch, by the names of peft.
    fn modules(&self) -> impl Iterator<Item = String> {
        let modules = self.values.iter().filter_map(|(name, _)| name.strip_suffix(".lora_A.weight"));
        modules.map(transformers_module)
    }

    /// The value of a parameter of a program.
    fn value(&self, name: &str) -> Option<&Tensor> {
        let found = |wanted: &str| self.values.iter().find(|(known, _)| known == wanted);
        found(name).or_else(|| found(&adapter_name(name))).map(|(_, value)| value)
    }
}

/// The name that peft gives to a parameter, without the prefix.
fn adapter_name(name: &str) -> String {
    for part in [".lora_A.weight", ".lora_B.weight"] {
        if let Some(module) = name.strip_suffix(part) {
            return format!("{}{part}", transformers_module(module));
        }
    }
    name.into()
}

/// The configuration of an adapter.
fn config(path: &Path, keys: &Map<String, Value>) -> Result<Lora> {
    let mut obstacles = Obstacles::default();
    for (key, supported) in required() {
        let value = keys.get(key).unwrap_or(&supported);
        // Null says the same as a default.
        if *value != supported && !value.is_null() {
            obstacles.add("", format!("`{key}` is {value}; only {supported} is supported"));
        }
    }
    if let Some(value) = keys.get("init_lora_weights").and_then(Value::as_str) {
        let changes_base = ["pissa", "olora", "corda", "loftq"].iter().any(|name| value.starts_with(name));
        if changes_base {
            obstacles
                .add("", format!("`init_lora_weights` is `{value}`, which changes the weights of the model"));
        }
    }
    let pattern = keys.get("target_modules").and_then(Value::as_str).map(str::to_string);
    let mut texts = |key: &str| -> Vec<String> {
        match keys.get(key) {
            None | Some(Value::Null) => vec![],
            Some(Value::String(_)) if key == "target_modules" => vec![],
            Some(Value::String(name)) if key == "layers_pattern" => vec![name.clone()],
            Some(Value::Array(list)) if list.iter().all(Value::is_string) => {
                list.iter().filter_map(Value::as_str).map(str::to_string).collect()
            }
            Some(other) => {
                obstacles.add("", format!("`{key}` is {other}; only a list of names is supported"));
                vec![]
            }
        }
    };
    let (targets, saved_modules) = (texts("target_modules"), texts("modules_to_save"));
    let (excluded, layer_lists) = (texts("exclude_modules"), texts("layers_pattern"));
    let layers = match keys.get("layers_to_transform") {
        None | Some(Value::Null) => vec![],
        Some(value) => {
            let numbers = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            let numbers: Option<Vec<usize>> =
                numbers.iter().map(|number| usize::try_from(number.as_u64()?).ok()).collect();
            numbers.unwrap_or_else(|| {
                obstacles.add(
                    "",
                    format!("`layers_to_transform` is {value}; only numbers of layers are supported"),
                );
                vec![]
            })
        }
    };
    let patterns = |key: &str| -> Vec<(String, f64)> {
        let object = keys.get(key).and_then(Value::as_object);
        let entries =
            object.into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
        entries.collect()
    };
    let ranks = patterns("rank_pattern").into_iter().map(|(name, rank)| (name, rank as usize)).collect();
    let alphas = patterns("alpha_pattern");
    let number = |key: &str| keys.get(key).and_then(Value::as_f64);
    let rank = number("r").filter(|rank| *rank >= 1.0 && rank.fract() == 0.0).unwrap_or_else(|| {
        obstacles.add("", "`r` is no rank");
        1.0
    });
    if targets.is_empty() && pattern.is_none() {
        obstacles.add("", "no `target_modules`");
    }
    let lora = Lora {
        rank: rank as usize,
        alpha: number("lora_alpha").unwrap_or(8.0),
        is_rank_stabilized: keys.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        targets,
        pattern,
        excluded,
        layers,
        layer_lists,
        dropout: number("lora_dropout").unwrap_or(0.0),
        ranks,
        alphas,
        saved_modules,
        seed: 0,
    };
    if let Err(error) = lora.check() {
        obstacles.add("", error.message());
    }
    obstacles.require_none(&format!("cannot read `{}`", path.display()))?;
    Ok(lora)
}
