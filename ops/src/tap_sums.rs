//! Sums of the products of elements under sliding windows with the numbers of the windows: gradients of filters.
#![allow(clippy::needless_range_loop)] // Indexed loops are vectorised.

use autobwd::op::{Factor, LaneOf};

use crate::tap_rows::{BLOCK, TapRows};

/// Rows of the highest windows.
pub(crate) const TALLEST: usize = 5;
/// Products that a lane adds up before they are added in `f64`.
const TERMS: usize = 256;

/// Sums in vectors, for the elements of one row of a window.
type Lanes<F, const W: usize> = [[F; BLOCK]; W];

/// Sums over planes, for each element of a window.
pub(crate) struct TapSums<F, const W: usize> {
    rows: TapRows,
    lanes: [Lanes<F, W>; TALLEST],
    /// Sums of the last windows of rows, whose vectors extend past the row: elements there may be infinite.
    last: [Lanes<F, W>; TALLEST],
    /// Products of each lane.
    terms: usize,
    sums: [[f64; W]; TALLEST],
}

impl<F, const W: usize> TapSums<F, W> {
    /// Sums for windows of at most [`TALLEST`] rows.
    #[inline(always)]
    pub(crate) fn new<T>(rows: TapRows) -> TapSums<F, W>
    where
        F: LaneOf<T>,
    {
        let zeros = [[[F::from(0.0); BLOCK]; W]; TALLEST];
        TapSums { rows, lanes: zeros, last: zeros, terms: 0, sums: [[0.0; W]; TALLEST] }
    }

    /// Adds the products of the elements of a plane with the numbers `y` of their windows. Elements after the numbers make
    /// vectors of the last ones faster.
    #[inline(always)]
    pub(crate) fn add<X: Factor<Sum: Into<f64>>>(&mut self, x: &[X], y: &[X], scratch: &mut [X::Sum])
    where
        F: LaneOf<X::Sum>,
    {
        match self.rows.stride() {
            1 => self.add_by::<X, 1>(x, y, scratch),
            _ => self.add_by::<X, 2>(x, y, scratch),
        }
    }

    /// The same with `S` as horizontal stride.
    #[inline(always)]
    fn add_by<X: Factor<Sum: Into<f64>>, const S: usize>(&mut self, x: &[X], y: &[X], scratch: &mut [X::Sum])
    where
        F: LaneOf<X::Sum>,
    {
        let rows = self.rows;
        let width = rows.out()[1];
        let whole = width / BLOCK * BLOCK;
        for (band, copied) in rows.bands() {
            let terms = band.len() * width.div_ceil(BLOCK);
            if self.terms + terms > TERMS {
                self.add_up();
            }
            self.terms += terms;
            rows.copy::<X, S>(x, copied.clone(), X::default(), scratch);
            for row in 0..rows.height().min(TALLEST) {
                let (mut lanes, mut last) = (self.lanes[row], self.last[row]);
                for window in band.clone() {
                    let Some(under) = rows.row_under(window, row) else { continue };
                    let copy = &scratch[(under - copied.start) * rows.row()..];
                    let numbers = &y[window * width..];
                    for (number, numbers) in numbers[..whole].as_chunks().0.iter().enumerate() {
                        add_products::<X, F, W, S>(&mut lanes, rows, (copy, number * BLOCK), numbers);
                    }
                    if whole < width {
                        // Numbers of the next row are as good as any: their lanes are left out.
                        let mut own = [X::default(); BLOCK];
                        let numbers = numbers[whole..].first_chunk().unwrap_or_else(|| {
                            own.iter_mut().zip(&numbers[whole..]).for_each(|(own, number)| *own = *number);
                            &own
                        });
                        add_products::<X, F, W, S>(&mut last, rows, (copy, whole), numbers);
                    }
                }
                (self.lanes[row], self.last[row]) = (lanes, last);
            }
        }
    }

    /// Adds the lanes to the sums.
    #[inline(always)]
    fn add_up<T: Into<f64>>(&mut self)
    where
        F: LaneOf<T>,
    {
        let (rest, zero) = (self.rows.out()[1] % BLOCK, F::from(0.0));
        for row in 0..self.rows.height().min(TALLEST) {
            for tap in 0..W {
                let lanes = self.lanes[row][tap].iter().chain(&self.last[row][tap][..rest]);
                self.sums[row][tap] = lanes.fold(self.sums[row][tap], |sum, lane| sum + lane.get().into());
            }
            (self.lanes[row], self.last[row]) = ([[zero; BLOCK]; W], [[zero; BLOCK]; W]);
        }
        self.terms = 0;
    }

