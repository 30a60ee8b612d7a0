//! Errors as exceptions.

use pyo3::{PyErr, create_exception, exceptions::PyValueError};

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
