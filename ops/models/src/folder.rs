//! The files of a model's folder.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use autobwd::{Error, ErrorKind, Result, tensor::TensorReader};
use serde_json::Value;

use crate::{
    file::{read_object, refused},
    tensors::TensorStream,
};

/// The files of tensors in a folder: `model.safetensors`, or the shards that an index lists.
pub(crate) fn tensor_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let whole = folder.join("model.safetensors");
    if whole.exists() {
        return Ok(vec![whole]);
    }
    let index = folder.join("model.safetensors.index.json");
    if !index.exists() {
        let text = format!(
            "`{}` has neither `model.safetensors` nor `model.safetensors.index.json`",
            folder.display()
        );
        return Err(Error::new(ErrorKind::Io, text));
    }
    let object = read_object(&index)?;
    let map = object.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| refused(&index, "no object `weight_map`"))?;
    let mut shards = BTreeSet::new();
    for (name, file) in map {
        let file = file.as_str().ok_or_else(|| refused(&index, format!("`{name}` is in no file")))?;
        // A file of the folder, not one elsewhere.
        let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            return Err(refused(&index, format!("the shard `{file}` is outside of the folder")));
        }
        shards.insert(folder.join(file));
    }
    let missing: Vec<String> =
        shards.iter().filter(|shard| !shard.exists()).map(|shard| format!("`{}`", shard.display())).collect();
    match missing.is_empty() {
        true => Ok(shards.into_iter().collect()),
        false => Err(refused(&index, format!("missing shards: {}", missing.join(", ")))),
    }
}

/// The tensors of all files, by the names that programs give them; without buffers that are no parameters.
pub(crate) fn tensors(folder: &Path) -> Result<TensorStream> {
    let readers = tensor_files(folder)?.into_iter().map(TensorReader::open).collect::<Result<Vec<_>>>()?;
    let metas = readers.iter().flat_map(TensorReader::metas);
    let metas: Vec<_> = metas.map(|(name, meta)| (renamed(name), meta.clone())).collect();
    let values = readers.into_iter().flatten().map(|item| item.map(|(name, value)| (renamed(&name), value)));
    let metas = metas.into_iter().filter(|(name, _)| !is_buffer(name));
    let values = values.filter(|item| !matches!(item, Ok((name, _)) if is_buffer(name)));
    TensorStream::new(folder, metas, values)
}

/// Old files of BERT call scales `gamma` and shifts `beta`.
fn renamed(name: &str) -> String {
    for (old, new) in [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")] {
        if let Some(start) = name.strip_suffix(old) {
            return format!("{start}{new}");
        }
    }
    name.into()
}

/// Masks, positions and frequencies, which old files hold next to parameters.
fn is_buffer(name: &str) -> bool {
    let buffers = ["embeddings.position_ids", "attn.masked_bias", "rotary_emb.inv_freq"];
    buffers.iter().any(|buffer| name.ends_with(buffer))
        // The mask of GPT-2; its projections have a part more.
        || name.ends_with(".attn.bias") && name.contains("h.")
}
