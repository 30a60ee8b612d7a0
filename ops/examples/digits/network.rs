//! The network, as programs.

use autobwd::{Builder, DType, Program, Result};
use autobwd_ops::{
    Math, nn,
    optim::{Optimizer, OptimizerSpec},
};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::data::PIXELS;

// Chosen together with batch size and epochs (batches.rs) by `--validate`, mean over the seeds 0 to 9: 97.9 %. Wider
// layers and longer training gain less than the difference between two seeds. The test images were not used.
const HIDDEN: [usize; 2] = [128, 64];
pub(crate) const OPTIMIZER: &str = "adam:0.004";

/// A network for training and inference.
#[derive(Debug)]
pub(crate) struct Network {
    /// Initialises the weights.
    pub(crate) startup: Program,
    /// One step of training; takes `pixels` and `label`.
    pub(crate) training: Program,
    /// The name of the loss in `training`.
    pub(crate) loss: String,
    /// The inference part.
    pub(crate) reader: Reader,
}

impl Network {
    /// Describes the network; `rng` seeds the initial weights.
    pub(crate) fn new(rng: &mut Pcg64Mcg, optimizer: &OptimizerSpec) -> Result<Network> {
        let net = Builder::new();
        let mut linear =
            |inputs, outputs| nn::Linear::builder(&net, inputs, outputs).seed(rng.random()).build();

        // Inference: from pixels to ten scores, and to the digit with the highest.
        let pixels = net.input("pixels", DType::F32, &[-1, PIXELS as i64]);
        let hidden = linear(PIXELS, HIDDEN[0]).forward(&pixels).relu();
        let hidden = linear(HIDDEN[0], HIDDEN[1]).forward(&hidden).relu();
        let scores = linear(HIDDEN[1], 10).forward(&hidden);
        let answer = scores.argmax(1);
        // The names of inputs and outputs for those who load the program, such as a server.
        net.set_signature(&[("pixels", &pixels)], &[("scores", &scores), ("digit", &answer)])?;
        let reader = Reader { program: net.program()?.clone(), scores: scores.name(), answer: answer.name() };

        // Training: from scores and labels to a loss, with backward pass and updates.
        let label = net.input("label", DType::I64, &[-1, 1]);
        let loss = scores.cross_entropy(&label).mean();
        optimizer.minimize(&loss)?.complete()?;

        let (startup, training) = (net.startup().program()?.clone(), net.program()?.clone());
        Ok(Network { startup, training, loss: loss.name(), reader })
    }
}

/// An inference program.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Takes `pixels`.
    pub(crate) program: Program,
    /// The name of the scores in it: ten for each image.
    #[allow(dead_code)] // The page of `ops/web` draws them.
    pub(crate) scores: String,
    /// The name of its output: a digit for each image.
    pub(crate) answer: String,
}
