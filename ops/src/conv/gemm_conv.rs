//! Convolution as matrix products of the filters with im2col columns.

use autobwd::{
    Cx, Result,
    op::{Mat, Strided},
};

use super::{im2col::Im2col, image_layout::ImageLayout};
use crate::{
    kernel_helpers::{KernelFloat, PART, nth},
    windows::Windows,
};

/// Number of multiplications from which work is shared between threads.
const WORK: usize = 1 << 19;
/// With fewer units than this, units run in sequence and each is shared between threads.
const FEW: usize = 4;
/// Elements of the partial sums of the filter gradient, and their maximum number.
const SUMS: (usize, usize) = (1 << 18, 8);
/// Number of filters for each channel from which products pay.
const DIRECT: usize = 4;
/// Elements of a band from which a product of its own pays.
const BAND: usize = 64;
/// The number of pixels for each filter from which packing the filters band by band pays.
const PACKED: usize = 4;

/// A convolution from `x` to `y`, or its transpose.
pub(super) struct Convolution {
    pub(super) images: usize,
    pub(super) groups: usize,
    pub(super) x: ImageLayout,
    pub(super) y: ImageLayout,
    pub(super) windows: [Windows; 2],
}

/// What kernels compute: the convolution, or the gradient of the images or of the filters.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ConvPart {
    Forward,
    DataGrad,
    FilterGrad,
}

/// A group of channels of one image.
#[derive(Clone, Copy)]
pub(super) struct ConvGroup {
    /// Its index among all groups of an image.
    pub(super) number: usize,
    pub(super) unit: usize,
    /// Its index within the unit.
    pub(super) inside: usize,
}

impl Convolution {
    /// Elements of the filters of one group.
    fn filters(&self) -> usize {
        self.columns().column().saturating_mul(self.y.channels)
    }

