//! Processors that go by the tokens of a text: repetitions, forbidden and forced tokens, ends.

use std::collections::HashSet;

use super::TextContext;
use crate::GenerationOptions;

impl GenerationOptions {
    /// Biases, repetitions, and forbidden sequences.
    pub(super) fn process_sequences(&self, logits: &mut [f32], text: TextContext<'_>) {
        let TextContext { tokens, source, .. } = text;
        for (sequence, bias) in &self.sequence_bias {
            completed_by(tokens, sequence).into_iter().for_each(|token| change(logits, token, |l| l + bias));
        }
        penalize(logits, source, 1.0 / self.encoder_repetition_penalty);
        penalize(logits, tokens, self.repetition_penalty);
        forbid(logits, followers(tokens, tokens, self.no_repeat_ngram_size));
        forbid(logits, followers(source, tokens, self.encoder_no_repeat_ngram_size));
        let is_end = |sequence: &[i64]| matches!(sequence, [token] if self.eos_token_ids.contains(token));
        let words = self.bad_words_ids.iter().filter(|sequence| !is_end(sequence));
        forbid(logits, words.filter_map(|sequence| completed_by(tokens, sequence)));
    }

    /// Ends, first tokens, and tokens that are never chosen.
    pub(super) fn process_ends(&self, logits: &mut [f32], text: TextContext<'_>) {
        let (length, new) = (text.tokens.len(), text.tokens.len().saturating_sub(text.prompt));
        if length < self.min_length || new < self.min_new_tokens {
            forbid(logits, self.eos_token_ids.iter().copied());
        }
        if length == 1 {
            force(logits, self.forced_bos_token_id.as_slice());
        }
        if new + 1 == self.max_new_tokens {
            force(logits, &self.forced_eos_token_ids);
        }
        if self.remove_invalid_values {
            let valid = |l: f32| if l.is_nan() { 0.0 } else { l.clamp(f32::MIN, f32::MAX) };
            logits.iter_mut().for_each(|logit| *logit = valid(*logit));
        }
        if let Some((start, factor)) = self.exponential_decay_length_penalty
            && new > start
        {
            let growth = libm::pow(factor.into(), (new - start) as f64) as f32 - 1.0;
            let grown = |l: f32| if l.is_finite() { l + l.abs() * growth } else { l };
            self.eos_token_ids.iter().for_each(|token| change(logits, *token, grown));
        }
        forbid(logits, self.suppress_tokens.iter().copied());
        // A forced first token is no new one.
        let is_forced = text.prompt == 1 && self.forced_bos_token_id.is_some();
        if new == usize::from(is_forced) {
            forbid(logits, self.begin_suppress_tokens.iter().copied());
        }
    }
}

/// Changes the logit of a token, if the model has it.
fn change(logits: &mut [f32], token: i64, change: impl Fn(f32) -> f32) {
    if let Some(logit) = usize::try_from(token).ok().and_then(|token| logits.get_mut(token)) {
        *logit = change(*logit);
    }
}

fn forbid(logits: &mut [f32], tokens: impl IntoIterator<Item = i64>) {
    tokens.into_iter().for_each(|token| change(logits, token, |_| f32::NEG_INFINITY));
}

/// Forbids all others, if there are any tokens to force.
fn force(logits: &mut [f32], tokens: &[i64]) {
    if !tokens.is_empty() {
        logits.fill(f32::NEG_INFINITY);
        tokens.iter().for_each(|token| change(logits, *token, |_| 0.0));
    }
}

fn penalize(logits: &mut [f32], tokens: &[i64], penalty: f32) {
    if penalty != 1.0 {
        let penalized = |l: f32| if l < 0.0 { l * penalty } else { l / penalty };
        let tokens: HashSet<i64> = tokens.iter().copied().collect();
        tokens.into_iter().for_each(|token| change(logits, token, penalized));
    }
}

/// The last token of a sequence, if the text ends with the tokens before it.
fn completed_by(text: &[i64], sequence: &[i64]) -> Option<i64> {
    let (last, start) = sequence.split_last()?;
    text.ends_with(start).then_some(*last)
}

/// The tokens with which the end of a text would have a sequence of `size` tokens that another text has.
fn followers(other: &[i64], text: &[i64], size: usize) -> Vec<i64> {
    if size == 0 || text.len() + 1 < size {
        return vec![];
    }
    let start = &text[text.len() + 1 - size..];
    let found = other.windows(size).filter(|window| window[..size - 1] == *start);
    found.filter_map(|window| window.last().copied()).collect()
}
