//! Adapters, compared with the adapters of peft.

use autobwd::{DType, Executor, Result, tensor::load_tensors};
use autobwd_models::{Adapter, Lora, Pretrained};
use autobwd_ops::quantization::{Quantization, quantize};
use serde_json::{Value, json};

use super::{
    DECODERS, FAMILIES, TOLERANCE, expected, find, folder, inputs, largest_difference, last_logits_differ,
    train_as_expected,
};

#[test]
fn adapters_in_32_bits_are_merged_into_weights_of_16_bits() -> Result<()> {
    for family in DECODERS {
        let adapter = Adapter::read(folder(family).join("adapter"))?;
        let mut model = Pretrained::open(folder(family).join("bf16")).dtype(DType::BF16).load()?;
        adapter.merge(&mut model)?;
        let values = expected(family, "x0.")?;
        let found = model.run_named(&mut Executor::new(), &inputs(&values))?[0].1.to_f64s();
        let logits = find(&values, "adapter.last_logits").expect("logits").to_f64s();
        let largest = logits.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        for (found, expected) in found[found.len() - logits.len()..].iter().zip(&logits) {
            assert!((found - expected).abs() < 0.05 * largest, "{family}: {found} for {expected}");
        }
    }
    let adapter = Adapter::read(folder("qwen3").join("adapter"))?;
    let mut model = Pretrained::open(folder("qwen3")).load()?;
    quantize(&mut model, "*_proj.weight", Quantization::NF4)?;
    let error = adapter.merge(&mut model).unwrap_err().to_string();
    assert!(error.ends_with("is quantised: adapters are merged before"), "{error}");
    // Branches next to quantised weights.
    adapter.attach(&mut model).map(drop)
}

#[test]
fn adapters_are_those_of_peft() -> Result<()> {
    for family in FAMILIES {
        let adapter = Adapter::read(folder(family).join("adapter"))?;
        let load = || Pretrained::open(folder(family)).load();
        let (mut attached, mut merged) = (load()?, load()?);
        adapter.attach(&mut attached)?;
        adapter.merge(&mut merged)?;
        for model in [&mut attached, &mut merged] {
            let difference = last_logits_differ(family, model, "adapter.last_logits")?;
            assert!(difference < TOLERANCE, "{family}: {difference}");
        }
    }
    Ok(())
}

#[test]
fn trained_adapters_are_those_of_peft() -> Result<()> {
    for family in FAMILIES {
        let adapter = Adapter::read(folder(family).join("adapter"))?;
        let trained = train_as_expected(family, "lora", |model| adapter.attach(model).map(drop))?;
        // Through files, as peft has them.
        let folder_of_adapter = tempfile::tempdir().expect("a folder");
        Adapter::of(&trained, &adapter.lora)?.save(folder_of_adapter.path())?;
        let file = load_tensors(folder_of_adapter.path().join("adapter_model.safetensors"))?;
        for (name, known) in expected(family, "adapter_trained/")? {
            let found = find(&file, &name).unwrap_or_else(|| panic!("{family}: {name}"));
            let difference = largest_difference(found.slice::<f32>()?, known.slice::<f32>()?);
            assert!(difference < TOLERANCE, "{family}, {name}: {difference}");
        }
        let mut model = Pretrained::open(folder(family)).load()?;
        Adapter::read(folder_of_adapter.path())?.attach(&mut model)?;
        let difference = last_logits_differ(family, &mut model, "adapter_trained.last_logits")?;
        assert!(difference < TOLERANCE, "{family}: {difference}");
    }
    Ok(())
}

