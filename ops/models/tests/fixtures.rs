//! Tiny models of all families, compared with what transformers and peft compute for them. `fixtures/README.md` says how
//! the files were made.

mod adapters;
mod generation;
mod gguf;
mod quantization;

use std::path::PathBuf;

use autobwd::{
    DType, Executor, Expr, Feed, Result, Tensor,
    tensor::{load_tensors, save_tensors},
};
use autobwd_models::{Pretrained, next_token_loss, token_loss};
use autobwd_ops::{
    Model,
    optim::{AdamW, Optimizer},
};
use serde_json::Value;

const DECODERS: [&str; 6] = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma3"];
const FAMILIES: [&str; 13] = [
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3",
    "bert",
    "roberta",
    "distilbert",
    "modernbert",
    "vit",
    "t5",
    "whisper",
];
/// The tolerance of the fixtures, for logits and losses.
const TOLERANCE: f32 = 1e-4;

fn folder(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

/// The expected tensors whose names start so, without the start.
fn expected(family: &str, start: &str) -> Result<Vec<(String, Tensor)>> {
    let all = load_tensors(folder(family).join("expected.safetensors"))?;
    Ok(all
        .into_iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(start)?.to_string(), value)))
        .collect())
}

fn find<'a>(values: &'a [(String, Tensor)], name: &str) -> Option<&'a Tensor> {
    values.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// The values that a model of the family takes.
fn inputs(values: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    let is_input = |name: &str| {
        name.ends_with("input_ids")
            || ["attention_mask", "token_type_ids", "pixel_values", "input_features"].contains(&name)
    };
    values.iter().filter(|(name, _)| is_input(name)).map(|(name, value)| (name.as_str(), value)).collect()
}

fn load(folder: PathBuf, inputs: &[(&str, &Tensor)]) -> Result<Model> {
    let optional = ["attention_mask", "token_type_ids"];
    let asked = inputs.iter().map(|(name, _)| *name).filter(|name| optional.contains(name));
    asked.fold(Pretrained::open(folder), Pretrained::input).load()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_nan() { f32::INFINITY } else { (a - b).abs() }).fold(0.0, f32::max)
}

#[test]
fn logits_are_those_of_transformers() -> Result<()> {
    for family in FAMILIES {
        for case in ["x0.", "x1."] {
            let values = expected(family, case)?;
            let inputs = inputs(&values);
            let outputs = load(folder(family), &inputs)?.run_named(&mut Executor::new(), &inputs)?;
            for (name, found) in &outputs {
                let logits = find(&values, name).unwrap_or_else(|| panic!("{family}: {case}{name}"));
                assert_eq!(found.dims(), logits.dims(), "{family}: {name}");
                let mut found = found.slice::<f32>()?.to_vec();
                // Logits of padding are 0 in the file.
                if let (Some(mask), 3, true) =
                    (find(&values, "attention_mask"), logits.dims().len(), family != "t5")
                {
                    let width = logits.dims()[2];
                    for (row, seen) in found.chunks_mut(width).zip(mask.slice::<i64>()?) {
                        row.iter_mut().for_each(|x| *x *= *seen as f32);
                    }
                }
                let difference = largest_difference(&found, logits.slice::<f32>()?);
                assert!(difference < TOLERANCE, "{family}, {case}{name}: {difference}");
            }
        }
    }
    Ok(())
}

#[test]
fn weights_of_16_bits_are_converted() -> Result<()> {
    for family in DECODERS.into_iter().chain(["t5"]) {
        let values = expected(family, "x0.")?;
        let inputs = inputs(&values);
        for (dtype, name, tolerance) in [
            (DType::F32, "bf16_weights_f32_compute.last_logits", TOLERANCE),
            // The order of roundings differs.
            (DType::BF16, "bf16_compute.last_logits", 0.15),
        ] {
            let pretrained = Pretrained::open(folder(family).join("bf16")).dtype(dtype);
            let outputs = pretrained.load()?.run_named(&mut Executor::new(), &inputs)?;
            let logits = find(&values, name).unwrap_or_else(|| panic!("{family}: {name}"));
            let [found, logits] = [&outputs[0].1, logits].map(|x| x.to_f64s());
            let last = &found[found.len() - logits.len()..];
            let difference = last.iter().zip(&logits).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference < f64::from(tolerance), "{family}, {name}: {difference}");
        }
    }
    Ok(())
}

#[test]
fn every_family_runs_in_16_bits() -> Result<()> {
    for family in FAMILIES {
        let values = expected(family, "x0.")?;
        let logits = find(&values, "logits").expect("logits").to_f64s();
        let largest = logits.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        for dtype in [DType::F16, DType::BF16] {
            let outputs = Pretrained::open(folder(family))
                .dtype(dtype)
                .load()?
                .run_named(&mut Executor::new(), &inputs(&values))?;
            assert_eq!(outputs[0].1.dtype(), dtype, "{family}");
            let differences =
                outputs[0].1.to_f64s().iter().zip(&logits).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(differences < 0.05 * largest, "{family}, {dtype}: {differences} of {largest}");
        }
        let error = Pretrained::open(folder(family)).dtype(DType::F64).load().unwrap_err().to_string();
        assert_eq!(error, "models are float32, float16 or bfloat16, not float64");
    }
    Ok(())
}

