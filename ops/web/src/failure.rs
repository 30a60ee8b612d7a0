//! Errors as exceptions of JavaScript.

use std::{error::Error, fmt};

use wasm_bindgen::{JsError, JsValue};

/// The message of an error, which JavaScript throws as an `Error`.
#[derive(Debug)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<autobwd::Error> for Failure {
    fn from(e: autobwd::Error) -> Failure {
        Failure(e.to_string())
    }
}

impl From<Box<dyn Error>> for Failure {
    fn from(e: Box<dyn Error>) -> Failure {
        Failure(e.to_string())
    }
}

impl From<Failure> for JsValue {
    fn from(failure: Failure) -> JsValue {
        JsError::new(&failure.0).into()
    }
}
