//! Elements of optional slots.

use super::{Buf, Element};
use crate::Result;

/// The elements of an optional slot, `Option<V>`, in a kernel: `None` if the slot is empty.
///
/// ```
/// use autobwd::{Buf, Result, tensor::OptionalBuf};
///
/// fn clear(mut norm: Option<Buf<'_>>) -> Result<()> {
///     if let Some(norm) = norm.slice_mut::<f32>()? {
///         norm.fill(0.0);
///     }
///     Ok(())
/// }
/// # clear(None)?;
/// # Ok::<(), autobwd::Error>(())
/// ```
pub trait OptionalBuf {
    /// The elements, if the slot is filled.
    ///
    /// # Errors
    /// As [`Buf::slice`].
    fn slice<T: Element>(&self) -> Result<Option<&[T]>>;

    /// The elements of an output, mutably, if it is wanted.
    ///
    /// # Errors
    /// As [`Buf::slice_mut`].
    fn slice_mut<T: Element>(&mut self) -> Result<Option<&mut [T]>>;
}

impl OptionalBuf for Option<Buf<'_>> {
    fn slice<T: Element>(&self) -> Result<Option<&[T]>> {
        self.as_ref().map(Buf::slice).transpose()
    }

    fn slice_mut<T: Element>(&mut self) -> Result<Option<&mut [T]>> {
        self.as_mut().map(Buf::slice_mut).transpose()
    }
}
