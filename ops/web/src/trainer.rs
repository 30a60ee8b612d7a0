//! The training run, one step a call.

use autobwd::{Executor, Scope, Tensor, viewer::Page};
use autobwd_data::Loader;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wasm_bindgen::prelude::wasm_bindgen;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    Failure,
    batches::{self, BATCH, EPOCHS},
    data::{self, Image},
    network::{self, Network, Reader},
};

/// The network of the example `digits`, its weights, and its data: training of the same bits, one step a call.
///
/// ```
/// use autobwd_web::{Failure, Trainer};
///
/// let mut trainer = Trainer::new(0)?;
/// let before = trainer.accuracy()?;
/// let first = trainer.step()?;
/// while trainer.step()?.is_some() {} // to the end of the epoch
/// assert_eq!(trainer.epoch(), 1);
/// assert!(first.is_some_and(|loss| loss > 2.0) && trainer.accuracy()? > before + 0.5);
/// # Ok::<(), Failure>(())
/// ```
#[wasm_bindgen]
#[derive(Debug)]
pub struct Trainer {
    network: Network,
    executor: Executor,
    scope: Scope,
    loader: Loader,
    test: Vec<Image>,
}

#[wasm_bindgen]
impl Trainer {
    /// A network with initial weights. The example `digits` makes the same from the same `seed`.
    ///
    /// # Errors
    /// Memory runs out.
    #[wasm_bindgen(constructor)]
    pub fn new(seed: u32) -> Result<Trainer, Failure> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed.into());
        let (training, test) = data::split(data::read()?, data::TRAINING, &mut rng);
        let network = Network::new(&mut rng, &network::OPTIMIZER.parse()?)?;
        let loader = batches::loader(&training, rng.random())?;
        // One thread in a browser, which has no threads to count.
        let (mut executor, mut scope) = (Executor::new(), Scope::new());
        executor.run(&network.startup, &mut scope, &[], &[])?;
        Ok(Trainer { network, executor, scope, loader, test })
    }

    /// Trains on the next batch, and returns its loss; nothing at the end of an epoch, where the next epoch begins.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn step(&mut self) -> Result<Option<f64>, Failure> {
        let Some(batch) = self.loader.next_batch()? else { return Ok(None) };
        let Network { training, loss, .. } = &self.network;
        let (pixels, label) = (batch.get("pixels")?, batch.get("label")?);
        let feeds: [(&str, &dyn autobwd::Feed); 2] = [("pixels", pixels), ("label", label)];
        let fetched = self.executor.run(training, &mut self.scope, &feeds, &[loss])?;
        Ok(Some(fetched[0].item()?))
    }

    /// The number of epochs that have ended.
    #[wasm_bindgen(getter)]
    pub fn epoch(&self) -> u32 {
        self.loader.position().epoch as u32
    }

    /// The number of steps of an epoch.
    #[wasm_bindgen(getter)]
    pub fn steps(&self) -> u32 {
        self.loader.batches() as u32
    }

    /// The number of epochs of the example `digits`.
    #[wasm_bindgen(getter)]
    pub fn epochs(&self) -> u32 {
        EPOCHS as u32
    }

    /// The fraction of test images that are classified correctly.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn accuracy(&mut self) -> Result<f64, Failure> {
        let answers = self.answers(&self.test_pixels())?;
        let right = self.test.iter().zip(answers).filter(|(image, answer)| image.label == i64::from(*answer));
        Ok(right.count() as f64 / self.test.len() as f64)
    }

    /// The digits that the network sees in images of 8 × 8 pixels, 0 to 16, row by row, one image after the other.
    ///
    /// # Errors
    /// A part of an image; memory runs out.
    pub fn answers(&mut self, pixels: &[u8]) -> Result<Vec<u8>, Failure> {
        let fetched = self.infer(pixels, |reader| &reader.answer)?;
        Ok(fetched[0].slice::<i64>()?.iter().map(|digit| *digit as u8).collect())
    }

    /// The scores of the ten digits, for each of these images.
    ///
    /// # Errors
    /// Those of [`answers`](Trainer::answers).
    pub fn scores(&mut self, pixels: &[u8]) -> Result<Vec<f32>, Failure> {
        let fetched = self.infer(pixels, |reader| &reader.scores)?;
        Ok(fetched[0].slice()?.to_vec())
    }

    /// The pixels of the test images, as [`answers`](Trainer::answers) takes them.
    pub fn test_pixels(&self) -> Vec<u8> {
        self.test.iter().flat_map(|image| image.pixels).collect()
    }

    /// The digits that the test images show.
    pub fn test_labels(&self) -> Vec<u8> {
        self.test.iter().map(|image| image.label as u8).collect()
    }

    /// A hash of the names and bits of all weights, and of the state of the optimizer.
    pub fn hash(&self) -> String {
        let mut hash = Xxh3::new();
        for (name, value) in self.scope.iter() {
            hash.update(name.as_bytes());
            hash.update(value.bytes());
        }
        format!("{:016x}", hash.digest())
    }

    /// The page of a training step, by `autobwd-viewer`.
    ///
    /// # Errors
    /// None for this program.
    pub fn page(&self) -> Result<String, Failure> {
        let page = Page::new(&self.network.training).title("A training step of digits");
        Ok(page.feeds(&data::feeds(BATCH)).to_html()?)
    }
}

impl Trainer {
    /// Runs the inference program, and returns the fetch that is chosen.
    fn infer(&mut self, pixels: &[u8], fetch: impl Fn(&Reader) -> &String) -> autobwd::Result<Vec<Tensor>> {
        let (reader, pixels) = (&self.network.reader, data::pixels(pixels.iter().copied())?);
        self.executor.run(&reader.program, &mut self.scope, &[("pixels", &pixels)], &[fetch(reader)])
    }
}

#[cfg(test)]
mod tests {
    use autobwd::OpInfoMap;

    use super::*;

    #[test]
    fn runs_of_one_seed_have_the_same_bits() {
        let run = |seed| {
            let mut trainer = Trainer::new(seed).unwrap();
            let losses: Vec<_> = (0..3).map(|_| trainer.step().unwrap()).collect();
            (losses, trainer.hash())
        };
        assert_eq!(run(0), run(0));
        assert_ne!(run(0).1, run(1).1);
    }

    #[test]
    fn answers_are_the_highest_scores() {
        let mut trainer = Trainer::new(0).unwrap();
        let pixels = trainer.test_pixels();
        let scores = trainer.scores(&pixels).unwrap();
        for (scores, answer) in scores.chunks(10).zip(trainer.answers(&pixels).unwrap()) {
            assert!(scores.iter().all(|score| *score <= scores[usize::from(answer)]));
        }
    }

    #[test]
    fn page_links_the_operators_that_it_uses() {
        let mut trainer = Trainer::new(0).unwrap();
        trainer.step().unwrap();
        trainer.accuracy().unwrap();
        trainer.page().unwrap();
        let used: Vec<_> = OpInfoMap::linked().unwrap().used().map(|info| info.schema().name).collect();
        let listed: Vec<_> = include_str!("../operators.txt").lines().collect();
        assert_eq!(used, listed);
    }

    #[test]
    fn part_of_an_image_is_refused() {
        let mut trainer = Trainer::new(0).unwrap();
        assert!(trainer.answers(&[0; 65]).is_err());
    }
}
