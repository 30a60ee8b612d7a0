//! What changes the logits of the next token before it is chosen: the processors of transformers, in its order.

use std::collections::HashSet;

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
    /// Logits of tokens that the text has, prompt included, are divided by this number if they are positive, and
    /// multiplied by it otherwise; 1 for no change (Keskar et al., 2019).
    pub repetition_penalty: f32,
    /// No sequence of so many tokens comes twice, prompt included; 0 for no limit.
    pub no_repeat_ngram_size: usize,
    /// The number of new tokens before which no token of `eos_token_ids` is chosen.
    pub min_new_tokens: usize,
    /// Tokens that are not chosen.
    pub suppress_tokens: Vec<i64>,
    /// Whether tokens are drawn by their probabilities; otherwise, the most probable one is taken, the first of several.
    pub do_sample: bool,
    /// The divisor of logits, if tokens are drawn.
    pub temperature: f32,
    /// Only so many of the most probable tokens are drawn, more if the last ones are equal; 0 for all.
    pub top_k: usize,
    /// Of the most probable tokens, those that are needed for this probability are drawn from (Holtzman et al., 2020).
    pub top_p: f32,
    /// The probability of a token that is drawn, at least, in relation to the most probable one; 0 for any.
    pub min_p: f32,
    /// What draws depend on, besides the prompt.
    pub seed: u64,
}

