//! Windows of single channels, in blocks of channels: the lanes of vectors are channels.

use super::{
    AnyVectorWork, GemmElement, sealed,
    vector::{Vector, VectorWork},
    windows::{CHANNEL_BLOCK, WindowAxis, last},
};
use crate::{Error, Result};

/// Windows of a block of channels, and a filter for each of them.
#[derive(Clone, Copy, Debug)]
pub struct DepthwiseProducts<'a, T> {
    /// The images, from the first element of the first window on.
    pub x: &'a [T],
    /// Runs of [`CHANNEL_BLOCK`] elements, one of each filter.
    pub filters: &'a [T],
    /// What is added to the sums: an element for each filter.
    pub bias: &'a [T; CHANNEL_BLOCK],
    /// The least and the largest result; NaN stays NaN.
    pub bounds: [T; 2],
    /// Rows and columns of a window.
    pub elements: [WindowAxis; 2],
    /// Rows and columns of windows.
    pub windows: [WindowAxis; 2],
}

impl<T: GemmElement> DepthwiseProducts<'_, T> {
    /// Writes the sums of products of the windows and the bias to `out`. A sum is a chain of fused multiply-adds, row by
    /// row.
    ///
    /// # Errors
    /// Windows, filters or sums that are outside of the slices.
    pub fn write(&self, out: &mut [T]) -> Result<()> {
        if self.windows.iter().any(|axis| axis.count == 0) {
            return Ok(());
        }
        let is_empty = self.elements.iter().any(|axis| axis.count == 0);
        let fits = || {
            let x = last(&self.elements, |axis| axis.x)?
                .checked_add(last(&self.windows, |axis| axis.x)?)?
                .checked_add(CHANNEL_BLOCK)?;
            let filters = last(&self.elements, |axis| axis.other)?.checked_add(CHANNEL_BLOCK)?;
            let sums = last(&self.windows, |axis| axis.other)?.checked_add(CHANNEL_BLOCK)?;
            let inside = x <= self.x.len() && filters <= self.filters.len();
            Some((is_empty || inside) && sums <= out.len())
        };
        if fits() != Some(true) {
            return Err(Error::internal("windows, filters or sums are outside of their slices"));
        }
        let count = |axis: WindowAxis| if is_empty { WindowAxis { count: 0, ..axis } } else { axis };
        let products = DepthwiseProducts { elements: self.elements.map(count), ..*self };
        let work = Work { products, out: out.as_mut_ptr() };
        // Its address hides the function from the compiler, as of other products.
        let run = std::hint::black_box(<T as sealed::GemmKernel>::in_vectors::<Work<'_, T>> as unsafe fn(_));
        // SAFETY: all elements are within the slices, as checked.
        unsafe { run(work) }
        Ok(())
    }
}

/// Products whose windows, filters and sums exist.
struct Work<'a, T> {
    products: DepthwiseProducts<'a, T>,
    out: *mut T,
}

impl<T: GemmElement> AnyVectorWork<T> for Work<'_, T> {
    unsafe fn run<V: Vector<Element = T>>(self) {
        // SAFETY: the caller's promise.
        unsafe { V::with_instructions(self) }
    }
}

