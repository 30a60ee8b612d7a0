//! Sums of products of windows and filters, for images whose channels are in blocks.
//!
//! Filters of a block are side by side, as the lanes of a vector are, and so are channels of a block. A tile of sums in registers takes one element of each of its windows at a time, and a vector of filters.

use std::ops::Range;

use super::{
    AnyVectorWork, GemmElement,
    blocks::TERMS,
    sealed,
    vector::{Vector, VectorWork},
};
use crate::{Error, Result, runtime::submatrix::SubmatrixMut};

/// Channels, or filters, that are side by side.
pub const CHANNEL_BLOCK: usize = 16;
/// Windows of the largest tile.
const MOST_WINDOWS: usize = 14;

/// An axis along which windows, or the elements of a window, have equal distances.
#[derive(Clone, Copy, Debug)]
pub struct WindowAxis {
    /// The number of windows, or of elements.
    pub count: usize,
    /// Elements of the images from one to the next.
    pub x: usize,
    /// Elements of the filters, or of the sums of windows, from one to the next.
    pub other: usize,
}

/// Windows of images and filters of as many elements.
#[derive(Clone, Copy, Debug)]
pub struct WindowProducts<'a, T> {
    /// The images, from the first element of the first window on.
    pub x: &'a [T],
    /// The filters, from the first of the first block on: runs of [`CHANNEL_BLOCK`] elements, one of each filter.
    pub filters: &'a [T],
    /// Elements from one block of filters to the next.
    pub block: usize,
    /// What is added to the sums: an element for each filter, or none.
    pub bias: &'a [T],
    /// Whether sums are added to what is there, in place of a bias.
    pub add: bool,
    /// The least and the largest result; NaN stays NaN.
    pub bounds: [T; 2],
    /// The elements of a window: blocks of channels, rows and columns.
    pub elements: [WindowAxis; 3],
    /// Channels of a block that are multiplied, which follow each other in the images.
    pub channels: usize,
    /// The same for the last block, at most as many.
    pub last_channels: usize,
    /// Rows and columns of windows.
    pub windows: [WindowAxis; 2],
}

/// The distance of the last element from the first.
pub(super) fn last(axes: &[WindowAxis], of: fn(&WindowAxis) -> usize) -> Option<usize> {
    let mut each = axes.iter();
    each.try_fold(0_usize, |sum, axis| sum.checked_add(axis.count.saturating_sub(1).checked_mul(of(axis))?))
}

