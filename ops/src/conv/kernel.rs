//! Convolutions as matrix products: of the filters with the columns that lie under the windows.

use autobwd::{Buf, Cx, Mat, Result, Strided};

use super::side::Side;
use crate::{
    common::{PART, Real, nth},
    image::{Windows, dims},
    norm::DataLayout,
};

/// Multiplications that are worth sharing.
const WORK: usize = 1 << 19;
/// Fewer units than that are done one after the other, each shared.
const FEW: usize = 4;
/// Elements of the sums that are added up beside each other for the gradient of filters, and the most of these sums.
const SUMS: (usize, usize) = (1 << 18, 8);
/// So many filters for each channel are worth products.
const DIRECT: usize = 4;

/// A convolution from `x` to `y`, or back.
pub(super) struct Convolution {
    images: usize,
    groups: usize,
    pub(super) x: Side,
    pub(super) y: Side,
    pub(super) windows: [Windows; 2],
}

impl Convolution {
    /// A convolution of `x` with `filter` to `y`.
    pub(super) fn new(
        format: DataLayout,
        groups: usize,
        windows: [Windows; 2],
        x: &Buf<'_>,
        filter: &Buf<'_>,
        y: &Buf<'_>,
    ) -> Result<Convolution> {
        let (images, _, x_size) = format.split(dims(x)?);
        let (_, _, y_size) = format.split(dims(y)?);
        let [filters, share, ..] = dims(filter)?;
        let inside = if format == DataLayout::Nhwc { groups } else { 1 };
        let x = Side { channels: share, size: x_size, inside, format };
        let y = Side { channels: filters / groups, size: y_size, inside, format };
        Ok(Convolution { images, groups, x, y, windows })
    }

    /// Elements of a window.
    pub(super) fn window(&self) -> usize {
        self.windows[0].size.saturating_mul(self.windows[1].size)
    }

    /// Elements of a column, which are those of a filter.
    pub(super) fn column(&self) -> usize {
        self.window().saturating_mul(self.x.channels)
    }

    /// Elements of the filters of one group.
    fn filters(&self) -> usize {
        self.column().saturating_mul(self.y.channels)
    }

    /// Whether columns are the images themselves.
    pub(super) fn is_plain(&self) -> bool {
        let plain = |w: &Windows| (w.size, w.stride, w.before, w.after) == (1, 1, 0, 0);
        self.windows.iter().all(plain)
    }

    /// Whether there are so few filters for each channel that products do not pay.
    fn is_direct(&self) -> bool {
        self.x.channels == 1 && self.y.channels < DIRECT
    }

    /// Units of an image.
    fn units(&self) -> usize {
        self.groups / self.x.inside
    }

    /// The groups of a unit: their numbers in all, and within the unit.
    fn groups(&self, unit: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let first = unit % self.units();
        (0..self.x.inside).map(move |inside| (first + inside, inside))
    }

    /// Units that make a fair share of work.
    fn share(&self) -> usize {
        let units = self.images * self.units();
        let work = self.filters().saturating_mul(self.y.pixels() * self.x.inside);
        if units < FEW { units.max(1) } else { (WORK / work.max(1)).max(1) }
    }

    /// Sums for the gradient of the filters: how many, and images of each.
    fn sums(&self) -> (usize, usize) {
        let sums = (SUMS.0 / self.filters().saturating_mul(self.groups).max(1)).clamp(1, SUMS.1);
        let each = self.images.div_ceil(sums).max(1);
        (self.images.div_ceil(each), each)
    }

    /// Scratch elements that `forward` and `data_grad` need.
    pub(super) fn scratch(&self, workers: usize) -> usize {
        // Where there is nothing to multiply, nothing is.
        let nothing = self.filters() == 0 || self.x.pixels() == 0 || self.y.pixels() == 0;
        if nothing || self.is_direct() { 0 } else { workers * self.unfolded() }
    }

    /// Scratch elements that gradients need, with that of the filters or without.
    pub(super) fn grad_scratch(&self, filters: bool, workers: usize) -> usize {
        let sums = if filters && !self.is_direct() { self.sums().0 } else { 1 };
        let sums = if sums > 1 { sums * self.groups * self.filters() } else { 0 };
        self.scratch(workers) + sums
    }

