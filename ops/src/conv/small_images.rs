//! Convolution of small images: the columns of several images, side by side, make one product. Those of one would be too
//! few for the filters, which each product reads.

use autobwd::{
    Cx, Result,
    op::{GemmElement, LaneOf, Mat, VectorLoops, Vectorised},
};

use super::{
    gemm_conv::{ConvPart, Convolution},
    im2col::Im2col,
    storage::ConvElement,
};
use crate::{kernel_helpers::nth, norm::DataLayout};

/// Pixels of small images.
const SMALL: usize = 64;
/// Pixels that are multiplied together.
const TOGETHER: usize = 512;
/// Elements of a filter gradient that does not stay in the cache.
const UNCACHED: usize = 1 << 18;
/// Elements of the filters of a group from which such products are large enough to be shared between threads.
const FILTERS: usize = 1 << 11;

/// A convolution of small images.
pub(super) struct SmallImages<'a> {
    conv: &'a Convolution,
    columns: Im2col<'a>,
    /// Images that are multiplied together.
    images: usize,
    /// Elements of an image of `x` and of `y`, and of a group of its channels.
    image: [usize; 2],
    group: [usize; 2],
}

impl Convolution {
    /// That part of the convolution, if its images are small. The filters' gradient is then read and written once for
    /// several images instead of for each. Unrounded numbers gain by that where the gradient leaves the cache.
    pub(super) fn small_images<T: ConvElement>(&self, part: ConvPart) -> Option<SmallImages<'_>> {
        let small = self.x.format == DataLayout::Nchw && self.y.pixels() <= SMALL && self.images > 1;
        let small = small && self.filters() >= FILTERS;
        let pays = match part {
            ConvPart::FilterGrad => !T::IN_PLACE || self.filters() >= UNCACHED,
            _ => self.bands().count == 1,
        };
        if !small || !pays || self.is_direct() || self.is_nothing() {
            return None;
        }
        let images = (TOGETHER / self.y.pixels()).min(self.images);
        let group = [&self.x, &self.y].map(|side| side.len());
        let image = group.map(|len| self.groups * len);
        Some(SmallImages { conv: self, columns: self.columns(), images, image, group })
    }
}