impl<T: GemmElement> WindowProducts<'_, T> {
    /// Writes the sums of products of each window with each filter of some blocks, and the bias: the sums of a block to a
    /// row of `out`, from the element `first` on, those of a window side by side.
    ///
    /// Terms are added block by block of channels, as many as have 512 terms at most, or one; each such sum is a chain of
    /// fused multiply-adds.
    ///
    /// # Errors
    /// Windows, filters, a bias or sums that are outside of the slices.
    pub fn write(&self, out: &mut SubmatrixMut<'_, T>, rows: Range<usize>, first: usize) -> Result<()> {
        let blocks = rows.len();
        if blocks == 0 || self.windows.iter().any(|axis| axis.count == 0) {
            return Ok(());
        }
        let sums = || last(&self.windows, |axis| axis.other)?.checked_add(first)?.checked_add(CHANNEL_BLOCK);
        if !self.fits(blocks) || !sums().is_some_and(|sums| out.contains(rows.end, sums)) {
            return Err(Error::internal("windows, filters or sums are outside of their slices"));
        }
        let out = Sums { start: out.pointer(rows.start, first), block: out.stride(), last: CHANNEL_BLOCK };
        // SAFETY: all elements are within the slices, as checked; the submatrix is borrowed mutably.
        unsafe { self.run(blocks, out) };
        Ok(())
    }

    /// Writes the sums of each window of the second axis to a row of `out`, those of all blocks side by side, or with `add`, adds them
    /// to it, without a bias. The last block has as many filters as there are columns.
    ///
    /// # Errors
    /// Windows, filters, a bias or sums that are outside of the slices; several windows along the first axis.
    pub fn write_rows(&self, out: &mut SubmatrixMut<'_, T>) -> Result<()> {
        let ([down, across], (rows, columns)) = (self.windows, out.size());
        if columns == 0 || rows == 0 {
            return Ok(());
        }
        let blocks = columns.div_ceil(CHANNEL_BLOCK);
        if down.count != 1 || across.count != rows || !self.fits(blocks) {
            return Err(Error::internal("windows or filters are outside of their slices"));
        }
        let products = WindowProducts {
            windows: [WindowAxis { other: 0, ..down }, WindowAxis { other: out.stride(), ..across }],
            ..*self
        };
        let last = columns - (blocks - 1) * CHANNEL_BLOCK;
        let out = Sums { start: out.pointer(0, 0), block: CHANNEL_BLOCK, last };
        // SAFETY: all elements are within the slices, as checked; the submatrix is borrowed mutably.
        unsafe { products.run(blocks, out) };
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.channels == 0 || self.elements.iter().any(|axis| axis.count == 0)
    }

    /// Whether windows, filters and bias are within their slices.
    fn fits(&self, blocks: usize) -> bool {
        let ends = || {
            let x = last(&self.elements, |axis| axis.x)?
                .checked_add(last(&self.windows, |axis| axis.x)?)?
                .checked_add(self.channels)?;
            let filters = last(&self.elements, |axis| axis.other)?
                .checked_add(self.channels.checked_mul(CHANNEL_BLOCK)?)?
                .checked_add((blocks - 1).checked_mul(self.block)?)?;
            Some(x <= self.x.len() && filters <= self.filters.len())
        };
        let bias = self.bias.is_empty() || self.bias.len() >= blocks * CHANNEL_BLOCK;
        bias && (self.is_empty() || ends() == Some(true))
    }

    /// # Safety
    /// There are as many sums, which nothing else uses meanwhile, and windows, filters and bias are within their slices.
    unsafe fn run(&self, blocks: usize, out: Sums<T>) {
        let count = |axis: WindowAxis| if self.is_empty() { WindowAxis { count: 0, ..axis } } else { axis };
        let products = WindowProducts { elements: self.elements.map(count), ..*self };
        let work = Work { products, out, blocks };
        // Its address hides the function from the compiler, as of other products.
        let run = std::hint::black_box(<T as sealed::GemmKernel>::in_vectors::<Work<'_, T>> as unsafe fn(_));
        // SAFETY: the caller's promise.
        unsafe { run(work) }
    }
}

/// Where sums are written.
#[derive(Clone, Copy)]
struct Sums<T> {
    start: *mut T,
    /// Elements from the sums of one block to those of the next.
    block: usize,
    /// Filters of the last block.
    last: usize,
}

/// Products whose windows, filters and sums exist.
struct Work<'a, T> {
    products: WindowProducts<'a, T>,
    out: Sums<T>,
    blocks: usize,
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
        let WindowProducts {
            x,
            filters,
            block,
            bias,
            add,
            bounds,
            elements,
            channels,
            last_channels,
            windows,
        } = self.products;
        let [mut down, mut across] = windows;
        let row = [across.x, across.other].map(|step| across.count.checked_mul(step));
        if row == [Some(down.x), Some(down.other)] {
            // Rows follow each other without a gap.
            across.count *= down.count;
            down.count = 1;
        }
        if down.count > across.count && across.count < MOST_WINDOWS / 2 {
            (down, across) = (across, down);
        }
        let [outer, inner @ ..] = elements;
        let outer_count = outer.count;
        let terms = inner[0].count.saturating_mul(inner[1].count).saturating_mul(channels);
        let share = (TERMS / terms.max(1)).clamp(1, outer.count.max(1));
        // Sums of two blocks in registers use an element of a window twice.
        let pair = if V::LANES == CHANNEL_BLOCK { 2 } else { 1 };
        let whole = if self.out.last < CHANNEL_BLOCK { self.blocks - 1 } else { self.blocks };
        let mut first = 0;
        while first < self.blocks {
            let blocks = if first < whole { pair.min(whole - first) } else { 1 };
            for from in (0..outer.count.max(1)).step_by(share) {
                let outer = WindowAxis { count: share.min(outer.count.saturating_sub(from)), ..outer };
                // SAFETY: the promise of `WindowProducts::write`: these windows, elements and blocks exist.
                unsafe {
                    for row in 0..down.count {
                        let mut tile = WindowTile {
                            x: x.as_ptr().wrapping_add(from * outer.x + row * down.x),
                            filters: filters.as_ptr().wrapping_add(first * block + from * outer.other),
                            bias: if bias.is_empty() {
                                std::ptr::null()
                            } else {
                                bias.as_ptr().add(first * CHANNEL_BLOCK)
                            },
                            out: self.out.start.add(first * self.out.block + row * down.other),
                            steps: across,
                            blocks: (block, self.out.block),
                            elements: [outer, inner[0], inner[1]],
                            channels: [
                                channels,
                                if from + share >= outer_count {
                                    last_channels.min(channels)
                                } else {
                                    channels
                                },
                            ],
                            add: add || from > 0,
                            // Of sums of all terms.
                            bounds: if from + share >= outer_count { bounds } else { unbounded() },
                        };
                        let most = most_windows::<V>();
                        let mut left = across.count;
                        while left > 0 {
                            let n = left.div_ceil(left.div_ceil(most));
                            match blocks {
                                _ if first == whole => tile.run_columns::<V>(n, self.out.last),
                                2 => tile.run::<V, 2>(n),
                                _ => tile.run_block::<V>(n),
                            }
                            left -= n;
                            tile.x = tile.x.wrapping_add(n * across.x);
                            tile.out = tile.out.wrapping_add(n * across.other);
                        }
                    }
                }
            }
            first += blocks;
        }
    }
}

