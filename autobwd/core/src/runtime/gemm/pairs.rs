//! Products of `bf16` by VDPBF16PS, twice as fast as in single precision.
//!
//! For each of 16 sums the instruction adds the product of the upper halves of two 32-bit numbers, then the product of
//! the lower halves, each by a fused multiply-add that takes and gives 0 for subnormal numbers. That is a chain in the
//! order of terms, if the upper halves have the earlier ones. Other machines compute the same while their control
//! register says so: [`Flushing`](super::flushing::Flushing).

use std::{
    any::{Any, TypeId},
    arch::x86_64::*,
};

use half::bf16;

use super::{
    Factor, Matrix, Onto,
    blocks::{BLOCK_ROWS, Packing, Panels, Product, ROW_STRIDE},
    tile::Multiplier,
    vector::{Vector, VectorWork, transpose_16},
};

/// Pairs of terms of `bf16`, the earlier one in the upper half.
pub(super) struct Pairs;

type Bf16Product = Product<bf16, Matrix<bf16>>;

/// The product as one of pairs, if it is one of `bf16` on a machine with the instruction.
///
/// # Safety
/// As [`Product::run`].
pub(super) unsafe fn of<V: Vector, X: Factor<Sum = V::Element>, Y: Factor<Sum = V::Element>>(
    product: Product<X, Matrix<Y>>,
    panels: &mut Panels<X::Sum>,
) -> Option<(Bf16Product, &mut Panels<f32>)> {
    let vectors = TypeId::of::<V>() == TypeId::of::<__m512>();
    let factors = [TypeId::of::<X>(), TypeId::of::<Y>()] == [TypeId::of::<bf16>(); 2];
    if !vectors || !factors || !is_x86_feature_detected!("avx512bf16") {
        return None;
    }
    let Product { size, out: (out, out_row, out_col), onto, x, y } = product;
    let panels: &mut dyn Any = panels;
    let scale = (&raw const onto.scale).cast::<f32>();
    // SAFETY: factors of `bf16` have sums of `f32`.
    let onto = Onto { add: onto.add, scale: unsafe { *scale } };
    let (x, y) = ((x.0.cast(), x.1, x.2), (y.0.cast(), y.1, y.2));
    Some((Product { size, out: (out.cast(), out_row, out_col), onto, x, y }, panels.downcast_mut()?))
}

/// The lower halves of pairs without a second term, of the left and of the right factor: 0 and -0, whose product leaves
/// every sum as it is, also -0.
const NO_LEFT: u16 = 0;
const NO_RIGHT: u16 = 1 << 15;

fn pair(earlier: u16, later: u16) -> u32 {
    u32::from(earlier) << 16 | u32::from(later)
}

// SAFETY: units are 32-bit numbers, and there are as many in a vector.
unsafe impl Multiplier<__m512> for Pairs {
    type Unit = u32;
    type Units = __m512i;

    #[inline(always)]
    unsafe fn splat(x: *const u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_epi32((*x).cast_signed()) }
    }
    #[inline(always)]
    unsafe fn load(y: *const u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(y.cast()) }
    }
    #[inline(always)]
    unsafe fn mul_add(x: __m512i, y: __m512i, sum: __m512) -> __m512 {
        // SAFETY: the machine has the instruction; 512 bits are 32 numbers of 16.
        unsafe {
            let (x, y) =
                (std::mem::transmute::<__m512i, __m512bh>(x), std::mem::transmute::<__m512i, __m512bh>(y));
            _mm512_dpbf16_ps(sum, x, y)
        }
    }
    #[inline(always)]
    unsafe fn with_instructions<W: VectorWork<__m512>>(work: W) {
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c,avx512bf16")]
        unsafe fn run<W: VectorWork<__m512>>(work: W) {
            // SAFETY: the caller's promise.
            unsafe { work.run() }
        }
        // SAFETY: the caller's promise.
        unsafe { run(work) }
    }
}

// SAFETY: elements are copied within the sizes.
unsafe impl Packing<__m512, bf16, Matrix<bf16>> for Pairs {
    const TERMS: usize = 2;
    const ROWS_IN_PLACE: bool = false;
    const COLUMNS_IN_PLACE: bool = false;

    unsafe fn pack_columns(y: Matrix<bf16>, terms: usize, (used, width): (usize, usize), to: *mut u32) {
        let (y, row, col) = (y.0.cast::<u16>(), y.1 as usize, y.2 as usize);
        // SAFETY: the caller's promise.
        unsafe {
            match col {
                1 => Self::with_instructions(JoinLines {
                    no_term: NO_RIGHT,
                    from: (y, row),
                    lines: terms,
                    used,
                    width,
                    to,
                    stride: width,
                }),
                _ => Self::with_instructions(TransposePairs { from: (y, col), terms, used, width, to }),
            }
        }
    }

