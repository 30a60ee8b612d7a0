//! Texts of sounds.

use autobwd::{Error, ErrorKind, Executor, Result, Tensor};

use super::Tokenizer;
use crate::{GeneratedText, GenerationOptions, Generator, Pretrained};

/// The number of tokens from which on Whisper knows many languages.
const MULTILINGUAL: u64 = 51_865;

/// The first tokens of Whisper's decoder for a text without timestamps: the start; for models of many languages, the
/// language, such as `en`, and that it is to be transcribed (Radford et al., 2022).
///
/// ```
/// use autobwd_models::{Pretrained, Tokenizer, transcription_prompt};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/whisper");
/// let (pretrained, tokenizer) = (Pretrained::open(folder), Tokenizer::open(folder)?);
/// let prompt = transcription_prompt(&pretrained, &tokenizer, Some("en"))?;
/// let tokens = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"];
/// assert_eq!(prompt, tokens.map(|token| tokenizer.token_id(token).unwrap()));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Files that cannot be read; a model of many languages without a language; tokens that the tokenizer does not have.
pub fn transcription_prompt(
    pretrained: &Pretrained,
    tokenizer: &Tokenizer,
    language: Option<&str>,
) -> Result<Vec<i64>> {
    if language.is_none() && pretrained.is_multilingual(MULTILINGUAL)? {
        let text = "the model knows many languages: name one, such as `en` (`--language` of the command)";
        return Err(Error::new(ErrorKind::Attr, text));
    }
    let language = language.map(|language| [format!("<|{language}|>"), "<|transcribe|>".into()]);
    let names = ["<|startoftranscript|>".into()].into_iter().chain(language.into_iter().flatten());
    let token = |name: String| {
        let missing = || Error::new(ErrorKind::Attr, format!("the tokenizer has no token `{name}`"));
        tokenizer.token_id(&name).ok_or_else(missing)
    };
    names.chain(["<|notimestamps|>".into()]).map(token).collect()
}

impl Generator {
    /// As [`transcribe_with`](Generator::transcribe_with), for texts, which are streamed and stopped as by
    /// [`generate_texts`](Generator::generate_texts).
    ///
    /// # Errors
    /// As there.
    pub fn transcribe_texts(
        &mut self,
        executor: &mut Executor,
        tokenizer: &Tokenizer,
        (features, prompts): (&Tensor, &[impl AsRef<[i64]>]),
        options: &GenerationOptions,
        stop: &[String],
        on_text: impl FnMut(usize, &str) -> bool,
    ) -> Result<Vec<GeneratedText>> {
        super::generate::texts(tokenizer, prompts.len(), stop, on_text, |on_token| {
            self.transcribe_with(executor, features, prompts, options, on_token)
        })
    }
}