/// Bounds of all numbers.
pub(super) fn unbounded<T: GemmElement>() -> [T; 2] {
    [T::from(f32::NEG_INFINITY), T::from(f32::INFINITY)]
}

/// Windows of the largest tile whose sums stay in registers.
fn most_windows<V: Vector>() -> usize {
    match CHANNEL_BLOCK / V::LANES {
        1 => MOST_WINDOWS,
        // 32 registers, or 16.
        2 if V::LANES == 8 && size_of::<V::Element>() == 8 => 12,
        2 => 6,
        _ => 3,
    }
}

/// Some windows, and filters of one or two blocks.
struct WindowTile<T> {
    x: *const T,
    filters: *const T,
    bias: *const T,
    out: *mut T,
    /// Distances of windows.
    steps: WindowAxis,
    /// Distances of blocks of filters and of sums.
    blocks: (usize, usize),
    elements: [WindowAxis; 3],
    /// Channels of a block, and of the last one.
    channels: [usize; 2],
    /// Whether the sums are added to what is there, and are no new sums with a bias.
    add: bool,
    bounds: [T; 2],
}

impl<T: GemmElement> WindowTile<T> {
    /// Computes the sums of the first filters of a block, by way of memory for all of them.
    ///
    /// # Safety
    /// As [`run_block`](WindowTile::run_block), for so many filters.
    #[inline(always)]
    unsafe fn run_columns<V: Vector<Element = T>>(&self, windows: usize, columns: usize) {
        let mut sums = [T::ZERO; MOST_WINDOWS * CHANNEL_BLOCK];
        // SAFETY: the caller's promise; there is memory for the sums of as many windows.
        unsafe {
            let (out, step) = (self.out, self.steps.other);
            for window in 0..windows {
                for column in 0..columns {
                    sums[window * CHANNEL_BLOCK + column] = *out.add(window * step + column);
                }
            }
            let steps = WindowAxis { other: CHANNEL_BLOCK, ..self.steps };
            WindowTile { out: sums.as_mut_ptr(), steps, ..*self }.run_block::<V>(windows);
            for window in 0..windows {
                for column in 0..columns {
                    *out.add(window * step + column) = sums[window * CHANNEL_BLOCK + column];
                }
            }
        }
    }

