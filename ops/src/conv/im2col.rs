//! Im2col and col2im: the elements under windows as columns of a matrix, unfolded tile by tile into scratch memory.

use std::ops::Range;

use autobwd::{
    Cx,
    op::{Mat, Strided},
    tensor::Element,
};

use super::image_layout::ImageLayout;
use crate::{
    kernel_helpers::{KernelFloat, PART},
    windows::Windows,
};

/// Elements of the columns of a tile, such that they stay in the cache.
const TILE: usize = 1 << 18;
/// Number of columns from which a product pays, however long they are.
const COLUMNS: usize = 208;

/// Describes how one group of `x` is unfolded into columns.
///
/// A window can be split into bands, its rows, each multiplied on its own. Vertically adjacent windows then share
/// unfolded elements, which divides their number by the number of bands (M. Cho, D. Brand, "MEC: Memory-efficient
/// Convolution", 2017).
#[derive(Clone, Copy)]
pub(super) struct Im2col<'a> {
    x: &'a ImageLayout,
    /// Windows of a band.
    windows: [Windows; 2],
    /// Rows and columns of `y`.
    size: [usize; 2],
    /// Bands of a window.
    pub(super) count: usize,
    /// Rows of `x` from one band to the next.
    step: usize,
}

/// Consecutive pixels of `y`: whole rows, or a part of one.
pub(super) struct ColumnTile {
    rows: Range<usize>,
    cols: Range<usize>,
    /// Indices of the pixels.
    pub(super) pixels: Range<usize>,
}

impl<'a> Im2col<'a> {
    /// The columns of `size` windows over `x`, vertically and horizontally.
    pub(super) fn new(x: &'a ImageLayout, windows: [Windows; 2], size: [usize; 2]) -> Im2col<'a> {
        Im2col { x, windows, size, count: 1, step: 0 }
    }

    /// The same with one band for each window row, if consecutive windows are one row apart.
    pub(super) fn banded(self) -> Im2col<'a> {
        let [down, across] = self.windows;
        let band = Windows { size: 1, dilation: 1, ..down };
        Im2col { windows: [band, across], count: down.size, step: down.dilation, ..self }
    }

    /// Whether the columns are the images themselves.
    pub(super) fn is_plain(&self) -> bool {
        let plain = |w: &Windows| (w.size, w.stride, w.before, w.after) == (1, 1, 0, 0);
        self.count == 1 && self.windows.iter().all(plain)
    }

    /// Elements of a window's band in one channel.
    pub(super) fn window(&self) -> usize {
        self.windows[0].size.saturating_mul(self.windows[1].size)
    }

    /// Elements of a column.
    pub(super) fn column(&self) -> usize {
        self.window().saturating_mul(self.x.channels)
    }

    /// Extra rows that the bands after the first need beyond those of a tile.
    fn beyond(&self) -> usize {
        (self.count - 1) * self.step
    }

    /// Rows and columns of a tile.
    fn tile(&self) -> [usize; 2] {
        let [height, width] = self.size;
        let limit = (TILE / self.column().max(1)).max(COLUMNS);
        match () {
            () if self.is_plain() => [height, width],
            () if width <= limit => [(limit / width).saturating_sub(self.beyond()).max(1).min(height), width],
            () => [1, limit],
        }
    }

    /// Elements of the columns of a tile.
    pub(super) fn unfolded(&self) -> usize {
        let [rows, cols] = self.tile();
        if self.is_plain() { 0 } else { self.column().saturating_mul((rows + self.beyond()) * cols) }
    }

    pub(super) fn tiles(&self) -> impl Iterator<Item = ColumnTile> + use<> {
        let ([height, width], [rows, cols]) = (self.size, self.tile());
        let part = |at: usize, len: usize, all: usize| at..all.min(at + len);
        let rows = (0..height).step_by(rows).map(move |row| part(row, rows, height));
        rows.flat_map(move |rows| {
            (0..width).step_by(cols).map(move |col| {
                let (rows, cols) = (rows.clone(), part(col, cols, width));
                let first = rows.start * width + col;
                ColumnTile { pixels: first..first + rows.len() * cols.len(), rows, cols }
            })
        })
    }