/// The labels, one token late, from a start.
fn shifted_right(labels: &Tensor, start: i64) -> Result<Tensor> {
    let [rows, length] = labels.dims()[..] else { panic!("labels of {:?}", labels.dims()) };
    let mut shifted = vec![];
    for row in labels.slice::<i64>()?.chunks(length) {
        shifted.push(start);
        // What is not counted is padding, which is 0 in both models.
        shifted.extend(row[..length - 1].iter().map(|label| (*label).max(0)));
    }
    Tensor::from_vec([rows, length], shifted)
}

/// Five steps on the batch of a family, with the losses that transformers and peft have found.
fn train_as_expected(family: &str, key: &str, prepare: impl Fn(&mut Model) -> Result<()>) -> Result<Model> {
    let values = expected(family, "train.")?;
    let mut inputs = inputs(&values);
    let labels = find(&values, "labels").expect("labels");
    let shifted = match family {
        "t5" => Some(shifted_right(labels, 0)?),
        "whisper" => Some(shifted_right(labels, 1)?),
        _ => None,
    };
    inputs.extend(shifted.iter().map(|ids| ("decoder_input_ids", ids)));
    let mut model = load(folder(family), &inputs)?;
    prepare(&mut model)?;
    let net = model.builder();
    let output = |k: usize| net.expr(&model.fetches[k]);
    let declared = vec![-1; labels.dims().len()];
    let target = net.input("labels", DType::I64, &declared);
    let mut loss: Expr = match DECODERS.contains(&family) {
        true => next_token_loss(&output(0), &target),
        false => token_loss(&output(0), &target),
    };
    if let Some(next_sentence) = find(&values, "next_sentence_label") {
        inputs.push(("next_sentence_label", next_sentence));
        loss = loss + token_loss(&output(1), &net.input("next_sentence_label", DType::I64, &[-1]));
    }
    inputs.push(("labels", labels));
    let _ = AdamW::new(1e-3).minimize(&loss)?;
    let mut executor = Executor::new();
    executor.run(&model.scope.missing_only(&net.startup().program()?)?, &mut model.scope, &[], &[])?;
    let feeds: Vec<(&str, &dyn Feed)> = inputs.iter().map(|(name, value)| (*name, *value as _)).collect();
    let text = std::fs::read_to_string(folder(family).join("expected.json")).expect("a file");
    let known: Value = serde_json::from_str(&text).expect("JSON");
    for (step, expected) in known[key]["losses"].as_array().expect("losses").iter().enumerate() {
        let found = executor.run(&net.program()?, &mut model.scope, &feeds, &[&loss.name()])?[0].item()?;
        let difference = (found - expected.as_f64().expect("a number")).abs();
        assert!(difference < TOLERANCE.into(), "{family}, step {step}: {found} for {expected}");
    }
    Ok(model)
}

#[test]
fn losses_of_five_steps_are_those_of_transformers() -> Result<()> {
    for family in FAMILIES {
        train_as_expected(family, "full", |model| model.train(&[]).map(drop))?;
    }
    Ok(())
}

/// The largest difference of the last logits from those of peft.
fn last_logits_differ(family: &str, model: &mut Model, name: &str) -> Result<f32> {
    let values = expected(family, "x0.")?;
    let outputs = model.run_named(&mut Executor::new(), &inputs(&values))?;
    let (found, logits) =
        (outputs[0].1.slice::<f32>()?, find(&values, name).expect("logits").slice::<f32>()?);
    Ok(largest_difference(&found[found.len() - logits.len()..], logits))
}

/// A copy of a family's folder, with another configuration.
fn folder_with(family: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(folder(family).join("config.json")).expect("a file");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut config);
    std::fs::write(copy.path().join("config.json"), config.to_string()).expect("a file");
    std::fs::copy(folder(family).join("model.safetensors"), copy.path().join("model.safetensors"))
        .expect("a file");
    copy
}

