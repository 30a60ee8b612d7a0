//! What changes the logits of the next token before it is chosen: the processors of transformers, in its order.

mod sampling;
mod sequences;

use crate::GenerationOptions;

/// A text whose next token is chosen.
#[derive(Clone, Copy, Debug)]
pub struct TextContext<'a> {
    /// All tokens so far, prompt included.
    pub tokens: &'a [i64],
    /// How many of them were given.
    pub prompt: usize,
    /// What the encoder has read; the prompt of a model without encoder; nothing, if it has read sound.
    pub source: &'a [i64],
}

impl GenerationOptions {
    /// Changes the logits of the token that follows a text, one for each token of the model: the processors of
    /// transformers, in its order. Tokens with the logit `-∞` are not chosen.
    ///
    /// ```
    /// use autobwd_models::{GenerationOptions, TextContext};
    ///
    /// let options = GenerationOptions { repetition_penalty: 2.0, ..GenerationOptions::default() };
    /// let mut logits = [1.0, 1.0, -1.0];
    /// options.process(&mut logits, TextContext { tokens: &[1, 2], prompt: 1, source: &[] });
    /// assert_eq!(logits, [1.0, 0.5, -2.0]);
    /// ```
    pub fn process(&self, logits: &mut [f32], text: TextContext<'_>) {
        self.process_sequences(logits, text);
        self.process_ends(logits, text);
        if self.do_sample {
            self.process_draws(logits);
        }
        if self.renormalize_logits {
            sampling::normalize(logits);
        }
    }

    /// The token that is chosen from processed logits: the most probable one, or, if tokens are drawn, the one at `at`,
    /// from 0 to 1, of the sum of probabilities.
    ///
    /// ```
    /// use autobwd_models::GenerationOptions;
    ///
    /// let greedy = GenerationOptions::default();
    /// assert_eq!(greedy.choose(&[1.0, 3.0, 2.0], 0.0), 1);
    /// let drawn = GenerationOptions { do_sample: true, ..greedy };
    /// assert_eq!(drawn.choose(&[1.0, 3.0, 2.0], 0.9), 2);
    /// ```
    pub fn choose(&self, logits: &[f32], at: f64) -> usize {
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        if !self.do_sample {
            return best;
        }
        let probabilities = sampling::probabilities(logits);
        let mut left = at * probabilities.iter().sum::<f64>();
        for (i, probability) in probabilities.iter().enumerate() {
            left -= probability;
            if left < 0.0 {
                return i;
            }
        }
        best
    }
}
