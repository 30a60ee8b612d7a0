//! Processors of logits, compared with those of transformers.

use autobwd::{Result, Tensor, tensor::load_tensors};
use autobwd_models::{GenerationOptions, TextContext};

use crate::{find, folder};

const INFINITY: f32 = f32::INFINITY;
const LOGITS: [f32; 5] = [1.0, -1.0, 2.0, 0.5, -2.0];

fn tensors() -> Result<Vec<(String, Tensor)>> {
    load_tensors(folder("_generation").join("processors.safetensors"))
}

/// Whether rows of logits are after processing what transformers has found.
fn is_equal(tensors: &[(String, Tensor)], name: &str, options: &GenerationOptions) -> Result<bool> {
    let tensor = |name: &str| find(tensors, name).unwrap_or_else(|| panic!("{name}"));
    let (text, logits, expected) = (tensor("input_ids"), tensor("logits"), tensor(name));
    let (length, words) = (text.dims()[1], logits.dims()[1]);
    let mut found = logits.slice::<f32>()?.to_vec();
    for (tokens, logits) in text.slice::<i64>()?.chunks(length).zip(found.chunks_mut(words)) {
        options.process(logits, TextContext { tokens, prompt: 5, source: &[] });
    }
    let mut pairs = found.iter().zip(expected.slice::<f32>()?);
    Ok(pairs.all(|(found, expected)| found == expected || (found - expected).abs() < 1e-5))
}

/// Adds an option.
type Change = fn(&mut GenerationOptions);

/// Options without an effect.
fn plain() -> GenerationOptions {
    GenerationOptions { top_k: 0, ..GenerationOptions::default() }
}

#[test]
fn processors_alone_are_those_of_transformers() -> Result<()> {
    let (plain, tensors) = (plain(), tensors()?);
    let drawn = GenerationOptions { do_sample: true, ..plain.clone() };
    let bad_words_ids = vec![vec![5, 6], vec![8]];
    let eos_token_ids = vec![2, 3];
    let cases = [
        ("bad_words", GenerationOptions { bad_words_ids, ..plain.clone() }),
        ("epsilon_0.02", GenerationOptions { epsilon_cutoff: 0.02, ..drawn.clone() }),
        ("eta_0.02", GenerationOptions { eta_cutoff: 0.02, ..drawn.clone() }),
        ("min_new_tokens", GenerationOptions { min_new_tokens: 4, eos_token_ids, ..plain.clone() }),
        ("min_p_0.1", GenerationOptions { min_p: 0.1, ..drawn.clone() }),
        ("no_repeat_ngram_2", GenerationOptions { no_repeat_ngram_size: 2, ..plain.clone() }),
        ("repetition_1.3", GenerationOptions { repetition_penalty: 1.3, ..plain.clone() }),
        ("suppress", GenerationOptions { suppress_tokens: vec![0, 11], ..plain.clone() }),
        ("temperature_0.7", GenerationOptions { temperature: 0.7, ..drawn.clone() }),
        ("top_k_5", GenerationOptions { top_k: 5, ..drawn.clone() }),
        ("top_p_0.8", GenerationOptions { top_p: 0.8, ..drawn.clone() }),
        ("typical_p_0.9", GenerationOptions { typical_p: 0.9, ..drawn.clone() }),
    ];
    let recorded = tensors.iter().filter_map(|(name, _)| name.strip_prefix("single."));
    assert_eq!(recorded.collect::<Vec<_>>(), cases.each_ref().map(|(name, _)| *name));
    for (name, options) in &cases {
        assert!(is_equal(&tensors, &format!("single.{name}"), options)?, "{name}");
        assert!(!is_equal(&tensors, &format!("single.{name}"), &plain)?, "{name} has no effect");
    }
    Ok(())
}

#[test]
fn chain_of_processors_is_that_of_transformers() -> Result<()> {
    let (mut options, tensors) = (plain(), tensors()?);
    let add: [(&str, Change); 12] = [
        ("00.RepetitionPenaltyLogitsProcessor", |options| options.repetition_penalty = 1.2),
        ("01.NoRepeatNGramLogitsProcessor", |options| options.no_repeat_ngram_size = 2),
        ("02.NoBadWordsLogitsProcessor", |options| options.bad_words_ids = vec![vec![8]]),
        ("03.MinNewTokensLengthLogitsProcessor", |options| {
            (options.min_new_tokens, options.eos_token_ids) = (4, vec![2, 3]);
        }),
        ("04.SuppressTokensLogitsProcessor", |options| options.suppress_tokens = vec![0]),
        ("05.TemperatureLogitsWarper", |options| (options.do_sample, options.temperature) = (true, 0.7)),
        ("06.TopKLogitsWarper", |options| options.top_k = 12),
        ("07.TopPLogitsWarper", |options| options.top_p = 0.9),
        ("08.MinPLogitsWarper", |options| options.min_p = 0.02),
        ("09.TypicalLogitsWarper", |options| options.typical_p = 0.95),
        ("10.EpsilonLogitsWarper", |options| options.epsilon_cutoff = 0.001),
        ("11.LogitNormalization", |options| options.renormalize_logits = true),
    ];
    let recorded = tensors.iter().filter_map(|(name, _)| name.strip_prefix("chain."));
    assert_eq!(recorded.collect::<Vec<_>>(), add.map(|(name, _)| name));
    for (name, add) in add {
        add(&mut options);
        assert!(is_equal(&tensors, &format!("chain.{name}"), &options)?, "{name}");
    }
    Ok(())
}