impl SmallImages<'_> {
    /// Scratch elements of that part: of the type of images, and of sums.
    pub(super) fn scratch<T: ConvElement>(&self, part: ConvPart) -> (usize, usize) {
        let pixels = self.images * self.conv.y.pixels();
        let [columns, y] = [self.columns.column(), self.conv.y.channels].map(|n| n.saturating_mul(pixels));
        match part {
            ConvPart::Forward => (columns, y),
            ConvPart::DataGrad => (y, columns.saturating_add(T::sums(self.images * self.image[0]))),
            ConvPart::FilterGrad => {
                (columns.saturating_add(y), T::sums(self.conv.groups * self.conv.filters()))
            }
        }
    }

    /// The filters of a group, `[filters, column]`.
    fn filters<'a, T>(&self, filters: &'a [T], group: usize) -> Mat<'a, T> {
        let (rows, cols) = (self.conv.y.channels, self.columns.column());
        Mat { data: nth(filters, group, rows * cols), rows, cols, transposed: false }
    }

    /// The columns of a group in some images.
    fn unfold<'a, T: ConvElement>(&self, cx: &Cx, x: &[T], group: usize, columns: &'a mut [T]) -> Mat<'a, T> {
        let images = x.len() / self.image[0];
        let x = |image: usize| &x[image * self.image[0] + group * self.group[0]..];
        self.columns.unfold_all(cx, x, images, columns)
    }

    /// A group of `y` in some images, `[channels, pixels of all images]`.
    fn gather<'a, T: ConvElement>(&self, cx: &Cx, y: &[T], group: usize, to: &'a mut [T]) -> Mat<'a, T> {
        let (rows, pixels) = (self.conv.y.channels, self.conv.y.pixels());
        let cols = y.len() / self.image[1] * pixels;
        let data = &mut to[..rows * cols];
        cx.chunks_mut(data, cols, |channel, row| {
            for (image, row) in row.chunks_mut(pixels).enumerate() {
                let from = image * self.image[1] + group * self.group[1] + channel * pixels;
                row.copy_from_slice(&y[from..][..pixels]);
            }
        });
        Mat { data, rows, cols, transposed: false }
    }

    /// `y` = the products of the filters with the columns of `x`.
    pub(super) fn forward<T: ConvElement>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        let ([x_image, y_image], pixels) = (self.image, self.conv.y.pixels());
        cx.scratch_pair(self.scratch::<T>(ConvPart::Forward), |columns, sums| {
            for (x, y) in x.chunks(self.images * x_image).zip(y.chunks_mut(self.images * y_image)) {
                for group in 0..self.conv.groups {
                    let columns = self.unfold(cx, x, group, columns);
                    let cols = columns.cols;
                    let sums = &mut sums[..self.conv.y.channels * cols];
                    cx.product(sums, false, self.filters(filters, group), columns)?;
                    let sums = &*sums;
                    cx.chunks_mut(y, y_image, |image, y| {
                        let y = &mut y[group * self.group[1]..][..self.group[1]];
                        T::Sum::vectorised(Scatter { sums: &sums[image * pixels..], cols, y, pixels });
                    });
                }
            }
            Ok(())
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
        let ([x_image, y_image], pixels) = (self.image, self.conv.y.pixels());
        cx.scratch_pair(self.scratch::<T>(ConvPart::DataGrad), |all_dy, sums| {
            let (sums, columns) = sums.split_at_mut(T::sums(self.images * x_image));
            for (dy, dx) in dy.chunks(self.images * y_image).zip(dx.chunks_mut(self.images * x_image)) {
                T::summed(cx, dx, sums, |dx| {
                    for group in 0..self.conv.groups {
                        let dy = self.gather(cx, dy, group, all_dy);
                        let cols = dy.cols;
                        let columns = &mut columns[..self.columns.column() * cols];
                        cx.product(columns, false, self.filters(filters, group).t(), dy)?;
                        let columns = &*columns;
                        cx.chunks_mut(dx, x_image, |image, dx| {
                            let dx = &mut dx[group * self.group[0]..][..self.group[0]];
                            dx.fill(T::Sum::ZERO);
                            let whole = self.columns.whole();
                            self.columns.fold((&columns[image * pixels..], cols), &whole, dx);
                        });
                    }
                    Ok(())
                })?;
            }
            Ok(())
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
        let [x_image, y_image] = self.image;
        cx.scratch_pair(self.scratch::<T>(ConvPart::FilterGrad), |scratch, sums| {
            let columns = self.columns.column() * self.images * self.conv.y.pixels();
            let (columns, all_dy) = scratch.split_at_mut(columns);
            T::summed(cx, dfilters, sums, |sums| {
                let batches = x.chunks(self.images * x_image).zip(dy.chunks(self.images * y_image));
                for (number, (x, dy)) in batches.enumerate() {
                    for (group, sum) in sums.chunks_mut(self.conv.filters()).enumerate() {
                        let columns = self.unfold(cx, x, group, columns);
                        let dy = self.gather(cx, dy, group, all_dy);
                        cx.product(sum, number > 0, dy, columns.t())?;
                    }
                }
                Ok(())
            })
        })
    }
}

/// Writes the sums of an image, which are apart from those of other images, to its channels.
struct Scatter<'a, T: ConvElement> {
    sums: &'a [T::Sum],
    /// The distance of rows of sums.
    cols: usize,
    y: &'a mut [T],
    pixels: usize,
}
impl<T: ConvElement> VectorLoops<T::Sum> for Scatter<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) {
        for (y, sums) in self.y.chunks_mut(self.pixels).zip(self.sums.chunks(self.cols)) {
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y = T::rounded(*sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use autobwd::tensor::f16;

    use super::*;
    use crate::{conv::image_layout::ImageLayout, windows::Windows};

    /// Small numbers, whose products and sums 16 bits can represent.
    fn numbers(n: usize, seed: usize) -> Vec<f16> {
        (0..n).map(|i| f16::from_f32(((i * 37 + seed) % 101 % 3) as f32 - 1.0)).collect()
    }

    /// Several images have the results of each alone.
    fn check(images: usize, groups: usize, channels: [usize; 2], size: [usize; 2], stride: usize) {
        let windows = size.map(|_| Windows { size: 2, stride, dilation: 1, before: 1, after: 0 });
        let y_size = size.map(|len| (len - 1) / stride + 1);
        let side = |channels, size| ImageLayout { channels, size, inside: 1, format: DataLayout::Nchw };
        let conv = |images| Convolution {
            images,
            groups,
            x: side(channels[0], size),
            y: side(channels[1], y_size),
            windows,
        };
        let (all, one) = (conv(images), conv(1));
        let [x_len, y_len] = [&all.x, &all.y].map(|side| groups * side.len());
        let (x, dy) = (numbers(images * x_len, 3), numbers(images * y_len, 5));
        let filters = numbers(groups * all.filters(), 7);
        for cx in [Cx::new(1), Cx::new(3)] {
            let [mut y, mut one_y] = [(); 2].map(|()| vec![f16::NAN; images * y_len]);
            let [mut dx, mut one_dx] = [(); 2].map(|()| vec![f16::NAN; images * x_len]);
            let [mut dfilters, mut one_dfilters] = [(); 2].map(|()| vec![f16::NAN; filters.len()]);
            let part = |part| all.small_images::<f16>(part).expect("images are small");
            part(ConvPart::Forward).forward(&cx, &x, &filters, &mut y).expect("sizes are right");
            part(ConvPart::DataGrad).data_grad(&cx, &filters, &dy, &mut dx).expect("sizes are right");
            part(ConvPart::FilterGrad).filter_grad(&cx, &x, &dy, &mut dfilters).expect("sizes are right");
            let mut sums = vec![0.0; filters.len()];
            for image in 0..images {
                let (x, dy) = (nth(&x, image, x_len), nth(&dy, image, y_len));
                one.forward(&cx, x, &filters, &mut one_y[image * y_len..][..y_len]).expect("sizes are right");
                let dx = &mut one_dx[image * x_len..][..x_len];
                one.data_grad(&cx, &filters, dy, dx).expect("sizes are right");
                one.filter_grad(&cx, x, dy, &mut one_dfilters).expect("sizes are right");
                sums.iter_mut().zip(&one_dfilters).for_each(|(sum, x)| *sum += x.to_f32());
            }
            assert_eq!(y, one_y);
            assert_eq!(dx, one_dx);
            assert_eq!(dfilters.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), sums);
        }
    }

    #[test]
    fn several_images_have_the_results_of_each_alone() {
        check(3, 1, [16, 40], [4, 4], 2);
        check(2, 1, [30, 20], [1, 3], 1);
        check(50, 2, [18, 30], [8, 6], 2);
    }
}
