//! Quantised weights of published models.

use autobwd::{Error, ErrorKind, Result};
use autobwd_ops::{
    Model,
    quantization::{Quantization, Quantizer},
};

use crate::lora::{head, linear_targets};

/// Quantises the weights of all modules of [`linear_targets`] of a model that is loaded, such as one with a merged adapter;
/// [`Pretrained::quantize`](crate::Pretrained::quantize) quantises weights while they are read.
///
/// ```
/// use autobwd_models::{Pretrained, quantize_linear};
/// use autobwd_ops::quantization::Quantization;
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
/// let mut model = Pretrained::open(folder).load()?;
/// quantize_linear(&mut model, Quantization::NF4)?;
/// assert!(model.scope.find("model.layers.0.mlp.up_proj.weight.scale").is_some());
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of [`quantize`](autobwd_ops::quantization::quantize).
pub fn quantize_linear(model: &mut Model, quantization: Quantization) -> Result<()> {
    let mut quantizer = Quantizer::new(model);
    plan_linear(&mut quantizer, model, quantization)?;
    for (name, value) in model.scope.iter() {
        quantizer.add(name, value)?;
    }
    quantizer.finish(model).map(drop)
}

/// Plans to quantise the weights of all products but the head.
pub(crate) fn plan_linear(
    quantizer: &mut Quantizer,
    model: &Model,
    quantization: Quantization,
) -> Result<()> {
    let mut targets = linear_targets(model).into_iter();
    targets.try_for_each(|target| quantizer.plan(&format!("*{target}.weight"), quantization))
}

/// Plans to quantise the weights of the head.
///
/// # Errors
/// A model without head.
pub(crate) fn plan_head(quantizer: &mut Quantizer, model: &Model, quantization: Quantization) -> Result<()> {
    match head(&model.program) {
        Some(module) => quantizer.plan(&format!("{module}.weight"), quantization),
        None => {
            let text = "the model has no head to quantise: no product with weights computes `logits`";
            Err(Error::new(ErrorKind::Program, text))
        }
    }
}