    /// The im2col columns of `x`.
    pub(super) fn columns(&self) -> Im2col<'_> {
        Im2col::new(&self.x, self.windows, self.y.size)
    }

    /// As [`columns`](Convolution::columns), split into bands where that pays. The filter gradient has no bands: its
    /// products would be as small as a band.
    fn bands(&self) -> Im2col<'_> {
        let ([down, across], columns) = (&self.windows, self.columns());
        let pays = self.x.channels.saturating_mul(across.size) >= BAND
            && self.images.saturating_mul(self.y.pixels()) >= self.y.channels.saturating_mul(PACKED);
        if pays && down.stride == 1 && down.size > 1 && !self.is_direct() {
            columns.banded()
        } else {
            columns
        }
    }

    /// Whether there are too few filters for each channel for products to pay.
    fn is_direct(&self) -> bool {
        self.x.channels == 1 && self.y.channels < DIRECT
    }

    /// Units of an image.
    fn units(&self) -> usize {
        self.groups / self.x.inside
    }

    /// The group of an image with that index.
    pub(super) fn group(&self, image: usize, number: usize) -> ConvGroup {
        let each = self.x.inside;
        ConvGroup { number, unit: image * self.units() + number / each, inside: number % each }
    }

    /// Units for each piece of shared work.
    fn share(&self) -> usize {
        let units = self.images * self.units();
        let work = self.filters().saturating_mul(self.y.pixels() * self.x.inside);
        if units < FEW { units.max(1) } else { (WORK / work.max(1)).max(1) }
    }

    /// The number of partial sums of the filter gradient, and the images of each.
    fn sums(&self) -> (usize, usize) {
        let sums = (SUMS.0 / self.filters().saturating_mul(self.groups).max(1)).clamp(1, SUMS.1);
        let each = self.images.div_ceil(sums).max(1);
        (self.images.div_ceil(each), each)
    }

    /// Whether the convolution has no multiplications.
    pub(super) fn is_nothing(&self) -> bool {
        [self.images, self.filters(), self.x.pixels(), self.y.pixels()].contains(&0)
    }

    /// Scratch elements of that part.
    pub(super) fn scratch(&self, part: ConvPart, workers: usize) -> usize {
        if self.is_nothing() {
            return 0;
        }
        if part == ConvPart::FilterGrad {
            return if self.is_direct() { 0 } else { self.filter_scratch(workers) };
        }
        if let Some(winograd) = self.winograd(part == ConvPart::DataGrad) {
            return winograd.scratch_len(workers);
        }
        let small = self.small().filter(|_| part == ConvPart::Forward);
        match self.is_direct() {
            true => small.map_or(0, |rows| rows.scratch() * workers),
            false => self.packed() + workers * self.bands().unfolded(),
        }
    }

    /// Scratch elements of `filter_grad`.
    fn filter_scratch(&self, workers: usize) -> usize {
        let sums = match self.sums().0 {
            1 => 0,
            sums => sums * self.groups * self.filters(),
        };
        workers * self.columns().unfolded() + sums
    }

    /// Elements of the filters packed band by band.
    fn packed(&self) -> usize {
        if self.bands().count > 1 { self.groups * self.filters() } else { 0 }
    }

    /// Packs the filters band by band, each band as `[filters, column]`.
    fn pack<T: KernelFloat>(&self, cx: &Cx, filters: &[T], packed: &mut [T]) {
        let (columns, bands) = (self.columns(), self.bands());
        let (rows, across, share) = (self.y.channels, self.windows[1].size, PART.div_ceil(bands.column()));
        cx.chunks_mut(packed, share * bands.column(), |part, packed| {
            for (row, packed) in (part * share..).zip(packed.chunks_mut(bands.column())) {
                let (group, band) = (row / (bands.count * rows), row / rows % bands.count);
                let filter = nth(filters, group * rows + row % rows, columns.column());
                let channels = filter.chunks(columns.window()).map(|channel| nth(channel, band, across));
                packed.chunks_mut(across).zip(channels).for_each(|(to, from)| to.copy_from_slice(from));
            }
        });
    }

    /// One band of the filters of a group, `[filters, column]`.
    fn band_of<'a, T>(&self, columns: &Im2col<'_>, filters: &'a [T], band: usize) -> Strided<'a, T> {
        let (rows, cols) = (self.y.channels, columns.column());
        Mat { data: nth(filters, band, rows * cols), rows, cols, transposed: false }.into()
    }

    /// Calls `work` with every group of all images, its filters, its part of the images `out` on one `side`, and its part
    /// of `scratch` elements. `out` is zeroed first if `zeroed`, otherwise its contents are arbitrary.
    fn each_group<T: KernelFloat>(
        &self,
        cx: &Cx,
        filters: &[T],
        (side, out, zeroed): (&ImageLayout, &mut [T], bool),
        scratch: usize,
        work: impl Fn(ConvGroup, &[T], &mut [T], &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        if self.is_nothing() {
            out.fill(T::ZERO);
            return Ok(());
        }
        let (len, share, units, each) = (side.len(), self.share(), self.units(), self.x.inside);
        cx.scratch(scratch, |scratch| {
            let (packed, scratch) = scratch.split_at_mut(self.packed());
            self.pack(cx, filters, packed);
            let filters = if packed.is_empty() { filters } else { packed };
            cx.try_chunks_mut(out, share * len, scratch, |part, out, scratch| {
                for (out, unit) in out.chunks_mut(len).zip(part * share..) {
                    if zeroed {
                        out.fill(T::ZERO);
                    }
                    let numbers = unit % units * each..(unit % units + 1) * each;
                    for group in numbers.map(|number| self.group(unit / units, number)) {
                        let filters = nth(filters, group.number, self.filters());
                        work(group, filters, &mut out[side.start(group)..], scratch)?;
                    }
                }
                Ok(())
            })
        })
    }

    /// `y` = the products of the filters with the columns of `x`.
    pub(super) fn forward<T: KernelFloat>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        if let Some(winograd) = self.winograd(false) {
            return winograd.run(cx, x, filters, y);
        }
        let (bands, is_direct) = (self.bands(), self.is_direct());
        let zeroed = is_direct && self.small().is_none();
        let scratch = self.scratch(ConvPart::Forward, cx.threads());
        self.each_group(cx, filters, (&self.y, y, zeroed), scratch, |group, filters, y, scratch| {
            let x = self.x.group(x, group);
            if is_direct {
                self.apply(x, filters, y, scratch);
                return Ok(());
            }
            for tile in bands.tiles() {
                let columns = bands.unfold(cx, x, &tile, scratch);
                for band in 0..bands.count {
                    let (filters, columns) =
                        (self.band_of(&bands, filters, band), bands.band(columns, &tile, band));
                    self.y.put(cx, y, tile.pixels.start, band > 0, filters, columns)?;
                }
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
        if let Some(winograd) = self.winograd(true) {
            return winograd.run(cx, dy, filters, dx);
        }
        let bands = self.bands();
        let scratch = self.scratch(ConvPart::DataGrad, cx.threads());
        self.each_group(cx, filters, (&self.x, dx, true), scratch, |group, filters, dx, scratch| {
            let dy = self.y.group(dy, group);
            if self.is_direct() {
                self.apply_back(filters, dy, dx);
                return Ok(());
            }
            let filters = |band| self.band_of(&bands, filters, band).t();
            for tile in bands.tiles() {
                let dy = self.y.matrix(dy, tile.pixels.clone());
                if bands.is_plain() {
                    self.x.put(cx, dx, tile.pixels.start, false, filters(0), dy)?;
                    continue;
                }
                let n = bands.pixels(&tile);
                let columns = &mut scratch[..bands.column() * n];
                // Later bands only add to the pixels that the first band does not write.
                columns.chunks_mut(n).for_each(|row| row[tile.pixels.len()..].fill(T::ZERO));
                for band in 0..bands.count {
                    let columns = &mut columns[bands.at(&tile, band)..];
                    cx.product_strided(columns, n, band > 0, filters(band), dy)?;
                }
                bands.fold(columns, &tile, dx);
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
        if self.is_nothing() {
            dfilters.fill(T::ZERO);
            return Ok(());
        }
        if self.is_direct() {
            self.correlate(cx, x, dy, dfilters);
            return Ok(());
        }
        let ((sums, each), len, columns) = (self.sums(), dfilters.len(), self.columns());
        let add_up = |parts: &mut [T], scratch: &mut [T]| {
            cx.try_chunks_mut(parts, len, scratch, |part, sum, scratch| {
                sum.fill(T::ZERO);
                let images = part * each..self.images.min((part + 1) * each);
                for group in images.flat_map(|i| (0..self.groups).map(move |number| self.group(i, number))) {
                    let (x, dy) = (self.x.group(x, group), self.y.group(dy, group));
                    let sum = &mut sum[group.number * self.filters()..][..self.filters()];
                    for tile in columns.tiles() {
                        let unfolded = columns.unfold(cx, x, &tile, scratch);
                        let dy = self.y.matrix(dy, tile.pixels.clone());
                        cx.product_strided(sum, columns.column(), true, dy, unfolded.t())?;
                    }
                }
                Ok(())
            })
        };
        cx.scratch(self.filter_scratch(cx.threads()), |scratch| {
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
}
