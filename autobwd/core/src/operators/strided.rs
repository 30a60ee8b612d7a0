//! Strided access to tensors: permuted, repeated, sliced or reversed.

use super::{PART, pieces};
use crate::{Cx, Element, Meta, Result};

/// The limit of dimensions for strided access.
pub const MAX_RANK: usize = 9;

/// Checks that a tensor has at most [`MAX_RANK`] dimensions.
///
/// # Errors
/// It has more.
pub fn few_dims(x: &Meta) -> Result<()> {
    if x.rank() > MAX_RANK {
        return Err(x.wrong(&format!("at most {MAX_RANK} dimensions are possible")));
    }
    Ok(())
}

/// The strided layout of a row-major result: its offset, and length and stride of each of its dimensions.
#[derive(Debug, Default)]
pub struct StridedLayout {
    start: isize,
    /// A repeated dimension takes two.
    all: [(usize, isize); 2 * MAX_RANK],
    len: usize,
}

/// Elements of a row that are written before the next row; as many cache lines of the input stay cached meanwhile.
const TILE: usize = 16;

impl StridedLayout {
    /// Advances the start by this many elements.
    pub fn skip(&mut self, elements: isize) {
        self.start += elements;
    }

    /// Adds the next dimension of the result, merged with the last one if they are contiguous.
    pub fn push(&mut self, n: usize, stride: isize) {
        match self.all[..self.len].last_mut() {
            _ if n == 1 => {}
            Some(last) if last.1 == n as isize * stride => *last = (last.0 * n, stride),
            _ => {
                self.all[self.len] = (n, stride);
                self.len += 1;
            }
        }
    }

    /// The position of the element with index `i` in the outer dimensions, and 0 in the others.
    fn at(&self, outer: &[(usize, isize)], mut i: usize) -> isize {
        let mut at = self.start;
        for (n, stride) in outer.iter().rev() {
            at += (i % n) as isize * stride;
            i /= n;
        }
        at
    }

    /// Copies the strided elements of `x` to `out`.
    pub fn gather<T: Element>(&self, cx: &Cx, x: &[T], out: &mut [T]) {
        let (planes, (rows, down), (cols, right)) = match &self.all[..self.len] {
            [] => (&[][..], (1, 0), (1, 1)),
            [cols] => (&[][..], (1, 0), *cols),
            [planes @ .., rows, cols] => (planes, *rows, *cols),
        };
        let tile = if right.abs() < 2 { cols } else { TILE };
        let size = PART.div_ceil(cols.max(1)) * cols;
        cx.chunks_mut(out, size, |part, out| {
            pieces(out, part * size, rows * cols, usize::MAX, |plane, at, out| {
                let from = self.at(planes, plane) + (at / cols) as isize * down;
                for first in (0..cols).step_by(tile) {
                    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                        let at = (from + row as isize * down + first as isize * right) as usize;
                        let out = &mut out[first..cols.min(first + tile)];
                        let step = right.unsigned_abs();
                        match right {
                            0 => out.fill(x[at]),
                            1 => out.copy_from_slice(&x[at..][..out.len()]),
                            2.. => {
                                out.iter_mut()
                                    .zip(x[at..].iter().step_by(step))
                                    .for_each(|(out, x)| *out = *x);
                            }
                            _ => {
                                let x = x[..=at].iter().rev().step_by(step);
                                out.iter_mut().zip(x).for_each(|(out, x)| *out = *x);
                            }
                        }
                    }
                }
            });
        });
    }

    /// Copies the elements of `x` to the positions where [`gather`](StridedLayout::gather) reads them; no stride may
    /// be 0.
    pub fn scatter<T: Element>(&self, x: &[T], out: &mut [T]) {
        let (outer, (cols, right)) = match &self.all[..self.len] {
            [] => (&[][..], (1, 1)),
            [outer @ .., cols] => (outer, *cols),
        };
        for (row, x) in x.chunks_exact(cols.max(1)).enumerate() {
            let (at, step) = (self.at(outer, row) as usize, right.unsigned_abs());
            let copy = |(out, x): (&mut T, &T)| *out = *x;
            match right > 0 {
                true => out[at..].iter_mut().step_by(step).zip(x).for_each(copy),
                false => out[..=at].iter_mut().rev().step_by(step).zip(x).for_each(copy),
            }
        }
    }
}