    /// The sums, by row and column of a window.
    #[inline(always)]
    pub(crate) fn finish<T: Into<f64>>(mut self) -> [[f64; W]; TALLEST]
    where
        F: LaneOf<T>,
    {
        self.add_up();
        self.sums
    }
}

/// Adds the products of a block of numbers with the elements under each tap.
#[inline(always)]
fn add_products<X: Factor, F: LaneOf<X::Sum>, const W: usize, const S: usize>(
    lanes: &mut Lanes<F, W>,
    rows: TapRows,
    (copy, at): (&[X::Sum], usize),
    numbers: &[X; BLOCK],
) {
    let taps = rows.taps_of::<_, F, W, S>(copy, at, F::from(0.0));
    for tap in 0..W {
        for l in 0..BLOCK {
            lanes[tap][l] = lanes[tap][l] + F::new(numbers[l].widened()) * taps[tap][l];
        }
    }
}

#[cfg(test)]
mod tests {
    use autobwd::op::{VectorLoops, Vectorised};

    use super::*;
    use crate::windows::Windows;

    /// Sums over two equal planes.
    struct TwoPlanes<'a, const W: usize>(TapRows, &'a [f64], &'a [f64], &'a mut [f64]);

    impl<const W: usize> VectorLoops<f64> for TwoPlanes<'_, W> {
        type Output = [[f64; W]; TALLEST];

        #[inline(always)]
        fn run<F: LaneOf<f64>>(self) -> Self::Output {
            let TwoPlanes(rows, x, y, scratch) = self;
            let mut sums = TapSums::<F, W>::new(rows);
            (0..2).for_each(|_| sums.add(x, y, scratch));
            sums.finish()
        }
    }

    fn check<const W: usize>(x_size: [usize; 2], [down, across]: [Windows; 2]) {
        let counts = [down.count(x_size[0], false), across.count(x_size[1], false)];
        let [Some(rows), Some(columns)] = counts else { return };
        let Some(taps) = TapRows::new(x_size, [rows, columns], [down, across], &[W]) else {
            panic!("windows of {W} columns are small");
        };
        let x: Vec<f64> = (0..x_size[0] * x_size[1]).map(|i| (i * 7 % 31) as f64).collect();
        let numbers: Vec<f64> = (0..rows * columns).map(|i| (i * 5 % 13) as f64 - 6.0).collect();
        let mut scratch = vec![f64::NAN; taps.scratch()];
        let found = f64::vectorised(TwoPlanes::<W>(taps, &x, &numbers, &mut scratch));
        for (row, found) in found.iter().enumerate().take(down.size) {
            for (tap, found) in found.iter().enumerate() {
                let mut sum = 0.0;
                for (i, number) in numbers.iter().enumerate() {
                    let y = (i / columns * down.stride + row).checked_sub(down.before);
                    let x_at = (i % columns * across.stride + tap).checked_sub(across.before);
                    if let (Some(y), Some(x_at)) =
                        (y.filter(|y| *y < x_size[0]), x_at.filter(|x| *x < x_size[1]))
                    {
                        sum += number * x[y * x_size[1] + x_at];
                    }
                }
                assert_eq!(*found, 2.0 * sum, "row {row}, tap {tap} of {x_size:?}");
            }
        }
    }

    #[test]
    fn products_are_summed_for_each_element_of_a_window() {
        let of =
            |size, stride, [before, after]: [usize; 2]| Windows { size, stride, dilation: 1, before, after };
        for x_size in [[1, 1], [3, 7], [4, 8], [2, 15], [5, 16], [3, 17], [700, 33], [2, 64], [1, 9000]] {
            for (down, across) in [(1, 1), (2, 2), (3, 1), (1, 2)] {
                for [before, after] in [[0, 0], [1, 1], [2, 0], [0, 2]] {
                    check::<3>(x_size, [of(4, down, [before, after]), of(3, across, [before, after])]);
                    check::<5>(x_size, [of(2, down, [7, 1]), of(5, across, [before + 2, after])]);
                }
            }
        }
    }

    #[test]
    fn infinite_elements_after_the_last_window_are_left_out() {
        let windows = Windows { size: 3, stride: 2, dilation: 1, before: 0, after: 0 };
        let Some(rows) = TapRows::new([3, 4], [1, 1], [windows; 2], &[3]) else {
            panic!("windows are small")
        };
        let x: Vec<f64> = (0..12).map(|i| if i % 4 == 3 { f64::INFINITY } else { 1.0 }).collect();
        let mut scratch = vec![f64::NAN; rows.scratch()];
        let found = f64::vectorised(TwoPlanes::<3>(rows, &x, &[1.5], &mut scratch));
        assert_eq!(found[..3], [[3.0; 3]; 3]);
    }
}
