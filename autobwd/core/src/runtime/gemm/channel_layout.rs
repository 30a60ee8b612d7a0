//! Planes of channels to blocks of channels, and back: transpositions in registers.

use super::{
    AnyVectorWork, Factor, GemmElement, Mat, Strided, sealed,
    vector::{MOST_LANES, Vector, VectorWork},
    windows::CHANNEL_BLOCK,
};
use crate::{Error, Result, runtime::submatrix::SubmatrixMut};

/// Writes planes, a row for each of up to [`CHANNEL_BLOCK`] channels, as a block: `out[16 * pixel + channel]`, and zeros for missing
/// channels. Elements of 16 bits are widened.
///
/// # Errors
/// Planes of other channels or pixels, or outside of their slice.
pub fn interleave_channels<X: Factor>(planes: Strided<'_, X>, out: &mut [X::Sum]) -> Result<()> {
    let Mat { data, rows: channels, cols: pixels, transposed } = planes.mat;
    let stride = planes.checked_len().filter(|_| channels <= CHANNEL_BLOCK && !transposed);
    let Some(stride) = stride.filter(|_| pixels.checked_mul(CHANNEL_BLOCK) == Some(out.len())) else {
        return Err(Error::internal("planes that do not fill a block of channels"));
    };
    let work = Interleave { planes: data.as_ptr(), size: (channels, pixels), stride, out: out.as_mut_ptr() };
    // SAFETY: as many elements are read and written, as checked.
    unsafe { <X::Sum as sealed::GemmKernel>::in_vectors(work) }
    Ok(())
}

/// Writes pixels of a block of channels to rows of `out`, one for each of the first channels: the inverse of
/// [`interleave_channels`].
///
/// # Errors
/// More than [`CHANNEL_BLOCK`] rows; another number of pixels.
pub fn separate_channels<T: GemmElement>(block: &[T], out: &mut SubmatrixMut<'_, T>) -> Result<()> {
    let (channels, pixels) = out.size();
    if channels > CHANNEL_BLOCK || pixels.checked_mul(CHANNEL_BLOCK) != Some(block.len()) {
        return Err(Error::internal("a block of channels that does not have the size of its planes"));
    }
    let out = (out.pointer(0, 0), out.stride());
    // SAFETY: as many elements are read and written, as checked.
    unsafe {
        <T as sealed::GemmKernel>::in_vectors(Separate {
            block: block.as_ptr(),
            size: (channels, pixels),
            out,
        })
    }
    Ok(())
}

/// Planes that become a block.
struct Interleave<X: Factor> {
    planes: *const X,
    /// Channels and pixels.
    size: (usize, usize),
    /// Elements from one plane to the next.
    stride: usize,
    out: *mut X::Sum,
}

impl<X: Factor> AnyVectorWork<X::Sum> for Interleave<X> {
    unsafe fn run<V: Vector<Element = X::Sum>>(self) {
        // SAFETY: the caller's promise.
        unsafe { V::with_instructions(self) }
    }
}

impl<X: Factor, V: Vector<Element = X::Sum>> VectorWork<V> for Interleave<X> {
    #[inline(always)]
    unsafe fn run(self) {
        let (channels, pixels) = self.size;
        for pixel in (0..pixels).step_by(V::LANES) {
            for channel in (0..CHANNEL_BLOCK).step_by(V::LANES) {
                let size = (V::LANES.min(channels.saturating_sub(channel)), V::LANES.min(pixels - pixel));
                let from = self.planes.wrapping_add(channel * self.stride + pixel);
                let to = self.out.wrapping_add(pixel * CHANNEL_BLOCK + channel);
                // SAFETY: these channels and pixels exist; a vector of channels of each pixel is written.
                unsafe { V::transpose((from, self.stride), size, (to, CHANNEL_BLOCK)) }
            }
        }
    }
}

/// A block that becomes planes.
struct Separate<T> {
    block: *const T,
    /// Channels and pixels.
    size: (usize, usize),
    /// The first plane, and the distance of planes.
    out: (*mut T, usize),
}

impl<T: GemmElement> AnyVectorWork<T> for Separate<T> {
    unsafe fn run<V: Vector<Element = T>>(self) {
        // SAFETY: the caller's promise.
        unsafe { V::with_instructions(self) }
    }
}

impl<T: GemmElement, V: Vector<Element = T>> VectorWork<V> for Separate<T> {
    #[inline(always)]
    unsafe fn run(self) {
        let ((channels, pixels), (out, stride)) = (self.size, self.out);
        for channel in (0..channels).step_by(V::LANES) {
            let columns = V::LANES.min(channels - channel);
            for pixel in (0..pixels).step_by(V::LANES) {
                let rows = V::LANES.min(pixels - pixel);
                let from = self.block.wrapping_add(pixel * CHANNEL_BLOCK + channel);
                let to = out.wrapping_add(channel * stride + pixel);
                // SAFETY: these channels and pixels exist; whole vectors of pixels go to the planes, and others by way of a
                // square.
                unsafe {
                    if rows == V::LANES {
                        V::transpose((from, CHANNEL_BLOCK), (rows, columns), (to, stride));
                        continue;
                    }
                    let mut square = [T::ZERO; MOST_LANES * MOST_LANES];
                    V::transpose((from, CHANNEL_BLOCK), (rows, columns), (square.as_mut_ptr(), V::LANES));
                    for column in 0..columns {
                        for row in 0..rows {
                            *to.add(column * stride + row) = square[column * V::LANES + row];
                        }
                    }
                }
            }
        }
    }
}
