//! All loops have the bits that the arithmetic defines, on all instruction sets of this machine.

use super::{blocks::TERMS, quantized::QuantizedProduct, vector::ArrayVector, *};
use crate::runtime::{Isa, isa};

type Multiply<X> = unsafe fn(Product<X, Matrix<X>>);

/// A product of matrices in memory in vectors of a type.
///
/// # Safety
/// As [`Product::run`].
unsafe fn multiply_with<V: Vector, X: Factor<Sum = V::Element>>(product: Product<X, Matrix<X>>) {
    // SAFETY: the caller's promise.
    unsafe { multiply::<V, X, X>(product) }
}

/// A product with a quantised factor in vectors of a type.
///
/// # Safety
/// As [`Product::run`].
unsafe fn multiply_quantized_with<V: Vector, X: Factor<Sum = V::Element>>(product: QuantizedProduct<'_, X>) {
    // SAFETY: the caller's promise.
    unsafe { product.run::<V>() }
}

/// The instruction sets of this machine, and software.
macro_rules! instruction_sets {
    ($multiply:ident as $function:ty, $t:ty, $avx512:ident, $avx2:ident) => {{
        let mut sets: Vec<(&str, $function)> = vec![
            ("software", $multiply::<ArrayVector<_, 4, false>, $t>),
            ("baseline", $multiply::<ArrayVector<_, 4, FUSED>, $t>),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            if isa() != Isa::Baseline {
                sets.push(("avx2", $multiply::<std::arch::x86_64::$avx2, $t>));
            }
            if isa() == Isa::Avx512 {
                sets.push(("avx512", $multiply::<std::arch::x86_64::$avx512, $t>));
            }
        }
        sets
    }};
}

fn numbers<T: GemmElement + From<f32>>(n: usize, seed: u32) -> Vec<T> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::from((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..n).map(|_| next()).collect()
}

/// An element of a matrix of `rows` rows, stored as its transpose if `transposed`.
fn element<T: Copy>(x: &[T], (rows, columns): (usize, usize), transposed: bool, i: usize, j: usize) -> T {
    x[if transposed { j * rows + i } else { i * columns + j }]
}

/// Compares the bits of a product with chains of fused multiply-adds, and the elements between rows with what they were.
fn check<T: GemmElement + From<f32>>(
    sets: &[(&str, Multiply<T>)],
    (m, n, k): (usize, usize, usize),
    [x_transposed, y_transposed]: [bool; 2],
    (add, scale): (bool, T),
) {
    let (x, y) = (numbers::<T>(m * k, 1), numbers::<T>(k * n, 2));
    let row = n + 3;
    let before = numbers::<T>(m * row, 3);
    let mut wanted = before.clone();
    for i in 0..m {
        for j in 0..n {
            for first in (0..k).step_by(TERMS) {
                let chain = (first..k.min(first + TERMS)).fold(T::ZERO, |sum, l| {
                    let (x, y) =
                        (element(&x, (m, k), x_transposed, i, l), element(&y, (k, n), y_transposed, l, j));
                    sealed::GemmKernel::mul_add::<false>(x, y, sum)
                });
                let out = &mut wanted[i * row + j];
                *out = if add || first > 0 { *out + scale * chain } else { scale * chain };
            }
        }
    }
    for (name, multiply) in sets {
        let mut out = before.clone();
        let strides = |columns: usize, rows: usize, transposed: bool| match transposed {
            true => (1, rows as isize),
            false => (columns as isize, 1),
        };
        let ((x_row, x_col), (y_row, y_col)) = (strides(k, m, x_transposed), strides(n, k, y_transposed));
        let product = Product {
            size: (m, n, k),
            out: (out.as_mut_ptr(), row as isize, 1),
            onto: Onto { add, scale },
            x: (x.as_ptr(), x_row, x_col),
            y: (y.as_ptr(), y_row, y_col),
        };
        // SAFETY: three matrices of these sizes; the machine has these instructions.
        unsafe { multiply(product) };
        assert!(out == wanted, "{name}, {m} × {k} × {n}, {x_transposed} {y_transposed} {add}");
    }
}

