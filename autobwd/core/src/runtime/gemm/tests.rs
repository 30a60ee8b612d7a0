//! All loops have the bits that the arithmetic defines, on all instruction sets of this machine.

use super::{blocks::TERMS, vector::Lanes, *};
use crate::runtime::{Isa, isa};

type Multiply<T> = unsafe fn(Product<T>);

/// The instruction sets of this machine, and software.
macro_rules! instruction_sets {
    ($t:ident, $avx512:ident, $avx2:ident) => {{
        let mut sets: Vec<(&str, Multiply<$t>)> = vec![
            ("software", multiply::<Lanes<$t, 4, false>>),
            ("baseline", multiply::<Lanes<$t, 4, FUSED>>),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            if isa() != Isa::Baseline {
                sets.push(("avx2", multiply::<std::arch::x86_64::$avx2>));
            }
            if isa() == Isa::Avx512 {
                sets.push(("avx512", multiply::<std::arch::x86_64::$avx512>));
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
    check_all(&instruction_sets!(f32, __m512, __m256));
    check_all(&instruction_sets!(f64, __m512d, __m256d));
}
