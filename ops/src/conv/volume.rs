//! Convolution of volumes as matrix products, layer by layer of the result.

use autobwd::{
    Buf, Cx, Result,
    op::{Mat, Strided},
};

use super::conv3d::Conv3dAttrs;
use crate::{
    image::PlaneWindows,
    kernel_helpers::{KernelFloat, nth},
    windows::{Windows, dims},
};

/// With fewer pieces of work than this, pieces run in sequence and the products of each are shared between threads.
const FEW: usize = 4;

/// A convolution from `x` to `y`. A layer of a volume consists of one plane for each channel.
pub(super) struct VolumeConvolution {
    volumes: usize,
    groups: usize,
    /// Channels of `x` and of `y` in a group.
    channels: [usize; 2],
    /// Layers of `x` and of `y`.
    layers: [usize; 2],
    depth: Windows,
    planes: PlaneWindows,
}

impl VolumeConvolution {
    pub(super) fn new(attrs: &Conv3dAttrs, x: &Buf<'_>, filter: &Buf<'_>, y: &Buf<'_>) -> Result<Self> {
        let [volumes, _, x @ ..] = dims::<5>(x)?;
        let [filters, share, kernel @ ..] = dims::<5>(filter)?;
        let [_, _, y @ ..] = dims::<5>(y)?;
        let ([depth, down, across], groups) = (attrs.windows(kernel, x)?, attrs.groups as usize);
        let planes = PlaneWindows { windows: [down, across], image: [x[1], x[2]], count: [y[1], y[2]] };
        let (channels, layers) = ([share, filters / groups], [x[0], y[0]]);
        Ok(VolumeConvolution { volumes, groups, channels, layers, depth, planes })
    }

    /// Elements of a group of one volume of `x`, and of `y`.
    fn lens(&self) -> [usize; 2] {
        let planes = self.planes.lens();
        [0, 1].map(|side| planes[side].saturating_mul(self.layers[side]).saturating_mul(self.channels[side]))
    }

    /// Elements under a window in all channels of a group.
    fn column(&self) -> usize {
        self.channels[0].saturating_mul(self.depth.size).saturating_mul(self.planes.taps())
    }

    /// Elements of the columns of one layer of `y`.
    fn columns(&self) -> usize {
        self.column().saturating_mul(self.planes.lens()[1])
    }

    /// Whether the convolution has no multiplications.
    fn is_nothing(&self) -> bool {
        let [x, y] = self.lens();
        [self.volumes, x, y].contains(&0)
    }

    /// Scratch elements.
    pub(super) fn scratch(&self, workers: usize) -> usize {
        if self.is_nothing() { 0 } else { workers.saturating_mul(self.columns()) }
    }

    /// For each row of the columns of a layer of `y`: its plane of `x`, if it is not padding, and the element of the
    /// windows in that plane.
    fn rows(&self, layer: usize) -> impl Iterator<Item = (Option<usize>, usize)> {
        (0..self.column()).map(move |row| {
            let (plane, tap) = (row / self.planes.taps(), row % self.planes.taps());
            let (channel, deep) = (plane / self.depth.size, plane % self.depth.size);
            let source =
                (layer * self.depth.stride + deep * self.depth.dilation).checked_sub(self.depth.before);
            let source = source.filter(|source| *source < self.layers[0]);
            (source.map(|source| channel * self.layers[0] + source), tap)
        })
    }

    /// Writes the elements under the windows of a layer as columns.
    fn unfold<T: KernelFloat>(&self, x: &[T], layer: usize, columns: &mut [T]) {
        let [plane, count] = self.planes.lens();
        for ((source, tap), elements) in self.rows(layer).zip(columns.chunks_mut(count)) {
            match source {
                Some(source) => self.planes.take(tap, nth(x, source, plane), elements),
                None => elements.fill(T::ZERO),
            }
        }
    }

    /// Adds columns to the elements under the windows of a layer.
    fn fold<T: KernelFloat>(&self, columns: &[T], layer: usize, x: &mut [T]) {
        let [plane, count] = self.planes.lens();
        for ((source, tap), elements) in self.rows(layer).zip(columns.chunks(count)) {
            if let Some(source) = source {
                self.planes.add(tap, elements, &mut x[source * plane..][..plane]);
            }
        }
    }