    /// The tile of all pixels.
    pub(super) fn whole(&self) -> ColumnTile {
        let [height, width] = self.size;
        ColumnTile { rows: 0..height, cols: 0..width, pixels: 0..height * width }
    }

    /// The rows that the bands of a tile need together.
    fn rows(&self, tile: &ColumnTile) -> Range<usize> {
        tile.rows.start..tile.rows.end + self.beyond()
    }

    /// The number of pixels that the bands of a tile need together.
    pub(super) fn pixels(&self, tile: &ColumnTile) -> usize {
        self.rows(tile).len() * tile.cols.len()
    }

    /// The first pixel of a band in a tile.
    pub(super) fn at(&self, tile: &ColumnTile, band: usize) -> usize {
        band * self.step * tile.cols.len()
    }

    /// The columns of a band among those of a tile.
    pub(super) fn band<'b, T>(
        &self,
        columns: Strided<'b, T>,
        tile: &ColumnTile,
        band: usize,
    ) -> Strided<'b, T> {
        if self.count == 1 {
            return columns;
        }
        let data = &columns.mat.data[self.at(tile, band)..];
        Strided { mat: Mat { data, cols: tile.pixels.len(), ..columns.mat }, ..columns }
    }

    /// For each element of a window's band, row by row: the part of a tile for which it lies inside the image.
    pub(super) fn blocks(&self, tile: &ColumnTile) -> impl Iterator<Item = Option<ColumnBlock>> {
        let [down, across] = self.windows;
        (0..down.size).flat_map(move |i| (0..across.size).map(move |j| self.block([i, j], tile)))
    }

    /// Distance between the elements under consecutive windows.
    pub(super) fn x_step(&self) -> usize {
        self.windows[1].stride * self.x.steps().1
    }

    fn block(&self, tap: [usize; 2], tile: &ColumnTile) -> Option<ColumnBlock> {
        let all = self.rows(tile);
        let hits = |i: usize, among: &Range<usize>| {
            let hits = self.windows[i].hits(tap[i], self.x.size[i], among.end);
            hits.start.max(among.start)..hits.end
        };
        let (rows, cols) = (hits(0, &all), hits(1, &tile.cols));
        if rows.is_empty() || cols.is_empty() {
            return None;
        }
        let [y, x] = [0, 1].map(|i| {
            let (windows, first) = (&self.windows[i], [rows.start, cols.start][i]);
            first * windows.stride + tap[i] * windows.dilation - windows.before
        });
        let (width, pixel) = (tile.cols.len(), self.x.steps().1);
        Some(ColumnBlock {
            n: cols.len(),
            rows: rows.len(),
            at: (rows.start - all.start) * width + cols.start - tile.cols.start,
            width,
            x: (y * self.x.size[1] + x) * pixel,
            down: self.windows[0].stride * self.x.size[1] * pixel,
        })
    }

    /// The columns of a tile, `[column, pixels of all bands]`.
    pub(super) fn unfold<'b, T: Element>(
        &self,
        cx: &Cx,
        x: &'b [T],
        tile: &ColumnTile,
        columns: &'b mut [T],
    ) -> Strided<'b, T> {
        if self.is_plain() {
            return self.x.matrix(x, tile.pixels.clone());
        }
        self.unfold_tile(cx, |_| x, 1, tile, columns).into()
    }

    /// The columns of all pixels of several images, `[column, pixels of all images]`.
    pub(super) fn unfold_all<'c, 'b, T: Element>(
        &self,
        cx: &Cx,
        x: impl Fn(usize) -> &'c [T] + Sync,
        images: usize,
        columns: &'b mut [T],
    ) -> Mat<'b, T> {
        self.unfold_tile(cx, x, images, &self.whole(), columns)
    }

    fn unfold_tile<'c, 'b, T: Element>(
        &self,
        cx: &Cx,
        x: impl Fn(usize) -> &'c [T] + Sync,
        images: usize,
        tile: &ColumnTile,
        columns: &'b mut [T],
    ) -> Mat<'b, T> {
        let pixels = self.pixels(tile);
        let (rows, cols) = (self.column(), images * pixels);
        let data = &mut columns[..rows * cols];
        let ((channel, _), step, one) = (self.x.steps(), self.x_step(), self.window() * cols);
        let share = PART.div_ceil(one);
        cx.chunks_mut(data, share * one, |part, data| {
            for (i, block) in self.blocks(tile).enumerate() {
                for (of, rows) in data.chunks_mut(one).enumerate() {
                    let (channel, row) = ((part * share + of) * channel, &mut rows[i * cols..][..cols]);
                    for (image, row) in row.chunks_mut(pixels).enumerate() {
                        if block.as_ref().is_none_or(|block| block.n * block.rows < pixels) {
                            row.fill(T::default());
                        }
                        if let Some(block) = &block {
                            block.copy(row, &x(image)[channel..], step);
                        }
                    }
                }
            }
        });
        Mat { data, rows, cols, transposed: false }
    }

    /// Adds the columns of a tile, whose rows are `cols` elements apart, to their elements in one group of `x` (col2im).
    pub(super) fn fold<T: KernelFloat>(
        &self,
        (columns, cols): (&[T], usize),
        tile: &ColumnTile,
        x: &mut [T],
    ) {
        let ((channel, _), step, pixels) = (self.x.steps(), self.x_step(), self.pixels(tile));
        for (i, block) in self.blocks(tile).enumerate() {
            let Some(block) = block else { continue };
            for (of, rows) in columns.chunks(self.window() * cols).enumerate() {
                block.add(&mut x[of * channel..], &rows[i * cols..][..pixels], step);
            }
        }
    }
}

