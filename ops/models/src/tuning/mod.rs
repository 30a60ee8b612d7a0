//! Fine-tuning of published models.

mod examples;
mod facts;
mod faults;
mod features;
mod image_and_sound_files;
mod loss;
mod plan;
mod process;
mod program;
mod rows;
mod run;
mod summary;

pub use examples::{Example, ExampleFormat, class_names_of, read_examples};
pub use facts::class_names;
pub use features::Features;
#[cfg(feature = "images")]
pub use image_and_sound_files::read_images;
pub use image_and_sound_files::read_sounds;
pub use run::{StepReport, TuningRun};
pub use summary::TuningSummary;

use autobwd::{DType, Error, ErrorKind, Result};

use crate::{Adapter, Lora, Pretrained};

/// The largest number of rows in a step.
const LARGEST_STEP: usize = 1 << 20;

/// How a published model is fine-tuned.
///
/// Decoders learn the next tokens of texts, which are packed into rows and do not see each other. Encoders learn classes of
/// texts, of tokens or of images, with a [new head](Pretrained::classes) or the head of their files, or tokens that are
/// masked. T5 learns to generate texts from texts, and Whisper from sounds. A loss is the mean over all counted labels of a
/// step, whatever the number of micro-batches.
///
/// ```
/// use autobwd_models::{ExampleFormat, FineTuning, Lora, Pretrained, Tokenizer};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
/// let tokenizer = Tokenizer::open(folder)?;
/// let line = r#"{"text": "the cat sat on the mat"}"#;
/// let format = ExampleFormat::Text { field: "text".into() };
/// let examples = vec![format.example(line, &tokenizer)?; 8];
///
/// let lora = Some(Lora::new(4, &["q_proj", "v_proj"]));
/// let tuning = FineTuning { lora, learning_rate: 1e-2, batch: 1, ..FineTuning::default() };
/// let mut run = tuning.prepare(&Pretrained::open(folder), examples, vec![])?;
/// println!("{}", run.summary());
/// let mut losses = vec![];
/// while let Some(step) = run.step()? {
///     losses.push(step.loss);
/// }
/// assert!(losses.last() < losses.first());
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// run.save(folder)?; // as peft does
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FineTuning {
    /// Adapters that are trained instead of the weights. Without targets, the default ones of peft for the family.
    pub lora: Option<Lora>,
    /// An adapter that is trained further, instead of a new one.
    pub adapter: Option<Adapter>,
    /// The number of times that all examples are seen.
    pub epochs: u64,
    /// Rows of a micro-batch.
    pub batch: usize,
    /// Micro-batches of a step, which take the memory of one.
    pub micro_batches: usize,
    /// Tokens of a row; by default, as many as the longest example has, also of the evaluation. Rows of what a decoder
    /// generates from an encoder are as long as the longest such text.
    pub length: Option<usize>,
    /// Whether examples that are longer than a row are cut; otherwise, they are errors.
    pub is_truncating: bool,
    /// Whether texts share rows.
    pub is_packing: bool,
    /// The largest learning rate, after the warm-up.
    pub learning_rate: f64,
    /// The part of all steps in which the rate grows; it falls by a cosine to 0 afterwards.
    pub warmup: f64,
    /// Whether the rate stays instead of falling.
    pub is_constant: bool,
    /// The decay of weights by AdamW; biases and scales of normalisations, of rank 1, do not decay.
    pub weight_decay: f32,
    /// The largest norm of all gradients together; 0 for no bound.
    pub max_gradient_norm: f32,
    /// The seed of the order of rows, and of new parameters.
    pub seed: u64,
    /// The largest memory of a step, in bytes: values are recomputed until a step fits. Reading the model and evaluations
    /// are not counted.
    pub memory: Option<usize>,
    /// The largest resident memory of the process from the first step on, in bytes: what it takes besides a step, such as
    /// the examples and the plans, is measured, and a step gets the rest. Reading the model is not counted. Results do not
    /// depend on it.
    pub process_memory: Option<usize>,
    /// The number of threads; by default, one a core. Results do not depend on it.
    pub threads: Option<usize>,
}

impl Default for FineTuning {
    /// Three epochs in steps of 4 rows, with all parameters trained.
    fn default() -> FineTuning {
        FineTuning {
            lora: None,
            adapter: None,
            epochs: 3,
            batch: 4,
            micro_batches: 1,
            length: None,
            is_truncating: false,
            is_packing: true,
            learning_rate: 2e-5,
            warmup: 0.03,
            is_constant: false,
            weight_decay: 0.0,
            max_gradient_norm: 1.0,
            seed: 0,
            memory: None,
            process_memory: None,
            threads: None,
        }
    }
}

impl FineTuning {
    /// Reads the model, and plans all steps. The evaluation examples, if any, are not learned.
    ///
    /// The dtype of `pretrained` is that of frozen weights next to adapters. Without adapters, parameters are float32, and
    /// products are computed in that dtype. Weights that it [quantises](Pretrained::quantize) are frozen next to adapters;
    /// logits of a [quantised head](Pretrained::quantize_head) are in memory together.
    ///
    /// # Errors
    /// Those of [`Pretrained::load`]; options out of range; no examples; one list of all examples that do not fit; a step
    /// that does not fit into the memory.
    pub fn prepare(
        &self,
        pretrained: &Pretrained,
        examples: Vec<Example>,
        evaluation: Vec<Example>,
    ) -> Result<TuningRun> {
        self.check(pretrained)?;
        TuningRun::new(self, pretrained, examples, evaluation)
    }

    fn check(&self, pretrained: &Pretrained) -> Result<()> {
        let counts = [
            ("epochs", self.epochs as usize),
            ("batch", self.batch),
            ("micro_batches", self.micro_batches),
            ("length", self.length.unwrap_or(1)),
        ];
        let refuse = |text: String| Err(Error::new(ErrorKind::Attr, text));
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return refuse(format!("`{name}` is 0"));
        }
        if self.batch.checked_mul(self.micro_batches).is_none_or(|rows| rows > LARGEST_STEP) {
            return refuse(format!("`batch` times `micro_batches` is more than {LARGEST_STEP}"));
        }
        if !(0.0..1.0).contains(&self.warmup) {
            return refuse(format!("`warmup` is {}, not a number from 0 and below 1", self.warmup));
        }
        if !(self.max_gradient_norm >= 0.0 && self.max_gradient_norm.is_finite()) {
            let norm = self.max_gradient_norm;
            return refuse(format!(
                "`max_gradient_norm` is {norm}, not a positive number, and not 0 for no bound"
            ));
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            return refuse(format!("`learning_rate` is {}, not a positive number", self.learning_rate));
        }
        if self.lora.is_some() && self.adapter.is_some() {
            return refuse("`lora` is a new adapter, and `adapter` another one: give one of them".into());
        }
        if pretrained.is_quantized() && !self.has_adapter() {
            return refuse("quantised weights are not trained: add adapters (`lora`)".into());
        }
        Ok(())
    }

    /// The dtype in which products of trained weights are computed, if it is not float32.
    fn mixed_precision(&self, pretrained: &Pretrained) -> Option<DType> {
        let dtype = pretrained.dtype;
        (!self.has_adapter() && dtype.is_half()).then_some(dtype)
    }

    fn has_adapter(&self) -> bool {
        self.lora.is_some() || self.adapter.is_some()
    }
}
