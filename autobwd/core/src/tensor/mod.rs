//! Dtypes, shapes, memory and tensors: the lowest layer.
//!
//! Must not know operators or programs. All memory of the crate comes from `Memory`; everything else here is safe code
//! over it.
//!
//! Kernels see `Memory` only. A `Tensor` may also own the vector of an array that it was made from; its elements are
//! copied to `Memory` when it is bound.

pub(crate) mod array;
pub(crate) mod densify;
mod dim;
mod dtype;
mod file;
pub(crate) mod half_float;
mod load;
pub(crate) mod memory;
mod named_size;
mod optional;
mod rows;
mod save;
pub(crate) mod shape;
pub(crate) mod value;

pub use array::TensorArray;
pub(crate) use array::ValueCell;
pub use dim::Dim;
pub use dtype::{Bool, DType, Element};
pub use file::{check_writable, open_file, read_bounded, read_exactly, read_file, write_atomically};
pub use load::{TensorReader, load_tensors, load_tensors_with};
pub use memory::{Buf, InOut};
pub use memory::{LINE, padded};
pub(crate) use memory::{Lease, Memory, Place, dimension};
use memory::{Vector, prefer_huge_pages};
pub use optional::OptionalBuf;
pub use rows::Rows;
pub use save::{save_tensors, save_tensors_with};
pub(crate) use shape::MAX_CONSTANT;
pub use shape::{Dims, Meta, Shape};
pub use value::Tensor;
pub use value::ToF64;
