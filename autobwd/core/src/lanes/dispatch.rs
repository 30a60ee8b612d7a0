//! SIMD dispatch: loops over slices, compiled for every instruction set, for kernels that are more than a formula.
#![allow(unsafe_code)]
// Indexed loops are vectorised for any number of slices.
#![allow(clippy::needless_range_loop)]

use crate::{
    Element,
    numbers::{Float, Lane},
    runtime::{FUSED, isa},
};

/// A lane that represents an element of a slice.
pub trait LaneOf<T>: Float {
    /// Converts from the element.
    fn new(element: T) -> Self;
    /// Converts to the element.
    fn get(self) -> T;
}

/// VectorLoops over slices of `T`, with the functions of [`Float`] in them: see [`Vectorised`].
pub trait VectorLoops<T> {
    /// The result of the loops, besides the slices that they write.
    type Output;

    /// Runs the loops. It and all functions that it calls must be `#[inline(always)]`: code that is not inlined uses
    /// baseline instructions only, and is slow.
    fn run<F: LaneOf<T>>(self) -> Self::Output;
}

/// Element types with loops that are compiled for every instruction set and chosen at run time, as formulas are. Build
/// loops from [`map_lanes`], [`fold_lanes`] and [`map_fold_lanes`].
///
/// ```
/// use autobwd::op::{LaneOf, VectorLoops, Vectorised, fold_lanes, map_lanes};
///
/// /// `x = exp(x)`, and the sum of it.
/// struct Exponentials<'a>(&'a mut [f32]);
///
/// impl VectorLoops<f32> for Exponentials<'_> {
///     type Output = f32;
///
///     #[inline(always)]
///     fn run<F: LaneOf<f32>>(self) -> f32 {
///         map_lanes([], [&mut *self.0], |[], [x]: [F; 1]| [x.exp()]);
///         fold_lanes([&*self.0], F::from(0.0), |sum, [x]| sum + x, |a, b| a + b).get()
///     }
/// }
///
/// let mut x = [0.0, 1.0];
/// assert_eq!(f32::vectorised(Exponentials(&mut x)), 1.0 + std::f32::consts::E);
/// ```
pub trait Vectorised: Element {
    /// Runs loops with the best instructions of this machine.
    fn vectorised<L: VectorLoops<Self>>(loops: L) -> L::Output;
}

/// Elements that are loaded, processed and stored together: a cache line of `f32`.
const WIDTH: usize = 16;

/// Sets each element of `outputs` to the result of `f` for the elements at that position of `inputs` and `outputs`, up
/// to the length of the shortest slice.
#[inline(always)]
pub fn map_lanes<T: Element, F: LaneOf<T>, const I: usize, const O: usize>(
    inputs: [&[T]; I],
    outputs: [&mut [T]; O],
    f: impl Fn([F; I], [F; O]) -> [F; O],
) {
    map_fold_lanes(inputs, outputs, [], |[], x, y| ([], f(x, y)), |[], []| []);
}

/// Folds the elements of `inputs` position by position, starting with `start`, up to the length of the shortest slice:
/// as [`map_fold_lanes`], without outputs.
#[inline(always)]
pub fn fold_lanes<T: Element, F: LaneOf<T>, const I: usize>(
    inputs: [&[T]; I],
    start: F,
    f: impl Fn(F, [F; I]) -> F,
    join: impl Fn(F, F) -> F,
) -> F {
    let f = |[folded]: [F; 1], x, []: [F; 0]| ([f(folded, x)], []);
    let [folded] = map_fold_lanes(inputs, [], [start], f, |[a], [b]| [join(a, b)]);
    folded
}

