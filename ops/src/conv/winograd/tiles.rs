//! Tiles of images, and their values at the points.

use std::{marker::PhantomData, ops::Range};

use autobwd::{
    Cx, Result,
    op::{GemmElement, LaneOf, VectorLoops, Vectorised},
};

use super::{
    POINTS, POINTS_2D, TILE, WINDOW, Winograd, slices, slices_mut,
    transforms::{Deinterleave, Squares, Transform},
};
use crate::{
    conv::storage::ConvElement,
    kernel_helpers::{PART, nth},
};

/// Images that are divided into tiles.
pub(super) struct TiledImages<'a, T> {
    pub(super) winograd: &'a Winograd,
    pub(super) data: &'a [T],
    /// Channels of a group.
    pub(super) channels: usize,
    pub(super) size: [usize; 2],
    /// Padding above and to the left.
    pub(super) before: [usize; 2],
}

impl<T: ConvElement> TiledImages<'_, T> {
    /// The values at the points, `[points, channels, tiles]`, of squares of `N × N` elements that begin a tile apart: tiles, or
    /// the elements under their windows.
    pub(super) fn at_points<R: Transform<N, POINTS> + Sync, const N: usize, const NN: usize>(
        &self,
        cx: &Cx,
        (group, rows): (usize, &Range<usize>),
        values: &mut [T::Sum],
        scratch: &mut [T::Sum],
    ) -> Result<()> {
        let Winograd { groups, .. } = *self.winograd;
        let (across, [height, width]) = (self.winograd.tiles()[1], self.winograd.padded());
        let tiles = rows.len() * across;
        let share = PART.div_ceil(POINTS_2D * tiles);
        let points =
            slices_mut::<_, POINTS_2D>(values, self.channels * tiles).map(|point| (point, share * tiles));
        cx.try_zip_chunks_mut(points, scratch, |part, mut points, scratch| {
            let (padded, elements) = scratch.split_at_mut(height * width);
            for channel in 0..points[0].len() / tiles {
                let mut at = 0;
                for (image, rows) in self.winograd.images_of(rows) {
                    let number = (image * groups + group) * self.channels + part * share + channel;
                    let channel = nth(self.data, number, self.size[0] * self.size[1]);
                    T::Sum::vectorised(Pad { images: self, channel, tiles: &rows, padded });
                    let end = at + rows.len() * across;
                    let elements =
                        slices_mut::<_, NN>(elements, tiles).map(|elements| &mut elements[at..end]);
                    T::Sum::vectorised(Deinterleave::<_, N, NN> { padded, across, elements });
                    at = end;
                }
                let to = points.each_mut().map(|point| &mut point[channel * tiles..][..tiles]);
                let from = slices::<_, NN>(elements, tiles);
                T::Sum::vectorised(Squares { transform: PhantomData::<R>, from, to });
            }
            Ok(())
        })
    }
}

/// Copies the rows of a channel that some rows of tiles need, with zeros around them.
struct Pad<'a, T: ConvElement> {
    images: &'a TiledImages<'a, T>,
    channel: &'a [T],
    tiles: &'a Range<usize>,
    padded: &'a mut [T::Sum],
}
impl<T: ConvElement> VectorLoops<T::Sum> for Pad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) {
        let Pad { images, channel, tiles, padded } = self;
        let ([height, len], [above, left]) = (images.size, images.before);
        let width = images.winograd.padded()[1];
        let rows = tiles.start * TILE..tiles.end * TILE + WINDOW - 1;
        for (row, to) in rows.zip(padded.chunks_mut(width)) {
            let Some(row) = row.checked_sub(above).filter(|row| *row < height) else {
                to.fill(T::Sum::ZERO);
                continue;
            };
            let used = len.min(width - left);
            to[..left].fill(T::Sum::ZERO);
            let from = &channel[row * len..][..used];
            to[left..left + used].iter_mut().zip(from).for_each(|(to, x)| *to = x.widened());
            to[left + used..].fill(T::Sum::ZERO);
        }
    }
}
