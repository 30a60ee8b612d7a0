//! Convolution as matrix products of the filters with im2col columns.

use autobwd::{
    Cx, Result,
    op::{GemmElement, Mat, Strided},
    tensor::Element,
};

use super::{im2col::Im2col, image_layout::ImageLayout, storage::ConvElement};
use crate::{
    kernel_helpers::{PART, nth},
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
/// Sums of an image, or of some, that are rounded together, such that they stay in the cache that cores share.
const ROUNDED: usize = 1 << 21;
/// Elements of a filter gradient that are added up together.
const LINE: usize = 64;

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
    pub(super) fn filters(&self) -> usize {
        self.columns().column().saturating_mul(self.y.channels)
    }

    /// The im2col columns of `x`.
    pub(super) fn columns(&self) -> Im2col<'_> {
        Im2col::new(&self.x, self.windows, self.y.size)
    }

    /// As [`columns`](Convolution::columns), split into bands where that pays. The filter gradient has no bands: its
    /// products would be as small as a band.
    pub(super) fn bands(&self) -> Im2col<'_> {
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
    pub(super) fn is_direct(&self) -> bool {
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

    /// Scratch elements of that part: of the type of images, and of sums.
    pub(super) fn scratch<T: ConvElement>(&self, part: ConvPart, workers: usize) -> (usize, usize) {
        if self.is_nothing() {
            return (0, 0);
        }
        if let Some(lanes) = self.channel_lanes::<T>(part) {
            return (0, workers.saturating_mul(lanes.scratch()));
        }
        if let Some(winograd) = self.winograd::<T>(part) {
            return (0, winograd.scratch_len::<T>(part, workers));
        }
        if let Some(small) = self.small_images::<T>(part) {
            return small.scratch::<T>(part);
        }
        if part == ConvPart::FilterGrad {
            let rows = self.small_correlation().map_or(0, |rows| rows.scratch() * workers);
            return if self.is_direct() { (0, rows) } else { self.filter_scratch::<T>(workers) };
        }
        let columns = workers.saturating_mul(self.bands().unfolded());
        match (part, self.is_direct()) {
            (ConvPart::Forward, true) => {
                let rows = self.small().map_or(0, |rows| rows.scratch() * workers);
                (0, self.rounded::<T>(&self.y).saturating_add(rows))
            }
            (ConvPart::Forward, false) => (self.packed().saturating_add(columns), self.rounded::<T>(&self.y)),
            (_, true) => {
                let spread = self.small_back().map_or(0, |windows| windows.scratch() * workers);
                (0, self.rounded::<T>(&self.x).saturating_add(spread))
            }
            (_, false) => (self.packed(), self.rounded::<T>(&self.x).saturating_add(columns)),
        }
    }

    /// Scratch elements of `filter_grad`.
    fn filter_scratch<T: ConvElement>(&self, workers: usize) -> (usize, usize) {
        let len = self.groups * self.filters();
        let sums = match self.sums().0 {
            1 => T::sums(len),
            sums => sums * len,
        };
        (workers * self.columns().unfolded(), sums)
    }

    /// Units on that side that are computed, and then rounded, together.
    fn batch<T: ConvElement>(&self, side: &ImageLayout) -> usize {
        let (units, share) = (self.images * self.units(), self.share());
        if T::IN_PLACE { units } else { (ROUNDED / (share * side.len()).max(1)).max(1) * share }
    }

    /// Scratch elements for the sums of such units.
    fn rounded<T: ConvElement>(&self, side: &ImageLayout) -> usize {
        let units = self.batch::<T>(side).min(self.images * self.units());
        T::sums(units.saturating_mul(side.len()))
    }

    /// Elements of the filters packed band by band.
    fn packed(&self) -> usize {
        if self.bands().count > 1 { self.groups * self.filters() } else { 0 }
    }

    /// Packs the filters band by band, each band as `[filters, column]`.
    fn pack<T: Element>(&self, cx: &Cx, filters: &[T], packed: &mut [T]) {
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

    /// The filters, packed band by band if there are several.
    fn banded<'a, T: Element>(&self, cx: &Cx, filters: &'a [T], packed: &'a mut [T]) -> &'a [T] {
        self.pack(cx, filters, packed);
        if packed.is_empty() { filters } else { packed }
    }

    /// One band of the filters of a group, `[filters, column]`.
    fn band_of<'a, T>(&self, columns: &Im2col<'_>, filters: &'a [T], band: usize) -> Strided<'a, T> {
        let (rows, cols) = (self.y.channels, columns.column());
        Mat { data: nth(filters, band, rows * cols), rows, cols, transposed: false }.into()
    }

    /// Calls `work` with every group of all images, its filters, the sums for its part of the images `out` on one `side`,
    /// and its worker's part of `scratch`. The sums are zeroed first if `zeroed`, otherwise their contents are arbitrary.
    fn each_group<T: ConvElement, S: Send>(
        &self,
        cx: &Cx,
        filters: &[T],
        (side, out, zeroed): (&ImageLayout, &mut [T], bool),
        (sums, scratch): (&mut [T::Sum], &mut [S]),
        work: impl Fn(ConvGroup, &[T], &mut [T::Sum], &mut [S]) -> Result<()> + Sync,
    ) -> Result<()> {
        let (len, share, units, each) = (side.len(), self.share(), self.units(), self.x.inside);
        let batch = self.batch::<T>(side);
        for (number, out) in out.chunks_mut(batch * len).enumerate() {
            T::summed(cx, out, sums, |sums| {
                cx.try_chunks_mut(sums, share * len, scratch, |part, sums, scratch| {
                    for (sums, unit) in sums.chunks_mut(len).zip(number * batch + part * share..) {
                        if zeroed {
                            sums.fill(T::Sum::ZERO);
                        }
                        let numbers = unit % units * each..(unit % units + 1) * each;
                        for group in numbers.map(|number| self.group(unit / units, number)) {
                            let filters = nth(filters, group.number, self.filters());
                            work(group, filters, &mut sums[side.start(group)..], scratch)?;
                        }
                    }
                    Ok(())
                })
            })?;
        }
        Ok(())
    }

    /// `y` = the products of the filters with the columns of `x`.
    pub(super) fn forward<T: ConvElement>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        if self.is_nothing() {
            y.fill(T::default());
            return Ok(());
        }
        if let Some(lanes) = self.channel_lanes::<T>(ConvPart::Forward) {
            return lanes.products(cx, ConvPart::Forward, (x, filters), y);
        }
        if let Some(winograd) = self.winograd::<T>(ConvPart::Forward) {
            return winograd.run(cx, x, filters, y);
        }
        if let Some(small) = self.small_images::<T>(ConvPart::Forward) {
            return small.forward(cx, x, filters, y);
        }
        cx.scratch_pair(self.scratch::<T>(ConvPart::Forward, cx.threads()), |columns, sums| {
            let (sums, rows) = sums.split_at_mut(self.rounded::<T>(&self.y));
            if self.is_direct() {
                let out = (&self.y, y, self.small().is_none());
                return self.each_group(cx, filters, out, (sums, rows), |group, filters, y, rows| {
                    self.apply(self.x.group(x, group), filters, y, rows);
                    Ok(())
                });
            }
            let (packed, columns) = columns.split_at_mut(self.packed());
            let (bands, filters) = (self.bands(), self.banded(cx, filters, packed));
            let out = (&self.y, y, false);
            self.each_group(cx, filters, out, (sums, columns), |group, filters, y, columns| {
                let x = self.x.group(x, group);
                for tile in bands.tiles() {
                    let columns = bands.unfold(cx, x, &tile, columns);
                    for band in 0..bands.count {
                        let (filters, columns) =
                            (self.band_of(&bands, filters, band), bands.band(columns, &tile, band));
                        self.y.put(cx, y, tile.pixels.start, band > 0, filters, columns)?;
                    }
                }
                Ok(())
            })
        })
    }

    /// `dx`, from `dy`: adds each element of `dy` times its filter at the window of the element.
    pub(super) fn data_grad<T: ConvElement>(
        &self,
        cx: &Cx,
        filters: &[T],
        dy: &[T],
        dx: &mut [T],
    ) -> Result<()> {
        if self.is_nothing() {
            dx.fill(T::default());
            return Ok(());
        }
        if let Some(lanes) = self.channel_lanes::<T>(ConvPart::DataGrad) {
            return lanes.products(cx, ConvPart::DataGrad, (dy, filters), dx);
        }
        if let Some(winograd) = self.winograd::<T>(ConvPart::DataGrad) {
            return winograd.run(cx, dy, filters, dx);
        }
        if let Some(small) = self.small_images::<T>(ConvPart::DataGrad) {
            return small.data_grad(cx, filters, dy, dx);
        }
        cx.scratch_pair(self.scratch::<T>(ConvPart::DataGrad, cx.threads()), |packed, sums| {
            let (sums, columns) = sums.split_at_mut(self.rounded::<T>(&self.x));
            let (bands, filters) = (self.bands(), self.banded(cx, filters, packed));
            let out = (&self.x, dx, true);
            self.each_group(cx, filters, out, (sums, columns), |group, filters, dx, columns| {
                let dy = self.y.group(dy, group);
                if self.is_direct() {
                    self.apply_back(filters, dy, dx, columns);
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
                    let columns = &mut columns[..bands.column() * n];
                    // Later bands only add to the pixels that the first band does not write.
                    columns.chunks_mut(n).for_each(|row| row[tile.pixels.len()..].fill(T::Sum::ZERO));
                    for band in 0..bands.count {
                        let columns = &mut columns[bands.at(&tile, band)..];
                        cx.product_strided(columns, n, band > 0, filters(band), dy)?;
                    }
                    bands.fold((columns, n), &tile, dx);
                }
                Ok(())
            })
        })
    }

    /// `dfilters`, from `dy`: sums each element of `dy` times the elements under its window.
    pub(super) fn filter_grad<T: ConvElement>(
        &self,
        cx: &Cx,
        x: &[T],
        dy: &[T],
        dfilters: &mut [T],
    ) -> Result<()> {
        if self.is_nothing() {
            dfilters.fill(T::default());
            return Ok(());
        }
        if let Some(lanes) = self.channel_lanes::<T>(ConvPart::FilterGrad) {
            return lanes.correlate(cx, (x, dy), dfilters);
        }
        if self.is_direct() {
            return self.correlate(cx, x, dy, dfilters);
        }
        if let Some(winograd) = self.winograd::<T>(ConvPart::FilterGrad) {
            return winograd.filter_gradient(cx, x, dy, dfilters);
        }
        if let Some(small) = self.small_images::<T>(ConvPart::FilterGrad) {
            return small.filter_grad(cx, x, dy, dfilters);
        }
        let ((sums, each), len, columns) = (self.sums(), dfilters.len(), self.columns());
        let add_up = |parts: &mut [T::Sum], scratch: &mut [T]| {
            cx.try_chunks_mut(parts, len, scratch, |part, sum, scratch| {
                sum.fill(T::Sum::ZERO);
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
        cx.scratch_pair(self.filter_scratch::<T>(cx.threads()), |scratch, parts| {
            if sums == 1 {
                return T::summed(cx, dfilters, parts, |sum| add_up(sum, scratch));
            }
            add_up(parts, scratch)?;
            cx.chunks_mut(dfilters, PART, |part, out| {
                for (i, out) in out.chunks_mut(LINE).enumerate() {
                    let mut line = [T::Sum::ZERO; LINE];
                    for sum in parts.chunks(len) {
                        line.iter_mut().zip(&sum[part * PART + i * LINE..]).for_each(|(out, x)| *out += *x);
                    }
                    out.iter_mut().zip(line).for_each(|(out, sum)| *out = T::rounded(sum));
                }
            });
            Ok(())
        })
    }
}
