//! Loops over slices, compiled for every instruction set, for kernels that are more than a formula.
#![allow(unsafe_code)]

use super::{
    block::{Isa, isa},
    float::{Float, Lane},
};
use crate::Element;

/// A lane that stands for an element of a slice.
pub trait LaneOf<T>: Float {
    /// From the element.
    fn new(element: T) -> Self;
    /// To the element.
    fn get(self) -> T;
}

/// Loops over slices of `T`, with the functions of [`Float`] in them: see [`Vectorised`].
pub trait Loops<T> {
    /// What comes out, beside what is written.
    type Output;

    /// Runs the loops. It and all functions that it calls must be `#[inline(always)]`: what is compiled apart has the
    /// instructions of the baseline alone, and is slow.
    fn run<F: LaneOf<T>>(self) -> Self::Output;
}

/// Element types over which loops are compiled for every instruction set, those of the machine being chosen at run
/// time, as it is with formulas. Loops are best made of [`map_lanes`] and [`fold_lanes`].
///
/// ```
/// use autobwd::{LaneOf, Loops, Vectorised, fold_lanes, map_lanes};
///
/// /// `x = exp(x)`, and the sum of it.
/// struct Exponentials<'a>(&'a mut [f32]);
///
/// impl Loops<f32> for Exponentials<'_> {
///     type Output = f32;
///
///     #[inline(always)]
///     fn run<F: LaneOf<f32>>(self) -> f32 {
///         map_lanes([], [&mut *self.0], |[], [x]: [F; 1]| [x.exp()]);
///         fold_lanes([&*self.0], F::of(0.0), |sum, [x]| sum + x, |a, b| a + b).get()
///     }
/// }
///
/// let mut x = [0.0, 1.0];
/// assert_eq!(f32::vectorised(Exponentials(&mut x)), 1.0 + std::f32::consts::E);
/// ```
pub trait Vectorised: Element {
    /// Runs loops by the best instructions of this machine.
    fn vectorised<L: Loops<Self>>(loops: L) -> L::Output;
}

/// Elements that are loaded, worked on and stored together: a line of `f32`.
const WIDTH: usize = 16;

/// Sets every element of `outputs` to what `f` makes of those at the same place in `inputs` and `outputs`, as far as the
/// shortest slice goes.
#[inline(always)]
pub fn map_lanes<T: Element, F: LaneOf<T>, const I: usize, const O: usize>(
    inputs: [&[T]; I],
    mut outputs: [&mut [T]; O],
    f: impl Fn([F; I], [F; O]) -> [F; O],
) {
    let lens = inputs.iter().map(|x| x.len()).chain(outputs.iter().map(|y| y.len()));
    let n = lens.min().unwrap_or(0);
    let mut at = 0;
    while at < n {
        let len = WIDTH.min(n - at);
        let (mut x, mut y) = ([[F::of(0.0); WIDTH]; I], [[F::of(0.0); WIDTH]; O]);
        for (x, input) in x.iter_mut().zip(&inputs) {
            load(x, &input[at..at + len]);
        }
        for (y, output) in y.iter_mut().zip(&outputs) {
            load(y, &output[at..at + len]);
        }
        let mut results = [[F::of(0.0); WIDTH]; O];
        for l in 0..WIDTH {
            let mut of_lane = ([F::of(0.0); I], [F::of(0.0); O]);
            for k in 0..I {
                of_lane.0[k] = x[k][l];
            }
            for k in 0..O {
                of_lane.1[k] = y[k][l];
            }
            let result = f(of_lane.0, of_lane.1);
            for k in 0..O {
                results[k][l] = result[k];
            }
        }
        for (result, output) in results.iter().zip(&mut outputs) {
            store(result, &mut output[at..at + len]);
        }
        at += WIDTH;
    }
}

/// Folds elements at the same place in `inputs` into a number that is `start` at first, as far as the shortest slice
/// goes. That happens in 16 numbers in turn, in an order that depends on nothing else, which `join` makes one in the
/// end: `start` must change nothing.
#[inline(always)]
pub fn fold_lanes<T: Element, F: LaneOf<T>, const I: usize>(
    inputs: [&[T]; I],
    start: F,
    f: impl Fn(F, [F; I]) -> F,
    join: impl Fn(F, F) -> F,
) -> F {
    let n = inputs.iter().map(|x| x.len()).min().unwrap_or(0);
    let mut folded = [start; WIDTH];
    let mut at = 0;
    while at < n {
        let len = WIDTH.min(n - at);
        let mut x = [[F::of(0.0); WIDTH]; I];
        for (x, input) in x.iter_mut().zip(&inputs) {
            load(x, &input[at..at + len]);
        }
        let before = folded;
        for l in 0..WIDTH {
            let mut of_lane = [F::of(0.0); I];
            for k in 0..I {
                of_lane[k] = x[k][l];
            }
            folded[l] = f(folded[l], of_lane);
        }
        folded[len..].copy_from_slice(&before[len..]);
        at += WIDTH;
    }
    let mut half = WIDTH / 2;
    while half > 0 {
        for l in 0..half {
            folded[l] = join(folded[l], folded[l + half]);
        }
        half /= 2;
    }
    folded[0]
}

#[inline(always)]
fn load<T: Element, F: LaneOf<T>>(lanes: &mut [F; WIDTH], from: &[T]) {
    match from.first_chunk::<WIDTH>() {
        Some(from) => *lanes = from.map(F::new),
        None => lanes.iter_mut().zip(from).for_each(|(lane, x)| *lane = F::new(*x)),
    }
}

#[inline(always)]
fn store<T: Element, F: LaneOf<T>>(lanes: &[F; WIDTH], to: &mut [T]) {
    match to.first_chunk_mut::<WIDTH>() {
        Some(to) => *to = lanes.map(F::get),
        None => to.iter_mut().zip(lanes).for_each(|(x, lane)| *x = lane.get()),
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
            fn vectorised<L: Loops<$t>>(loops: L) -> L::Output {
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the machine has these instructions, as `isa` says.
                    Isa::Avx512 => unsafe { avx512::<$t, Lane<$t, true>, L>(loops) },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    Isa::Avx2 => unsafe { avx2::<$t, Lane<$t, true>, L>(loops) },
                    _ => loops.run::<Lane<$t, false>>(),
                }
            }
        }
    )*};
}
vectorised!(f32, f64);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn avx512<T, F: LaneOf<T>, L: Loops<T>>(loops: L) -> L::Output {
    loops.run::<F>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<T, F: LaneOf<T>, L: Loops<T>>(loops: L) -> L::Output {
    loops.run::<F>()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tanh<'a, T>(&'a [T], &'a mut [T]);
    impl<T: Element> Loops<T> for Tanh<'_, T> {
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
        // As far as the shorter one goes.
        let mut long = [7.0; 20];
        f32::vectorised(Tanh(&x[..18], &mut long));
        assert_eq!((&long[..18], &long[18..]), (&whole[..18], &[7.0; 2][..]));
    }

    struct Dot<'a, T>(&'a [T], &'a [T]);
    impl<T: Element> Loops<T> for Dot<'_, T> {
        type Output = T;

        #[inline(always)]
        fn run<F: LaneOf<T>>(self) -> T {
            fold_lanes([self.0, self.1], F::of(0.0), |sum, [x, y]| sum + x * y, |a, b| a + b).get()
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
        impl Loops<f64> for AddTwice<'_> {
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
