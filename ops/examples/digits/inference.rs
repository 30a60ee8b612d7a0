//! Inference: the digits of images, and the fraction that is right.

use autobwd::Result;
use autobwd_xla::Backend;

use crate::{
    data::{self, Image},
    network::Reader,
};

impl Reader {
    /// Predicts the digits of these images, with the weights of the backend.
    pub(crate) fn read(&self, backend: &mut Backend, images: &[Image]) -> Result<Vec<i64>> {
        let pixels = data::pixels(images.iter().flat_map(|image| image.pixels))?;
        let fetched = backend.run(&self.program, &[("pixels", &pixels)], &[&self.answer])?;
        Ok(fetched[0].slice()?.to_vec())
    }

    /// The fraction of images that are classified correctly.
    pub(crate) fn accuracy(&self, backend: &mut Backend, images: &[Image]) -> Result<f64> {
        let answers = self.read(backend, images)?;
        let right = images.iter().zip(answers).filter(|(image, answer)| image.label == *answer).count();
        Ok(right as f64 / images.len() as f64)
    }
}