/// The part of a tile for which a window element lies inside the image.
pub(super) struct ColumnBlock {
    /// Pixels of a row.
    pub(super) n: usize,
    rows: usize,
    /// The first pixel, counted within the tile, and the distance between rows.
    at: usize,
    width: usize,
    /// Offset of the element for the first pixel, and the distance to its element for the pixel below.
    x: usize,
    down: usize,
}

impl ColumnBlock {
    /// For every row: its first pixel within the tile, and the offset of that pixel's element.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ColumnBlock { at, width, x, down, .. } = *self;
        (0..self.rows).map(move |row| (at + row * width, x + row * down))
    }

    /// Copies elements of `x` with stride `step` to a row of columns.
    fn copy<T: Copy>(&self, row: &mut [T], x: &[T], step: usize) {
        let n = self.n;
        let rows = row[self.at..].chunks_mut(self.width).zip(x[self.x..].chunks(self.down)).take(self.rows);
        // Rows are often so short that a call to `memcpy` would take longer.
        match (step, n) {
            (1, 4..=8) => rows.for_each(|(to, x)| ends::<T, 4>(&mut to[..n], &x[..n])),
            (1, 9..=16) => rows.for_each(|(to, x)| ends::<T, 8>(&mut to[..n], &x[..n])),
            (1, 17..=32) => rows.for_each(|(to, x)| ends::<T, 16>(&mut to[..n], &x[..n])),
            (1, _) => rows.for_each(|(to, x)| to[..n].copy_from_slice(&x[..n])),
            _ => rows.for_each(|(to, x)| {
                to[..n].iter_mut().zip(x.iter().step_by(step)).for_each(|(to, x)| *to = *x);
            }),
        }
    }

    /// Adds a row of columns to elements of `x` with stride `step`.
    fn add<T: KernelFloat>(&self, x: &mut [T], row: &[T], step: usize) {
        let n = self.n;
        let rows = x[self.x..].chunks_mut(self.down).zip(row[self.at..].chunks(self.width)).take(self.rows);
        match step {
            1 => rows.for_each(|(x, row)| {
                let ((x, x_rest), (row, row_rest)) = (x[..n].as_chunks_mut::<8>(), row[..n].as_chunks::<8>());
                for (x, row) in x.iter_mut().zip(row) {
                    x.iter_mut().zip(row).for_each(|(x, add)| *x += *add);
                }
                x_rest.iter_mut().zip(row_rest).for_each(|(x, add)| *x += *add);
            }),
            _ => rows.for_each(|(x, row)| {
                x.iter_mut().step_by(step).zip(&row[..n]).for_each(|(x, add)| *x += *add);
            }),
        }
    }
}

/// Copies between `N` and `2 * N` elements, as two overlapping ends.
#[inline(always)]
fn ends<T: Copy, const N: usize>(to: &mut [T], from: &[T]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk::<N>()) {
        *to = *from;
    }
}
