//! Products by a library of assembly kernels, for machines with AVX2 or AVX-512.

use std::{arch::x86_64::_mm256_zeroupper, ptr::null};

use private_gemm_x86::{Accum, DType, DstKind, IType, InstrSet, gemm};

use super::GemmElement;
use crate::runtime::{Isa, isa};

/// The instruction set to use, if the library supports any of the machine's.
pub(super) fn instructions() -> Option<InstrSet> {
    match isa() {
        Isa::Baseline => None,
        Isa::Avx2 => Some(InstrSet::Avx256),
        Isa::Avx512 => Some(InstrSet::Avx512),
    }
}

/// # Safety
/// As `gemm_into` outside, on a machine with these instructions.
pub(super) unsafe fn gemm_into<T: GemmElement>(
    instructions: InstrSet,
    (m, n, k): (usize, usize, usize),
    (out, out_row): (*mut T, isize),
    (add, scale): (bool, T),
    (x, x_row, x_col): (*const T, isize, isize),
    (y, y_row, y_col): (*const T, isize, isize),
) {
    let dtype = if T::DTYPE == crate::DType::F64 { DType::F64 } else { DType::F32 };
    let beta = if add { Accum::Add } else { Accum::Replace };
    // SAFETY: the caller's promises; no row or column indices and no diagonal are used.
    unsafe {
        gemm(
            dtype,
            IType::U64,
            instructions,
            m,
            n,
            k,
            out.cast(),
            out_row,
            1,
            null(),
            null(),
            DstKind::Full,
            beta,
            x.cast(),
            x_row,
            x_col,
            false,
            null(),
            0,
            y.cast(),
            y_row,
            y_col,
            false,
            (&raw const scale).cast(),
            1,
        );
        clean_up();
    }
}

/// The assembly leaves the upper halves of the vector registers dirty, which makes subsequent SSE code three times
/// slower.
#[target_feature(enable = "avx")]
fn clean_up() {
    _mm256_zeroupper();
}