#[test]
fn configurations_that_cannot_be_honoured_are_refused_in_one_list() {
    let error = |family: &str, change: &dyn Fn(&mut Value)| {
        Pretrained::open(folder_with(family, change).path()).load().unwrap_err().to_string()
    };
    let both = error("llama", &|config| {
        config["hidden_act"] = "softsign".into();
        config["rope_parameters"]["rope_type"] = "spiral".into();
        config["num_hidden_layers"] = (-1).into();
    });
    for part in ["3 obstacles", "`hidden_act` is `softsign`", "type `spiral`", "`num_hidden_layers` is -1"] {
        assert!(both.contains(part), "{both}");
    }
    let many = error("llama", &|config| config["num_hidden_layers"] = 1_000_000.into());
    assert!(
        many.contains("1000000 layers (`num_hidden_layers`) are more than the 21 tensors of the files"),
        "{many}"
    );
    let missing = error("llama", &|config| config["num_hidden_layers"] = 3.into());
    assert!(missing.contains("the tensor `model.layers.2.mlp.down_proj.weight` is missing"), "{missing}");
    let unexpected = error("llama", &|config| config["num_hidden_layers"] = 1.into());
    assert!(
        unexpected.contains("the tensor `model.layers.1.mlp.down_proj.weight` is unexpected"),
        "{unexpected}"
    );
    let misshapen = error("llama", &|config| config["vocab_size"] = 289.into());
    assert!(misshapen.contains("the tensor `lm_head.weight` is [288, 64], not [289, 64]"), "{misshapen}");
    let relative = error("bert", &|config| config["position_embedding_type"] = "relative_key".into());
    assert!(relative.contains("only \"absolute\" is supported"), "{relative}");
    let partial = error("llama", &|config| config["rope_parameters"]["partial_rotary_factor"] = 0.5.into());
    assert!(partial.contains("`partial_rotary_factor` is 0.5"), "{partial}");
    let unknown = error("llama", &|config| config["model_type"] = "mamba".into());
    assert!(unknown.contains("the `model_type` is `mamba`; supported are `gpt2`"), "{unknown}");
    let head = error("bert", &|config| config["architectures"] = serde_json::json!(["BertForChess"]));
    assert!(head.contains("the architecture `BertForChess`"), "{head}");
    let asked = Pretrained::open(folder("gpt2")).input("token_type_ids").load().unwrap_err().to_string();
    assert_eq!(asked, "a model of type `gpt2` has no optional input `token_type_ids`");
}

#[test]
fn configurations_of_any_content_cause_no_panic() {
    let others = ["-1", "16777216", "[1]"];
    let others = others.map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
    let mut refused = 0;
    for family in FAMILIES {
        let mut keys = vec![];
        let copy =
            folder_with(family, |config| keys.extend(config.as_object().expect("an object").keys().cloned()));
        let path = copy.path().join("config.json");
        let config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        for key in keys {
            for other in &others {
                let mut changed = config.clone();
                changed[&key] = other.clone();
                std::fs::write(&path, changed.to_string()).expect("a file");
                // Refused, or the key has no effect.
                refused += usize::from(Pretrained::open(copy.path()).load().is_err());
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn missing_shards_and_shards_elsewhere_are_refused() {
    let copy = folder_with("llama", |_| {});
    std::fs::remove_file(copy.path().join("model.safetensors")).expect("a file");
    let index = |text: &str| {
        std::fs::write(copy.path().join("model.safetensors.index.json"), text).expect("a file");
        Pretrained::open(copy.path()).load().unwrap_err().to_string()
    };
    let error = index(r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#);
    assert!(error.contains("missing shards: ") && error.contains("model-2.safetensors"), "{error}");
    let error = index(r#"{"weight_map": {"a": "../model.safetensors"}}"#);
    assert!(error.ends_with("the shard `../model.safetensors` is outside of the folder"), "{error}");
    let error = index("[]");
    assert!(error.ends_with("not an object"), "{error}");
}

#[test]
fn old_names_and_forms_of_keys_are_read() -> Result<()> {
    // The scales of BERT as `gamma`, and rotary embeddings as most files have them.
    let values = expected("bert", "x0.")?;
    let copy = folder_with("bert", |_| {});
    let path = copy.path().join("model.safetensors");
    let renamed: Vec<(String, Tensor)> = load_tensors(&path)?
        .into_iter()
        .map(|(name, value)| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            (name.replace("LayerNorm.bias", "LayerNorm.beta"), value)
        })
        .collect();
    save_tensors(&path, renamed.iter().map(|(name, value)| (name.as_str(), value)))?;
    let mut model = Pretrained::open(copy.path()).load()?;
    let outputs = model.run_named(&mut Executor::new(), &inputs(&values))?;
    let logits = find(&values, "logits").expect("logits").slice::<f32>()?;
    assert!(largest_difference(outputs[0].1.slice::<f32>()?, logits) < TOLERANCE);

    let values = expected("llama", "x0.")?;
    let copy = folder_with("llama", |config| {
        let mut scaling = config["rope_parameters"].take();
        config["rope_theta"] = scaling["rope_theta"].take();
        config["rope_scaling"] = scaling;
        config.as_object_mut().expect("an object").remove("rope_parameters");
    });
    let mut model = Pretrained::open(copy.path()).load()?;
    let outputs = model.run_named(&mut Executor::new(), &inputs(&values))?;
    let logits = find(&values, "logits").expect("logits").slice::<f32>()?;
    assert!(largest_difference(outputs[0].1.slice::<f32>()?, logits) < TOLERANCE);
    Ok(())
}