fn check_all<T: GemmElement + From<f32>>(sets: &[(&str, Multiply<T>)]) {
    let transpositions = [[false, false], [false, true], [true, false], [true, true]];
    for m in [1, 2, 3, 5, 7, 8, 9, 13] {
        for n in [1, 3, 8, 17, 70] {
            for k in [1, 7, 33] {
                for (i, transposed) in transpositions.into_iter().enumerate() {
                    check(sets, (m, n, k), transposed, (i % 2 == 1, T::ONE));
                    check(sets, (n, m, k), transposed, (i % 2 == 0, T::from(0.37)));
                }
            }
        }
    }
    // Several blocks of terms, rows and columns; factors that few rows stream, and that are copied.
    for size in [
        (1, 1100, 40),
        (2, 70, 513),
        (4, 33, 1025),
        (6, 40, 600),
        (8, 130, 512),
        (100, 300, 34),
        (7, 1060, 9),
    ] {
        for (i, transposed) in transpositions.into_iter().enumerate() {
            check(sets, size, transposed, (i == 2, T::from(0.37)));
        }
    }
}

#[test]
fn products_are_chains_of_fused_multiply_adds_in_blocks() {
    check_all(&instruction_sets!(multiply_with as Multiply<_>, f32, __m512, __m256));
    check_all(&instruction_sets!(multiply_with as Multiply<_>, f64, __m512d, __m256d));
}

/// Factors of 16 bits whose products, and whose sums, are often subnormal.
fn halves<H>(n: usize, seed: u32, of: fn(f32) -> H) -> Vec<H> {
    let number = |(i, x): (usize, f32)| of(x * 2_f32.powi(if i % 3 == 0 { -62 } else { -70 }));
    numbers::<f32>(n, seed).into_iter().enumerate().map(number).collect()
}

/// Products of factors of 16 bits, on this machine and by the sets.
fn check_halves<H: Factor<Sum = f32>>(of: fn(f32) -> H, flushes: bool, sets: &[(&str, Multiply<H>)]) {
    for (m, n, k) in [(1, 17, 9), (3, 40, 1100), (7, 33, 65), (20, 70, 600), (9, 20, 31), (40, 5, 33)] {
        for [x_transposed, y_transposed] in [[false, false], [false, true], [true, false], [true, true]] {
            let (x, y) = (halves(m * k, 1, of), halves(k * n, 2, of));
            let strides = |columns: usize, rows: usize, transposed: bool| match transposed {
                true => (1, rows as isize),
                false => (columns as isize, 1),
            };
            let ((x_row, x_col), (y_row, y_col)) = (strides(k, m, x_transposed), strides(n, k, y_transposed));
            let results = sets.iter().map(|(name, multiply)| {
                let mut out = vec![0.0_f32; m * n];
                let product = Product {
                    size: (m, n, k),
                    out: (out.as_mut_ptr(), n as isize, 1),
                    onto: Onto { add: false, scale: 1.0 },
                    x: (x.as_ptr(), x_row, x_col),
                    y: (y.as_ptr(), y_row, y_col),
                };
                let _flushing = flushes.then(Flushing::new);
                // SAFETY: three matrices of these sizes; the machine has these instructions.
                unsafe { std::hint::black_box(*multiply)(product) };
                (name, out.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            });
            let results: Vec<_> = results.collect();
            for (name, other) in &results[1..] {
                assert!(*other == results[0].1, "{name}, {m} × {k} × {n}, {x_transposed} {y_transposed}");
            }
        }
    }
}

#[test]
fn products_of_16_bits_have_the_same_bits_on_all_instruction_sets() {
    check_halves(
        half::bf16::from_f32,
        true,
        &instruction_sets!(multiply_with as Multiply<_>, half::bf16, __m512, __m256),
    );
    let small = |x: f32| half::f16::from_f32(x * 2_f32.powi(60));
    check_halves(small, false, &instruction_sets!(multiply_with as Multiply<_>, half::f16, __m512, __m256));
}

/// A quantised matrix, and its numbers in row-major order.
struct Quantized<'a, T> {
    rows: usize,
    cols: usize,
    group: usize,
    codes: Vec<u8>,
    levels: Levels<'a, T>,
    scales: Vec<T>,
    zero_points: Option<Vec<u8>>,
}

