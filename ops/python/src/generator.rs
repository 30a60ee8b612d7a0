//! Generation of texts.

use std::{
    path::PathBuf,
    sync::{Mutex, TryLockError},
};

use autobwd::{DType, Executor, Result};
use autobwd_models::{ChatMessage, GenerationOptions, GenerationOverrides, Generator, Pretrained, Tokenizer};
use autobwd_ops::quantization::Quantization;
use pyo3::{Bound, Py, PyAny, PyErr, PyResult, Python, pyclass, pymethods, types::PyAnyMethods};

use crate::error::{raised, refused};

/// Continues texts with a published model: a folder in the layout of Hugging Face, or a `.gguf` file.
///
/// A text has at most `max_length` tokens, its prompt included. Weights and results are `float32`, `bfloat16` or
/// `float16`; `quantize` makes the weights of products `nf4`, `int8` or `int4`.
///
/// >>> generator = autobwd.Generator("qwen2", max_length=64)
/// >>> text = generator.generate("the cat", max_tokens=4, greedy=True)
#[pyclass(frozen, module = "autobwd", name = "Generator")]
pub(crate) struct PyGenerator {
    tokenizer: Tokenizer,
    options: GenerationOptions,
    state: Mutex<(Generator, Executor)>,
}

#[pymethods]
impl PyGenerator {
    #[new]
    #[pyo3(signature = (path, *, max_length=2048, dtype="float32", quantize=None, threads=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        max_length: usize,
        dtype: &str,
        quantize: Option<&str>,
        threads: Option<usize>,
    ) -> PyResult<PyGenerator> {
        let Some(dtype) = DType::from_name(dtype).filter(|dtype| dtype.is_half() || *dtype == DType::F32)
        else {
            return refused(format!("the dtype is `{dtype}`: known are `float32`, `bfloat16` and `float16`"));
        };
        let quantize: Option<Quantization> = quantize.map(str::parse).transpose().map_err(raised)?;
        let open = || -> Result<PyGenerator> {
            let pretrained = Pretrained::open(&path).dtype(dtype);
            let pretrained = quantize.into_iter().fold(pretrained, Pretrained::quantize);
            let tokenizer = Tokenizer::open(&path)?;
            let options = pretrained.generation_options()?.with_end_of(&tokenizer);
            let generator = Generator::new(&pretrained, 1, max_length)?;
            let executor = threads.map_or_else(Executor::new, Executor::with_threads);
            Ok(PyGenerator { tokenizer, options, state: Mutex::new((generator, executor)) })
        };
        py.detach(open).map_err(raised)
    }

    /// Continues a text, and returns what is new. With `chat`, the prompt is a message of a user, after the message
    /// `system`, and the text is the answer.
    ///
    /// The options of the model hold unless they are given; `greedy` takes the most probable tokens. The text ends after
    /// `max_tokens` new tokens, or before a string of `stop`. Each new part is given to `on_text`, which ends the text by
    /// returning `False`. A text depends on the prompt, the options and the seed alone.
    ///
    /// >>> parts = []
    /// >>> generator = autobwd.Generator("qwen2", max_length=64)
    /// >>> generator.generate("the cat", max_tokens=4, seed=1, on_text=parts.append) == "".join(parts)
    /// True
    #[pyo3(signature = (
        prompt, *, max_tokens=256, chat=false, system=None, greedy=false, temperature=None, top_k=None, top_p=None,
        min_p=None, repetition_penalty=None, seed=None, stop=None, on_text=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "named arguments in Python")]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &str,
        max_tokens: usize,
        chat: bool,
        system: Option<&str>,
        greedy: bool,
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        min_p: Option<f32>,
        repetition_penalty: Option<f32>,
        seed: Option<u64>,
        stop: Option<Vec<String>>,
        on_text: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let given =
            GenerationOverrides { greedy, temperature, top_k, top_p, min_p, repetition_penalty, seed };
        let options = GenerationOptions { max_new_tokens: max_tokens, ..self.options.clone() };
        let options = options.overridden(&given);
        let tokens = match chat {
            true => {
                let system = system.iter().map(|text| ChatMessage::new("system", *text));
                let messages: Vec<ChatMessage> = system.chain([ChatMessage::new("user", prompt)]).collect();
                let rendered = self.tokenizer.render_chat(&messages, true);
                rendered.and_then(|text| self.tokenizer.encode_plain(&text))
            }
            false => self.tokenizer.encode(prompt),
        };
        let tokens = tokens.map_err(raised)?;
        let stop = stop.unwrap_or_default();
        let mut failure: Option<PyErr> = None;
        let generated = py.detach(|| {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(state)) => state.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            let (generator, executor) = &mut *state;
            let on_text = |_: usize, part: &str| match report(on_text.as_ref(), part) {
                Ok(is_wanted) => is_wanted,
                Err(e) => {
                    failure = Some(e);
                    false
                }
            };
            Some(generator.generate_texts(executor, &self.tokenizer, &[tokens], &options, &stop, on_text))
        });
        match (failure, generated) {
            (Some(e), _) => Err(e),
            (None, None) => refused("the generator is at another text: use one generator a thread".into()),
            (None, Some(texts)) => Ok(texts.map_err(raised)?.into_iter().map(|text| text.text).collect()),
        }
    }
}

/// Gives a part of a text to Python, and lets it handle signals; returns whether the text is to go on.
fn report(on_text: Option<&Py<PyAny>>, part: &str) -> PyResult<bool> {
    Python::attach(|py| {
        py.check_signals()?;
        let Some(on_text) = on_text else { return Ok(true) };
        let answer: Bound<'_, PyAny> = on_text.bind(py).call1((part,))?;
        Ok(answer.is_none() || answer.is_truthy()?)
    })
}
