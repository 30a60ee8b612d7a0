//! A text while it is generated.

use autobwd::{Error, ErrorKind, Result};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{GenerationOptions, TextContext};

/// A step without text: a token, whose position is the one of padding, and no source.
pub(crate) const NO_TEXT: [i64; 3] = [0, -1, 0];

/// A text that is being generated.
pub(crate) struct Text<'a> {
    pub(crate) tokens: Vec<i64>,
    pub(crate) prompt: usize,
    /// What the processors take for the text of the encoder.
    source: &'a [i64],
    /// The number of positions of the encoder's output.
    pub(crate) source_length: usize,
    rng: Pcg64Mcg,
    pub(crate) is_complete: bool,
}

impl<'a> Text<'a> {
    pub(crate) fn new(
        prompt: &[i64],
        source: &'a [i64],
        source_length: usize,
        options: &GenerationOptions,
    ) -> Text<'a> {
        Text {
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            source,
            source_length,
            rng: Pcg64Mcg::seed_from_u64(options.seed),
            is_complete: options.max_new_tokens == 0,
        }
    }

    /// The last token, its position, and the length of the source.
    pub(crate) fn step(&self) -> [i64; 3] {
        match (self.is_complete, self.tokens.last()) {
            (false, Some(token)) => [*token, self.tokens.len() as i64 - 1, self.source_length as i64],
            _ => NO_TEXT,
        }
    }

    /// Chooses the next token by its logits.
    ///
    /// # Errors
    /// Logits with a NaN, or without a token that may be chosen.
    pub(crate) fn choose(&mut self, mut logits: Vec<f32>, options: &GenerationOptions) -> Result<i64> {
        let Text { tokens, prompt, source, rng, .. } = self;
        options.process(&mut logits, TextContext { tokens, prompt: *prompt, source });
        let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, x| largest.max(*x));
        if !largest.is_finite() || logits.iter().any(|x| x.is_nan()) {
            let text =
                format!("no token can follow {} others: their logits are NaN or infinite", tokens.len());
            return Err(Error::new(ErrorKind::NotFinite, text));
        }
        // 53 bits, as many as a number below 1 has.
        let at = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let token = options.choose(&logits, at) as i64;
        tokens.push(token);
        Ok(token)
    }
}
