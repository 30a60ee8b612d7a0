//! Models from files.

use std::{collections::HashMap, path::PathBuf};

use autobwd::{
    Executor, Result,
    program::{ProgramSignature, SignatureEntry},
};
use autobwd_cli::load_model;
use autobwd_onnx::LoadOptions;
use autobwd_ops::Model;
use pyo3::{
    Bound, PyResult, Python, pyfunction,
    types::{PyAnyMethods, PyDict},
};

use crate::{
    arguments::Shapes,
    arrays::input_array,
    error::{raised, refused},
    model::PyModel,
    values::SharedValues,
};

/// Loads a model from a file: `.onnx`, `.pdmodel` of PaddlePaddle with its values next to it, a program in `.json`, or
/// a published model, which is a folder in the layout of Hugging Face or a `.gguf` file.
///
/// `weights` is a safetensors file whose values replace the values of the model. For `.onnx` files, `shapes` and `dims` give
/// open dimensions of inputs, and `constants` the values of inputs that must be known. Results do not depend on the
/// number of `threads`, by default one a core.
///
/// >>> autobwd.load("images.onnx", dims={"N": 2}).inputs
/// {'x': float32 [2, 1, H, W]}
#[pyfunction]
#[pyo3(signature = (path, *, weights=None, shapes=None, dims=None, constants=None, threads=None))]
pub(crate) fn load(
    py: Python<'_>,
    path: PathBuf,
    weights: Option<PathBuf>,
    shapes: Option<Shapes>,
    dims: Option<HashMap<String, usize>>,
    constants: Option<&Bound<'_, PyDict>>,
    threads: Option<usize>,
) -> PyResult<PyModel> {
    let is_onnx = path.extension().is_some_and(|extension| extension == "onnx");
    if !is_onnx && (shapes.is_some() || dims.is_some() || constants.is_some()) {
        let path = path.display();
        return refused(format!("`{path}`: `shapes`, `dims` and `constants` are for .onnx files"));
    }
    let mut options = LoadOptions {
        dims: dims.unwrap_or_default(),
        shapes: shapes.unwrap_or_default().into_iter().collect(),
        ..LoadOptions::default()
    };
    for (name, value) in constants.into_iter().flatten() {
        let name: String = name.extract()?;
        let value = input_array(&name, &value, None)?.to_tensor().map_err(raised)?;
        options.values.insert(name, value);
    }
    let path = path.display().to_string();
    let load = || -> Result<PyModel> {
        let Model { mut program, feeds, fetches, mut scope } = load_model(&path, &options)?;
        if program.signature().is_empty() {
            let entries = |names: Vec<String>| {
                names.into_iter().map(|name| SignatureEntry { name: name.clone(), variable: name }).collect()
            };
            program.set_signature(ProgramSignature { inputs: entries(feeds), outputs: entries(fetches) })?;
        }
        if let Some(weights) = weights {
            scope.load(weights)?;
            scope.convert_to(&program)?;
        }
        let executor = threads.map_or_else(Executor::new, Executor::with_threads);
        Ok(PyModel::new(program, SharedValues::new(scope, executor)))
    };
    py.detach(load).map_err(raised)
}
