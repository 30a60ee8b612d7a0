//! Fast Fourier transforms of one dimension, in double precision.
//!
//! Roots of unity come from the crate `libm`: other libraries have them from the system's `sin` and `cos`, whose bits differ
//! between systems and processors. Tables and buffers are the caller's memory, so that nothing is allocated.

use std::f64::consts::TAU;

/// A complex number.
pub(super) type Complex = [f64; 2];

/// Radices of the passes. Lengths with a larger prime factor are transformed by a convolution.
const RADICES: [usize; 7] = [4, 2, 3, 5, 7, 11, 13];

/// The radix of the next pass over this length.
fn radix(len: usize) -> Option<usize> {
    RADICES.into_iter().find(|radix| len.is_multiple_of(*radix))
}

/// The length of the convolution for a length with a large prime factor.
fn convolution(n: usize) -> Option<usize> {
    let mut rest = n.max(1);
    while let Some(radix) = radix(rest) {
        rest /= radix;
    }
    (rest > 1).then(|| (2 * n - 1).next_power_of_two())
}

fn plus(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

fn minus(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn conjugate([re, im]: Complex) -> Complex {
    [re, -im]
}

/// `exp(-2πi · k / n)`, or its conjugate.
fn root(k: usize, n: usize, is_forward: bool) -> Complex {
    // The symmetric half, so that conjugates have equal bits.
    let (sin, cos) = libm::sincos(TAU * k.min(n - k) as f64 / n as f64);
    if is_forward == (2 * k <= n) { [cos, -sin] } else { [cos, sin] }
}

/// A transform of one length in one direction, without a scale.
pub(super) struct Transform<'a> {
    is_forward: bool,
    /// The roots of unity of the passes.
    roots: &'a [Complex],
    /// By Bluestein's algorithm (1970): `exp(∓πi · k² / n)`, and the transform of the sequence that the product with it is
    /// convolved with.
    chirp: &'a [Complex],
    filter: &'a [Complex],
}

impl<'a> Transform<'a> {
    /// The length of the tables.
    pub(super) fn tables(n: usize) -> usize {
        convolution(n).map_or(n, |m| m.saturating_mul(3).saturating_add(n))
    }

    /// The length of each of the two buffers.
    pub(super) fn buffer(n: usize) -> usize {
        convolution(n).unwrap_or(n)
    }

    pub(super) fn new(n: usize, is_forward: bool, tables: &'a mut [Complex]) -> Transform<'a> {
        let Some(m) = convolution(n) else {
            let roots = &mut tables[..n];
            roots.iter_mut().enumerate().for_each(|(k, x)| *x = root(k, n, is_forward));
            return Transform { is_forward, roots, chirp: &[], filter: &[] };
        };
        let (roots, rest) = tables.split_at_mut(m);
        let (chirp, rest) = rest.split_at_mut(n);
        let (filter, spare) = rest.split_at_mut(m);
        roots.iter_mut().enumerate().for_each(|(k, x)| *x = root(k, m, true));
        for (k, x) in chirp.iter_mut().enumerate() {
            // The square has more bits than a number of 64 bits for the longest transforms.
            let turns = (k as u128 * k as u128 % (2 * n as u128)) as usize;
            *x = root(turns, 2 * n, is_forward);
        }
        filter.fill([0.0; 2]);
        for (k, x) in chirp.iter().enumerate() {
            filter[k] = conjugate(*x);
            filter[(m - k) % m] = conjugate(*x);
        }
        let transformed = passes(roots, true, filter, &mut spare[..m]);
        if transformed {
            filter.copy_from_slice(&spare[..m]);
        }
        filter.iter_mut().for_each(|x| *x = x.map(|x| x / m as f64));
        Transform { is_forward, roots, chirp, filter }
    }

    /// Transforms the first elements of `x`, with a second buffer; returns the transform.
    pub(super) fn run<'b>(&self, x: &'b mut [Complex], y: &'b mut [Complex]) -> &'b [Complex] {
        if self.chirp.is_empty() {
            return if passes(self.roots, self.is_forward, x, y) { y } else { x };
        }
        let n = self.chirp.len();
        x.iter_mut().zip(self.chirp).for_each(|(x, chirp)| *x = times(*x, *chirp));
        x[n..].fill([0.0; 2]);
        let (x, y) = if passes(self.roots, true, x, y) { (y, x) } else { (x, y) };
        // The inverse transform of a number is the conjugate of the transform of its conjugate.
        x.iter_mut().zip(self.filter).for_each(|(x, filter)| *x = conjugate(times(*x, *filter)));
        let x = if passes(self.roots, true, x, y) { y } else { x };
        x.iter_mut().zip(self.chirp).for_each(|(x, chirp)| *x = times(conjugate(*x), *chirp));
        &x[..n]
    }
}

/// The transform by passes of small radices, each from one buffer into the other (Stockham's order); whether it ends in `y`.
fn passes(roots: &[Complex], is_forward: bool, x: &mut [Complex], y: &mut [Complex]) -> bool {
    let n = roots.len();
    let (mut from, mut to, mut is_swapped) = (&mut x[..n], &mut y[..n], false);
    let (mut len, mut stride) = (n, 1);
    while let Some(radix) = radix(len) {
        let m = len / radix;
        for (k, to) in to.chunks_exact_mut(stride * radix).enumerate() {
            let parts = Parts { from, m, k, stride };
            match radix {
                2 => parts.two(roots, to),
                4 => parts.four(roots, is_forward, to),
                _ => parts.any(roots, radix, to),
            }
        }
        std::mem::swap(&mut from, &mut to);
        is_swapped = !is_swapped;
        (len, stride) = (m, stride * radix);
    }
    is_swapped
}

/// What one step of a pass reads: a row of each of as many blocks as the radix.
struct Parts<'a> {
    from: &'a [Complex],
    /// Rows of a block.
    m: usize,
    k: usize,
    /// Elements of a row.
    stride: usize,
}

impl<'a> Parts<'a> {
    fn row(&self, block: usize) -> &'a [Complex] {
        &self.from[(self.k + block * self.m) * self.stride..][..self.stride]
    }

    /// The factor of an output row.
    fn factor(&self, roots: &[Complex], row: usize) -> Complex {
        roots[self.k * row * self.stride]
    }

    fn two(&self, roots: &[Complex], to: &mut [Complex]) {
        let (first, second) = to.split_at_mut(self.stride);
        let (a, b, w) = (self.row(0), self.row(1), self.factor(roots, 1));
        for i in 0..a.len() {
            first[i] = plus(a[i], b[i]);
            second[i] = times(minus(a[i], b[i]), w);
        }
    }

    fn four(&self, roots: &[Complex], is_forward: bool, to: &mut [Complex]) {
        let (low, high) = to.split_at_mut(2 * self.stride);
        let ((y0, y1), (y2, y3)) = (low.split_at_mut(self.stride), high.split_at_mut(self.stride));
        let [a, b, c, d] = [0, 1, 2, 3].map(|block| self.row(block));
        let [w1, w2, w3] = [1, 2, 3].map(|row| self.factor(roots, row));
        let sign = if is_forward { 1.0 } else { -1.0 };
        for i in 0..a.len() {
            let (sum, difference) = (plus(a[i], c[i]), minus(a[i], c[i]));
            let (other, [re, im]) = (plus(b[i], d[i]), minus(b[i], d[i]));
            let turned = [sign * im, -sign * re];
            y0[i] = plus(sum, other);
            y1[i] = times(plus(difference, turned), w1);
            y2[i] = times(minus(sum, other), w2);
            y3[i] = times(minus(difference, turned), w3);
        }
    }

    fn any(&self, roots: &[Complex], radix: usize, to: &mut [Complex]) {
        for (row, to) in to.chunks_exact_mut(self.stride).enumerate() {
            to.copy_from_slice(self.row(0));
            for block in 1..radix {
                let w = roots[block * row % radix * (roots.len() / radix)];
                to.iter_mut().zip(self.row(block)).for_each(|(to, x)| *to = plus(*to, times(*x, w)));
            }
            let w = self.factor(roots, row);
            to.iter_mut().for_each(|to| *to = times(*to, w));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transforms_are_sums_over_roots_of_unity() {
        for n in [1, 2, 3, 4, 5, 6, 8, 12, 13, 16, 17, 34, 60, 97, 128, 143, 221, 1001] {
            for is_forward in [true, false] {
                let x: Vec<Complex> = (0..n)
                    .map(|i| [(i * 37 % 101) as f64 / 50.0 - 1.0, (i * 53 % 89) as f64 / 44.0])
                    .collect();
                let mut tables = vec![[f64::NAN; 2]; Transform::tables(n)];
                let transform = Transform::new(n, is_forward, &mut tables);
                let [mut first, mut second] = [(); 2].map(|()| vec![[f64::NAN; 2]; Transform::buffer(n)]);
                first[..n].copy_from_slice(&x);
                let found = transform.run(&mut first, &mut second);
                assert_eq!(found.len(), n);
                for (k, found) in found.iter().enumerate() {
                    let terms = x.iter().enumerate().map(|(j, x)| times(*x, root(j * k % n, n, is_forward)));
                    let wanted = terms.fold([0.0; 2], plus);
                    let error = minus(*found, wanted).map(f64::abs);
                    assert!(error[0].max(error[1]) < 1e-11 * n as f64, "{n}, {k}: {found:?}, not {wanted:?}");
                }
            }
        }
    }
}
