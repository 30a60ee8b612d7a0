//! The Euclidean norm of a tensor.

use autobwd_core::{Element, tensor::ToF64};

/// The Euclidean norm, computed in float64. Eight sums make the loop a vector loop.
pub(crate) fn l2_norm<T: Element + ToF64>(elements: &[T]) -> f64 {
    let mut sums = [0.0; 8];
    for chunk in elements.chunks(sums.len()) {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x.to_f64() * x.to_f64();
        }
    }
    sums.iter().sum::<f64>().sqrt()
}
