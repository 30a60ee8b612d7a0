//! What convolutions and pooling share: images, and windows that move over them.

use std::ops::Range;

use autobwd::{Buf, Error, Meta, Result};

use crate::norm::DataLayout;

autobwd::op::attr_enum! {
    /// How far windows may reach over the edges of images.
    pub enum PaddingAlgorithm {
        /// As `paddings` says.
        Explicit = "EXPLICIT",
        /// So far that there are as many windows as rows or columns, divided by the stride and rounded up. As in the
        /// reference, dilations then count as 1.
        Same = "SAME",
        /// Not at all.
        Valid = "VALID",
    }
}

impl DataLayout {
    /// Takes dimensions apart: images, channels, height and width.
    pub(crate) fn split<D>(self, [n, a, b, c]: [D; 4]) -> (D, D, [D; 2]) {
        match self {
            DataLayout::Nchw => (n, a, [b, c]),
            DataLayout::Nhwc => (n, c, [a, b]),
        }
    }

    /// Puts dimensions together.
    pub(crate) fn join<D>(self, images: D, channels: D, [height, width]: [D; 2]) -> [D; 4] {
        match self {
            DataLayout::Nchw => [images, channels, height, width],
            DataLayout::Nhwc => [images, height, width, channels],
        }
    }
}

/// The dimensions of a kernel's images or filters, of which the shape rule has checked that there are four.
pub(crate) fn dims(x: &Buf<'_>) -> Result<[usize; 4]> {
    x.dims().try_into().map_err(|_| x.wrong("4 dimensions are needed"))
}

/// How windows follow each other along an axis, as attributes say it.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    stride: usize,
    dilation: usize,
    /// Before the first element and behind the last; `None` stands for `SAME`.
    padding: Option<(usize, usize)>,
}

/// Windows along an axis.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    /// Elements of a window.
    pub(crate) size: usize,
    /// From one window to the next.
    pub(crate) stride: usize,
    /// From one element of a window to the next.
    pub(crate) dilation: usize,
    /// How far the first window reaches over the edge.
    pub(crate) before: usize,
    /// How far the last window may reach over the edge.
    pub(crate) after: usize,
}

/// Reads the attributes of that name: down and across.
pub(crate) fn axes(
    strides: &[i32],
    paddings: &[i32],
    algorithm: PaddingAlgorithm,
    dilations: &[i32],
) -> Result<[Axis; 2]> {
    let (strides, dilations) = (pair("strides", strides, 1)?, pair("dilations", dilations, 1)?);
    let given = match *paddings {
        [down, across] => [down, down, across, across],
        [top, bottom, left, right] => [top, bottom, left, right],
        _ => [-1; 4],
    };
    if given.iter().any(|padding| *padding < 0) {
        let text = format!("2 or 4 numbers of at least 0 are needed, not {paddings:?}");
        return Err(Error::attr("paddings", text));
    }
    let [top, bottom, left, right] = given.map(|padding| padding as usize);
    let axis = |i: usize, given| Axis {
        stride: strides[i],
        dilation: dilations[i],
        padding: match algorithm {
            PaddingAlgorithm::Explicit => Some(given),
            PaddingAlgorithm::Same => None,
            PaddingAlgorithm::Valid => Some((0, 0)),
        },
    };
    Ok([axis(0, (top, bottom)), axis(1, (left, right))])
}

/// An attribute of two numbers: down and across.
pub(crate) fn pair(name: &str, numbers: &[i32], least: i32) -> Result<[usize; 2]> {
    match *numbers {
        [down, across] if down.min(across) >= least => Ok([down as usize, across as usize]),
        _ => Err(Error::attr(name, format!("2 numbers of at least {least} are needed, not {numbers:?}"))),
    }
}

/// As [`pair`], of an attribute that may be empty.
pub(crate) fn optional_pair(name: &str, numbers: &[i32], least: i32) -> Result<Option<[usize; 2]>> {
    if numbers.is_empty() { Ok(None) } else { pair(name, numbers, least).map(Some) }
}

impl Axis {
    /// Windows of `size` elements over `input` elements.
    pub(crate) fn windows(self, size: usize, input: usize) -> Windows {
        let Axis { stride, dilation, padding } = self;
        match padding {
            Some((before, after)) => Windows { size, stride, dilation, before, after },
            None => {
                let last = (input.div_ceil(stride).max(1) - 1).saturating_mul(stride);
                let sum = last.saturating_add(size).saturating_sub(input);
                Windows { size, stride, dilation: 1, before: sum / 2, after: sum - sum / 2 }
            }
        }
    }
}

impl Windows {
    /// From the first element of a window to the last, both included.
    pub(crate) fn extent(&self) -> usize {
        self.dilation.saturating_mul(self.size - 1).saturating_add(1)
    }

    /// How many windows there are over `input` elements; with `ceil`, one more where they do not reach the end. `None` if
    /// not even one fits.
    pub(crate) fn count(&self, input: usize, ceil: bool) -> Option<usize> {
        let way = input.saturating_add(self.before + self.after).checked_sub(self.extent())?;
        Some(1 + if ceil { way.div_ceil(self.stride) } else { way / self.stride })
    }

    /// That not even one window fits.
    pub(crate) fn too_large(&self, x: &Meta) -> Error {
        let least = self.extent().saturating_sub(self.before + self.after);
        x.wrong(&format!("at least {least} rows and columns are needed for a window"))
    }

    /// Over how many elements so many windows are laid; `None` if they reach over the edges only.
    pub(crate) fn covered(&self, count: usize) -> Option<usize> {
        let last = count.checked_sub(1)?.saturating_mul(self.stride);
        let reach = last.saturating_add(self.extent());
        reach.checked_sub(self.before + self.after).filter(|covered| *covered > 0)
    }

    /// Those of `count` windows of which element `tap` is one of `input` elements.
    pub(crate) fn hits(&self, tap: usize, input: usize, count: usize) -> Range<usize> {
        let shift = tap * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        let end = (input + self.before).saturating_sub(shift).div_ceil(self.stride);
        first.min(count)..end.clamp(first.min(count), count)
    }
}
