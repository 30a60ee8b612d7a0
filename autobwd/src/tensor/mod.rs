//! Ground floor: dtypes, shapes, memory and the values that people own.
//!
//! Must not know what an operator or a program is. All memory of the crate comes from `Memory`; everything else
//! in here is safe code over it.

mod array;
mod dtype;
mod memory;
mod rows;
mod save;
mod shape;
mod value;

pub use array::TensorArray;
pub(crate) use array::{Cell, Step};
pub use dtype::{Bool, DType, Element};
pub(crate) use memory::{Binder, LINE, Memory, Place, Reach, padded};
pub use memory::{Buf, InOut};
pub use rows::Rows;
pub use save::{load_tensors, save_tensors, write_beside};
pub use shape::{Dim, Dims, Meta, Shape};
pub use value::Tensor;
pub(crate) use value::{ToF64, add_up};
