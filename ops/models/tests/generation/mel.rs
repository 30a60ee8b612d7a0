//! Features of sounds, compared with those of transformers.

use autobwd::Result;
use autobwd_models::FeatureExtractor;

use crate::{expected, find, folder, largest_difference};

/// The sound of the fixture, whose pitch rises.
fn sound() -> Vec<f32> {
    let tau = std::f64::consts::TAU;
    let sample = |n: u32| {
        let t = f64::from(n) / 16_000.0;
        (0.5 * libm::sin(tau * 440.0 * t) + 0.25 * libm::sin(tau * (200.0 + 800.0 * t) * t)) as f32
    };
    (0..16_000).map(sample).collect()
}

#[test]
fn spectrograms_are_those_of_transformers() -> Result<()> {
    let extractor = FeatureExtractor::open(folder("whisper"))?;
    let values = expected("whisper", "x0.")?;
    let known = find(&values, "input_features").expect("features");
    let found = extractor.log_mel_spectrogram(&sound())?;
    assert_eq!(found.dims(), known.dims());
    let difference = largest_difference(found.slice::<f32>()?, known.slice::<f32>()?);
    // In 32 bits, as the file was made; the form of transformers in 64 bits differs from it by 2.19e-5 as well.
    assert!(difference < 2.2e-5, "{difference}");
    // What is too long is cut, and what is too short is continued with silence.
    let silence = vec![0.0; 3000];
    let longer = extractor.log_mel_spectrogram(&[sound(), silence.clone()].concat())?;
    assert_eq!(longer.slice::<f32>()?, found.slice::<f32>()?);
    let short = &sound()[..13_000];
    assert_eq!(
        extractor.log_mel_spectrogram(short)?.slice::<f32>()?,
        extractor.log_mel_spectrogram(&[short, &silence].concat())?.slice::<f32>()?
    );
    Ok(())
}

#[test]
fn sounds_and_settings_that_cannot_be_are_refused() -> Result<()> {
    let extractor = FeatureExtractor::open(folder("whisper"))?;
    let error = extractor.log_mel_spectrogram(&[0.0, f32::NAN]).unwrap_err().to_string();
    assert_eq!(error, "sample 1 is NaN, no finite number");
    assert_eq!(extractor.log_mel_spectrogram(&[])?.dims(), [1, 16, 100]);
    let copy = tempfile::tempdir().expect("a folder");
    let open = |text: &str| {
        std::fs::write(copy.path().join("preprocessor_config.json"), text).expect("a file");
        FeatureExtractor::open(copy.path())
    };
    assert_eq!(open("{}")?.sampling_rate(), 16_000);
    for (text, part) in [
        (r#"{"dither": 0.1}"#, "`dither` is 0.1; only 0.0 is supported"),
        (r#"{"feature_extractor_type": "ClapFeatureExtractor"}"#, "only \"WhisperFeatureExtractor\""),
        (r#"{"hop_length": 0}"#, "`hop_length` is 0, not a number from 1"),
        (r#"{"chunk_length": 16777216}"#, "are no spectrogram"),
        (r#"{"n_fft": 16777216}"#, "are too few for windows of 16777216"),
        (r#"{"feature_size": 16777216}"#, "with 16777216 bands, are no spectrogram"),
        (r#"{"hop_length": 16777216}"#, "are too few for windows"),
    ] {
        let error = open(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}
