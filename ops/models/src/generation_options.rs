//! How the next tokens of a text are chosen.

use autobwd::{Error, ErrorKind, Result};

/// How the next tokens of a text are chosen. The fields have the names and the order of application of transformers.
///
/// ```
/// use autobwd_models::GenerationOptions;
/// let greedy = GenerationOptions::default();
/// let sampled = GenerationOptions { do_sample: true, temperature: 0.7, top_p: 0.9, ..greedy };
/// assert_eq!(sampled.max_new_tokens, 20);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationOptions {
    /// The number of tokens after which a text ends.
    pub max_new_tokens: usize,
    /// Tokens that end a text, and belong to it.
    pub eos_token_ids: Vec<i64>,
    /// What is added to the logit of the last token of a sequence, if the text ends with the tokens before it.
    pub sequence_bias: Vec<(Vec<i64>, f32)>,
    /// As `repetition_penalty`, for tokens that the encoder has read, or that the prompt of a decoder has, but inverse: a
    /// number above 1 raises them.
    pub encoder_repetition_penalty: f32,
    /// Logits of tokens that the text has, prompt included, are divided by this number if they are positive, and
    /// multiplied by it otherwise; 1 for no change (Keskar et al., 2019).
    pub repetition_penalty: f32,
    /// No sequence of so many tokens comes twice, prompt included; 0 for no limit.
    pub no_repeat_ngram_size: usize,
    /// No sequence of so many tokens comes that the encoder has read, or that the prompt of a decoder has; 0 for no limit.
    pub encoder_no_repeat_ngram_size: usize,
    /// Sequences of tokens that are not completed. Ends of texts alone are not among them.
    pub bad_words_ids: Vec<Vec<i64>>,
    /// The number of tokens, prompt included, before which no token of `eos_token_ids` is chosen.
    pub min_length: usize,
    /// The number of new tokens before which no token of `eos_token_ids` is chosen.
    pub min_new_tokens: usize,
    /// The token that follows the first token of a text.
    pub forced_bos_token_id: Option<i64>,
    /// Tokens for the end of a text that has `max_new_tokens`: its last token is one of these.
    pub forced_eos_token_ids: Vec<i64>,
    /// Whether logits that are no numbers become 0, and infinite ones the largest numbers.
    pub remove_invalid_values: bool,
    /// After so many new tokens, the logits of `eos_token_ids` grow by a factor that is raised to the number of further
    /// tokens.
    pub exponential_decay_length_penalty: Option<(usize, f32)>,
    /// Tokens that are not chosen.
    pub suppress_tokens: Vec<i64>,
    /// Tokens that are not chosen as the first new one.
    pub begin_suppress_tokens: Vec<i64>,
    /// Whether tokens are drawn by their probabilities; otherwise, the most probable one is taken, the first of several.
    pub do_sample: bool,
    /// The divisor of logits, if tokens are drawn.
    pub temperature: f32,
    /// The share of the entropy of the 100 most probable tokens that the drawn ones have, at most (Potraghloo et al.,
    /// 2025).
    pub top_h: Option<f32>,
    /// Only so many of the most probable tokens are drawn, more if the last ones are equal; 0 for all.
    pub top_k: usize,
    /// Of the most probable tokens, those that are needed for this probability are drawn from (Holtzman et al., 2020).
    pub top_p: f32,
    /// The probability of a token that is drawn, at least, in relation to the most probable one; 0 for any.
    pub min_p: f32,
    /// Of the tokens whose information is nearest to the entropy, those that are needed for this probability are drawn
    /// from (Meister et al., 2022); 1 for all.
    pub typical_p: f32,
    /// The probability of a token that is drawn, at least (Hewitt et al., 2022); 0 for any.
    pub epsilon_cutoff: f32,
    /// As `epsilon_cutoff`, but less if the entropy is large: `min(η, √η · exp(-entropy))`.
    pub eta_cutoff: f32,
    /// Whether logits become logarithms of probabilities in the end.
    pub renormalize_logits: bool,
    /// What draws depend on, besides the prompt.
    pub seed: u64,
}

impl Default for GenerationOptions {
    /// The most probable of all tokens, 20 times.
    fn default() -> GenerationOptions {
        GenerationOptions {
            max_new_tokens: 20,
            eos_token_ids: vec![],
            sequence_bias: vec![],
            encoder_repetition_penalty: 1.0,
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            bad_words_ids: vec![],
            min_length: 0,
            min_new_tokens: 0,
            forced_bos_token_id: None,
            forced_eos_token_ids: vec![],
            remove_invalid_values: false,
            exponential_decay_length_penalty: None,
            suppress_tokens: vec![],
            begin_suppress_tokens: vec![],
            do_sample: false,
            temperature: 1.0,
            top_h: None,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            renormalize_logits: false,
            seed: 0,
        }
    }
}

impl GenerationOptions {
    /// # Errors
    /// An option out of its range, for a model of `vocabulary` tokens.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Attr, text));
        // What is for draws does not count otherwise.
        let for_draws = |is_right: bool| is_right || !self.do_sample;
        let is_positive = |x: f32| x > 0.0 && x.is_finite();
        let is_share = |x: f32| x > 0.0 && x <= 1.0;
        let is_cutoff = |x: f32| (0.0..1.0).contains(&x);
        let decay = self.exponential_decay_length_penalty.map_or(1.0, |(_, factor)| factor);
        for (name, value, is_right) in [
            (
                "encoder_repetition_penalty",
                self.encoder_repetition_penalty,
                is_positive(self.encoder_repetition_penalty),
            ),
            ("repetition_penalty", self.repetition_penalty, is_positive(self.repetition_penalty)),
            ("exponential_decay_length_penalty", decay, is_positive(decay)),
            ("temperature", self.temperature, for_draws(is_positive(self.temperature))),
            ("top_h", self.top_h.unwrap_or(1.0), for_draws(self.top_h.is_none_or(is_share))),
            ("top_p", self.top_p, for_draws((0.0..=1.0).contains(&self.top_p))),
            ("min_p", self.min_p, for_draws((0.0..=1.0).contains(&self.min_p))),
            ("typical_p", self.typical_p, for_draws(is_share(self.typical_p))),
            ("epsilon_cutoff", self.epsilon_cutoff, for_draws(is_cutoff(self.epsilon_cutoff))),
            ("eta_cutoff", self.eta_cutoff, for_draws(is_cutoff(self.eta_cutoff))),
        ] {
            if !is_right {
                return refuse(format!("`{name}` is {value}, out of its range"));
            }
        }
        if self.sequence_bias.iter().any(|(sequence, bias)| sequence.is_empty() || bias.is_nan()) {
            return refuse("`sequence_bias` has an entry without tokens, or without a number".into());
        }
        let biased = self.sequence_bias.iter().filter_map(|(sequence, _)| sequence.last());
        let forced = self.forced_bos_token_id.iter().chain(&self.forced_eos_token_ids);
        let is_known = |token: i64| usize::try_from(token).is_ok_and(|token| token < vocabulary);
        match biased.chain(forced).find(|token| !is_known(**token)) {
            Some(token) => {
                refuse(format!("an option has the token {token}, which a model of {vocabulary} lacks"))
            }
            None => Ok(()),
        }
    }
}
