//! Errors as exceptions.

use pyo3::{
    PyErr, Python, create_exception,
    exceptions::{PyAttributeError, PyBufferError, PyRuntimeError, PyTypeError, PyValueError},
};

create_exception!(
    autobwd,
    Error,
    PyValueError,
    "What autobwd refuses: a file, a shape, a name; the message says why.\n\n\
     >>> autobwd.load(\"missing.onnx\")\n\
     Traceback (most recent call last):\n    ...\n\
     autobwd.Error: cannot read `missing.onnx`: No such file or directory (os error 2)\n"
);

/// The exception of an error. Lines of this package's source say nothing to its users.
pub(crate) fn raised(e: autobwd::Error) -> PyErr {
    let text = e.to_string();
    let is_own = |line: &&str| line.starts_with("  at ") && line.contains(".rs:");
    Error::new_err(text.lines().filter(|line| !is_own(line)).collect::<Vec<_>>().join("\n"))
}

/// The exception with this message.
pub(crate) fn refused<T>(message: String) -> Result<T, PyErr> {
    Err(Error::new_err(message))
}

/// The exception of a value that NumPy cannot read as an array, from the exception of NumPy or of the value.
pub(crate) fn unreadable(py: Python<'_>, name: &str, cause: PyErr) -> PyErr {
    let is_refusal = cause.is_instance_of::<PyAttributeError>(py)
        || cause.is_instance_of::<PyTypeError>(py)
        || cause.is_instance_of::<PyValueError>(py)
        || cause.is_instance_of::<PyBufferError>(py)
        || cause.is_instance_of::<PyRuntimeError>(py);
    if !is_refusal {
        return cause;
    }
    let error = Error::new_err(format!("`{name}` cannot be read as an array of NumPy: {cause}"));
    error.set_cause(py, Some(cause));
    error
}
