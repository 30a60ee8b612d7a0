//! The variables of a model: inputs, outputs, values that it keeps.

use autobwd::{BlockId, Feed, Meta, Program, Result, Tensor, op::with_dtype, program::SignatureEntry};
use pyo3::{
    Bound, PyAny, PyErr, PyResult, Python,
    exceptions::PyUserWarning,
    types::{PyDict, PyDictMethods},
};

use super::PyModel;
use crate::{
    arrays::{input_array, to_numpy},
    error::{raised, refused},
    tensor_spec::TensorSpec,
    training::Derived,
    values::SharedValues,
};

impl PyModel {
    /// A program whose signature names all inputs and outputs, with its values.
    pub(crate) fn new(program: Program, values: SharedValues) -> PyModel {
        PyModel { program, values }
    }

    /// A model made from this one, which shares its values. Warnings about gradients become warnings of Python.
    pub(super) fn derived(&self, py: Python<'_>, derived: Derived) -> PyResult<PyModel> {
        for warning in &derived.warnings {
            let warning = std::ffi::CString::new(warning.replace('\0', "\\0"))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &warning, 1)?;
        }
        Ok(PyModel { program: derived.program, values: self.values.clone() })
    }

    /// Runs the program; `given` has inputs by name.
    pub(super) fn results(
        &self,
        py: Python<'_>,
        given: &[(String, Bound<'_, PyAny>)],
        fetches: &[&str],
    ) -> PyResult<Vec<Tensor>> {
        let signature = self.program.signature();
        let mut inputs = vec![];
        for (name, value) in given {
            let variable = signature.input(name).unwrap_or(name);
            let declared = self.meta(variable).map(|meta| meta.dtype);
            inputs.push((variable, input_array(name, value, declared)?));
        }
        let owned: Vec<(&str, Box<dyn Feed + Send + '_>)> =
            inputs.iter().map(|(name, array)| (*name, array.feed())).collect();
        let results = self.values.with(py, move |values| {
            let feeds: Vec<(&str, &dyn Feed)> =
                owned.iter().map(|(name, feed)| (*name, &**feed as &dyn Feed)).collect();
            values.executor.run(&self.program, &mut values.scope, &feeds, fetches)
        });
        results.map_err(raised)
    }

    /// The names of the values that the program keeps.
    pub(super) fn kept(&self) -> impl Iterator<Item = &str> {
        let vars = self.program.root().vars.iter().filter(|(_, desc)| desc.persistable);
        vars.map(|(var, _)| self.program.name(*var))
    }

    /// The declared dtype and shape of a variable.
    pub(super) fn meta(&self, name: &str) -> Option<Meta> {
        let var = self.program.find(name)?;
        self.program.lookup(BlockId::ROOT, var).map(|desc| desc.meta())
    }

    /// Dtypes and shapes of variables by their names for users.
    pub(super) fn specs<'py, 'a>(
        &self,
        py: Python<'py>,
        names: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let specs = PyDict::new(py);
        for (name, variable) in names {
            if let Some(meta) = self.meta(variable) {
                specs.set_item(name, Bound::new(py, TensorSpec(meta))?)?;
            }
        }
        Ok(specs)
    }

    /// The variables of all outputs.
    pub(super) fn fetches(&self) -> Vec<&str> {
        self.program.signature().outputs.iter().map(|output| output.variable.as_str()).collect()
    }

    /// The variables of outputs by their names for users, or of any other values.
    pub(super) fn named_fetches<'a>(&'a self, names: &'a [String]) -> Vec<&'a str> {
        names.iter().map(|name| self.program.signature().output(name).unwrap_or(name)).collect()
    }

    /// The variable of an output, or of the first one.
    pub(super) fn output_or_first(&self, output: Option<&str>) -> PyResult<String> {
        let signature = self.program.signature();
        match (output, signature.outputs.first()) {
            (Some(name), _) => Ok(signature.output(name).unwrap_or(name).to_string()),
            (None, Some(first)) => Ok(first.variable.clone()),
            (None, None) => refused("the model has no output: name a variable".into()),
        }
    }
}

/// Names of inputs or outputs with their variables.
pub(super) fn pairs(entries: &[SignatureEntry]) -> impl Iterator<Item = (&str, &str)> {
    entries.iter().map(|entry| (entry.name.as_str(), entry.variable.as_str()))
}

/// A dictionary of arrays.
pub(super) fn arrays<'py, 'a>(
    py: Python<'py>,
    tensors: impl IntoIterator<Item = (&'a str, Tensor)>,
) -> PyResult<Bound<'py, PyDict>> {
    let arrays = PyDict::new(py);
    for (name, tensor) in tensors {
        arrays.set_item(name, to_numpy(py, name, tensor)?)?;
    }
    Ok(arrays)
}

/// A tensor that an array takes over without another copy.
pub(super) fn copy_of(tensor: &Tensor) -> Result<Tensor> {
    with_dtype!(tensor.dtype(), T => Tensor::try_from(tensor.to_array::<T>()?))
}
