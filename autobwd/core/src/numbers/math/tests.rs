//! Every function against one of higher precision, on every instruction set of the machine.
#![allow(unsafe_code)]

use super::super::{Float, float::Lane};
#[cfg(target_arch = "x86_64")]
use crate::runtime::{FUSED, Isa, isa};

/// One function as formulas use it.
trait TestedFunction {
    fn lane<F: Float>(x: F) -> F;
}

/// Applies a function to each number, in blocks of 64 bytes like block functions.
type Block<T> = unsafe fn(&[T], &mut [T]);

/// A function, compiled for each instruction set of the machine.
struct MathCase {
    name: &'static str,
    /// The largest error allowed, in units in the last place.
    ulps: f64,
    exact: fn(f64) -> f64,
    single: Vec<Block<f32>>,
    double: Vec<Block<f64>>,
}

macro_rules! blocks {
    ($($(#[$features:meta])* $name:ident $t:ident $fma:expr;)*) => {$(
        $(#[$features])*
        fn $name<O: TestedFunction>(x: &[$t], y: &mut [$t]) {
            const LANES: usize = 64 / size_of::<$t>();
            let (x, y) = (x.as_chunks::<LANES>().0, y.as_chunks_mut::<LANES>().0);
            for (x, y) in x.iter().zip(y) {
                for (x, y) in x.iter().zip(y) {
                    *y = O::lane(Lane::<$t, { $fma }>(*x)).0;
                }
            }
        }
    )*};
}
blocks! {
    baseline_f32 f32 FUSED;
    baseline_f64 f64 FUSED;
    #[cfg(target_arch = "x86_64")] #[target_feature(enable = "avx2,fma")]
    avx2_f32 f32 true;
    #[cfg(target_arch = "x86_64")] #[target_feature(enable = "avx2,fma")]
    avx2_f64 f64 true;
    #[cfg(target_arch = "x86_64")] #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
    avx512_f32 f32 true;
    #[cfg(target_arch = "x86_64")] #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
    avx512_f64 f64 true;
}

fn case<O: TestedFunction>(name: &'static str, ulps: f64, exact: fn(f64) -> f64) -> MathCase {
    let (mut single, mut double): (Vec<Block<f32>>, Vec<Block<f64>>) =
        (vec![baseline_f32::<O>], vec![baseline_f64::<O>]);
    #[cfg(target_arch = "x86_64")]
    {
        if isa() != Isa::Baseline {
            single.push(avx2_f32::<O>);
            double.push(avx2_f64::<O>);
        }
        if isa() == Isa::Avx512 {
            single.push(avx512_f32::<O>);
            double.push(avx512_f64::<O>);
        }
    }
    MathCase { name, ulps, exact, single, double }
}

macro_rules! cases {
    ($($name:ident($x:ident) = $lane:expr, $ulps:literal, $exact:expr;)*) => {
        vec![$({
            struct It;
            impl TestedFunction for It {
                #[inline(always)]
                fn lane<F: Float>($x: F) -> F {
                    $lane
                }
            }
            case::<It>(stringify!($name), $ulps, $exact)
        }),*]
    };
}

fn logistic(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}
fn normal_cdf(x: f64) -> f64 {
    libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) / 2.0
}
/// Avoids a product of 0 with infinity.
fn from_far(x: f64) -> f64 {
    x.clamp(-1e3, f64::INFINITY)
}
fn gelu_tanh(x: f64) -> f64 {
    from_far(x) * logistic(1.595_769_121_605_730_8 * (x + 0.044715 * x * x * x))
}

fn cases() -> Vec<MathCase> {
    cases! {
        exp(x) = x.exp(), 2.0, f64::exp;
        expm1(x) = x.expm1(), 4.0, f64::exp_m1;
        log(x) = x.log(), 2.0, f64::ln;
        log1p(x) = x.log1p(), 4.0, f64::ln_1p;
        tanh(x) = x.tanh(), 4.0, f64::tanh;
        sigmoid(x) = x.sigmoid(), 4.0, logistic;
        gelu(x) = x.gelu(), 4.0, |x| from_far(x) * normal_cdf(x);
        gelu_tanh(x) = x.gelu_tanh(), 4.0, gelu_tanh;
        erf(x) = x.erf(), 4.0, libm::erf;
        normal_cdf(x) = x.normal_cdf(), 4.0, normal_cdf;
        sin(x) = x.sin(), 4.0, f64::sin;
        cos(x) = x.cos(), 4.0, f64::cos;
        sqrt(x) = x.sqrt(), 0.5, f64::sqrt;
        reciprocal(x) = F::from(1.0) / x, 0.5, f64::recip;
    }
}

/// Distance in units in the last place of the exact result; subnormal numbers use the unit of the smallest normal
/// numbers. Infinity counts as the number after the largest; a zero of the wrong sign is far away.
fn distance(found: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if exact.is_nan() || found.is_nan() {
        return if exact.is_nan() && found.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if rounded == 0.0 && found == 0.0 {
        return if exact.is_sign_negative() == found.is_sign_negative() { 0.0 } else { f64::INFINITY };
    }
    if rounded.is_infinite() || found.is_infinite() {
        let order = |x: f32| f64::from((x.to_bits() & 0x7fff_ffff).cast_signed()).copysign(x.into());
        return (order(found) - order(rounded)).abs();
    }
    let exponent = (rounded.to_bits() >> 23 & 255).max(1);
    (f64::from(found) - exact).abs() / f64::from(f32::from_bits(exponent << 23)) * f64::from(1 << 23)
}

/// The largest distance, and its argument, over all numbers with these upper halves of bits, on the best instruction set.
fn worst(case: &MathCase, upper: impl Iterator<Item = u32>) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    let (mut x, mut y) = (vec![0.0; 1 << 16], vec![0.0; 1 << 16]);
    let best = case.single[case.single.len() - 1];
    for upper in upper {
        (0..).zip(&mut x).for_each(|(lower, x)| *x = f32::from_bits(upper << 16 | lower));
        // SAFETY: the machine has the instructions.
        unsafe { best(&x, &mut y) };
        for (x, y) in x.iter().zip(&y) {
            let distance = distance(*y, (case.exact)(f64::from(*x)));
            if distance > worst.0 {
                worst = (distance, *x);
            }
        }
    }
    worst
}

/// Asserts that all instruction sets give the same bits, or NaN.
fn assert_same_bits<T: Copy + Default + Into<f64>>(
    name: &str,
    sets: &[Block<T>],
    x: &[T],
    bits: fn(T) -> u64,
) {
    let results = sets.iter().map(|block| {
        let mut y = vec![T::default(); x.len()];
        // SAFETY: the machine has the instructions.
        unsafe { block(x, &mut y) };
        y.into_iter().map(|y| if y.into().is_nan() { u64::MAX } else { bits(y) }).collect::<Vec<_>>()
    });
    let results: Vec<_> = results.collect();
    for other in &results[1..] {
        for ((x, one), other) in x.iter().zip(&results[0]).zip(other) {
            assert!(one == other, "{name} of {:e}", (*x).into());
        }
    }
}

#[test]
fn bits_are_the_same_on_every_instruction_set() {
    // All exponents with both signs; mantissas are scattered.
    let single: Vec<_> =
        (0..1 << 15).map(|i: u32| f32::from_bits(i << 17 | i.wrapping_mul(40_503) & 0x1_ffff)).collect();
    let double: Vec<_> = (0..1 << 14)
        .map(|i: u64| f64::from_bits(i << 50 | i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 14))
        .collect();
    for case in cases() {
        assert_same_bits(case.name, &case.single, &single, |y| y.to_bits().into());
        assert_same_bits(case.name, &case.double, &double, f64::to_bits);
    }
}

#[test]
fn single_precision_is_double_precision_rounded() {
    for case in cases() {
        // All exponents with both signs, and some of their mantissas.
        let upper =
            (0..1 << 16).filter(|upper| upper % 127 < 2 || upper % 0x8000 == 0 || upper % 0x7f80 == 0);
        let (distance, x) = worst(&case, upper);
        assert!(distance <= case.ulps, "{} of {x:e}: {distance} ulp", case.name);
    }
}

/// Prints the table in the documentation of `Float`; some minutes for each function, or for one with `ONLY=sin`.
#[test]
#[ignore = "2^32 numbers"]
fn all_of_single_precision() {
    let only = std::env::var("ONLY").ok();
    for case in cases().into_iter().filter(|case| only.as_ref().is_none_or(|only| case.name == only)) {
        let part = |first: u32| worst(&case, (first..1 << 16).step_by(2));
        let (even, odd) = std::thread::scope(|scope| {
            let even = scope.spawn(|| part(0));
            (part(1), even.join().unwrap())
        });
        let (distance, x) = if even.0 > odd.0 { even } else { odd };
        println!("{} of {x:e}: {distance} ulp", case.name);
        assert!(distance <= case.ulps, "{}", case.name);
    }
}

/// Functions in double precision: name, bits of the arguments, bits of the result. Computed by mpmath 1.3 with 300 bits
/// (sine and cosine: 2,400), and rounded once; arguments are random, from where each function is steep, small,
/// subnormal or rounded to the same number.
const EXACT: &str = include_str!("exact.txt");

/// The number of steps between two numbers.
fn steps(a: f64, b: f64) -> u64 {
    let order = |x: f64| if x < 0.0 { -(x.abs().to_bits().cast_signed()) } else { x.to_bits().cast_signed() };
    order(a).abs_diff(order(b))
}

#[test]
fn double_precision_is_exact_to_some_digits() {
    let cases = cases();
    for line in EXACT.lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let numbers: Vec<f64> = words.map(|w| f64::from_bits(u64::from_str_radix(w, 16).unwrap())).collect();
        let mut y = [0.0; 8];
        if let [x, exact] = numbers[..] {
            let case = cases.iter().find(|case| case.name == name).unwrap();
            for block in &case.double {
                // SAFETY: the machine has the instructions.
                unsafe { block(&[x; 8], &mut y) };
                let steps = steps(y[0], exact);
                assert!(steps as f64 <= case.ulps, "{name} of {x:e}: {:e}, not {exact:e}, {steps} ulp", y[0]);
                // At any position in its block.
                assert!(y.iter().all(|other| other.to_bits() == y[0].to_bits()));
            }
        } else {
            let [x, exponent, exact] = numbers[..] else { panic!("{line}") };
            let found =
                [Lane::<f64, false>(x).pow(Lane(exponent)).0, Lane::<f64, true>(x).pow(Lane(exponent)).0];
            for found in found {
                assert!(steps(found, exact) <= 4, "{x:e} to the {exponent:e}: {found:e}, not {exact:e}");
            }
        }
    }
}