    /// The filters of a group as a matrix, `[filters, column]`.
    fn filters<'a, T>(&self, filters: &'a [T], group: usize) -> Strided<'a, T> {
        let (rows, cols) = (self.channels[1], self.column());
        Mat { data: nth(filters, group, rows * cols), rows, cols, transposed: false }.into()
    }

    /// The columns of a layer as a matrix.
    fn matrix<'a, T>(&self, columns: &'a [T]) -> Strided<'a, T> {
        Mat { data: columns, rows: self.column(), cols: self.planes.lens()[1], transposed: false }.into()
    }

    /// One layer of `y` as a matrix, `[channels, pixels]`.
    fn layer<'a, T>(&self, y: &'a [T], layer: usize) -> Strided<'a, T> {
        let (rows, cols) = (self.channels[1], self.planes.lens()[1]);
        let mat = Mat { data: &y[layer * cols..], rows, cols, transposed: false };
        Strided { mat, stride: self.layers[1] * cols }
    }

    /// Calls `work` with the index of each piece of `out`, the piece and scratch memory for columns. Pieces have `len`
    /// elements.
    fn each<T: KernelFloat>(
        &self,
        cx: &Cx,
        (out, len): (&mut [T], usize),
        work: impl Fn(usize, &mut [T], &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        if self.is_nothing() {
            out.fill(T::ZERO);
            return Ok(());
        }
        let pieces = out.len() / len;
        let share = if pieces < FEW { pieces } else { 1 };
        cx.scratch(self.scratch(cx.threads()), |scratch| {
            cx.try_chunks_mut(out, share * len, scratch, |part, out, columns| {
                for (piece, out) in (part * share..).zip(out.chunks_mut(len)) {
                    work(piece, out, &mut columns[..self.columns()])?;
                }
                Ok(())
            })
        })
    }

    /// `y` = the products of the filters with the columns of `x`.
    pub(super) fn forward<T: KernelFloat>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        let ([x_len, y_len], pixels) = (self.lens(), self.planes.lens()[1]);
        self.each(cx, (y, y_len), |piece, y, columns| {
            let (x, filters) = (nth(x, piece, x_len), self.filters(filters, piece % self.groups));
            for layer in 0..self.layers[1] {
                self.unfold(x, layer, columns);
                let y = &mut y[layer * pixels..];
                cx.product_strided(y, self.layers[1] * pixels, false, filters, self.matrix(columns))?;
            }
            Ok(())
        })
    }

    /// `dx`, from `dy`: adds each element of `dy` times its filter at the window of the element.
    pub(super) fn data_grad<T: KernelFloat>(
        &self,
        cx: &Cx,
        filters: &[T],
        dy: &[T],
        dx: &mut [T],
    ) -> Result<()> {
        let ([x_len, y_len], pixels) = (self.lens(), self.planes.lens()[1]);
        self.each(cx, (dx, x_len), |piece, dx, columns| {
            dx.fill(T::ZERO);
            let (dy, filters) = (nth(dy, piece, y_len), self.filters(filters, piece % self.groups));
            for layer in 0..self.layers[1] {
                cx.product_strided(columns, pixels, false, filters.t(), self.layer(dy, layer))?;
                self.fold(columns, layer, dx);
            }
            Ok(())
        })
    }

    /// `dfilters`, from `dy`: sums each element of `dy` times the elements under its window.
    pub(super) fn filter_grad<T: KernelFloat>(
        &self,
        cx: &Cx,
        x: &[T],
        dy: &[T],
        dfilters: &mut [T],
    ) -> Result<()> {
        let ([x_len, y_len], column) = (self.lens(), self.column());
        self.each(cx, (dfilters, self.channels[1] * column), |group, sum, columns| {
            sum.fill(T::ZERO);
            for piece in (0..self.volumes).map(|volume| volume * self.groups + group) {
                let (x, dy) = (nth(x, piece, x_len), nth(dy, piece, y_len));
                for layer in 0..self.layers[1] {
                    self.unfold(x, layer, columns);
                    cx.product_strided(sum, column, true, self.layer(dy, layer), self.matrix(columns).t())?;
                }
            }
            Ok(())
        })
    }
}
