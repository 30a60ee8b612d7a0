//! Mel spectrograms of sounds, as Whisper reads them.

use std::path::Path;

use autobwd::{Error, ErrorKind, Result, Tensor};
use autobwd_ops::Math;
use serde_json::json;

use crate::{config::Config, file::read_object};

/// The largest number of samples of all windows of a sound.
const LARGEST: usize = 1 << 24;

/// The highest frequency of a band, in Hz.
const HIGHEST: f64 = 8000.0;

/// Computes the features of sounds with the settings of a folder's `preprocessor_config.json`, as the class
/// `WhisperFeatureExtractor` of transformers does.
///
/// ```
/// use autobwd_models::FeatureExtractor;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/whisper");
/// let extractor = FeatureExtractor::open(folder)?;
/// let hum: Vec<f32> = (0..16_000).map(|n| (n as f32 * 0.1).sin()).collect();
/// let features = extractor.log_mel_spectrogram(&hum)?;
/// // 16 bands, 100 columns a second.
/// assert_eq!(features.dims(), [1, 16, 100]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureExtractor {
    bands: usize,
    window: usize,
    hop: usize,
    samples: usize,
    sampling_rate: usize,
}

impl FeatureExtractor {
    /// The settings of a folder: `feature_size`, `n_fft`, `hop_length`, `chunk_length` and `sampling_rate`.
    ///
    /// # Errors
    /// Files that cannot be read; one list of all keys whose values are not supported.
    pub fn open(folder: impl AsRef<Path>) -> Result<FeatureExtractor> {
        let path = folder.as_ref().join("preprocessor_config.json");
        let config = Config::new(read_object(&path)?);
        for (key, supported) in [
            ("feature_extractor_type", json!("WhisperFeatureExtractor")),
            ("dither", json!(0.0)),
            ("do_normalize", json!(false)),
            ("padding_side", json!("right")),
            ("padding_value", json!(0.0)),
        ] {
            config.require(key, &supported);
        }
        let sampling_rate = config.size("sampling_rate", 16_000);
        let extractor = FeatureExtractor {
            bands: config.size("feature_size", 80),
            window: config.size("n_fft", 400),
            hop: config.size("hop_length", 160),
            samples: config.size("chunk_length", 30).saturating_mul(sampling_rate),
            sampling_rate,
        };
        extractor.refuse_unusual_sizes(&config);
        config.require_no_obstacles(&format!("cannot read `{}`", path.display()))?;
        Ok(extractor)
    }

    fn refuse_unusual_sizes(&self, config: &Config) {
        let FeatureExtractor { bands, window, hop, samples, .. } = *self;
        let columns = samples / hop;
        let sizes =
            [columns.saturating_mul(window), window.saturating_mul(window), columns.saturating_mul(bands)];
        if sizes.into_iter().any(|size| size > LARGEST) || samples > LARGEST || bands > window {
            let text =
                format!("{columns} windows of {window} samples, with {bands} bands, are no spectrogram");
            config.refuse(text);
        }
        if columns == 0 || samples <= window || window < 2 {
            config.refuse(format!("{samples} samples are too few for windows of {window}"));
        }
    }

    /// The number of samples in a second.
    pub fn sampling_rate(&self) -> usize {
        self.sampling_rate
    }

