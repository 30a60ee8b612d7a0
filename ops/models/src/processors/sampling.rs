//! Processors of logits from which tokens are drawn: temperature, and the improbable tokens that are left out.

use crate::GenerationOptions;

/// The number of the most probable tokens that `top_h` goes by.
const MOST_PROBABLE: usize = 100;

impl GenerationOptions {
    pub(super) fn process_draws(&self, logits: &mut [f32]) {
        if self.temperature != 1.0 {
            logits.iter_mut().for_each(|logit| *logit /= self.temperature);
        }
        if let Some(share) = self.top_h {
            keep_top_h(logits, share.into());
        }
        keep_top_k(logits, self.top_k);
        if self.top_p < 1.0 {
            keep_top_p(logits, self.top_p.into());
        }
        if self.min_p > 0.0 {
            let probabilities = probabilities(logits);
            let most = probabilities.iter().copied().fold(0.0, f64::max);
            keep_above(logits, &probabilities, f64::from(self.min_p) * most);
        }
        if self.typical_p < 1.0 {
            keep_typical(logits, self.typical_p.into());
        }
        if self.epsilon_cutoff > 0.0 {
            let probabilities = probabilities(logits);
            keep_above(logits, &probabilities, self.epsilon_cutoff.into());
        }
        if self.eta_cutoff > 0.0 {
            let probabilities = probabilities(logits);
            let (eta, entropy) = (f64::from(self.eta_cutoff), entropy(&probabilities));
            keep_above(logits, &probabilities, eta.min(eta.sqrt() * libm::exp(-entropy)));
        }
    }
}

/// Probabilities, which add up to 1 but for rounding.
pub(super) fn probabilities(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> =
        logits.iter().map(|logit| libm::exp(f64::from(*logit) - f64::from(most))).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The logarithms of probabilities.
pub(super) fn normalize(logits: &mut [f32]) {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| libm::exp(f64::from(*logit) - most)).sum();
    let log_sum = most + libm::log(sum);
    logits.iter_mut().for_each(|logit| *logit = (f64::from(*logit) - log_sum) as f32);
}

/// `-p · log p`, the part of a token in the entropy.
fn entropy_term(probability: f64) -> f64 {
    if probability > 0.0 { -probability * libm::log(probability) } else { 0.0 }
}

fn entropy(probabilities: &[f64]) -> f64 {
    probabilities.iter().copied().map(entropy_term).sum()
}

/// The tokens by their logits, the largest first.
fn by_logit(logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order
}

/// Keeps tokens that are at least as probable as that, and the most probable ones.
fn keep_above(logits: &mut [f32], probabilities: &[f64], least: f64) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for (logit, probability) in logits.iter_mut().zip(probabilities) {
        if *probability < least && *logit < most {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn keep_top_h(logits: &mut [f32], share: f64) {
    let order = by_logit(logits);
    let most: Vec<f32> = order.iter().take(MOST_PROBABLE).map(|token| logits[*token]).collect();
    let probabilities = probabilities(&most);
    let limit = share * entropy(&probabilities);
    let mut sum = 0.0;
    for (place, token) in order.into_iter().enumerate() {
        sum += probabilities.get(place).map_or(f64::INFINITY, |p| entropy_term(*p));
        // The most probable one stays.
        if place > 0 && sum > limit {
            logits[token] = f32::NEG_INFINITY;
        }
    }
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

fn keep_top_p(logits: &mut [f32], share: f64) {
    let probabilities = probabilities(logits);
    let mut sum = 0.0;
    // From the least probable one; the most probable one stays.
    for token in by_logit(logits).into_iter().skip(1).rev() {
        sum += probabilities[token];
        if sum > 1.0 - share {
            return;
        }
        logits[token] = f32::NEG_INFINITY;
    }
}

fn keep_typical(logits: &mut [f32], share: f64) {
    let probabilities = probabilities(logits);
    let entropy = entropy(&probabilities);
    let distances: Vec<f64> = probabilities.iter().map(|p| (-libm::log(*p) - entropy).abs()).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| distances[*a].total_cmp(&distances[*b]));
    let mut sum = 0.0;
    let last = order.iter().position(|token| {
        sum += probabilities[*token];
        sum >= share
    });
    let Some(limit) = last.map(|last| distances[order[last]]) else { return };
    for (logit, distance) in logits.iter_mut().zip(distances) {
        if distance > limit {
            *logit = f32::NEG_INFINITY;
        }
    }
}