/// The modules with branches, by the rules of peft.
#[test]
fn modules_are_chosen_as_peft_does() -> Result<()> {
    let modules = |family: &str, lora: &Lora| -> Result<Vec<String>> {
        let trained = lora.attach(&mut Pretrained::open(folder(family)).load()?)?;
        Ok(trained.iter().filter_map(|name| name.strip_suffix(".lora_A.weight")).map(String::from).collect())
    };
    let pattern = |text: &str| Lora { pattern: Some(text.into()), ..Lora::new(4, &[]) };
    let q = |layer: usize| format!("model.layers.{layer}.self_attn.q_proj");
    for (lora, expected) in [
        (pattern(r".*\.1\..*(?:q|v)_proj"), vec![q(1), q(1).replace("q_proj", "v_proj")]),
        // The whole name.
        (pattern("model.layers.0.self_attn.q_proj|q_proj"), vec![q(0)]),
        // As some programs write them, with a look-ahead.
        (pattern(r"^(model(?=\.).*\.(q_proj))$"), vec![q(0), q(1)]),
        (Lora { layers: vec![1], ..Lora::new(4, &["q_proj"]) }, vec![q(1)]),
        (
            Lora { layers: vec![0], layer_lists: vec!["layers".into()], ..Lora::new(4, &["q_proj"]) },
            vec![q(0)],
        ),
        (Lora { excluded: vec!["0.self_attn.q_proj".into()], ..Lora::new(4, &["q_proj"]) }, vec![q(1)]),
        (Lora { saved_modules: vec!["layers.0".into()], ..Lora::new(4, &["q_proj"]) }, vec![q(1)]),
    ] {
        assert_eq!(modules("llama", &lora)?, expected, "{lora:?}");
    }
    // The first number counts; sublayers of T5 are numbered, too.
    let of_t5 = modules("t5", &Lora { layers: vec![1], ..Lora::new(4, &["q"]) })?;
    assert!(!of_t5.is_empty() && of_t5.iter().all(|module| module.contains("block.1.")), "{of_t5:?}");
    // The names of transformers differ from the names of files.
    let of_vit = modules("vit", &pattern(r"vit\.layers\.0\.attention\.[qk]_proj"))?;
    assert_eq!(of_vit.len(), 2, "{of_vit:?}");

    // Ranks by patterns; the file has names if targets are both named and matched.
    let folder_of_adapter = tempfile::tempdir().expect("a folder");
    let lora =
        Lora { ranks: vec![(r"1\..*(?:q|v)_proj".into(), 2)], dropout: 0.1, ..Lora::new(4, &["q_proj"]) };
    let both = Lora { pattern: Some(".*k_proj".into()), ..lora.clone() };
    for (lora, targets) in [
        (
            both.clone(),
            json!([q(0), q(1)].iter().flat_map(|q| [q.replace("q_", "k_"), q.clone()]).collect::<Vec<_>>()),
        ),
        (Lora { targets: vec![], ..both }, json!(".*k_proj")),
        (lora.clone(), json!(["q_proj"])),
        // Files have no layers for a pattern, and none for names that are written out.
        (
            Lora { layers: vec![1], pattern: Some(".*0.*down_proj".into()), ..lora },
            json!([q(0).replace("self_attn.q_proj", "mlp.down_proj"), q(1)]),
        ),
    ] {
        let mut model = Pretrained::open(folder("llama")).load()?;
        lora.attach(&mut model)?;
        let adapter = Adapter::of(&model, &lora)?;
        adapter.save(folder_of_adapter.path())?;
        let text =
            std::fs::read_to_string(folder_of_adapter.path().join("adapter_config.json")).expect("a file");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(config["target_modules"], targets);
        assert_eq!(config["lora_dropout"], 0.1);
        assert_eq!(config["layers_to_transform"], Value::Null);
        let read = Adapter::read(folder_of_adapter.path())?;
        let mut again = Pretrained::open(folder("llama")).load()?;
        assert_eq!(
            read.attach(&mut again)?.len(),
            lora.attach(&mut Pretrained::open(folder("llama")).load()?)?.len()
        );
        if let Some(a) = again.scope.find(&format!("{}.lora_A.weight", q(1))) {
            assert_eq!(a.dims()[0], 2);
        }
    }
    for (lora, error) in [
        (pattern("("), "`(` is no regular expression: "),
        (pattern("q_proj"), "no product has weights of a module whose whole name matches `q_proj`"),
        (
            Lora { layers: vec![7], ..Lora::new(4, &["q_proj"]) },
            "all modules `q_proj` are excluded, in other layers, or trained as a whole",
        ),
    ] {
        let found = modules("llama", &lora).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
    }
    Ok(())
}

#[test]
fn adapters_that_do_not_fit_are_refused_and_change_nothing() -> Result<()> {
    let adapter = Adapter::read(folder("llama").join("adapter"))?;
    let mut model = Pretrained::open(folder("qwen3")).load()?;
    let (program, values) = (model.program.clone(), model.scope.len());
    let error = adapter.attach(&mut model).unwrap_err().to_string();
    assert!(error.starts_with("the adapter does not fit the model: "), "{error}");
    let error = Lora::new(4, &["q_proj", "c_attn"]).attach(&mut model).unwrap_err().to_string();
    assert_eq!(error, "no product has weights of a module `c_attn`");
    let error = Lora::new(0, &["q_proj"]).attach(&mut model).unwrap_err().to_string();
    assert_eq!(error, "the rank of `model.layers.0.self_attn.q_proj` is 0, not a number from 1 to 64");
    let error = Lora::new(usize::MAX, &["q_proj"]).attach(&mut model).unwrap_err().to_string();
    assert!(error.ends_with("not a number from 1 to 64"), "{error}");
    assert_eq!((&model.program, model.scope.len()), (&program, values));
    Lora::new(4, &["q_proj"]).attach(&mut model)?;
    let error = Lora::new(4, &["q_proj"]).attach(&mut model).unwrap_err().to_string();
    assert_eq!(error, "`model.layers.0.self_attn.q_proj` has an adapter already");

    // Configurations that change the adapter otherwise.
    let other = tempfile::tempdir().expect("a folder");
    let text = r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q"], "use_dora": true, "bias": "all", "rank_pattern": {"(": 2}, "layers_to_transform": [-1]}"#;
    std::fs::write(other.path().join("adapter_config.json"), text).expect("a file");
    let error = Adapter::read(other.path()).unwrap_err().to_string();
    for part in [
        "`use_dora` is true",
        "`bias` is \"all\"",
        "`layers_to_transform` is [-1]",
        "`(` is no regular expression",
    ] {
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}
