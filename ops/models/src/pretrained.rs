//! A published model: its families and its files.

use std::path::Path;

use autobwd::{
    DType, Error, ErrorKind, Expr, Result, Tensor,
    tensor::{save_tensors, write_atomically},
};
use autobwd_ops::{Model, matmul::QuantizedMatmul, quantization::Quantization};
use serde_json::{Map, Value};

use crate::{
    GenerationOptions, bert,
    config::Config,
    file::{read_object, refused},
    generation_config::GenerationConfig,
    gpt2,
    inputs::Inputs,
    layers::{Layers, Outputs},
    llama, modernbert,
    new_head::{NewHead, Subject},
    source::Source,
    t5, vit, whisper,
};

/// An architecture, `model_type` of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Gpt2,
    Llama(&'static str),
    Bert(&'static str),
    DistilBert,
    ModernBert,
    Vit,
    T5,
    Whisper,
}

/// The files of a folder that say how a model is used.
const OTHER_FILES: [&str; 10] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
];

/// The families by name.
const FAMILIES: [(&str, Family); 13] = [
    ("gpt2", Family::Gpt2),
    ("llama", Family::Llama("llama")),
    ("mistral", Family::Llama("mistral")),
    ("qwen2", Family::Llama("qwen2")),
    ("qwen3", Family::Llama("qwen3")),
    ("gemma3_text", Family::Llama("gemma3_text")),
    ("bert", Family::Bert("bert")),
    ("roberta", Family::Bert("roberta")),
    ("distilbert", Family::DistilBert),
    ("modernbert", Family::ModernBert),
    ("vit", Family::Vit),
    ("t5", Family::T5),
    ("whisper", Family::Whisper),
];

impl Family {
    /// The inputs that a program always has.
    pub(crate) fn inputs(self) -> &'static [&'static str] {
        match self {
            Family::Vit => &["pixel_values"],
            Family::T5 => &["input_ids", "decoder_input_ids"],
            Family::Whisper => &["input_features", "decoder_input_ids"],
            _ => &["input_ids"],
        }
    }

    pub(crate) fn optional_inputs(self) -> &'static [&'static str] {
        match self {
            Family::Vit | Family::Whisper => &[],
            Family::Bert(_) => &["attention_mask", "token_type_ids"],
            Family::Gpt2 | Family::Llama(_) => &["attention_mask", "position_ids"],
            _ => &["attention_mask"],
        }
    }

    /// Whether it has a decoder, which continues a text token by token.
    pub(crate) fn has_decoder(self) -> bool {
        matches!(self, Family::Gpt2 | Family::Llama(_) | Family::T5 | Family::Whisper)
    }

    /// The inputs that a generation has besides: `source_lengths`, the number of positions of the encoder's output for
    /// each text; `positions` of the decoder's tokens.
    pub(crate) fn generation_inputs(self) -> &'static [&'static str] {
        match self {
            Family::T5 | Family::Whisper => &["source_lengths", "positions"],
            _ => &["positions"],
        }
    }

    pub(crate) fn outputs(self, layers: &Layers<'_>, inputs: &Inputs) -> Outputs {
        let causal = |logits: Expr| vec![("logits", logits)];
        match self {
            Family::Gpt2 => causal(gpt2::logits(layers, inputs)),
            Family::Llama(name) => causal(llama::logits(layers, inputs, name)),
            Family::Bert(name) => bert::bert(layers, inputs, name),
            Family::DistilBert => bert::distilbert(layers, inputs),
            Family::ModernBert => modernbert::modernbert(layers, inputs),
            Family::Vit => vit::vit(layers, inputs),
            Family::T5 => t5::t5(layers, inputs),
            Family::Whisper => whisper::whisper(layers, inputs),
        }
    }
}

