//! Adjacent windows over the same of their elements.

use std::ops::Range;

use crate::windows::Windows;

/// Some adjacent windows along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) windows: Range<usize>,
    /// The elements of a window that are not padding.
    pub(super) taps: Range<usize>,
    /// The first of these under the first window.
    pub(super) x: usize,
}

/// The element of the image under the first element of a window, before which there may be padding, and the elements of the window that
/// are within `len` elements.
fn inside(windows: &Windows, window: usize, len: usize) -> (Range<usize>, usize) {
    let start = window * windows.stride;
    let first = windows.before.saturating_sub(start).div_ceil(windows.dilation);
    let end = (len + windows.before).saturating_sub(start).div_ceil(windows.dilation).min(windows.size);
    match first < end {
        true => (first..end, start + first * windows.dilation - windows.before),
        false => (0..0, 0),
    }
}

/// Divides windows over `len` elements into spans.
pub(super) fn spans(windows: Windows, len: usize, range: Range<usize>) -> impl Iterator<Item = Span> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let first = at;
        let (taps, x) = inside(&windows, first, len);
        if first >= range.end {
            return None;
        }
        at += 1;
        while at < range.end && inside(&windows, at, len).0 == taps {
            at += 1;
        }
        Some(Span { windows: first..at, taps, x })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_at_borders_are_spans_of_their_own() {
        let windows = Windows { size: 3, stride: 1, dilation: 1, before: 1, after: 1 };
        let found: Vec<Span> = spans(windows, 5, 0..5).collect();
        let span = |windows, taps, x| Span { windows, taps, x };
        assert_eq!(found, [span(0..1, 1..3, 0), span(1..4, 0..3, 0), span(4..5, 0..2, 3)]);
        // Windows of padding only.
        let windows = Windows { size: 2, stride: 2, dilation: 3, before: 4, after: 9 };
        let found: Vec<Span> = spans(windows, 2, 0..5).collect();
        let expected = [span(0..1, 0..0, 0), span(1..2, 1..2, 1), span(2..3, 0..1, 0), span(3..5, 0..0, 0)];
        assert_eq!(found, expected);
    }
}