    /// The filters of a group, `[filters, column]`.
    fn filters_of<'a, T>(&self, filters: &'a [T], group: usize) -> Strided<'a, T> {
        let (rows, cols) = (self.y.channels, self.column());
        Mat { data: nth(filters, group, rows * cols), rows, cols, transposed: false }.into()
    }

    /// The same group of every image, on both sides.
    pub(super) fn beside<'a, T>(
        &self,
        x: &'a [T],
        y: &'a [T],
        group: usize,
    ) -> impl Iterator<Item = (&'a [T], &'a [T])> {
        let (first, inside) = (group % self.units(), group % self.x.inside);
        (0..self.images).map(move |image| {
            let unit = image * self.units() + first;
            let (x, y) = (nth(x, unit, self.x.len()), nth(y, unit, self.y.len()));
            (self.x.group(x, inside), self.y.group(y, inside))
        })
    }

    /// `y` = the products of the filters with what lies under every window of `x`.
    pub(super) fn forward<T: Real>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        if x.is_empty() || filters.is_empty() {
            y.fill(T::ZERO);
            return Ok(());
        }
        let (len, share) = (self.y.len(), self.share());
        cx.scratch(self.scratch(cx.threads()), |scratch| {
            cx.try_chunks_mut(y, share * len, scratch, |part, y, columns| {
                let mut units = y.chunks_mut(len).zip(part * share..);
                units.try_for_each(|(y, unit)| self.forward_unit(cx, unit, x, filters, y, columns))
            })
        })
    }

    fn forward_unit<T: Real>(
        &self,
        cx: &Cx,
        unit: usize,
        x: &[T],
        filters: &[T],
        y: &mut [T],
        columns: &mut [T],
    ) -> Result<()> {
        let x = nth(x, unit, self.x.len());
        if self.is_direct() {
            y.fill(T::ZERO);
        }
        for (group, inside) in self.groups(unit) {
            let (x, y) = (self.x.group(x, inside), self.y.group_mut(y, inside));
            let filters = self.filters_of(filters, group);
            if self.is_direct() {
                self.apply(x, filters.mat.data, y);
                continue;
            }
            for tile in self.tiles() {
                let columns = self.unfold(cx, x, &tile, columns);
                self.y.put(cx, y, tile.pixels.start, filters, columns)?;
            }
        }
        Ok(())
    }

    /// `dx` = the gradient of `x` for `dy`, that of `y`: each element of `dy` times its filter, where its window was.
    pub(super) fn data_grad<T: Real>(&self, cx: &Cx, filters: &[T], dy: &[T], dx: &mut [T]) -> Result<()> {
        if dy.is_empty() || filters.is_empty() {
            dx.fill(T::ZERO);
            return Ok(());
        }
        let (len, share) = (self.x.len(), self.share());
        cx.scratch(self.scratch(cx.threads()), |scratch| {
            cx.try_chunks_mut(dx, share * len, scratch, |part, dx, columns| {
                let mut units = dx.chunks_mut(len).zip(part * share..);
                units.try_for_each(|(dx, unit)| self.data_grad_unit(cx, unit, filters, dy, dx, columns))
            })
        })
    }

    fn data_grad_unit<T: Real>(
        &self,
        cx: &Cx,
        unit: usize,
        filters: &[T],
        dy: &[T],
        dx: &mut [T],
        columns: &mut [T],
    ) -> Result<()> {
        let dy = nth(dy, unit, self.y.len());
        dx.fill(T::ZERO);
        for (group, inside) in self.groups(unit) {
            let (dx, dy) = (self.x.group_mut(dx, inside), self.y.group(dy, inside));
            let filters = self.filters_of(filters, group);
            if self.is_direct() {
                self.apply_back(filters.mat.data, dy, dx);
                continue;
            }
            for tile in self.tiles() {
                let (dy, n) = (self.y.matrix(dy, tile.pixels.clone()), tile.pixels.len());
                if self.is_plain() {
                    self.x.put(cx, dx, tile.pixels.start, filters.t(), dy)?;
                    continue;
                }
                let columns = &mut columns[..self.column() * n];
                cx.product_strided(columns, n, false, filters.t(), dy)?;
                self.fold(columns, &tile, dx);
            }
        }
        Ok(())
    }

    /// `dfilters` = the gradient of the filters for `dy`, that of `y`: each element of `dy` times what lay under its
    /// window, summed.
    pub(super) fn filter_grad<T: Real>(&self, cx: &Cx, x: &[T], dy: &[T], dfilters: &mut [T]) -> Result<()> {
        if x.is_empty() || dy.is_empty() {
            dfilters.fill(T::ZERO);
            return Ok(());
        }
        if self.is_direct() {
            self.correlate(cx, x, dy, dfilters);
            return Ok(());
        }
        let ((sums, each), len) = (self.sums(), dfilters.len());
        let add_up = |parts: &mut [T], scratch: &mut [T]| {
            cx.try_chunks_mut(parts, len, scratch, |part, sum, columns| {
                sum.fill(T::ZERO);
                let images = part * each..self.images.min((part + 1) * each);
                let mut units = images.start * self.units()..images.end * self.units();
                units.try_for_each(|unit| self.filter_grad_unit(cx, unit, x, dy, sum, columns))
            })
        };
        cx.scratch(self.grad_scratch(true, cx.threads()), |scratch| {
            if sums == 1 {
                return add_up(dfilters, scratch);
            }
            let (parts, scratch) = scratch.split_at_mut(sums * len);
            add_up(parts, scratch)?;
            cx.chunks_mut(dfilters, PART, |part, out| {
                out.fill(T::ZERO);
                for sum in parts.chunks(len) {
                    out.iter_mut().zip(&sum[part * PART..]).for_each(|(out, x)| *out += *x);
                }
            });
            Ok(())
        })
    }

    fn filter_grad_unit<T: Real>(
        &self,
        cx: &Cx,
        unit: usize,
        x: &[T],
        dy: &[T],
        sum: &mut [T],
        columns: &mut [T],
    ) -> Result<()> {
        let (x, dy) = (nth(x, unit, self.x.len()), nth(dy, unit, self.y.len()));
        for (group, inside) in self.groups(unit) {
            let (x, dy) = (self.x.group(x, inside), self.y.group(dy, inside));
            let sum = &mut sum[group * self.filters()..][..self.filters()];
            for tile in self.tiles() {
                let columns = self.unfold(cx, x, &tile, columns);
                let dy = self.y.matrix(dy, tile.pixels.clone());
                cx.product_strided(sum, self.column(), true, dy, columns.t())?;
            }
        }
        Ok(())
    }
}