/// A published model: a folder in the layout of Hugging Face, with `config.json`, and `model.safetensors` or shards with
/// an index; or a file of GGUF, the format of llama.cpp.
///
/// ```
/// use autobwd::{Executor, Tensor};
/// use autobwd_models::Pretrained;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
/// let mut model = Pretrained::open(folder).load()?;
/// let ids = Tensor::from_vec([1, 4], vec![5_i64, 7, 9, 11])?;
/// let outputs = model.run_named(&mut Executor::new(), &[("input_ids", &ids)])?;
/// assert_eq!((outputs[0].0.as_str(), outputs[0].1.dims()), ("logits", &[1, 4, 288][..]));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[must_use = "nothing is read before `load`"]
#[derive(Clone, Debug)]
pub struct Pretrained {
    pub(crate) source: Source,
    pub(crate) dtype: DType,
    pub(crate) inputs: Vec<String>,
    /// Of all products but the head.
    pub(crate) quantization: Option<Quantization>,
    pub(crate) head_quantization: Option<Quantization>,
    pub(crate) new_head: Option<NewHead>,
}

impl Pretrained {
    /// The model of a folder or of a file that ends in `.gguf`, which [`load`](Pretrained::load) reads.
    ///
    /// Files of GGUF hold Llama, Mistral, Qwen 2 and 3, and Gemma 3. Tensors of the types F32, F16, BF16, Q4_0, Q4_1, Q5_0,
    /// Q5_1, Q8_0, Q4_K, Q5_K and Q6_K are read; programs compute with their values, not with blocks. The parameters have
    /// the names and the order of elements that transformers has.
    pub fn open(path: impl AsRef<Path>) -> Pretrained {
        Pretrained {
            source: Source::open(path.as_ref()),
            dtype: DType::F32,
            inputs: vec![],
            quantization: None,
            head_quantization: None,
            new_head: None,
        }
    }

    /// Sets the dtype of parameters and results: float32 by default, float16 or bfloat16. The tensors of the files
    /// are converted. Images and spectrograms are fed in float32.
    pub fn dtype(self, dtype: DType) -> Pretrained {
        Pretrained { dtype, ..self }
    }

    /// Adds an optional input to the program: `attention_mask`, int64 `[batch, length]`, 0 for padding;
    /// `token_type_ids`, int64 `[batch, length]`, of BERT and RoBERTa; or `position_ids`, int64 `[batch, length]`, of
    /// decoders, for texts that are packed into rows: a text starts at each 0, and does not see others.
    pub fn input(mut self, name: impl Into<String>) -> Pretrained {
        self.inputs.push(name.into());
        self
    }

    /// Quantises the weights of all products but the head while they are read: the modules of [`linear_targets`], as
    /// [`quantize_linear`] does. They are frozen, for generation or for adapters. Weights that cannot be quantised stay as
    /// they are.
    ///
    /// ```
    /// use autobwd::DType;
    /// use autobwd_models::Pretrained;
    /// use autobwd_ops::quantization::Quantization;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
    /// let pretrained = Pretrained::open(folder).quantize(Quantization::NF4).quantize_head(Quantization::INT8);
    /// let model = pretrained.load()?;
    /// assert_eq!(model.scope.get("model.layers.0.mlp.up_proj.weight")?.dtype(), DType::U8);
    /// // The head shares the table of tokens, which stays.
    /// assert_eq!(model.scope.get("model.embed_tokens.weight")?.dtype(), DType::F32);
    /// assert_eq!(model.scope.get("model.embed_tokens.weight.codes")?.dtype(), DType::U8);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// [`linear_targets`]: crate::linear_targets
    /// [`quantize_linear`]: crate::quantize_linear
    pub fn quantize(self, quantization: Quantization) -> Pretrained {
        Pretrained { quantization: Some(quantization), ..self }
    }

    /// Quantises the weights of the product that computes the output `logits`, the head. If it shares the table of tokens,
    /// the table stays next to the codes, and is frozen: a step of a generation reads fewer bytes, but the model has both
    /// in memory.
    pub fn quantize_head(self, quantization: Quantization) -> Pretrained {
        Pretrained { head_quantization: Some(quantization), ..self }
    }

