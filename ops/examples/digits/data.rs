//! The data set: reading, splitting, inputs of the network.

use std::error::Error;

use autobwd::{DType, Meta, Tensor};
use autobwd_data::TensorDataset;
use flate2::read::GzDecoder;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

/// Pixels along each side of an image.
pub(crate) const SIDE: usize = 8;
/// Pixels of an image.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// Maximum value of a pixel.
pub(crate) const INK: u8 = 16;

/// Number of training images; the others are for the test.
pub(crate) const TRAINING: usize = 1437;

/// A handwritten digit.
#[derive(Debug)]
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

/// Images as inputs of the network: `pixels`, float32 `[n, PIXELS]`, 0 to 1, and `label`, int64 `[n, 1]`.
pub(crate) fn dataset(images: &[Image]) -> autobwd::Result<TensorDataset> {
    let labels = images.iter().map(|image| image.label).collect();
    TensorDataset::new([
        ("pixels", pixels(images.iter().flat_map(|image| image.pixels))?),
        ("label", Tensor::from_vec([images.len(), 1], labels)?),
    ])
}

/// Pixels of images, one image after the other, as the input `pixels`.
pub(crate) fn pixels(pixels: impl Iterator<Item = u8>) -> autobwd::Result<Tensor> {
    let values: Vec<f32> = pixels.map(|pixel| f32::from(pixel) / f32::from(INK)).collect();
    Tensor::from_vec([values.len() / PIXELS, PIXELS], values)
}

/// Dtypes and shapes of the inputs for `n` images.
pub(crate) fn feeds(n: usize) -> [(&'static str, Meta); 2] {
    [("pixels", Meta::new(DType::F32, [n, PIXELS])), ("label", Meta::new(DType::I64, [n, 1]))]
}