/// For any argument, double precision loses no digits. (`std` has no counterpart of some functions that is accurate in
/// the tails.)
#[test]
fn double_precision_is_near_that_of_the_standard_library() {
    let between =
        |low: f64, high: f64, i: usize| low + (high - low) * (i as f64 * 0.618_033_988_749_895).fract();
    for case in cases().iter().filter(|case| !["normal_cdf", "gelu", "gelu_tanh"].contains(&case.name)) {
        let mut x: Vec<f64> = (0..1 << 15)
            .map(|i| match i % 4 {
                0 => between(-750.0, 750.0, i),
                1 => between(-3.0, 3.0, i),
                // Every exponent.
                2 => f64::from_bits((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                _ => between(-1.0, 1.0, i) * f64::powi(2.0, -(i as i32 % 64)),
            })
            .collect();
        x[..8].copy_from_slice(&[0.0, -0.0, f64::INFINITY, -f64::INFINITY, f64::NAN, 5e-324, -5e-324, 1.0]);
        let mut y = vec![0.0; x.len()];
        for block in &case.double {
            // SAFETY: the machine has the instructions.
            unsafe { block(&x, &mut y) };
            for (x, y) in x.iter().zip(&y) {
                let std = (case.exact)(*x);
                let same =
                    (std.is_nan() && y.is_nan()) || (std == *y && (std != 0.0 || std.signum() == y.signum()));
                // Plus the possible error of `std`.
                assert!(
                    same || steps(std, *y) as f64 <= case.ulps + 2.0,
                    "{} of {x:e}: {y:e} {std:e}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn powers_are_those_of_the_standard_library() {
    let special = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        4.0,
        1e-3,
        100.0,
        1e30,
        9_007_199_254_740_991.0,
        9_007_199_254_740_992.0,
        f64::MIN_POSITIVE,
        5e-324,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
    ];
    let special = || special.iter().flat_map(|x| [*x, -*x]);
    let grid = || (0..200).map(|i| f64::powi(1.17, i - 100));
    let pairs = || special().flat_map(|x| special().map(move |y| (x, y)));
    let pairs = || pairs().chain(grid().flat_map(|x| (-40..40).map(move |y| (x, f64::from(y) * 0.37))));
    fn check<const FMA: bool>(x: f64, y: f64) {
        let (found, std) = (Lane::<f64, FMA>(x).pow(Lane(y)).0, x.powf(y));
        let same = (found.is_nan() && std.is_nan())
            || found == std && (std != 0.0 || found.signum() == std.signum());
        assert!(same || steps(found, std) <= 2, "{x:e} to the {y:e}: {found:e}, not {std:e}");
        let (x, y) = (x as f32, y as f32);
        let (found, exact) = (Lane::<f32, FMA>(x).pow(Lane(y)).0, f64::from(x).powf(y.into()));
        // The `f32` result may already be infinite or 0.
        assert!(distance(found, exact) <= 1.0, "{x:e} to the {y:e}: {found:e}, not {exact:e}");
    }
    for (x, y) in pairs() {
        check::<false>(x, y);
        check::<true>(x, y);
    }
}
