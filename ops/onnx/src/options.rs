//! What is known of a model in advance.

use std::collections::HashMap;

use autobwd::Tensor;

/// What is known of a model in advance.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Values of inputs, which become constants: for inputs that decide about shapes.
    pub values: HashMap<String, Tensor>,
    /// Symbolic dimensions by name.
    pub dims: HashMap<String, usize>,
    /// Shapes of inputs, where the model leaves dimensions open.
    pub shapes: HashMap<String, Vec<usize>>,
    /// Whether the model is only run, not trained: small parameters and those that the model only moves are constants, so
    /// that nothing is computed from them in every run.
    pub inference: bool,
    /// Whether functions that the file writes out in several nodes, such as attention, stay as they are; otherwise each
    /// becomes one operator ([`recognise`](autobwd_ops::model::recognise)), with other roundings.
    pub as_written: bool,
    /// Whether float32 becomes float64, and gradients flow to inputs: to compare gradients with differences.
    pub float64: bool,
}