    /// Gives BERT, RoBERTa, DistilBERT, ModernBERT or ViT a new head that classifies texts or images, with these names of
    /// classes, instead of a head in the files. Its parameters are drawn as PyTorch draws layers; the encoder is
    /// read.
    ///
    /// ```
    /// use autobwd_models::Pretrained;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/distilbert");
    /// let pretrained = Pretrained::open(folder).classes(["bad", "so-so", "good"]);
    /// let model = pretrained.load()?;
    /// assert_eq!(model.scope.get("classifier.weight")?.dims()[0], 3);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn classes(self, names: impl IntoIterator<Item = impl Into<String>>) -> Pretrained {
        self.with_new_head(Subject::Whole, names)
    }

    /// Gives BERT, RoBERTa, DistilBERT or ModernBERT a new head that classifies each token, such as by the kind of name that
    /// it is a part of. Otherwise as [`classes`](Pretrained::classes).
    pub fn token_classes(self, names: impl IntoIterator<Item = impl Into<String>>) -> Pretrained {
        self.with_new_head(Subject::Tokens, names)
    }

    /// Gives the model the new head of an adapter that was trained with one: `FineTuning` describes it by a `config.json` in
    /// the folder of the adapter. A folder without one, or with a configuration of another head, changes nothing.
    ///
    /// # Errors
    /// A configuration that cannot be read.
    pub fn head_of_adapter(self, folder: impl AsRef<Path>) -> Result<Pretrained> {
        let path = folder.as_ref().join("config.json");
        let head = match path.exists() {
            true => NewHead::of(&Config::new(read_object(&path)?)),
            false => None,
        };
        Ok(Pretrained { new_head: head.or(self.new_head), ..self })
    }

    fn with_new_head(
        self,
        subject: Subject,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Pretrained {
        let classes = names.into_iter().map(Into::into).collect();
        Pretrained { new_head: Some(NewHead { subject, classes }), ..self }
    }

    /// Reads the model: a program with a signature, and a scope with its parameters, which have the names of the files.
    ///
    /// Inputs and outputs have their names in transformers: `input_ids`, int64 `[batch, length]`, of texts;
    /// `decoder_input_ids`, likewise, of T5 and Whisper; `pixel_values`, float32 `[batch, channels, height, width]`, of
    /// ViT; `input_features`, float32 `[batch, bands, columns]`, of Whisper. Outputs are `logits`, `[batch, length,
    /// vocabulary]` or `[batch, classes]`, or `last_hidden_state`, `[batch, length, width]`.
    ///
    /// The configuration has no dropout that the program has: probabilities of dropout are ignored.
    ///
    /// Tensors are read one by one, and each is converted or quantised before the next one: the memory is that of the model
    /// and of one tensor.
    ///
    /// # Errors
    /// Files that cannot be read; another dtype; an unknown `model_type`; one list of all keys of the configuration whose values are
    /// not supported; one list of all tensors that are missing, have another shape, or are unexpected; a head that is to be
    /// quantised and cannot be.
    pub fn load(&self) -> Result<Model> {
        self.load_with(None)
    }

    /// How the files of the model want texts to be generated: `generation_config.json`, or `config.json` if there is none.
    /// The key `max_length`, which counts prompts, is not read.
    ///
    /// # Errors
    /// Files that cannot be read; one list of all keys whose values are not supported.
    pub fn generation_options(&self) -> Result<GenerationOptions> {
        GenerationConfig::read(&self.source)?.options()
    }

    /// Writes parameters with the configuration and the tokenizer of the model into a folder, which must exist:
    /// transformers loads it, and [`Pretrained::open`]. Other values of the scope are not written.
    ///
    /// ```
    /// use autobwd_models::Pretrained;
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
    /// let pretrained = Pretrained::open(folder);
    /// let model = pretrained.load()?;
    /// // … train …
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// pretrained.save(&model, folder)?;
    /// let again = Pretrained::open(folder).load()?;
    /// # let name = "model.norm.weight";
    /// assert_eq!(again.scope.get(name)?, model.scope.get(name)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Quantised weights; a parameter without value; those of the file system.
    pub fn save(&self, model: &Model, folder: impl AsRef<Path>) -> Result<()> {
        let (program, folder) = (&model.program, folder.as_ref());
        let names = program.parameters().map(|var| program.name(var));
        let parameters: Vec<(&str, &Tensor)> =
            names.map(|name| Ok((name, model.scope.get(name)?))).collect::<Result<_>>()?;
        if program.root().ops.iter().any(|op| op.is::<QuantizedMatmul>()) {
            let text = "transformers does not read quantised weights: save the program and its scope instead";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let mut config = self.config_keys()?;
        if let Some((_, first)) = parameters.first() {
            config.remove("torch_dtype");
            config.insert("dtype".into(), first.dtype().name().into());
        }
        save_tensors(folder.join("model.safetensors"), parameters)?;
        save_config(config, folder)?;
        for file in OTHER_FILES {
            if let Some(text) = self.source.text(file)? {
                write_atomically(folder.join(file), text.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Describes the new head in the folder of an adapter, if there is one.
    #[cfg(feature = "tuning")]
    pub(crate) fn save_new_head(&self, folder: &Path) -> Result<()> {
        match self.new_head {
            Some(_) => save_config(self.config_keys()?, folder),
            None => Ok(()),
        }
    }

    /// The name of what the model reads: `input_ids`, texts; `pixel_values`, images; or
    /// `input_features`, sounds.
    ///
    /// # Errors
    /// Files that cannot be read; an unknown `model_type`.
    pub fn main_input(&self) -> Result<&'static str> {
        let config = self.config()?;
        Ok(self.family(&self.source.path_of("config.json"), &config)?.inputs()[0])
    }

    /// Whether the model has an encoder and a decoder, such as T5 and Whisper: it generates texts from what it reads.
    ///
    /// # Errors
    /// Files that cannot be read; an unknown `model_type`.
    pub fn is_encoder_decoder(&self) -> Result<bool> {
        let config = self.config()?;
        let family = self.family(&self.source.path_of("config.json"), &config)?;
        Ok(matches!(family, Family::T5 | Family::Whisper))
    }

    /// Whether Whisper knows many languages, by its configuration for generations or else by its number of tokens.
    #[cfg(feature = "text")]
    pub(crate) fn is_multilingual(&self, tokens: u64) -> Result<bool> {
        let keys = self.source.object("generation_config.json")?;
        let named = keys.and_then(|keys| keys.get("is_multilingual")?.as_bool());
        let config = self.config()?;
        let size = config.value("vocab_size").and_then(Value::as_u64);
        Ok(named.unwrap_or(size.is_some_and(|size| size >= tokens)))
    }

    /// Whether weights become codes, which are not trained.
    #[cfg(feature = "tuning")]
    pub(crate) fn is_quantized(&self) -> bool {
        self.quantization.is_some() || self.head_quantization.is_some()
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn config(&self) -> Result<Config> {
        Ok(Config::new(self.config_keys()?))
    }

    /// The configuration, with the new head, if there is one.
    fn config_keys(&self) -> Result<Map<String, Value>> {
        let keys = self.source.object("config.json")?;
        let mut keys = keys.ok_or_else(|| refused(&self.source.path_of("config.json"), "no such file"))?;
        self.new_head.iter().try_for_each(|head| head.configure(&mut keys))?;
        Ok(keys)
    }

    pub(crate) fn family(&self, path: &Path, config: &Config) -> Result<Family> {
        let name = config.value("model_type").and_then(Value::as_str).unwrap_or("");
        let known = || FAMILIES.map(|(name, _)| format!("`{name}`")).join(", ");
        let family = FAMILIES.iter().find(|(known, _)| *known == name).map(|(_, family)| *family);
        let family = family.ok_or_else(|| {
            refused(path, format!("the `model_type` is `{name}`; supported are {}", known()))
        })?;
        let unknown = self.inputs.iter().find(|name| !family.optional_inputs().contains(&name.as_str()));
        match unknown {
            None => Ok(family),
            Some(input) => {
                let text = format!("a model of type `{name}` has no optional input `{input}`");
                Err(Error::new(ErrorKind::Feed, text))
            }
        }
    }
}

fn save_config(keys: Map<String, Value>, folder: &Path) -> Result<()> {
    write_atomically(folder.join("config.json"), format!("{:#}\n", Value::Object(keys)).as_bytes())
}