/// Logits of five tokens after processing, for a text with one given token and this source of an encoder.
fn processed(options: &GenerationOptions, tokens: &[i64]) -> [f32; 5] {
    let mut logits = LOGITS;
    options.process(&mut logits, TextContext { tokens, prompt: 1, source: &[4, 0, 1] });
    logits
}

// The values of the following tests are those of transformers' classes.

#[test]
fn sequences_bias_and_forbid_tokens() {
    let sequence_bias = vec![(vec![2], 3.0), (vec![4, 3], -1.0)];
    let biased = GenerationOptions { sequence_bias, ..plain() };
    assert_eq!(processed(&biased, &[1, 4]), [1.0, -1.0, 5.0, -0.5, -2.0]);
    assert_eq!(processed(&biased, &[4, 1]), [1.0, -1.0, 5.0, 0.5, -2.0]);
    let raised = GenerationOptions { encoder_repetition_penalty: 2.0, ..plain() };
    assert_eq!(processed(&raised, &[1]), [2.0, -0.5, 2.0, 0.5, -1.0]);
    let unlike = GenerationOptions { encoder_no_repeat_ngram_size: 2, ..plain() };
    assert_eq!(processed(&unlike, &[1, 0]), [1.0, -INFINITY, 2.0, 0.5, -2.0]);
    // An end is no forbidden word.
    let bad_words_ids = vec![vec![2], vec![0], vec![1, 2]];
    let words = GenerationOptions { bad_words_ids, eos_token_ids: vec![2], ..plain() };
    assert_eq!(processed(&words, &[3]), [-INFINITY, -1.0, 2.0, 0.5, -2.0]);
    assert_eq!(processed(&words, &[1]), [-INFINITY, -1.0, -INFINITY, 0.5, -2.0]);
}

#[test]
fn first_and_last_tokens_are_forced_and_forbidden() {
    let ends = GenerationOptions { eos_token_ids: vec![2], ..plain() };
    let long = GenerationOptions { min_length: 3, ..ends.clone() };
    assert_eq!(processed(&long, &[1, 1]), [1.0, -1.0, -INFINITY, 0.5, -2.0]);
    assert_eq!(processed(&long, &[1, 1, 1]), LOGITS);
    let first = GenerationOptions { forced_bos_token_id: Some(3), ..plain() };
    assert_eq!(processed(&first, &[1]), [-INFINITY, -INFINITY, -INFINITY, 0.0, -INFINITY]);
    assert_eq!(processed(&first, &[1, 1]), LOGITS);
    let last = GenerationOptions { forced_eos_token_ids: vec![2, 4], max_new_tokens: 2, ..plain() };
    assert_eq!(processed(&last, &[1]), LOGITS);
    assert_eq!(processed(&last, &[1, 1]), [-INFINITY, -INFINITY, 0.0, -INFINITY, 0.0]);
    let decaying = GenerationOptions { exponential_decay_length_penalty: Some((1, 1.5)), ..ends };
    assert_eq!(processed(&decaying, &[1, 1]), LOGITS);
    assert_eq!(processed(&decaying, &[1, 1, 1, 1]), [1.0, -1.0, 4.5, 0.5, -2.0]);
    let begins = GenerationOptions { begin_suppress_tokens: vec![0], ..plain() };
    assert_eq!(processed(&begins, &[1]), [-INFINITY, -1.0, 2.0, 0.5, -2.0]);
    assert_eq!(processed(&begins, &[1, 1]), LOGITS);
    let both = GenerationOptions { forced_bos_token_id: Some(3), ..begins };
    assert_eq!(processed(&both, &[1, 3]), [-INFINITY, -1.0, 2.0, 0.5, -2.0]);
}

#[test]
fn most_entropy_and_valid_values_are_kept() {
    for (share, kept) in [(0.6, [2].as_slice()), (0.9, &[0, 2, 3])] {
        let drawn = GenerationOptions { do_sample: true, top_h: Some(share), ..plain() };
        let found = processed(&drawn, &[1]);
        let finite: Vec<usize> = (0..5).filter(|token| found[*token].is_finite()).collect();
        assert_eq!(finite, kept, "{share}");
    }
    let valid = GenerationOptions { remove_invalid_values: true, ..plain() };
    let mut logits = [f32::NAN, INFINITY, -INFINITY];
    valid.process(&mut logits, TextContext { tokens: &[0], prompt: 1, source: &[] });
    assert_eq!(logits, [0.0, f32::MAX, f32::MIN]);
}

#[test]
fn draws_are_by_probability() {
    let logits = [0.0, -INFINITY, libm::logf(3.0)];
    let drawn = GenerationOptions { do_sample: true, ..GenerationOptions::default() };
    let counts = (0..1000).fold([0; 3], |mut counts, i| {
        counts[drawn.choose(&logits, (f64::from(i) + 0.5) / 1000.0)] += 1;
        counts
    });
    assert_eq!(counts, [250, 0, 750]);
    assert_eq!(GenerationOptions::default().choose(&logits, 0.1), 2);
}
