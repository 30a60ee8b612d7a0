//! Pixels of image files.

use std::{
    io::{self, BufReader},
    path::Path,
};

use autobwd_core::{Error, ErrorKind, Result, Tensor, tensor::open_file};
use image::{DynamicImage, ImageReader, Limits, imageops::FilterType};

/// The largest height and width, of a file and of its result.
const MAX_SIDE: usize = 1 << 15;
/// The limit of a file, and of the memory for decoding it, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Decodes images of PNG and JPEG to one size.
///
/// ```no_run
/// use autobwd_data::ImageDecoder;
///
/// let pixels = ImageDecoder::new(224, 224)?.decode("cat.jpg")?;
/// assert_eq!(pixels.dims(), [3, 224, 224]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDecoder {
    height: usize,
    width: usize,
    is_gray: bool,
}

impl ImageDecoder {
    /// Resizes images to this height and width in pixels, by a triangle that covers all pixels which are merged.
    ///
    /// # Errors
    /// A height or width of 0 or above 32,768.
    pub fn new(height: usize, width: usize) -> Result<ImageDecoder> {
        match [height, width].into_iter().all(|side| (1..=MAX_SIDE).contains(&side)) {
            true => Ok(ImageDecoder { height, width, is_gray: false }),
            false => {
                let text = format!("images of {height} x {width}: sides are from 1 to {MAX_SIDE}");
                Err(Error::new(ErrorKind::Shape, text))
            }
        }
    }

    /// One channel of brightness instead of red, green and blue.
    #[must_use]
    pub fn gray(self) -> ImageDecoder {
        ImageDecoder { is_gray: true, ..self }
    }

    /// Channels, height and width of a result.
    pub fn dims(&self) -> [usize; 3] {
        [if self.is_gray { 1 } else { 3 }, self.height, self.width]
    }

    /// The pixels of a file, float32 `[channels, height, width]`, 0 to 1. Transparency is ignored.
    ///
    /// # Errors
    /// Files that cannot be read or are no images; images whose sides are above 32,768 pixels, or that take more than a
    /// gibibyte.
    pub fn decode(&self, path: impl AsRef<Path>) -> Result<Tensor> {
        let samples = self.samples(path.as_ref())?;
        let [channels, height, width] = self.dims();
        let plane = height * width;
        let value = |at: usize| f32::from(samples[at % plane * channels + at / plane]) / 255.0;
        Tensor::from_vec(self.dims(), (0..channels * plane).map(value).collect())
    }

    /// The samples in the order of the pixels, channels last.
    fn samples(&self, path: &Path) -> Result<Vec<u8>> {
        let file = open_file(path, MAX_BYTES)?;
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE as u32);
        limits.max_image_height = Some(MAX_SIDE as u32);
        limits.max_alloc = Some(MAX_BYTES);
        let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
        let mut reader = reader.map_err(|e| io_error(path, e))?;
        reader.limits(limits);
        let decoded = reader.decode().map_err(|e| {
            let text = format!("cannot decode the image `{}`: {e}", path.display());
            Error::new(ErrorKind::Format, text).caused_by(e)
        })?;
        let mut decoded: DynamicImage =
            if self.is_gray { decoded.to_luma8().into() } else { decoded.to_rgb8().into() };
        let (height, width) = (self.height as u32, self.width as u32);
        if (decoded.height(), decoded.width()) != (height, width) {
            decoded = decoded.resize_exact(width, height, FilterType::Triangle);
        }
        Ok(decoded.into_bytes())
    }
}

/// An error of the file system, with the path.
pub(crate) fn io_error(path: &Path, e: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read `{}`: {e}", path.display())).caused_by(e)
}
