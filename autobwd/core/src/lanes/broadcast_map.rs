//! Broadcast operands: read as if they had the full shape, and reduced to their own shape by summing.

use smallvec::SmallVec;

/// The map from elements of a full shape to elements of an operand: dimensions of the full shape from the outermost in,
/// with adjacent dimensions merged where possible, each with the operand's stride along it (0 where it is broadcast).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BroadcastMap {
    dims: SmallVec<[(usize, usize); 4]>,
    /// The number of elements of the operand.
    numel: usize,
}

impl BroadcastMap {
    /// `aligned` are the operand's dimensions extended to the full rank, 1 where it is broadcast. `None` if they do not
    /// broadcast, or if the number of elements overflows.
    pub fn new(full: &[usize], aligned: &[usize]) -> Option<BroadcastMap> {
        let mut dims: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        let mut stride: usize = 1;
        if full.len() != aligned.len() {
            return None;
        }
        for (&n, &own) in full.iter().zip(aligned).rev() {
            if own != n && own != 1 {
                return None;
            }
            let step = if own == 1 { 0 } else { stride };
            stride = stride.checked_mul(own)?;
            match dims.last_mut() {
                _ if n == 1 => {}
                // Merge dimensions that are both broadcast, or contiguous in the operand.
                Some((inner, s))
                    if (step == 0 && *s == 0) || (step != 0 && *s != 0 && step == *inner * *s) =>
                {
                    *inner *= n
                }
                _ => dims.push((n, step)),
            }
        }
        if dims.is_empty() {
            dims.push((1, 0));
        }
        dims.reverse();
        Some(BroadcastMap { dims, numel: stride })
    }

    /// The number of elements of the operand.
    pub(crate) fn numel(&self) -> usize {
        self.numel
    }

    /// Calls `f(position, operand position, stride, run)` for every run of full elements `first..end` along the
    /// innermost dimension; positions count from `first`.
    #[inline(always)]
    fn runs(&self, first: usize, end: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let Some((&(inner, step), outer)) = self.dims.split_last() else { return };
        let mut at = first;
        while at < end {
            let (mut row, i) = (at / inner, at % inner);
            let mut operand = i * step;
            for &(n, s) in outer.iter().rev() {
                operand += row % n * s;
                row /= n;
            }
            let run = (inner - i).min(end - at);
            f(at - first, operand, step, run);
            at += run;
        }
    }

    /// Writes the operand's elements for `first..first + block.len()` of the full shape, converted by `of`.
    #[inline(always)]
    pub(super) fn load<S: Copy, T: Copy>(
        &self,
        operand: &[S],
        first: usize,
        block: &mut [T],
        of: impl Fn(S) -> T,
    ) {
        self.runs(first, first + block.len(), |at, from, step, run| {
            let block = &mut block[at..at + run];
            match step {
                0 => block.fill(of(operand[from])),
                1 => block.iter_mut().zip(&operand[from..from + run]).for_each(|(b, x)| *b = of(*x)),
                _ => {
                    block.iter_mut().zip(operand[from..].iter().step_by(step)).for_each(|(b, x)| *b = of(*x))
                }
            }
        });
    }

    /// Adds elements `first..first + block.len()` of the full shape to the corresponding elements of the operand.
    pub(super) fn add<T: Copy + Default + std::ops::Add<Output = T>>(
        &self,
        block: &[T],
        first: usize,
        operand: &mut [T],
    ) {
        self.runs(first, first + block.len(), |at, to, step, run| {
            let block = &block[at..at + run];
            match step {
                0 => operand[to] = operand[to] + sum(block),
                1 => operand[to..to + run].iter_mut().zip(block).for_each(|(o, x)| *o = *o + *x),
                _ => operand[to..].iter_mut().step_by(step).zip(block).for_each(|(o, x)| *o = *o + *x),
            }
        });
    }
}

/// Sums in sixteen lanes, in an order that depends on the length only.
pub(super) fn sum<T: Copy + Default + std::ops::Add<Output = T>>(x: &[T]) -> T {
    const LANES: usize = 16;
    let mut lanes = [T::default(); LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = *lane + *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = *lane + *x;
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for l in 0..width {
            lanes[l] = lanes[l] + lanes[l + width];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_dimensions_with_one_rule() {
        let of = |full: &[usize], aligned: &[usize]| BroadcastMap::new(full, aligned).unwrap().dims.to_vec();
        assert_eq!(of(&[4, 3, 2], &[1, 3, 2]), [(4, 0), (6, 1)]);
        assert_eq!(of(&[4, 3, 2], &[4, 1, 1]), [(4, 1), (6, 0)]);
        assert_eq!(of(&[4, 3, 2], &[4, 1, 2]), [(4, 2), (3, 0), (2, 1)]);
        assert_eq!(of(&[4, 3], &[1, 1]), [(12, 0)]);
        assert_eq!(of(&[], &[]), [(1, 0)]);
    }

    #[test]
    fn dimensions_that_do_not_align_are_refused() {
        assert_eq!(BroadcastMap::new(&[4, 3], &[3, 3]), None);
        assert_eq!(BroadcastMap::new(&[4, 3], &[3]), None);
        assert_eq!(BroadcastMap::new(&[1], &[2]), None);
        assert_eq!(BroadcastMap::new(&[usize::MAX, 2], &[usize::MAX, 2]), None);
    }

    #[test]
    fn adding_is_the_adjoint_of_loading() {
        for aligned in [[1, 3, 2], [4, 1, 1], [4, 1, 2], [1, 1, 2], [1, 1, 1], [1, 3, 1]] {
            let spread = BroadcastMap::new(&[4, 3, 2], &aligned).unwrap();
            let operand: Vec<f64> = (0..spread.numel()).map(|i| i as f64 + 1.0).collect();
            let cotangent: Vec<f64> = (0..24).map(|i| (i as f64).sin()).collect();
            let (mut whole, mut parts) = (vec![0.0; 24], vec![0.0; 24]);
            spread.load(&operand, 0, &mut whole, |x| x);
            spread.load(&operand, 0, &mut parts[..7], |x| x);
            spread.load(&operand, 7, &mut parts[7..], |x| x);
            assert_eq!(whole, parts);
            let mut back = vec![0.0; spread.numel()];
            spread.add(&cotangent[..5], 0, &mut back);
            spread.add(&cotangent[5..], 5, &mut back);
            let left: f64 = whole.iter().zip(&cotangent).map(|(a, b)| a * b).sum();
            let right: f64 = operand.iter().zip(&back).map(|(a, b)| a * b).sum();
            assert!((left - right).abs() < 1e-12, "{aligned:?}: {left} {right}");
        }
    }
}
