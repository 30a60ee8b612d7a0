//! Weights that are quantised while they are read.

use autobwd::{
    DType, Executor, Result,
    tensor::{load_tensors, save_tensors},
};
use autobwd_models::{Generator, Pretrained, quantize_linear};
use autobwd_ops::quantization::Quantization;

use super::{FAMILIES, expected, folder, folder_with, inputs};

#[test]
fn codes_are_those_of_a_model_that_was_loaded() -> Result<()> {
    let files =
        ["llama", "gpt2", "bert", "whisper", "qwen2/bf16", "llama/model.q8_0.gguf", "qwen2/model.f16.gguf"];
    for file in files {
        for dtype in [DType::F32, DType::BF16] {
            for quantization in [Quantization::INT8, Quantization::NF4] {
                let pretrained = Pretrained::open(folder(file)).dtype(dtype);
                let mut loaded = pretrained.load()?;
                quantize_linear(&mut loaded, quantization)?;
                let read = pretrained.quantize(quantization).load()?;
                assert!(read.program == loaded.program, "{file}, {dtype}, {quantization}");
                assert_eq!(read.scope.len(), loaded.scope.len());
                let mut codes = 0;
                for (name, value) in loaded.scope.iter() {
                    assert!(read.scope.get(name)? == value, "{file}, {dtype}, {quantization}: {name}");
                    codes += usize::from(value.dtype() == DType::U8);
                }
                assert!(codes > 4, "{file}: {codes}");
            }
        }
    }
    Ok(())
}

#[test]
fn logits_of_quantised_heads_are_near() -> Result<()> {
    let mut tied = vec![];
    for family in FAMILIES {
        let values = expected(family, "x0.")?;
        let pretrained = Pretrained::open(folder(family)).quantize_head(Quantization::INT8);
        let mut model = match pretrained.load() {
            Ok(model) => model,
            Err(e) => {
                // Pre-training has two heads, with outputs of other names.
                assert_eq!((family, e.to_string().contains("no head to quantise")), ("bert", true), "{e}");
                continue;
            }
        };
        let is_codes = |name: &str| name.ends_with(".codes");
        tied.extend(model.scope.iter().any(|(name, _)| is_codes(name)).then_some(family));
        // A head, and nothing else.
        let quantized = model.scope.iter().filter(|(_, value)| value.dtype() == DType::U8);
        assert_eq!(quantized.count(), 1, "{family}");
        let outputs = model.run_named(&mut Executor::new(), &inputs(&values))?;
        let mut exact = Pretrained::open(folder(family)).load()?;
        let known = exact.run_named(&mut Executor::new(), &inputs(&values))?;
        for ((name, found), (_, known)) in
            outputs.iter().zip(&known).filter(|((name, _), _)| name == "logits")
        {
            let [found, known] = [found, known].map(|x| x.to_f64s());
            let largest = known.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let difference = found.iter().zip(&known).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(
                difference > 0.0 && difference < 0.03 * largest,
                "{family}, {name}: {difference} of {largest}"
            );
        }
    }
    for family in ["gpt2", "qwen2", "gemma3", "t5", "whisper", "modernbert"] {
        assert!(tied.contains(&family), "{tied:?}");
    }
    assert!(!tied.contains(&"llama") && !tied.contains(&"vit"), "{tied:?}");
    Ok(())
}

#[test]
fn quantised_models_generate_texts() -> Result<()> {
    for file in ["qwen2", "llama", "qwen2/model.f16.gguf"] {
        let pretrained = Pretrained::open(folder(file));
        let options = pretrained.generation_options()?;
        let quantized = pretrained.clone().quantize(Quantization::INT8).quantize_head(Quantization::INT8);
        let mut generator = Generator::new(&quantized, 1, 32)?;
        let scope = &generator.model_mut().scope;
        let is_head =
            |name: &str| name == "model.embed_tokens.weight.codes" || name == "lm_head.weight.scale";
        assert!(scope.iter().any(|(name, _)| is_head(name)), "{file}");
        assert_eq!(scope.get("model.layers.1.mlp.up_proj.weight")?.dtype(), DType::U8);
        let found = generator.generate(&mut Executor::new(), &[[5, 7, 9]], &options)?;
        assert!(!found[0].is_empty(), "{file}");
    }
    Ok(())
}

#[test]
fn damage_of_weights_is_noticed() -> Result<()> {
    let copy = folder_with("llama", |_| {});
    let path = copy.path().join("model.safetensors");
    let values = load_tensors(&path)?;
    // With a checksum, which the files of other programs have not.
    save_tensors(&path, values.iter().map(|(name, value)| (name.as_str(), value)))?;
    let pretrained = Pretrained::open(copy.path());
    pretrained.load()?;
    let mut bytes = std::fs::read(&path).expect("a file");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&path, &bytes).expect("a file");
    for pretrained in [pretrained.clone(), pretrained.quantize(Quantization::INT8)] {
        let error = pretrained.load().unwrap_err().to_string();
        assert!(error.contains("not the file that was saved: its checksum is"), "{error}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_quantised_or_saved_is_refused() -> Result<()> {
    // A width that fills no cells of 8 rows.
    let odd = Quantization { group_size: 12, ..Quantization::INT4 };
    let error = Pretrained::open(folder("llama")).quantize(odd).load().unwrap_err().to_string();
    assert_eq!(error, "`int4:12`: the group size must be a multiple of 8, not 12");
    let model = Pretrained::open(folder("llama")).quantize(Quantization::INT4).load()?;
    let output = tempfile::tempdir().expect("a folder");
    let error = Pretrained::open(folder("llama")).save(&model, output.path()).unwrap_err().to_string();
    assert!(error.contains("transformers does not read quantised weights"), "{error}");
    // Obstacles are listed as they are without codes.
    let other = folder_with("llama", |config| config["vocab_size"] = 289.into());
    let error = |pretrained: Pretrained| pretrained.load().unwrap_err().to_string();
    let listed = error(Pretrained::open(other.path()));
    assert!(listed.contains("2 obstacles"), "{listed}");
    assert_eq!(error(Pretrained::open(other.path()).quantize_head(Quantization::INT8)), listed);
    Ok(())
}
