//! Models in files of GGUF, which `fixtures/make_gguf.py` writes as llama.cpp's converter does.

use std::{
    collections::BTreeSet,
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use autobwd::{DType, Executor, Result, Tensor, tensor::load_tensors};
use autobwd_models::{Generator, Pretrained};
use serde_json::json;

use super::{TOLERANCE, expected, find, folder, folder_with, inputs, largest_difference};

fn logits(path: &Path, values: &[(String, Tensor)]) -> Result<Vec<f32>> {
    let mut model = Pretrained::open(path).load()?;
    let outputs = model.run_named(&mut Executor::new(), &inputs(values))?;
    Ok(outputs[0].1.slice::<f32>()?.to_vec())
}

/// The error of a file with these bytes.
fn error_of(bytes: &[u8]) -> Option<String> {
    let copy = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a file");
    std::fs::write(copy.path(), bytes).expect("a file");
    Pretrained::open(copy.path()).load().err().map(|e| e.to_string())
}

/// Replaces bytes that are in a file once.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let places: Vec<usize> =
        (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
    let [at] = places[..] else { panic!("{} times {old:?}", places.len()) };
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

/// An entry of metadata with a number of 32 bits.
fn entry(key: &str, value: u32) -> Vec<u8> {
    let len = (key.len() as u64).to_le_bytes();
    [&len[..], key.as_bytes(), &4_u32.to_le_bytes(), &value.to_le_bytes()].concat()
}

#[test]
fn logits_are_those_of_the_folder() -> Result<()> {
    for (family, name, tolerance) in
        [("mistral", "model.f32.gguf", TOLERANCE), ("qwen2", "model.f16.gguf", 2e-2)]
    {
        let values = expected(family, "x0.")?;
        let logits_of_folder = find(&values, "logits").expect("logits").slice::<f32>()?;
        let found = logits(&folder(family).join(name), &values)?;
        let difference = largest_difference(&found, logits_of_folder);
        assert!(difference < tolerance, "{family}/{name}: {difference}");
    }
    // The scale of attention is that of the size of heads, but for one size of the published models.
    let published = folder_with("gemma3", |config| config["query_pre_attn_scalar"] = json!(24));
    let values = expected("gemma3", "x0.")?;
    let found = logits(&folder("gemma3/model.f32.gguf"), &values)?;
    let difference = largest_difference(&found, &logits(published.path(), &values)?);
    assert!(difference < TOLERANCE, "gemma3: {difference}");
    let values = expected("qwen3", "x0.")?;
    let found = logits(&folder("qwen3/model.bf16.gguf"), &values)?;
    let known = find(&values, "bf16_weights_f32_compute.last_logits").expect("logits").slice::<f32>()?;
    let difference = largest_difference(&found[found.len() - known.len()..], known);
    assert!(difference < TOLERANCE, "qwen3: {difference}");
    Ok(())
}

#[test]
fn factors_of_frequencies_are_the_scaling_of_llama_3() -> Result<()> {
    let published = folder_with("llama", |config| {
        config["rope_parameters"]["original_max_position_embeddings"] = json!(8192);
    });
    let values = expected("llama", "x0.")?;
    let found = logits(&folder("llama/model.f32.gguf"), &values)?;
    let difference = largest_difference(&found, &logits(published.path(), &values)?);
    assert!(difference < TOLERANCE, "{difference}");
    // Blocks of 32 weights differ by a part in 254 of the largest.
    let largest = found.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let difference = largest_difference(&found, &logits(&folder("llama/model.q8_0.gguf"), &values)?);
    assert!(difference > 0.0 && difference < 0.05 * largest, "{difference} of {largest}");
    // They have an effect.
    let unscaled = folder_with("llama", |config| config["rope_parameters"]["rope_type"] = json!("default"));
    assert!(largest_difference(&found, &logits(unscaled.path(), &values)?) > TOLERANCE);
    Ok(())
}

#[test]
fn blocks_have_the_values_that_gguf_finds() -> Result<()> {
    let model = Pretrained::open(folder("_gguf/blocks.gguf")).load()?;
    let known = load_tensors(folder("_gguf/values.safetensors"))?;
    assert_eq!(known.len(), 29);
    for (name, values) in &known {
        let (_, found) = model.scope.iter().find(|(found, _)| *found == name).expect("a tensor");
        assert_eq!(found.dims(), values.dims(), "{name}");
        let [found, values] = [found, values].map(|tensor| tensor.slice::<f32>().expect("float32"));
        let is_equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(found.iter().zip(values).all(is_equal), "{name}: {found:?} for {values:?}");
    }
    Ok(())
}

#[test]
fn texts_end_as_the_metadata_say() -> Result<()> {
    let pretrained = Pretrained::open(folder("qwen2/model.f16.gguf"));
    let mut generator = Generator::new(&pretrained, 1, 32)?;
    let options = pretrained.generation_options()?;
    assert_eq!(options.eos_token_ids, [287]);
    let tokens = generator.generate(&mut Executor::new(), &[[5, 7, 9]], &options)?;
    let mut of_folder = Generator::new(&Pretrained::open(folder("qwen2")), 1, 32)?;
    assert_eq!(tokens, of_folder.generate(&mut Executor::new(), &[[5, 7, 9]], &options)?);
    let half = Pretrained::open(folder("llama/model.q8_0.gguf")).dtype(DType::BF16).load()?;
    assert!(half.scope.iter().all(|(_, value)| value.dtype() == DType::BF16));
    Ok(())
}

#[test]
fn metadata_that_cannot_be_honoured_are_refused_in_one_list() {
    let bytes = std::fs::read(folder("_gguf/blocks.gguf")).expect("a file");
    assert_eq!(error_of(&bytes), None);
    let layers = entry("llama.block_count", 3);
    let with = |new: &[u8]| error_of(&replaced(&bytes, &layers, new)).expect("an error");
    let error = with(&entry("llama.expert_size", 3));
    for part in
        ["2 obstacles", "`llama.block_count` is missing", "`llama.expert_size` is 3, which is not supported"]
    {
        assert!(error.contains(part), "{error}");
    }
    let experts = [entry("llama.expert_count", 8), layers.clone()].concat();
    // One entry more.
    let more = replaced(&bytes, &layers, &experts);
    let count = u64::from_le_bytes(more[16..24].try_into().expect("8 bytes"));
    let more = [&more[..16], &(count + 1).to_le_bytes()[..], &more[24..], &[0; 64]].concat();
    let error = error_of(&more).expect("an error");
    assert!(error.contains("`llama.expert_count` is 8; only 0 is supported"), "{error}");
    let error = with(&entry("llama.block_count", 1 << 30));
    assert!(
        error.contains("more than the 29 tensors of the files") || error.contains("1073741824"),
        "{error}"
    );

    let renamed =
        |old: &str, new: &str| error_of(&replaced(&bytes, old.as_bytes(), new.as_bytes())).expect("an error");
    let error = renamed("\x05\0\0\0\0\0\0\0llama", "\x05\0\0\0\0\0\0\0mamba");
    assert!(
        error.ends_with("the architecture is `mamba`; supported are `llama`, `qwen2`, `qwen3`, `gemma3`"),
        "{error}"
    );
    let error = renamed("blk.1.attn_v.weight", "blk.1.attn_v.height");
    assert!(error.contains("the tensor `blk.1.attn_v.height` is unknown"), "{error}");
    let error = renamed("blk.1.attn_v.weight", "blk.2.attn_v.weight");
    assert!(error.ends_with("two tensors `model.layers.2.self_attn.v_proj.weight`"), "{error}");
    let values = [&(4_u32.to_le_bytes())[..], &2_u32.to_le_bytes()].concat();
    let key = |value: &[u8]| [b"llama.attention.value_length", value].concat();
    let narrow =
        replaced(&bytes, &key(&values), &key(&[&4_u32.to_le_bytes()[..], &3_u32.to_le_bytes()].concat()));
    let error = error_of(&narrow).expect("an error");
    assert!(error.contains("`llama.attention.value_length` is 3; only 2 is supported"), "{error}");
}

#[test]
fn damaged_files_cause_errors_and_no_panic() -> std::io::Result<()> {
    let bytes = std::fs::read(folder("_gguf/blocks.gguf"))?;
    // After the last name: the rank, a size, the type and the offset.
    let name = b"blk.2.ffn_norm.weight";
    let last = bytes.windows(name.len()).rposition(|window| window == name).expect("a name");
    let header = last + name.len() + 4 + 8 + 4 + 8;
    let mut copy = tempfile::Builder::new().suffix(".gguf").tempfile()?;
    copy.write_all(&bytes)?;
    let error = |copy: &tempfile::NamedTempFile| {
        Pretrained::open(copy.path()).load().err().map(|e| e.to_string()).unwrap_or_default()
    };
    let mut refused = 0;
    for at in 0..header {
        for byte in [bytes[at] ^ [0x01, 0x80, 0xff][at % 3], bytes[at]] {
            copy.seek(SeekFrom::Start(at as u64))?;
            copy.write_all(&[byte])?;
            refused += usize::from(byte != bytes[at] && !error(&copy).is_empty());
        }
    }
    assert!(refused > header * 3 / 4, "{refused} of {header} positions");
    for end in (header..bytes.len()).step_by(997).chain(0..header).collect::<BTreeSet<_>>().into_iter().rev()
    {
        copy.as_file().set_len(end as u64)?;
        assert!(!error(&copy).is_empty(), "the first {end} bytes");
    }
    Ok(())
}

#[test]
fn other_formats_and_versions_are_refused() {
    let bytes = std::fs::read(folder("_gguf/blocks.gguf")).expect("a file");
    let with_start = |start: &[u8]| error_of(&[start, &bytes[start.len()..]].concat()).expect("an error");
    assert!(error_of(&bytes[..3]).expect("an error").ends_with("not a GGUF file"));
    assert!(with_start(b"GGML").ends_with("not a GGUF file"));
    assert!(with_start(b"GGUF\x04").ends_with("version 4 of GGUF; only 2 and 3 are supported"));
    let error = with_start(b"GGUF\0\0\0\x03");
    assert!(error.ends_with("the file is big-endian; only little-endian files are supported"), "{error}");
    let error = with_start(b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    assert!(error.ends_with("the file ends within its header") || error.contains("has rank"), "{error}");
}
