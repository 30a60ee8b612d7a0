//! Images in blocks of channels, copied with padding around them: then there are no windows at borders to treat separately.

use autobwd::op::{CHANNEL_BLOCK, DepthwiseProducts, WindowAxis};

use crate::{kernel_helpers::KernelFloat, windows::Windows};

/// Images of blocks of channels, `[height, width, 16]`, and windows over copies of them.
#[derive(Clone, Copy)]
pub(crate) struct PaddedImages {
    /// Height and width of an image.
    pub(crate) size: [usize; 2],
    /// Distances of its rows and columns in a copy, with zeros between them.
    pub(crate) apart: [usize; 2],
    pub(crate) windows: [Windows; 2],
    /// Numbers of windows.
    pub(crate) count: [usize; 2],
}

impl PaddedImages {
    /// Rows and columns of a copy, as far as windows reach.
    pub(crate) fn padded(&self) -> [usize; 2] {
        [0, 1].map(|i| {
            let last = self.count[i].saturating_sub(1).saturating_mul(self.windows[i].stride);
            last.saturating_add(self.windows[i].extent())
        })
    }

    /// Elements of a copy.
    pub(crate) fn len(&self) -> usize {
        let [rows, columns] = self.padded();
        rows.saturating_mul(columns).saturating_mul(CHANNEL_BLOCK)
    }

    /// Copies an image.
    pub(crate) fn copy<T: KernelFloat>(&self, image: &[T], copy: &mut [T]) {
        let (width, columns) = (self.size[1] * CHANNEL_BLOCK, self.padded()[1] * CHANNEL_BLOCK);
        let [above, left] = [0, 1].map(|i| self.windows[i].before);
        let [down, across] = self.apart;
        for (row, copy) in copy.chunks_mut(columns).enumerate() {
            let row =
                row.checked_sub(above).filter(|row| row.is_multiple_of(down) && row / down < self.size[0]);
            let Some(image) = row.map(|row| &image[row / down * width..][..width]) else {
                copy.fill(T::ZERO);
                continue;
            };
            let (before, rest) = copy.split_at_mut((left * CHANNEL_BLOCK).min(columns));
            before.fill(T::ZERO);
            if across == 1 {
                let n = width.min(rest.len());
                rest[..n].copy_from_slice(&image[..n]);
                rest[n..].fill(T::ZERO);
                continue;
            }
            rest.fill(T::ZERO);
            let pixels = rest.chunks_exact_mut(CHANNEL_BLOCK).step_by(across);
            pixels.zip(image.chunks_exact(CHANNEL_BLOCK)).for_each(|(to, from)| to.copy_from_slice(from));
        }
    }

    /// The products of all windows over a copy, with filters `[elements of a window, 16]`.
    pub(crate) fn products<'a, T>(
        &self,
        copy: &'a [T],
        (filters, bias, bounds): (&'a [T], &'a [T; CHANNEL_BLOCK], [T; 2]),
    ) -> DepthwiseProducts<'a, T> {
        let ([down, across], [_, columns]) = (&self.windows, self.padded());
        let axis = |count, x, other| WindowAxis { count, x: x * CHANNEL_BLOCK, other: other * CHANNEL_BLOCK };
        DepthwiseProducts {
            x: copy,
            filters,
            bias,
            bounds,
            elements: [
                axis(down.size, down.dilation * columns, across.size),
                axis(across.size, across.dilation, 1),
            ],
            windows: [
                axis(self.count[0], down.stride * columns, self.count[1]),
                axis(self.count[1], across.stride, 1),
            ],
        }
    }
}