    /// # Safety
    /// The machine has the instructions; windows, filters and sums exist.
    #[inline(always)]
    unsafe fn run_block<V: Vector<Element = T>>(&self, windows: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match CHANNEL_BLOCK / V::LANES {
                1 => self.run::<V, 1>(windows),
                2 => self.run::<V, 2>(windows),
                4 => self.run::<V, 4>(windows),
                _ => self.run::<V, 8>(windows),
            }
        }
    }

    /// Computes `N` vectors of sums for some windows.
    ///
    /// # Safety
    /// As [`run_block`](WindowTile::run_block).
    #[inline(always)]
    unsafe fn run<V: Vector<Element = T>, const N: usize>(&self, windows: usize) {
        macro_rules! sized {
            ($($n:literal)*) => {
                match windows {
                    // SAFETY: the caller's promise.
                    $($n => unsafe { self.sums::<V, N, $n>() },)*
                    // SAFETY: the caller's promise.
                    _ => unsafe { self.sums::<V, N, MOST_WINDOWS>() },
                }
            };
        }
        match (CHANNEL_BLOCK / V::LANES, N) {
            (4 | 8, _) => match windows {
                // SAFETY: the caller's promise.
                1 => unsafe { self.sums::<V, N, 1>() },
                // SAFETY: the caller's promise.
                2 => unsafe { self.sums::<V, N, 2>() },
                // SAFETY: the caller's promise.
                _ => unsafe { self.sums::<V, N, 3>() },
            },
            _ => sized!(1 2 3 4 5 6 7 8 9 10 11 12 13),
        }
    }

    /// # Safety
    /// As [`run_block`](WindowTile::run_block).
    #[inline(always)]
    unsafe fn sums<V: Vector<Element = T>, const N: usize, const R: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.steps.x {
                CHANNEL_BLOCK => V::apart(Sized::<T, N, R, CHANNEL_BLOCK>(self)),
                _ => V::apart(Sized::<T, N, R, 0>(self)),
            }
        }
    }
}

/// A tile of `R` windows and `N` vectors of sums; `STEP` elements from one window to the next, if it is not 0.
struct Sized<'a, T, const N: usize, const R: usize, const STEP: usize>(&'a WindowTile<T>);

impl<T: GemmElement, V: Vector<Element = T>, const N: usize, const R: usize, const STEP: usize> VectorWork<V>
    for Sized<'_, T, N, R, STEP>
{
    #[inline(always)]
    unsafe fn run(self) {
        let tile = self.0;
        let step = if STEP == 0 { tile.steps.x } else { STEP };
        let (filter_block, out_block) = tile.blocks;
        let parts = CHANNEL_BLOCK / V::LANES;
        let at = |v: usize, block: usize| v / parts * block + v % parts * V::LANES;
        let [blocks, rows, columns] = tile.elements;
        // SAFETY: the promises of `WindowTile::run_block`.
        unsafe {
            let mut sums = [[V::splat(T::ZERO); N]; R];
            for b in 0..blocks.count {
                let channels = tile.channels[usize::from(b + 1 == blocks.count)];
                for row in 0..rows.count {
                    for column in 0..columns.count {
                        let mut x = tile.x.add(b * blocks.x + row * rows.x + column * columns.x);
                        let start = b * blocks.other + row * rows.other + column * columns.other;
                        let mut filters = tile.filters.add(start);
                        for _ in 0..channels {
                            let of_filters: [V; N] =
                                std::array::from_fn(|v| V::load(filters.wrapping_add(at(v, filter_block))));
                            for r in 0..R {
                                let element = V::splat(*x.wrapping_add(r * step));
                                for v in 0..N {
                                    sums[r][v] = element.mul_add(of_filters[v], sums[r][v]);
                                }
                            }
                            x = x.wrapping_add(1);
                            filters = filters.wrapping_add(CHANNEL_BLOCK);
                        }
                    }
                }
            }
            if !tile.add && !tile.bias.is_null() {
                for v in 0..N {
                    let bias = V::load(tile.bias.add(v * V::LANES));
                    for r in 0..R {
                        sums[r][v] = sums[r][v].add(bias);
                    }
                }
            }
            let [least, most] = [V::splat(tile.bounds[0]), V::splat(tile.bounds[1])];
            for r in 0..R {
                for v in 0..N {
                    let out = tile.out.add(r * tile.steps.other + at(v, out_block));
                    let sum = if tile.add { V::load(out).add(sums[r][v]) } else { sums[r][v] };
                    most.min(least.max(sum)).store(out);
                }
            }
        }
    }
}