    /// The logarithm of the power in each band of frequencies over time, float32 `[1, bands, columns]`, of samples from
    /// -1 to 1. A sound is continued with silence, or cut, to the length that the model reads.
    ///
    /// Windows are Hann's, bands are triangles on Slaney's scale, and values are at most 8 powers of ten below the largest
    /// one; they become `(x + 4) / 4` (Radford et al., 2022).
    ///
    /// # Errors
    /// Samples that are no finite numbers.
    pub fn log_mel_spectrogram(&self, samples: &[f32]) -> Result<Tensor> {
        if let Some(at) = samples.iter().position(|sample| !sample.is_finite()) {
            let text = format!("sample {at} is {}, no finite number", samples[at]);
            return Err(Error::new(ErrorKind::Attr, text));
        }
        let powers = self.band_powers(samples)?;
        let logs: Vec<f64> = powers.iter().map(|power| libm::log10(power.max(1e-10))).collect();
        let least = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max) - 8.0;
        let scaled = logs.iter().map(|x| ((x.max(least) + 4.0) / 4.0) as f32).collect();
        Tensor::from_vec([1, self.bands, self.columns()], scaled)
    }

    /// The number of samples of the longest sound that the model reads.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The number of bands and of columns of a spectrogram.
    pub fn dims(&self) -> [usize; 2] {
        [self.bands, self.columns()]
    }

    fn columns(&self) -> usize {
        self.samples / self.hop
    }

    /// The number of frequencies of a window's spectrum.
    fn frequencies(&self) -> usize {
        self.window / 2 + 1
    }

    /// The power of each band in each window, `[bands, columns]`: products with the waves of a Fourier transform, and
    /// with the bands.
    fn band_powers(&self, samples: &[f32]) -> Result<Vec<f64>> {
        let tape = autobwd::eager();
        let constant =
            |dims: [usize; 2], values| Ok::<_, Error>(tape.constant(Tensor::from_vec(dims, values)?));
        let windows = constant([self.columns(), self.window], self.windows(samples))?;
        let waves = [libm::cos, libm::sin].map(|wave| self.waves(wave));
        let [even, odd] = waves.map(|waves| {
            Ok::<_, Error>(windows.matmul(&constant([self.window, self.frequencies()], waves)?).square())
        });
        let bands = constant([self.bands, self.frequencies()], self.band_weights())?;
        let powers = bands.matmul(&(even? + odd?).transpose(&[1, 0]));
        Ok(powers.tensor()?.slice::<f64>()?.to_vec())
    }

    /// The samples around the start of each column times Hann's window, `[columns, window]`. Samples are mirrored at both
    /// ends.
    fn windows(&self, samples: &[f32]) -> Vec<f64> {
        let last = self.samples - 1;
        let sample = |place: usize| {
            let before = self.window / 2;
            let at = place.abs_diff(before);
            let at = if at > last { 2 * last - at } else { at };
            f64::from(samples.get(at).copied().unwrap_or(0.0))
        };
        let angle = |n: usize| std::f64::consts::TAU * n as f64 / self.window as f64;
        let hann: Vec<f64> = (0..self.window).map(|n| 0.5 - 0.5 * libm::cos(angle(n))).collect();
        let window = |column: usize| {
            let start = column * self.hop;
            hann.iter().enumerate().map(move |(n, weight)| sample(start + n) * weight)
        };
        (0..self.columns()).flat_map(window).collect()
    }

    /// A wave for each frequency, `[window, frequencies]`.
    fn waves(&self, wave: fn(f64) -> f64) -> Vec<f64> {
        let turn = |n: usize| wave(std::f64::consts::TAU * n as f64 / self.window as f64);
        let turns: Vec<f64> = (0..self.window).map(turn).collect();
        let row = |n: usize| (0..self.frequencies()).map(move |k| n * k % self.window);
        (0..self.window).flat_map(row).map(|at| turns[at]).collect()
    }

    /// The weight of each frequency in each band, `[bands, frequencies]`: a triangle from the center of the band before
    /// to the center of the next one, of area 1.
    fn band_weights(&self) -> Vec<f64> {
        let step = mel(HIGHEST) / (self.bands + 1) as f64;
        let edges: Vec<f64> = (0..self.bands + 2).map(|band| hertz(band as f64 * step)).collect();
        let width = (self.sampling_rate / 2) as f64 / (self.frequencies() - 1) as f64;
        let weight = |low: f64, center: f64, high: f64, f: f64| {
            let slope = ((f - low) / (center - low)).min((high - f) / (high - center));
            slope.max(0.0) * 2.0 / (high - low)
        };
        let frequencies = 0..self.frequencies();
        let band = |edges: &[f64]| {
            let [low, center, high] = [edges[0], edges[1], edges[2]];
            frequencies.clone().map(move |k| weight(low, center, high, k as f64 * width)).collect::<Vec<_>>()
        };
        edges.windows(3).flat_map(band).collect()
    }
}

/// A frequency on Slaney's scale: linear below 1000 Hz, logarithmic above.
fn mel(hertz: f64) -> f64 {
    if hertz < 1000.0 {
        3.0 * hertz / 200.0
    } else {
        15.0 + libm::log(hertz / 1000.0) * 27.0 / libm::log(6.4)
    }
}

/// The inverse of [`mel`], in Hz.
fn hertz(mel: f64) -> f64 {
    if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * libm::exp(libm::log(6.4) / 27.0 * (mel - 15.0)) }
}
