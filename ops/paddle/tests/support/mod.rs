//! The models, and what PaddlePaddle computed with them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use autobwd::{Result, Tensor, tensor::load_tensors};

/// The folder of the models.
pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

/// The tensors that are recorded for a model, by name.
pub(crate) fn data(name: &str) -> Result<BTreeMap<String, Tensor>> {
    Ok(load_tensors(models().join(name).with_extension("safetensors"))?.into_iter().collect())
}

/// Float32 results of other summation orders.
const TOLERANCE: f64 = 1e-5;

/// Compares float32 results of PaddlePaddle.
pub(crate) fn assert_close(x: &Tensor, y: &Tensor) {
    assert_eq!((x.dtype(), x.dims()), (y.dtype(), y.dims()));
    let largest = y.to_f64s().iter().fold(0.0, |m: f64, y| m.max(y.abs()));
    for (x, y) in x.to_f64s().iter().zip(y.to_f64s()) {
        assert!((x - y).abs() <= TOLERANCE * largest, "{x} is not {y}");
    }
}