impl<T: GemmElement, V: Vector<Element = T>> VectorWork<V> for Work<'_, T> {
    #[inline(always)]
    unsafe fn run(self) {
        let DepthwiseProducts { x, filters, bias, bounds, elements, windows: [down, across] } = self.products;
        let columns = elements[1];
        let apart = if across.x.is_multiple_of(CHANNEL_BLOCK) { across.x / CHANNEL_BLOCK } else { 0 };
        for part in (0..CHANNEL_BLOCK).step_by(V::LANES) {
            for row in 0..down.count {
                let mut tile = Tile {
                    x: x.as_ptr().wrapping_add(part + row * down.x),
                    filters: filters.as_ptr().wrapping_add(part),
                    bias: bias.as_ptr().wrapping_add(part),
                    out: self.out.wrapping_add(part + row * down.other),
                    bounds,
                    elements,
                    windows: across,
                };
                let mut left = across.count;
                while left > 0 {
                    // SAFETY: the promise of `DepthwiseProducts::write`: these windows and filters exist.
                    let n = unsafe {
                        // Adjacent elements, of windows that are one or two elements apart, are read once for all windows.
                        match (columns.count, columns.x == CHANNEL_BLOCK, apart) {
                            (3, true, 1) => tile.some::<V, 3, 1>(left),
                            (3, true, 2) => tile.some::<V, 3, 2>(left),
                            (5, true, 1) => tile.some::<V, 5, 1>(left),
                            (5, true, 2) => tile.some::<V, 5, 2>(left),
                            (7, true, 1) => tile.some::<V, 7, 1>(left),
                            _ => tile.some::<V, 1, 0>(left),
                        }
                    };
                    left -= n;
                    tile.x = tile.x.wrapping_add(n * across.x);
                    tile.out = tile.out.wrapping_add(n * across.other);
                }
            }
        }
    }
}

/// Some windows of a row.
struct Tile<T> {
    x: *const T,
    filters: *const T,
    bias: *const T,
    out: *mut T,
    bounds: [T; 2],
    elements: [WindowAxis; 2],
    windows: WindowAxis,
}

impl<T: GemmElement> Tile<T> {
    /// Computes some of the first `left` windows of `K` adjacent columns, which are `S` columns apart; of any columns, one
    /// after another, if `S` is 0. Returns how many.
    ///
    /// # Safety
    /// The machine has the instructions; windows and filters exist.
    #[inline(always)]
    unsafe fn some<V: Vector<Element = T>, const K: usize, const S: usize>(&self, left: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match left {
                8.. => V::apart(Sized::<T, 8, K, S>(self)),
                4.. => V::apart(Sized::<T, 4, K, S>(self)),
                2.. => V::apart(Sized::<T, 2, K, S>(self)),
                _ => V::apart(Sized::<T, 1, K, S>(self)),
            }
        }
        match left {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        }
    }
}

/// `R` windows of a [`Tile`].
struct Sized<'a, T, const R: usize, const K: usize, const S: usize>(&'a Tile<T>);

impl<T: GemmElement, V: Vector<Element = T>, const R: usize, const K: usize, const S: usize> VectorWork<V>
    for Sized<'_, T, R, K, S>
{
    #[inline(always)]
    unsafe fn run(self) {
        let Tile { x, filters, bias, out, bounds, elements: [rows, columns], windows } = *self.0;
        // SAFETY: the promises of `Tile::some`.
        unsafe {
            let mut sums = [V::splat(T::ZERO); R];
            for row in 0..rows.count {
                let (x, filters) = (x.add(row * rows.x), filters.add(row * rows.other));
                if S == 0 {
                    for column in 0..columns.count {
                        let filter = V::load(filters.add(column * columns.other));
                        for r in 0..R {
                            let element = V::load(x.add(column * columns.x + r * windows.x));
                            sums[r] = element.mul_add(filter, sums[r]);
                        }
                    }
                    continue;
                }
                let mut filter = [V::splat(T::ZERO); K];
                for k in 0..K {
                    filter[k] = V::load(filters.add(k * columns.other));
                }
                for column in 0..(R - 1) * S + K {
                    let element = V::load(x.add(column * CHANNEL_BLOCK));
                    for r in 0..R {
                        if column >= r * S && column - r * S < K {
                            sums[r] = element.mul_add(filter[column - r * S], sums[r]);
                        }
                    }
                }
            }
            let (bias, [least, most]) = (V::load(bias), bounds.map(|bound| V::splat(bound)));
            for r in 0..R {
                most.min(least.max(sums[r].add(bias))).store(out.add(r * windows.other));
            }
        }
    }
}