impl<'a, T: GemmElement> Quantized<'a, T> {
    fn new(
        (rows, cols): (usize, usize),
        group: usize,
        levels: Levels<'a, T>,
        has_zero_points: bool,
    ) -> Quantized<'a, T> {
        let byte = |seed: usize| move |i: usize| ((i * 37 + seed) % 251) as u8;
        let per_cell = levels.rows_of_cell();
        let groups = rows.div_ceil(group) * cols;
        let codes = (0..4 * rows.div_ceil(per_cell) * cols).map(byte(3)).collect();
        let zero_points = has_zero_points.then(|| (0..groups).map(byte(5)).collect());
        Quantized { rows, cols, group, codes, levels, scales: numbers(groups, 7), zero_points }
    }

    fn mat(&self, transposed: bool) -> QuantizedMat<'_, T> {
        QuantizedMat {
            rows: self.rows,
            cols: self.cols,
            codes: &self.codes,
            levels: self.levels,
            group: self.group,
            scales: &self.scales,
            zero_points: self.zero_points.as_deref(),
            transposed,
        }
    }

    fn number(&self, row: usize, col: usize) -> T {
        let per_cell = self.levels.rows_of_cell();
        let bit = row % per_cell * (32 / per_cell);
        let byte = self.codes[(row / per_cell * self.cols + col) * 4 + bit / 8] >> (bit % 8);
        let group = row / self.group * self.cols + col;
        let zero_point =
            |middle: u8| -T::from(self.zero_points.as_ref().map_or(middle, |zeros| zeros[group]));
        let level = match self.levels {
            Levels::Bytes => T::from(byte) + zero_point(128),
            Levels::Nibbles => T::from(byte & 15) + zero_point(8),
            Levels::Table(table) => table[usize::from(byte & 15)],
        };
        level * self.scales[group]
    }
}

type MultiplyQuantized<T> = unsafe fn(QuantizedProduct<'_, T>);

fn check_quantized<T: GemmElement>(table: &[T; 16], sets: &[(&str, MultiplyQuantized<T>)]) {
    let kinds = [
        (32, Levels::Bytes, false),
        (16, Levels::Bytes, true),
        (7, Levels::Bytes, false),
        (32, Levels::Nibbles, false),
        (16, Levels::Nibbles, true),
        (6, Levels::Nibbles, true),
        (32, Levels::Table(table), false),
        (6, Levels::Table(table), false),
    ];
    for (group, levels, has_zero_points) in kinds {
        for (m, rows, cols) in
            [(1, 64, 40), (3, 1040, 21), (2, 72, 4200), (9, 600, 70), (20, 24, 1), (70, 48, 33)]
        {
            let y = Quantized::new((rows, cols), group, levels, has_zero_points);
            for transposed in [false, true] {
                let (k, n) = if transposed { (cols, rows) } else { (rows, cols) };
                let x = numbers::<T>(m * k, 1);
                let mut wanted = vec![T::ZERO; m * n];
                for (i, wanted) in wanted.iter_mut().enumerate() {
                    for first in (0..k).step_by(TERMS) {
                        let chain = (first..k.min(first + TERMS)).fold(T::ZERO, |sum, l| {
                            let y = if transposed { y.number(i % n, l) } else { y.number(l, i % n) };
                            sealed::GemmKernel::mul_add::<false>(x[i / n * k + l], y, sum)
                        });
                        *wanted = if first > 0 { *wanted + chain } else { chain };
                    }
                }
                for (name, multiply) in sets {
                    // In two parts, as by two threads.
                    let (mut out, part) = (vec![T::ZERO; m * n], n / 2 / 8 * 8);
                    for (first_column, n_part) in
                        [(0, part), (part, n - part)].into_iter().filter(|part| part.1 > 0)
                    {
                        let product = QuantizedProduct {
                            size: (m, n_part, k),
                            out: (out[first_column..].as_mut_ptr(), n as isize),
                            x: (x.as_ptr(), k as isize, 1),
                            y: y.mat(transposed),
                            first_column,
                        };
                        // SAFETY: matrices of these sizes; the machine has these instructions.
                        unsafe { multiply(product) };
                    }
                    assert!(out == wanted, "{name}, {m} × {k} × {n}, {group} {levels:?} {has_zero_points}");
                }
            }
        }
    }
}

/// Numbers that are no codes.
const TABLE: [f32; 16] =
    [-2.0, -1.6, -1.3, -0.9, -0.5, -0.1, 0.2, 0.6, 1.0, 1.3, 1.7, 2.1, 2.4, 2.8, 3.2, 3.5];

#[test]
fn quantised_factors_are_dequantised_with_one_rounding() {
    check_quantized(
        &TABLE,
        &instruction_sets!(multiply_quantized_with as MultiplyQuantized<_>, f32, __m512, __m256),
    );
    check_quantized(
        &TABLE.map(f64::from),
        &instruction_sets!(multiply_quantized_with as MultiplyQuantized<_>, f64, __m512d, __m256d),
    );
}
