//! Sounds in files of WAV.

use std::{io::BufReader, path::Path};

use autobwd::{Error, ErrorKind, Result, Tensor};
use autobwd_core::tensor::open_file;
use hound::{SampleFormat, WavReader};

use crate::{FeatureExtractor, file::refused};

/// The largest file, in bytes.
const LARGEST_FILE: u64 = 1 << 30;

impl FeatureExtractor {
    /// The [`log_mel_spectrogram`](FeatureExtractor::log_mel_spectrogram) of a file of WAV, float32 `[1, bands, columns]`:
    /// integers of 8 to 32 bits or float32. The mean of its channels is read.
    ///
    /// # Errors
    /// Files that cannot be read or are no WAV; another sampling rate than the model's; sounds that are longer than what
    /// the model reads.
    pub fn read_wav(&self, path: impl AsRef<Path>) -> Result<Tensor> {
        let path = path.as_ref();
        let wrong = |e: hound::Error| refused(path, format!("no sound of WAV: {e}")).caused_by(e);
        let reader = WavReader::new(BufReader::new(open_file(path, LARGEST_FILE)?)).map_err(wrong)?;
        let (spec, length) = (reader.spec(), reader.duration() as usize);
        let (rate, longest) = (self.sampling_rate(), self.samples());
        if spec.sample_rate as usize != rate {
            let text = format!("its sampling rate is {} Hz, not {rate}: resample it", spec.sample_rate);
            return Err(refused(path, text));
        }
        if length > longest {
            let [length, longest] = [length, longest].map(|samples| samples as f64 / rate as f64);
            let text = format!("{length:.2} s are more than the {longest} s that the model reads: cut it");
            return Err(refused(path, text));
        }
        let (channels, bits) = (usize::from(spec.channels), spec.bits_per_sample);
        let samples: std::result::Result<Vec<f32>, hound::Error> = match spec.sample_format {
            SampleFormat::Float => reader.into_samples::<f32>().collect(),
            SampleFormat::Int => {
                let full = (1_u64 << (bits.clamp(1, 32) - 1)) as f32;
                reader.into_samples::<i32>().map(|sample| Ok(sample? as f32 / full)).collect()
            }
        };
        let samples = samples.map_err(wrong)?;
        let mean = |frame: &[f32]| frame.iter().sum::<f32>() / channels as f32;
        let mono: Vec<f32> = samples.chunks(channels.max(1)).map(mean).collect();
        self.log_mel_spectrogram(&mono).map_err(|e: Error| {
            Error::new(ErrorKind::Data, format!("`{}`: {}", path.display(), e.message())).caused_by(e)
        })
    }
}