/// [`map_lanes`] with accumulators, into which `f` folds elements; they start with `start`.
///
/// There are 16 interleaved sets of accumulators, in a fixed order; `join` reduces them to one at the end. `start` must
/// be the neutral element.
#[inline(always)]
pub fn map_fold_lanes<T: Element, F: LaneOf<T>, const I: usize, const O: usize, const S: usize>(
    inputs: [&[T]; I],
    outputs: [&mut [T]; O],
    start: [F; S],
    f: impl Fn([F; S], [F; I], [F; O]) -> ([F; S], [F; O]),
    join: impl Fn([F; S], [F; S]) -> [F; S],
) -> [F; S] {
    let zero = F::from(0.0);
    let mut n = if I + O > 0 { usize::MAX } else { 0 };
    for x in &inputs {
        n = n.min(x.len());
    }
    for y in &outputs {
        n = n.min(y.len());
    }
    let mut folded = [[zero; WIDTH]; S];
    for k in 0..S {
        folded[k] = [start[k]; WIDTH];
    }
    // Values folded from padding are discarded at the end: a select in each step would lengthen the dependency chain.
    let mut whole = folded;
    // Padded buffers for the last elements if they do not fill a whole width: `f` has a single call site, so that it is
    // inlined.
    let (mut x_rest, mut y_rest) = ([[zero.get(); WIDTH]; I], [[zero.get(); WIDTH]; O]);
    let mut at = 0;
    while at < n {
        let len = WIDTH.min(n - at);
        if len < WIDTH {
            whole = folded;
            for k in 0..I {
                x_rest[k][..len].copy_from_slice(&inputs[k][at..n]);
            }
        }
        let (mut x, mut y) = ([[zero; WIDTH]; I], [[zero; WIDTH]; O]);
        for k in 0..I {
            match inputs[k][at..n].first_chunk() {
                // Folding loops are vectorised if they load in one place, others if they do not.
                from if S > 0 => load(&mut x[k], from.unwrap_or(&x_rest[k])),
                Some(from) => load(&mut x[k], from),
                None => load(&mut x[k], &x_rest[k]),
            }
        }
        for k in 0..O {
            match outputs[k][at..n].first_chunk() {
                Some(from) => load(&mut y[k], from),
                None => {
                    y_rest[k][..len].copy_from_slice(&outputs[k][at..n]);
                    load(&mut y[k], &y_rest[k]);
                }
            }
        }
        let mut results = [[zero; WIDTH]; O];
        for l in 0..WIDTH {
            let (mut before, mut of_x, mut of_y) = ([zero; S], [zero; I], [zero; O]);
            for k in 0..S {
                before[k] = folded[k][l];
            }
            for k in 0..I {
                of_x[k] = x[k][l];
            }
            for k in 0..O {
                of_y[k] = y[k][l];
            }
            let (after, result) = f(before, of_x, of_y);
            for k in 0..S {
                folded[k][l] = after[k];
            }
            for k in 0..O {
                results[k][l] = result[k];
            }
        }
        for k in 0..O {
            match outputs[k][at..n].first_chunk_mut() {
                Some(to) => store(&results[k], to),
                None => {
                    store(&results[k], &mut y_rest[k]);
                    outputs[k][at..n].copy_from_slice(&y_rest[k][..len]);
                }
            }
        }
        at += WIDTH;
    }
    if n % WIDTH > 0 {
        let used = F::from((n % WIDTH) as f64);
        for l in 0..WIDTH {
            for k in 0..S {
                folded[k][l] = F::select(used.gt(F::from(l as f64)), folded[k][l], whole[k][l]);
            }
        }
    }
    let mut half = WIDTH / 2;
    while half > 0 {
        for l in 0..half {
            let (mut a, mut b) = ([zero; S], [zero; S]);
            for k in 0..S {
                (a[k], b[k]) = (folded[k][l], folded[k][l + half]);
            }
            let joined = join(a, b);
            for k in 0..S {
                folded[k][l] = joined[k];
            }
        }
        half /= 2;
    }
    let mut result = [zero; S];
    for k in 0..S {
        result[k] = folded[k][0];
    }
    result
}

#[inline(always)]
fn load<T: Element, F: LaneOf<T>>(lanes: &mut [F; WIDTH], from: &[T; WIDTH]) {
    for l in 0..WIDTH {
        lanes[l] = F::new(from[l]);
    }
}

#[inline(always)]
fn store<T: Element, F: LaneOf<T>>(lanes: &[F; WIDTH], to: &mut [T; WIDTH]) {
    for l in 0..WIDTH {
        to[l] = lanes[l].get();
    }
}

