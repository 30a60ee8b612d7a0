//! What models read instead of tokens: images and sounds.

use std::{
    fs,
    path::{Path, PathBuf},
};

use autobwd::{Result, Tensor};

use crate::FeatureExtractor;
#[cfg(feature = "images")]
use crate::ImageProcessor;

/// What a model reads instead of tokens. Files are decoded when a step needs them: they are not in memory together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Features {
    /// Float32, without a dimension for the batch: pixels `[channels, height, width]`, or `[bands, columns]` of a
    /// spectrogram.
    Tensor(Tensor),
    /// The pixels of an image.
    #[cfg(feature = "images")]
    Image(PathBuf, ImageProcessor),
    /// The spectrogram of a sound in a file of WAV.
    Sound(PathBuf, FeatureExtractor),
}

impl Features {
    /// The dimensions of the numbers.
    pub fn dims(&self) -> Vec<usize> {
        match self {
            Features::Tensor(tensor) => tensor.dims().to_vec(),
            #[cfg(feature = "images")]
            Features::Image(_, processor) => processor.dims().to_vec(),
            Features::Sound(_, extractor) => extractor.dims().to_vec(),
        }
    }

    /// The numbers, float32, of [these dimensions](Features::dims), perhaps after a first one of 1.
    ///
    /// # Errors
    /// Files that cannot be read, as by [`FeatureExtractor::read_wav`].
    pub fn read(&self) -> Result<Tensor> {
        match self {
            Features::Tensor(tensor) => Ok(tensor.clone()),
            #[cfg(feature = "images")]
            Features::Image(path, processor) => processor.pixel_values(path),
            Features::Sound(path, extractor) => extractor.read_wav(path),
        }
    }

    /// What tells a data set from another: elements, or the name of a file and its size.
    pub(super) fn mark(&self) -> Vec<u8> {
        let of_file = |path: &Path| {
            let size = fs::metadata(path).map_or(0, |file| file.len());
            [path.as_os_str().as_encoded_bytes(), &size.to_le_bytes()].concat()
        };
        match self {
            Features::Tensor(tensor) => tensor.bytes().to_vec(),
            #[cfg(feature = "images")]
            Features::Image(path, _) => of_file(path),
            Features::Sound(path, _) => of_file(path),
        }
    }
}
