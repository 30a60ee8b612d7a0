//! The Python package `autobwd`: models as objects, arrays of NumPy in and out, and the command.
//!
//! A model is a program with the values that it shares with the models it was made from; its methods call what the
//! commands call. While a model is loaded, planned or run, Python's other threads run.

mod arguments;
mod arrays;
mod error;
mod generator;
mod load;
mod model;
mod plan;
mod tensor_spec;
mod training;
mod values;

use pyo3::pymodule;

#[pymodule]
mod _autobwd {
    use std::ffi::OsString;

    use pyo3::{Bound, PyResult, Python, pyfunction, types::PyModule, types::PyModuleMethods};

    #[pymodule_export]
    use crate::{
        error::Error, generator::PyGenerator, load::load, model::PyModel, plan::PyPlan,
        tensor_spec::TensorSpec,
    };

    /// Runs the command `autobwd` with these arguments, whose first is its name, and returns its exit status.
    #[pyfunction]
    fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| autobwd_cli::status_of("autobwd", arguments))
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
