//! Dtypes, shapes, memory and tensors: the lowest layer.
//!
//! Must not know operators or programs. All memory of the crate comes from `Memory`; everything else here is safe code
//! over it.

mod array;
mod densify;
mod dim;
mod dtype;
mod file;
mod memory;
mod optional;
mod rows;
mod save;
mod shape;
mod value;

pub use array::TensorArray;
pub use array::{SavedStep, SavedSteps, ValueCell};
pub use densify::dense_bytes;
pub use dim::Dim;
pub use dtype::{Bool, DType, Element};
pub use file::{check_writable, open_file, read_bounded, read_exactly, read_file, write_atomically};
use memory::Vector;
pub use memory::{AccessMode, Binder, LINE, Lease, Memory, Place, bytes_of, bytes_of_mut, dimension, padded};
pub use memory::{Buf, InOut};
pub use optional::OptionalBuf;
pub use rows::Rows;
pub use save::{load_tensors, load_tensors_with, save_tensors, save_tensors_with};
pub use shape::{Dims, MAX_CONSTANT, Meta, Shape};
pub use value::Tensor;
pub use value::{ToF64, add_up};
