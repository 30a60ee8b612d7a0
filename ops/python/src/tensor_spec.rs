//! Dtypes and shapes of variables.

use autobwd::{Meta, tensor::Dim};
use pyo3::{Bound, IntoPyObjectExt, PyAny, PyResult, Python, pyclass, pymethods, types::PyTuple};

/// The dtype and the shape of a variable.
///
/// >>> spec = autobwd.load("images.onnx").inputs["x"]
/// >>> spec.dtype, spec.shape
/// ('float32', ('N', 1, 'H', 'W'))
#[pyclass(frozen, module = "autobwd")]
pub(crate) struct TensorSpec(pub(crate) Meta);

#[pymethods]
impl TensorSpec {
    /// The name of the dtype, as in NumPy.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    /// The dimensions: a number, the name of an open dimension, or `None` for one without a name.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let dims: Vec<Bound<'py, PyAny>> =
            self.0.dims.iter().map(|dim| dimension(py, *dim)).collect::<PyResult<_>>()?;
        PyTuple::new(py, dims)
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

fn dimension(py: Python<'_>, dim: Dim) -> PyResult<Bound<'_, PyAny>> {
    match dim.get() {
        Some(size) => size.into_bound_py_any(py),
        None if dim.is_named() => dim.to_string().into_bound_py_any(py),
        None => Ok(py.None().into_bound(py)),
    }
}
