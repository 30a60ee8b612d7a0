//! A published model in a file of GGUF, the format of llama.cpp. The file answers as a folder would, with objects made
//! of its metadata and with the tensors that transformers has: see [`object`] and [`tensors`].
//!
//! One file for each step: `reader` has the header, `blocks` the values of tensors, `names` their names, `config` and
//! `rope` the configuration, `tokenizer` and `sentencepiece` the tokenizer.

mod blocks;
mod config;
mod keys;
mod names;
mod reader;
mod rope;
mod sentencepiece;
mod tokenizer;
mod tokens;

use std::{
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use autobwd::{DType, Result, Tensor, tensor::open_file};
use autobwd_core::__private::Obstacles;
use serde_json::{Map, Value};

use self::{
    blocks::Storage,
    config::Architecture,
    reader::{Entry, Header, LARGEST_FILE, TensorInfo},
};
use crate::{file::refused, tensors::TensorStream};

/// The files of a folder that a file of GGUF stands for.
const FILES: [&str; 4] = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// A file whose header is read.
struct Gguf {
    path: PathBuf,
    header: Header,
    architecture: Architecture,
}

/// The object that a folder has in a file of JSON: `config.json`, `generation_config.json`, `tokenizer.json` or
/// `tokenizer_config.json`. There are no other files.
pub(crate) fn object(path: &Path, file: &str) -> Result<Option<Map<String, Value>>> {
    if !FILES.contains(&file) {
        return Ok(None);
    }
    let gguf = Gguf::open(path)?;
    match file {
        "config.json" => config::config(&gguf).map(Some),
        "generation_config.json" => Ok(tokenizer::generation_config(&gguf)),
        "tokenizer.json" => tokenizer::tokenizer(&gguf),
        "tokenizer_config.json" => Ok(Some(tokenizer::tokenizer_config(&gguf))),
        _ => Ok(None),
    }
}

/// The tensors as transformers has them: by its names, with the rows of its rotary embeddings and the scales of its
/// normalisation. Blocks become float32; other tensors keep their dtypes.
pub(crate) fn tensors(path: &Path) -> Result<TensorStream> {
    let mut gguf = Gguf::open(path)?;
    let is_gemma = gguf.architecture.is_gemma();
    let (mut obstacles, mut named) = (Obstacles::default(), vec![]);
    let infos = std::mem::take(&mut gguf.header.tensors).into_iter();
    for info in infos.filter(|info| info.name != names::ROPE_FACTORS) {
        match names::published(&info.name, is_gemma) {
            Some(name) => named.push((name, info)),
            None => obstacles.add("", format!("the tensor `{}` is unknown", info.name)),
        }
    }
    obstacles.require_none(&format!("cannot load `{}`", path.display()))?;
    let metas: Vec<_> = named.iter().map(|(name, info)| (name.clone(), info.meta())).collect();
    let values = named.into_iter().map(move |(name, info)| Ok((name, gguf.tensor(&info)?)));
    TensorStream::new(path, metas.into_iter(), values)
}

impl Gguf {
    fn open(path: &Path) -> Result<Gguf> {
        let header = Header::read(path)?;
        let name = match header.metadata.get("general.architecture") {
            Some(Entry::One(Value::String(name))) => name,
            _ => return Err(refused(path, "no text `general.architecture`")),
        };
        let architecture = Architecture::named(name).ok_or_else(|| {
            let known = Architecture::names();
            refused(path, format!("the architecture is `{name}`; supported are {known}"))
        })?;
        Ok(Gguf { path: path.into(), header, architecture })
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.header.metadata.get(key)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.entry(key).and_then(Entry::one)
    }

    fn find(&self, tensor: &str) -> Option<&TensorInfo> {
        self.header.tensors.iter().find(|info| info.name == tensor)
    }

    /// Reads a tensor as transformers has it.
    fn tensor(&self, info: &TensorInfo) -> Result<Tensor> {
        let heads = match (self.architecture.name, info.name.rsplit('.').nth(1)) {
            ("llama", Some("attn_q")) => self.heads("attention.head_count"),
            ("llama", Some("attn_k")) => {
                self.heads("attention.head_count_kv").or_else(|| self.heads("attention.head_count"))
            }
            _ => None,
        };
        let mut tensor = match heads {
            None => self.rows(info, info.dims[info.dims.len() - 1], |row| row)?,
            Some(heads) => self.rows_of_heads(info, heads)?,
        };
        // llama.cpp's converter adds 1 to the scales of Gemma, which are shifts from 1 elsewhere.
        if self.architecture.is_gemma() && info.name.ends_with("norm.weight") {
            tensor.slice_mut::<f32>()?.iter_mut().for_each(|scale| *scale -= 1.0);
        }
        Ok(tensor)
    }

    /// A number of heads.
    fn heads(&self, key: &str) -> Option<usize> {
        let heads = self.value(&self.architecture.key(key))?.as_u64()?;
        usize::try_from(heads).ok()
    }

    /// Projections to queries and keys of Llama. Rotary embeddings turn pairs of neighbours in llama.cpp and pairs of an
    /// element of each half of a head in transformers: element `2i + j` of a head is element `i + j · size / 2` there.
    fn rows_of_heads(&self, info: &TensorInfo, heads: usize) -> Result<Tensor> {
        let rows = info.dims[0];
        // A bias has rows of one element.
        let width = if info.dims.len() == 1 { 1 } else { info.dims[info.dims.len() - 1] };
        let is_whole = width.is_multiple_of(info.blocks.values);
        let size = rows.checked_div(heads).filter(|size| size * heads == rows && size.is_multiple_of(2));
        match size.filter(|_| is_whole && info.dims.len() <= 2) {
            Some(size) => self.rows(info, width, |row| {
                let (head, at) = (row / size, row % size);
                head * size + at % 2 * (size / 2) + at / 2
            }),
            None => {
                let text = format!(
                    "the tensor `{}` of sizes {:?} has not {heads} heads of pairs",
                    info.name, info.dims
                );
                Err(refused(&self.path, text))
            }
        }
    }

    /// Reads a tensor in rows of `width` values, each to its place.
    fn rows(&self, info: &TensorInfo, width: usize, place: impl Fn(usize) -> usize) -> Result<Tensor> {
        let failed = |e: std::io::Error| refused(&self.path, &e).caused_by(e);
        let mut file = BufReader::with_capacity(1 << 20, open_file(&self.path, LARGEST_FILE)?);
        file.seek(SeekFrom::Start(info.start)).map_err(failed)?;
        let bytes = width / info.blocks.values * info.blocks.bytes;
        let rows = (info.bytes as usize).checked_div(bytes).unwrap_or(0);
        match info.blocks.storage {
            Storage::Plain(dtype) => {
                let mut tensor = Tensor::zeros(dtype, &info.dims)?;
                let values = tensor.bytes_mut();
                for row in 0..rows {
                    file.read_exact(&mut values[place(row) * bytes..][..bytes]).map_err(failed)?;
                }
                Ok(tensor)
            }
            Storage::Blocks(decode) => {
                let mut tensor = Tensor::zeros(DType::F32, &info.dims)?;
                let values = tensor.slice_mut::<f32>()?;
                let mut row_bytes = vec![0; bytes];
                for row in 0..rows {
                    file.read_exact(&mut row_bytes).map_err(failed)?;
                    let blocks = values[place(row) * width..][..width].chunks_mut(info.blocks.values);
                    row_bytes
                        .chunks(info.blocks.bytes)
                        .zip(blocks)
                        .for_each(|(bytes, block)| decode(bytes, block));
                }
                Ok(tensor)
            }
        }
    }
}