macro_rules! vectorised {
    ($($t:ident),*) => {$(
        impl<const FMA: bool> LaneOf<$t> for Lane<$t, FMA> {
            #[inline(always)]
            fn new(element: $t) -> Self {
                Lane(element)
            }
            #[inline(always)]
            fn get(self) -> $t {
                self.0
            }
        }

        impl Vectorised for $t {
            #[inline]
            fn vectorised<L: VectorLoops<$t>>(loops: L) -> L::Output {
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: `isa` has checked that the machine has these instructions.
                    crate::runtime::Isa::Avx512 => unsafe { avx512::<$t, Lane<$t, true>, L>(loops) },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    crate::runtime::Isa::Avx2 => unsafe { avx2::<$t, Lane<$t, true>, L>(loops) },
                    _ => loops.run::<Lane<$t, FUSED>>(),
                }
            }
        }
    )*};
}
vectorised!(f32, f64);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn avx512<T, F: LaneOf<T>, L: VectorLoops<T>>(loops: L) -> L::Output {
    loops.run::<F>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<T, F: LaneOf<T>, L: VectorLoops<T>>(loops: L) -> L::Output {
    loops.run::<F>()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tanh<'a, T>(&'a [T], &'a mut [T]);
    impl<T: Element> VectorLoops<T> for Tanh<'_, T> {
        type Output = ();

        #[inline(always)]
        fn run<F: LaneOf<T>>(self) {
            map_lanes([self.0], [self.1], |[x]: [F; 1], _| [x.tanh()]);
        }
    }

    #[test]
    fn loops_of_any_length_give_the_same_wherever_an_element_is() {
        let x: Vec<f32> = (0..100).map(|i| i as f32 / 7.0 - 5.0).collect();
        let wide: Vec<f64> = x.iter().copied().map(f64::from).collect();
        let (mut whole, mut whole_wide) = ([0.0; 100], [0.0; 100]);
        f32::vectorised(Tanh(&x, &mut whole));
        f64::vectorised(Tanh(&wide, &mut whole_wide));
        for ((x, y), exact) in wide.iter().zip(whole).zip(whole_wide) {
            assert!((f64::from(y) - exact).abs() < 1e-6 && (exact - x.tanh()).abs() < 1e-14);
        }
        for (at, len) in [(0, 0), (3, 1), (5, 17), (99, 1), (1, 64)] {
            let mut part = vec![0.0; len];
            f32::vectorised(Tanh(&x[at..at + len], &mut part));
            assert_eq!(part, whole[at..at + len]);
        }
        // Up to the length of the shorter slice.
        let mut long = [7.0; 20];
        f32::vectorised(Tanh(&x[..18], &mut long));
        assert_eq!((&long[..18], &long[18..]), (&whole[..18], &[7.0; 2][..]));
    }

    struct Dot<'a, T>(&'a [T], &'a [T]);
    impl<T: Element> VectorLoops<T> for Dot<'_, T> {
        type Output = T;

        #[inline(always)]
        fn run<F: LaneOf<T>>(self) -> T {
            fold_lanes([self.0, self.1], F::from(0.0), |sum, [x, y]| sum + x * y, |a, b| a + b).get()
        }
    }

    #[test]
    fn every_element_is_folded_once_and_what_is_there_is_kept() {
        let x: Vec<f64> = (1..=50).map(f64::from).collect();
        for n in [0, 1, 15, 16, 17, 50] {
            let sum = (n * (n + 1) * (2 * n + 1) / 6) as f64;
            assert_eq!(f64::vectorised(Dot(&x[..n], &x)), sum);
        }

        struct AddTwice<'a>(&'a [f64], &'a mut [f64], &'a mut [f64]);
        impl VectorLoops<f64> for AddTwice<'_> {
            type Output = ();

            #[inline(always)]
            fn run<F: LaneOf<f64>>(self) {
                map_lanes([self.0], [self.1, self.2], |[x]: [F; 1], [y, z]| [y + x, z + y]);
            }
        }
        let (mut y, mut z) = ([1.0; 19], [2.0; 19]);
        f64::vectorised(AddTwice(&x, &mut y, &mut z));
        assert!((0..19).all(|i| y[i] == x[i] + 1.0 && z[i] == 3.0));
    }
}
