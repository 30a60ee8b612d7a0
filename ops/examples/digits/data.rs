//! The data set: reading, splitting, batches.

use std::error::Error;

use autobwd::{DType, Meta, Tensor};
use flate2::read::GzDecoder;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

/// Pixels along each side of an image.
pub(crate) const SIDE: usize = 8;
/// Pixels of an image.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// Maximum value of a pixel.
pub(crate) const INK: u8 = 16;

/// A handwritten digit.
pub(crate) struct Image {
    /// Row by row, 0 to [`INK`].
    pub(crate) pixels: [u8; PIXELS],
    /// The digit that it shows.
    pub(crate) label: i64,
}

/// All images, in the order of the file.
pub(crate) fn read() -> Result<Vec<Image>, Box<dyn Error>> {
    let file = GzDecoder::new(&include_bytes!("../data/digits.csv.gz")[..]);
    let mut images = vec![];
    for row in csv::ReaderBuilder::new().has_headers(false).from_reader(file).into_deserialize() {
        let row: Vec<u8> = row?;
        let (pixels, label) = row.split_at(PIXELS);
        images.push(Image { pixels: pixels.try_into()?, label: label[0].into() });
    }
    Ok(images)
}

/// Shuffles images and splits off the first `count` of them.
pub(crate) fn split(mut images: Vec<Image>, count: usize, rng: &mut Pcg64Mcg) -> (Vec<Image>, Vec<Image>) {
    images.shuffle(rng);
    let rest = images.split_off(count);
    (images, rest)
}

/// Images as inputs of the network.
pub(crate) struct Batch {
    /// `[n, PIXELS]`, float32, 0 to 1.
    pub(crate) pixels: Tensor,
    /// `[n, 1]`, int64.
    pub(crate) labels: Tensor,
}

impl Batch {
    /// A batch of `n` images, filled with zeros.
    pub(crate) fn zeros(n: usize) -> autobwd::Result<Batch> {
        Ok(Batch {
            pixels: Tensor::zeros(DType::F32, &[n, PIXELS])?,
            labels: Tensor::zeros(DType::I64, &[n, 1])?,
        })
    }

    /// Dtypes and shapes of what a training step takes.
    pub(crate) fn feeds(&self) -> [(&'static str, Meta); 2] {
        [("pixels", self.pixels.meta()), ("label", self.labels.meta())]
    }

    /// A batch of these images.
    pub(crate) fn of(images: &[Image]) -> autobwd::Result<Batch> {
        let mut batch = Batch::zeros(images.len())?;
        batch.fill(images)?;
        Ok(batch)
    }

    /// Replaces the contents by the same number of other images.
    pub(crate) fn fill(&mut self, images: &[Image]) -> autobwd::Result<()> {
        let pixels = images.iter().flat_map(|image| image.pixels);
        for (to, pixel) in self.pixels.slice_mut::<f32>()?.iter_mut().zip(pixels) {
            *to = f32::from(pixel) / f32::from(INK);
        }
        for (to, image) in self.labels.slice_mut::<i64>()?.iter_mut().zip(images) {
            *to = image.label;
        }
        Ok(())
    }
}
