//! What lies under windows, as the columns of a matrix: unfolded tile by tile into scratch memory.

use std::ops::Range;

use autobwd::{Cx, Mat, Strided};

use super::kernel::Convolution;
use crate::common::{PART, Real};

/// Elements of the columns of a tile: they stay in the cache.
const TILE: usize = 1 << 16;
/// Columns that are worth a product, however long they are.
const COLUMNS: usize = 64;

/// Pixels of `y` that follow each other: whole rows, or a part of one.
pub(super) struct Tile {
    rows: Range<usize>,
    cols: Range<usize>,
    /// Their numbers.
    pub(super) pixels: Range<usize>,
}

/// An element of all windows, and the rows and columns of `y` for which it lies in the image.
pub(super) struct Tap {
    at: [usize; 2],
    rows: Range<usize>,
    cols: Range<usize>,
}

/// The part of a tile for which an element of the windows lies in the image.
pub(super) struct Block {
    /// Pixels of a row.
    pub(super) n: usize,
    rows: usize,
    /// The first pixel, counted within the tile, and those from one row to the next.
    at: usize,
    width: usize,
    /// Where the element is for the first pixel, and how far from there it is for the pixel below.
    x: usize,
    down: usize,
}

impl Block {
    /// Of every row, its first pixel within the tile and where the element is for that.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Block { at, width, x, down, .. } = *self;
        (0..self.rows).map(move |row| (at + row * width, x + row * down))
    }
}

impl Convolution {
    /// Rows and columns of a tile.
    fn tile(&self) -> [usize; 2] {
        let [height, width] = self.y.size;
        let limit = (TILE / self.column()).max(COLUMNS);
        match () {
            () if self.is_plain() => [height, width],
            () if width <= limit => [(limit / width).min(height), width],
            () => [1, limit],
        }
    }

    /// Elements of the columns of a tile.
    pub(super) fn unfolded(&self) -> usize {
        let [rows, cols] = self.tile();
        if self.is_plain() { 0 } else { self.column() * rows * cols }
    }

    pub(super) fn tiles(&self) -> impl Iterator<Item = Tile> + use<> {
        let ([height, width], [rows, cols]) = (self.y.size, self.tile());
        let part = |at: usize, len: usize, all: usize| at..all.min(at + len);
        let rows = (0..height).step_by(rows).map(move |row| part(row, rows, height));
        rows.flat_map(move |rows| {
            (0..width).step_by(cols).map(move |col| {
                let (rows, cols) = (rows.clone(), part(col, cols, width));
                let first = rows.start * width + col;
                Tile { pixels: first..first + rows.len() * cols.len(), rows, cols }
            })
        })
    }

    /// All pixels.
    pub(super) fn whole(&self) -> Tile {
        let [height, width] = self.y.size;
        Tile { rows: 0..height, cols: 0..width, pixels: 0..height * width }
    }

    /// The elements of a window, row by row.
    pub(super) fn taps(&self) -> impl Iterator<Item = Tap> {
        let [down, across] = &self.windows;
        (0..down.size).flat_map(|i| (0..across.size).map(move |j| [i, j])).map(|at| {
            let hits = |i: usize| self.windows[i].hits(at[i], self.x.size[i], self.y.size[i]);
            Tap { at, rows: hits(0), cols: hits(1) }
        })
    }

    /// From what is under one window to what is under the next.
    pub(super) fn x_step(&self) -> usize {
        self.windows[1].stride * self.x.steps().1
    }

    pub(super) fn block(&self, tap: &Tap, tile: &Tile) -> Option<Block> {
        let common = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start)..a.end.min(b.end);
        let (rows, cols) = (common(&tap.rows, &tile.rows), common(&tap.cols, &tile.cols));
        if rows.is_empty() || cols.is_empty() {
            return None;
        }
        let [y, x] = [0, 1].map(|i| {
            let (windows, first) = (&self.windows[i], [rows.start, cols.start][i]);
            first * windows.stride + tap.at[i] * windows.dilation - windows.before
        });
        let (width, pixel) = (tile.cols.len(), self.x.steps().1);
        Some(Block {
            n: cols.len(),
            rows: rows.len(),
            at: (rows.start - tile.rows.start) * width + cols.start - tile.cols.start,
            width,
            x: (y * self.x.size[1] + x) * pixel,
            down: self.windows[0].stride * self.x.size[1] * pixel,
        })
    }

    /// The columns of a tile, of one group of `x`: `[column, pixels]`.
    pub(super) fn unfold<'a, T: Real>(
        &self,
        cx: &Cx,
        x: &'a [T],
        tile: &Tile,
        columns: &'a mut [T],
    ) -> Strided<'a, T> {
        if self.is_plain() {
            return self.x.matrix(x, tile.pixels.clone());
        }
        let (rows, cols) = (self.column(), tile.pixels.len());
        let data = &mut columns[..rows * cols];
        let ((channel, _), step, one) = (self.x.steps(), self.x_step(), self.window() * cols);
        let share = PART.div_ceil(one);
        cx.chunks_mut(data, share * one, |part, data| {
            for (i, tap) in self.taps().enumerate() {
                let block = self.block(&tap, tile);
                for (of, rows) in data.chunks_mut(one).enumerate() {
                    let (x, row) = (&x[(part * share + of) * channel..], &mut rows[i * cols..][..cols]);
                    let Some(block) = &block else {
                        row.fill(T::ZERO);
                        continue;
                    };
                    if block.n * block.rows < cols {
                        row.fill(T::ZERO);
                    }
                    for (at, from) in block.rows() {
                        let (to, x) = (&mut row[at..][..block.n], &x[from..]);
                        match step {
                            1 => copy(to, &x[..block.n]),
                            _ => to.iter_mut().zip(x.iter().step_by(step)).for_each(|(to, x)| *to = *x),
                        }
                    }
                }
            }
        });
        Mat { data, rows, cols, transposed: false }.into()
    }

    /// Adds the columns of a tile to where they came from in one group of `x`.
    pub(super) fn fold<T: Real>(&self, columns: &[T], tile: &Tile, x: &mut [T]) {
        let ((channel, _), step, cols) = (self.x.steps(), self.x_step(), tile.pixels.len());
        for (i, tap) in self.taps().enumerate() {
            let Some(block) = self.block(&tap, tile) else { continue };
            for (of, rows) in columns.chunks(self.window() * cols).enumerate() {
                let (x, row) = (&mut x[of * channel..], &rows[i * cols..][..cols]);
                for (at, to) in block.rows() {
                    let (row, x) = (&row[at..][..block.n], &mut x[to..]);
                    match step {
                        1 => x[..block.n].iter_mut().zip(row).for_each(|(x, add)| *x += *add),
                        _ => x.iter_mut().step_by(step).zip(row).for_each(|(x, add)| *x += *add),
                    }
                }
            }
        }
    }
}

/// Copies a row of pixels. Rows are often so short that a call would take longer.
#[inline(always)]
fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    #[inline(always)]
    fn ends<T: Copy, const N: usize>(to: &mut [T], from: &[T]) {
        if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
            *to = *from;
        }
        if let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk::<N>()) {
            *to = *from;
        }
    }
    match to.len() {
        8..=16 => ends::<T, 8>(to, from),
        4..8 => ends::<T, 4>(to, from),
        _ => to.copy_from_slice(from),
    }
}