    unsafe fn copy_rows(x: Matrix<bf16>, (rows, terms): (usize, usize), to: *mut u32) {
        let (x, row, term) = (x.0.cast::<u16>(), x.1 as usize, x.2 as usize);
        // SAFETY: the caller's promise.
        unsafe {
            match term {
                1 => Self::with_instructions(CopyPairs { from: (x, row), rows, terms, to }),
                _ => {
                    let (used, stride) = (rows, BLOCK_ROWS);
                    Self::with_instructions(JoinLines {
                        no_term: NO_LEFT,
                        from: (x, term),
                        lines: terms,
                        used,
                        width: rows,
                        to,
                        stride,
                    });
                }
            }
        }
    }
}

/// Joins each two lines of `used` elements to a line of pairs.
struct JoinLines {
    /// The second term of the last line, if there is none.
    no_term: u16,
    /// The first line, and the distance of lines.
    from: (*const u16, usize),
    lines: usize,
    used: usize,
    /// Pairs of a line; those after the used ones are 0.
    width: usize,
    to: *mut u32,
    stride: usize,
}

impl VectorWork<__m512> for JoinLines {
    #[inline(always)]
    unsafe fn run(self) {
        let JoinLines { no_term, from: (from, distance), lines, used, width, to, stride } = self;
        let whole = used / 16 * 16;
        for line in (0..lines).step_by(2) {
            // SAFETY: the caller's promise.
            unsafe {
                let (earlier, later) = (from.add(line * distance), from.wrapping_add((line + 1) * distance));
                let to = to.add(line / 2 * stride);
                let last = line + 1 == lines;
                for at in (0..whole).step_by(16) {
                    let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(earlier.add(at).cast()));
                    let lower = match last {
                        true => _mm512_set1_epi32(no_term.into()),
                        false => _mm512_cvtepu16_epi32(_mm256_loadu_si256(later.add(at).cast())),
                    };
                    let pairs = _mm512_or_si512(_mm512_slli_epi32::<16>(upper), lower);
                    _mm512_storeu_si512(to.add(at).cast(), pairs);
                }
                for at in whole..used {
                    *to.add(at) = pair(*earlier.add(at), if last { no_term } else { *later.add(at) });
                }
                for at in used..width {
                    *to.add(at) = 0;
                }
            }
        }
    }
}

/// Copies rows of contiguous terms as rows of pairs.
struct CopyPairs {
    from: (*const u16, usize),
    rows: usize,
    terms: usize,
    to: *mut u32,
}

impl VectorWork<__m512> for CopyPairs {
    #[inline(always)]
    unsafe fn run(self) {
        let CopyPairs { from: (from, distance), rows, terms, to } = self;
        let whole = terms / 32 * 32;
        for row in 0..rows {
            // SAFETY: the caller's promise.
            unsafe {
                let (from, to) = (from.add(row * distance), to.add(row * ROW_STRIDE));
                for term in (0..whole).step_by(32) {
                    let pairs = _mm512_rol_epi32::<16>(_mm512_loadu_si512(from.add(term).cast()));
                    _mm512_storeu_si512(to.add(term / 2).cast(), pairs);
                }
                for term in (whole..terms).step_by(2) {
                    let later = if term + 1 < terms { *from.add(term + 1) } else { NO_LEFT };
                    *to.add(term / 2) = pair(*from.add(term), later);
                }
            }
        }
    }
}

/// Packs columns of contiguous terms.
struct TransposePairs {
    from: (*const u16, usize),
    terms: usize,
    used: usize,
    width: usize,
    to: *mut u32,
}

impl VectorWork<__m512> for TransposePairs {
    #[inline(always)]
    unsafe fn run(self) {
        let TransposePairs { from: (from, distance), terms, used, width, to } = self;
        let (whole, whole_terms) = (used / 16 * 16, terms / 32 * 32);
        // SAFETY: the caller's promise.
        unsafe {
            for column in (0..whole).step_by(16) {
                for term in (0..whole_terms).step_by(32) {
                    let mut square = [_mm512_setzero_ps(); 16];
                    for i in 0..16 {
                        square[i] = __m512::load(from.add((column + i) * distance + term).cast());
                    }
                    let square = transpose_16(square);
                    for i in 0..16 {
                        let pairs = _mm512_rol_epi32::<16>(_mm512_castps_si512(square[i]));
                        _mm512_storeu_si512(to.add((term / 2 + i) * width + column).cast(), pairs);
                    }
                }
            }
            for term in (0..terms).step_by(2) {
                for column in if term < whole_terms { whole } else { 0 }..width {
                    let at = from.wrapping_add(column * distance + term);
                    let later = if term + 1 < terms { 1 } else { 0 };
                    *to.add(term / 2 * width + column) = match (column < used, later) {
                        (false, _) => 0,
                        (true, 0) => pair(*at, NO_RIGHT),
                        (true, _) => pair(*at, *at.add(1)),
                    };
                }
            }
        }
    }
}