impl Default for GenerationOptions {
    /// The most probable of all tokens, 20 times.
    fn default() -> GenerationOptions {
        GenerationOptions {
            max_new_tokens: 20,
            eos_token_ids: vec![],
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            min_new_tokens: 0,
            suppress_tokens: vec![],
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl GenerationOptions {
    /// # Errors
    /// An option out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |name: &str, value: f32, is_right: bool| match is_right {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Attr, format!("`{name}` is {value}, out of its range"))),
        };
        let GenerationOptions { repetition_penalty, temperature, top_p, min_p, .. } = *self;
        let is_positive = |value: f32| value > 0.0 && value.is_finite();
        within("repetition_penalty", repetition_penalty, is_positive(repetition_penalty))?;
        within("temperature", temperature, is_positive(temperature))?;
        within("top_p", top_p, top_p > 0.0 && top_p <= 1.0)?;
        within("min_p", min_p, (0.0..=1.0).contains(&min_p))
    }

    /// Changes the logits that follow a text, whose first `prompt` tokens were given.
    pub(crate) fn process(&self, logits: &mut [f32], text: &[i64], prompt: usize) {
        if self.repetition_penalty != 1.0 {
            penalize_repetition(logits, text, self.repetition_penalty);
        }
        forbid(logits, repeated_ngrams(text, self.no_repeat_ngram_size));
        if text.len() - prompt < self.min_new_tokens {
            forbid(logits, self.eos_token_ids.iter().copied());
        }
        forbid(logits, self.suppress_tokens.iter().copied());
        if self.do_sample {
            if self.temperature != 1.0 {
                logits.iter_mut().for_each(|logit| *logit /= self.temperature);
            }
            keep_top_k(logits, self.top_k);
            keep_top_p(logits, self.top_p);
            keep_min_p(logits, self.min_p);
        }
    }

    /// The token that is chosen: the most probable one, or the one at `at`, from 0 to 1, of the sum of probabilities.
    pub(crate) fn choose(&self, logits: &[f32], at: f64) -> usize {
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        if !self.do_sample {
            return best;
        }
        let probabilities = probabilities(logits);
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

/// Probabilities, which add up to 1 but for rounding.
fn probabilities(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> =
        logits.iter().map(|logit| libm::exp(f64::from(*logit) - f64::from(most))).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn forbid(logits: &mut [f32], tokens: impl IntoIterator<Item = i64>) {
    for token in tokens {
        if let Some(logit) = usize::try_from(token).ok().and_then(|token| logits.get_mut(token)) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn penalize_repetition(logits: &mut [f32], text: &[i64], penalty: f32) {
    for token in text.iter().copied().collect::<HashSet<_>>() {
        if let Some(logit) = usize::try_from(token).ok().and_then(|token| logits.get_mut(token)) {
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// The tokens that would complete a sequence of `size` tokens which the text has.
fn repeated_ngrams(text: &[i64], size: usize) -> Vec<i64> {
    if size == 0 || text.len() < size {
        return vec![];
    }
    let start = &text[text.len() + 1 - size..];
    let followers = text.windows(size).filter(|window| window[..size - 1] == *start);
    followers.filter_map(|window| window.last().copied()).collect()
}

fn keep_top_k(logits: &mut [f32], count: usize) {
    if count == 0 || count >= logits.len() {
        return;
    }
    let mut sorted = logits.to_vec();
    let (_, least, _) = sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    let least = *least;
    logits.iter_mut().filter(|logit| **logit < least).for_each(|logit| *logit = f32::NEG_INFINITY);
}

fn keep_top_p(logits: &mut [f32], share: f32) {
    if share >= 1.0 {
        return;
    }
    let probabilities = probabilities(logits);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let mut sum = 0.0;
    // The best one stays.
    for token in &order[..order.len().saturating_sub(1)] {
        sum += probabilities[*token];
        if sum > 1.0 - f64::from(share) {
            return;
        }
        logits[*token] = f32::NEG_INFINITY;
    }
}

fn keep_min_p(logits: &mut [f32], share: f32) {
    if share <= 0.0 {
        return;
    }
    let probabilities = probabilities(logits);
    let least = f64::from(share) * probabilities.iter().copied().fold(0.0, f64::max);
    for (logit, probability) in logits.iter_mut().zip(probabilities) {
        if probability < least {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use autobwd::{Result, Tensor, tensor::load_tensors};

    use super::GenerationOptions;

    fn tensors() -> Result<Vec<(String, Tensor)>> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/_generation/processors.safetensors");
        load_tensors(file)
    }

    /// Rows of logits after processing, and what transformers has found.
    fn compared(name: &str, options: &GenerationOptions) -> Result<()> {
        let tensors = tensors()?;
        let find = |name: &str| &tensors.iter().find(|(known, _)| known == name).expect(name).1;
        let (text, logits, expected) = (find("input_ids"), find("logits"), find(name));
        let (length, words) = (text.dims()[1], logits.dims()[1]);
        for (row, text) in text.slice::<i64>()?.chunks(length).enumerate() {
            let mut found = logits.slice::<f32>()?[row * words..][..words].to_vec();
            options.process(&mut found, text, 5);
            for (found, expected) in found.iter().zip(&expected.slice::<f32>()?[row * words..]) {
                let same = found == expected || (found - expected).abs() < 1e-5;
                assert!(same, "{name}: {found} for {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn processors_are_those_of_transformers() -> Result<()> {
        let plain = GenerationOptions { top_k: 0, ..GenerationOptions::default() };
        let drawn = GenerationOptions { do_sample: true, ..plain.clone() };
        let eos_token_ids = vec![2, 3];
        let suppress_tokens = vec![0];
        for (name, options) in [
            ("repetition_1.3", GenerationOptions { repetition_penalty: 1.3, ..plain.clone() }),
            ("no_repeat_ngram_2", GenerationOptions { no_repeat_ngram_size: 2, ..plain.clone() }),
            ("min_new_tokens", GenerationOptions { min_new_tokens: 4, eos_token_ids, ..plain.clone() }),
            ("temperature_0.7", GenerationOptions { temperature: 0.7, ..drawn.clone() }),
            ("top_k_5", GenerationOptions { top_k: 5, ..drawn.clone() }),
            ("top_p_0.8", GenerationOptions { top_p: 0.8, ..drawn.clone() }),
            ("min_p_0.1", GenerationOptions { min_p: 0.1, ..drawn.clone() }),
        ] {
            compared(&format!("single.{name}"), &options)?;
        }
        // The chain, up to what there is. The fixture forbids one more token, as another processor does.
        let mut options = GenerationOptions { repetition_penalty: 1.2, ..plain.clone() };
        compared("chain.00.RepetitionPenaltyLogitsProcessor", &options)?;
        options.no_repeat_ngram_size = 2;
        compared("chain.01.NoRepeatNGramLogitsProcessor", &options)?;
        options.suppress_tokens = vec![8];
        compared("chain.02.NoBadWordsLogitsProcessor", &options)?;
        options = GenerationOptions { min_new_tokens: 4, eos_token_ids: vec![2, 3], ..options };
        compared("chain.03.MinNewTokensLengthLogitsProcessor", &options)?;
        options.suppress_tokens.extend(suppress_tokens);
        compared("chain.04.SuppressTokensLogitsProcessor", &options)?;
        options = GenerationOptions { do_sample: true, temperature: 0.7, ..options };
        compared("chain.05.TemperatureLogitsWarper", &options)?;
        options.top_k = 12;
        compared("chain.06.TopKLogitsWarper", &options)?;
        options.top_p = 0.9;
        compared("chain.07.TopPLogitsWarper", &options)?;
        options.min_p = 0.02;
        compared("chain.08.MinPLogitsWarper", &options)
    }

    #[test]
    fn draws_are_by_probability() {
        let logits = [0.0, f32::NEG_INFINITY, libm::logf(3.0)];
        let drawn = GenerationOptions { do_sample: true, ..GenerationOptions::default() };
        let counts = (0..1000).fold([0; 3], |mut counts, i| {
            counts[drawn.choose(&logits, (f64::from(i) + 0.5) / 1000.0)] += 1;
            counts
        });
        assert_eq!(counts, [250, 0, 750]);
        assert_eq!(GenerationOptions::default().choose(&logits, 0.1), 2);
    }
}
