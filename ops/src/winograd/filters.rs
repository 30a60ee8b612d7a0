//! Filters at the points, and back.
#![allow(clippy::needless_range_loop)] // Indexed loops are vectorised.

use autobwd::op::{CHANNEL_BLOCK, LaneOf, VectorLoops};

use super::{
    POINTS, POINTS_2D, WINDOW, WINDOW_2D,
    transforms::{FilterAtPoints, FilterFromPoints, Rows},
};
use crate::kernel_helpers::KernelFloat;

/// Evaluates a block of filters, the lanes, for a block of channels.
pub(crate) struct EvaluateFilters<'a, T> {
    /// For each channel and each element of a window, 16 filters.
    pub(crate) filters: &'a [T],
    /// Elements from one channel to the next, and from one element of a window to the next.
    pub(crate) steps: [usize; 2],
    /// Channels of the block. The values of others are zeros.
    pub(crate) channels: usize,
    /// Whether windows are mirrored.
    pub(crate) mirrored: bool,
    /// `[points, channels, filters]`, from the first channel and filter of the blocks on.
    pub(crate) values: &'a mut [T],
    /// Values of a point, and of a channel.
    pub(crate) share: usize,
    pub(crate) width: usize,
}
impl<T: KernelFloat> VectorLoops<T> for EvaluateFilters<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let EvaluateFilters { filters, steps, channels, mirrored, values, share, width } = self;
        let (zeros, mut rows) = ([T::ZERO; CHANNEL_BLOCK], Rows::<F, WINDOW, POINTS>::new());
        for channel in 0..CHANNEL_BLOCK {
            let mut from = [&zeros; WINDOW_2D];
            if channel < channels {
                for k in 0..WINDOW_2D {
                    let element = if mirrored { WINDOW_2D - 1 - k } else { k };
                    if let Some(lanes) = filters[channel * steps[0] + element * steps[1]..].first_chunk() {
                        from[k] = lanes;
                    }
                }
            }
            rows.set::<T, FilterAtPoints, WINDOW_2D>(from);
            for j in 0..POINTS {
                let column = rows.column::<T, FilterAtPoints>(j);
                for i in 0..POINTS {
                    let at = (i * POINTS + j) * share + channel * width;
                    if let Some(to) = values[at..].first_chunk_mut() {
                        *to = column[i];
                    }
                }
            }
        }
    }
}

/// The gradient of a filter from its products at the points, summed over tiles.
pub(crate) struct InterpolateFilter<'a, T> {
    /// `[points, filters, channels]`, from the first channel of the filter on, and the products of a point.
    pub(crate) sums: &'a [T],
    pub(crate) share: usize,
    /// For each block of channels and each element of a window, 16 channels.
    pub(crate) elements: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for InterpolateFilter<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let InterpolateFilter { sums, share, elements } = self;
        let (zeros, mut rows) = ([T::ZERO; CHANNEL_BLOCK], Rows::<F, POINTS, WINDOW>::new());
        let (elements, _) = elements.as_chunks_mut::<CHANNEL_BLOCK>();
        for (block, elements) in elements.as_chunks_mut::<WINDOW_2D>().0.iter_mut().enumerate() {
            let mut from = [&zeros; POINTS_2D];
            for point in 0..POINTS_2D {
                if let Some(lanes) = sums[point * share + block * CHANNEL_BLOCK..].first_chunk() {
                    from[point] = lanes;
                }
            }
            rows.set::<T, FilterFromPoints, POINTS_2D>(from);
            for j in 0..WINDOW {
                let column = rows.column::<T, FilterFromPoints>(j);
                for i in 0..WINDOW {
                    elements[i * WINDOW + j] = column[i];
                }
            }
        }
    }
}
