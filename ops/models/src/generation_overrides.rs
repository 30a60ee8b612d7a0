//! Options that a caller gives over the options of a model.

use crate::GenerationOptions;

/// Options that a caller gives over the options of a model; `None` leaves an option as the model has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationOverrides {
    /// Whether the most probable tokens are taken, whatever the model says.
    pub greedy: bool,
    /// The divisor of logits.
    pub temperature: Option<f32>,
    /// The number of tokens that are drawn from; 0 for all.
    pub top_k: Option<usize>,
    /// The probability of the tokens that are drawn from.
    pub top_p: Option<f32>,
    /// The least probability of a token that is drawn, in relation to the most probable one.
    pub min_p: Option<f32>,
    /// The divisor of positive logits of tokens that the text has.
    pub repetition_penalty: Option<f32>,
    /// What draws depend on, besides the prompt.
    pub seed: Option<u64>,
}

impl GenerationOptions {
    /// The options with what a caller gives. An option for draws has tokens drawn, unless the caller asks for the most
    /// probable ones.
    ///
    /// ```
    /// use autobwd_models::{GenerationOptions, GenerationOverrides};
    /// let given = GenerationOverrides { temperature: Some(0.7), ..Default::default() };
    /// let options = GenerationOptions::default().overridden(&given);
    /// assert!(options.do_sample && options.temperature == 0.7);
    /// ```
    #[must_use]
    pub fn overridden(self, given: &GenerationOverrides) -> GenerationOptions {
        let is_drawn = given.temperature.is_some()
            || given.top_k.is_some()
            || given.top_p.is_some()
            || given.min_p.is_some()
            || given.seed.is_some();
        GenerationOptions {
            do_sample: (self.do_sample || is_drawn) && !given.greedy,
            temperature: given.temperature.unwrap_or(self.temperature),
            top_k: given.top_k.unwrap_or(self.top_k),
            top_p: given.top_p.unwrap_or(self.top_p),
            min_p: given.min_p.unwrap_or(self.min_p),
            repetition_penalty: given.repetition_penalty.unwrap_or(self.repetition_penalty),
            seed: given.seed.unwrap_or(self.seed),
            ..self
        }
    }
}
