//! Vectors of an instruction set: what the loops of products are written in.

use super::{Factor, GemmElement, Storage};

/// 2²³, a number whose lowest bits are those of an integer that is added.
pub(super) const BIAS: f32 = (1 << 23) as f32;
/// The most elements of a vector.
pub(super) const MOST_LANES: usize = 16;

/// A vector register.
///
/// # Safety
/// Of an implementation: `LANES` elements are loaded, stored and transposed, and no more.
///
/// Of its functions: the machine has the instructions of the vector, and pointers lead to as many elements.
pub(super) unsafe trait Vector: Copy + 'static {
    /// The type of an element.
    type Element: GemmElement;
    /// Some elements as an array, for what is left next to vectors.
    type Array<const N: usize>: Vector<Element = Self::Element>;
    /// Elements of a vector.
    const LANES: usize;
    /// Vectors in a row of the largest [`Tile`](super::tile::Tile): as many as registers suffice for.
    const TILE: usize;

    /// A vector of equal elements.
    unsafe fn splat(x: Self::Element) -> Self;
    /// The elements at `from`.
    unsafe fn load(from: *const Self::Element) -> Self;
    /// Writes the elements.
    unsafe fn store(self, to: *mut Self::Element);
    /// The first `n` elements at `from`, fewer than a vector, and zeros.
    unsafe fn load_first(from: *const Self::Element, n: usize) -> Self;
    /// The elements of a factor at `from`, widened.
    unsafe fn widen<S: Factor<Sum = Self::Element>>(from: *const S) -> Self;
    /// The first `n` elements of a factor, fewer than a vector, and zeros.
    #[inline(always)]
    unsafe fn widen_first<S: Factor<Sum = Self::Element>>(from: *const S, n: usize) -> Self {
        // SAFETY: the caller's promise; in place, a factor has the type of sums.
        unsafe {
            match S::STORAGE {
                Storage::InPlace => Self::load_first(from.cast(), n),
                _ => {
                    let mut part = [S::default(); MOST_LANES];
                    for l in 0..n {
                        part[l] = *from.add(l);
                    }
                    Self::widen(part.as_ptr())
                }
            }
        }
    }
    /// Bytes as numbers.
    #[inline(always)]
    unsafe fn from_bytes(from: *const u8) -> Self {
        let mut numbers = [Self::Element::ZERO; MOST_LANES];
        for l in 0..Self::LANES {
            // SAFETY: the caller's promise.
            numbers[l] = Self::Element::from(unsafe { *from.add(l) });
        }
        // SAFETY: there are as many numbers.
        unsafe { Self::load(numbers.as_ptr()) }
    }
    /// For 32-bit cells: [`BIAS`] more than some bits of each, at most eight, from a bit on.
    #[inline(always)]
    unsafe fn biased_codes<const BITS: u32>(cells: *const u32, bit: u32) -> Self {
        let mut numbers = [Self::Element::ZERO; MOST_LANES];
        for l in 0..Self::LANES {
            // SAFETY: the caller's promise.
            let cell = u32::from_le(unsafe { cells.add(l).read_unaligned() });
            let code = cell >> bit & ((1 << BITS) - 1);
            numbers[l] = Self::Element::from(code as u8) + Self::Element::from(BIAS);
        }
        // SAFETY: there are as many numbers.
        unsafe { Self::load(numbers.as_ptr()) }
    }
    /// For 32-bit cells: the number of a table at four bits of each, from a bit on.
    #[inline(always)]
    unsafe fn look_up(table: &[Self::Element; 16], cells: *const u32, bit: u32) -> Self {
        let mut numbers = [Self::Element::ZERO; MOST_LANES];
        for l in 0..Self::LANES {
            // SAFETY: the caller's promise.
            let cell = u32::from_le(unsafe { cells.add(l).read_unaligned() });
            numbers[l] = table[(cell >> bit & 15) as usize];
        }
        // SAFETY: there are as many numbers.
        unsafe { Self::load(numbers.as_ptr()) }
    }
    /// Writes the first `n` elements, fewer than a vector.
    unsafe fn store_first(self, to: *mut Self::Element, n: usize);
    /// `self · y + sum`, rounded once.
    unsafe fn mul_add(self, y: Self, sum: Self) -> Self;
    /// `self · y`.
    unsafe fn mul(self, y: Self) -> Self;
    /// `self + y`.
    unsafe fn add(self, y: Self) -> Self;
    /// The larger element; that of `y` if one is NaN.
    unsafe fn max(self, y: Self) -> Self;
    /// The smaller element; that of `y` if one is NaN.
    unsafe fn min(self, y: Self) -> Self;
    /// Asks for the line of the caches at an address, which need not exist.
    #[inline(always)]
    fn prefetch<S>(_: *const S) {}
    /// Transposes and widens a block of `rows` by `columns`, [`LANES`](Vector::LANES) at most; writes `columns` whole vectors, which
    /// end with zeros. Rows of both are as many elements apart as their pointers say.
    unsafe fn transpose<S: Factor<Sum = Self::Element>>(
        from: (*const S, usize),
        size: (usize, usize),
        to: (*mut Self::Element, usize),
    );
    /// Does work that is compiled for the instructions of the vector.
    unsafe fn with_instructions<W: VectorWork<Self>>(work: W);
    /// The same in a function of its own, which has all registers for itself.
    unsafe fn apart<W: VectorWork<Self>>(work: W);
}

/// Work in vectors of a type.
pub(super) trait VectorWork<V> {
    /// Does the work. It is `#[inline(always)]`, as are all functions that it calls: what is not inlined uses baseline
    /// instructions.
    ///
    /// # Safety
    /// The machine has the instructions of the vector; the work may have further promises.
    unsafe fn run(self);
}

/// Vectors of any machine, as an array. Without `FUSED`, multiply-adds are computed exactly in software.
#[derive(Clone, Copy)]
pub(super) struct ArrayVector<T, const N: usize, const FUSED: bool>([T; N]);

// SAFETY: an array of as many elements.
unsafe impl<T: GemmElement, const N: usize, const FUSED: bool> Vector for ArrayVector<T, N, FUSED> {
    type Element = T;
    type Array<const M: usize> = ArrayVector<T, M, FUSED>;
    const LANES: usize = N;
    const TILE: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        ArrayVector([x; N])
    }
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller's promise.
        ArrayVector(unsafe { from.cast::<[T; N]>().read() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[T; N]>().write(self.0) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const T, n: usize) -> Self {
        let mut vector = [T::ZERO; N];
        for (l, element) in vector.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise.
            *element = unsafe { *from.add(l) };
        }
        ArrayVector(vector)
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut T, n: usize) {
        for (l, element) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: the caller's promise.
            unsafe { *to.add(l) = element };
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, y: Self, sum: Self) -> Self {
        ArrayVector(std::array::from_fn(|l| T::mul_add::<FUSED>(self.0[l], y.0[l], sum.0[l])))
    }
    #[inline(always)]
    unsafe fn mul(self, y: Self) -> Self {
        ArrayVector(std::array::from_fn(|l| self.0[l] * y.0[l]))
    }
    #[inline(always)]
    unsafe fn add(self, y: Self) -> Self {
        ArrayVector(std::array::from_fn(|l| self.0[l] + y.0[l]))
    }
    #[inline(always)]
    unsafe fn max(self, y: Self) -> Self {
        ArrayVector(std::array::from_fn(|l| if self.0[l] > y.0[l] { self.0[l] } else { y.0[l] }))
    }
    #[inline(always)]
    unsafe fn min(self, y: Self) -> Self {
        ArrayVector(std::array::from_fn(|l| if self.0[l] < y.0[l] { self.0[l] } else { y.0[l] }))
    }
    #[inline(always)]
    unsafe fn widen<S: Factor<Sum = T>>(from: *const S) -> Self {
        // SAFETY: the caller's promise.
        ArrayVector(std::array::from_fn(|l| unsafe { *from.add(l) }.widened()))
    }
    #[inline(always)]
    unsafe fn transpose<S: Factor<Sum = T>>(
        (from, from_row): (*const S, usize),
        (rows, columns): (usize, usize),
        (to, to_row): (*mut T, usize),
    ) {
        for i in 0..N {
            for j in 0..columns {
                // SAFETY: the caller's promise.
                unsafe {
                    *to.add(j * to_row + i) =
                        if i < rows { (*from.add(i * from_row + j)).widened() } else { T::ZERO }
                };
            }
        }
    }
    #[inline(always)]
    unsafe fn with_instructions<W: VectorWork<Self>>(work: W) {
        // SAFETY: every machine has these instructions; the rest is the caller's promise.
        unsafe { work.run() }
    }
    #[inline(never)]
    unsafe fn apart<W: VectorWork<Self>>(work: W) {
        // SAFETY: as above.
        unsafe { work.run() }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::transpose_16;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{ArrayVector, BIAS, Factor, Storage, Vector, VectorWork};

    macro_rules! vector {
        (
            $vector:ident of $lanes:literal $t:ty, $features:literal, $tile:literal vectors, $transpose:ident,
            $splat:ident, $load:ident, $store:ident, $mul_add:ident, $mul:ident, $add:ident, $max:ident, $min:ident,
            $mask:expr, $load_masked:expr, $store_masked:ident,
            $widen_bf16:expr, $widen_f16:expr
            $(, $codes:item)*
        ) => {
            // SAFETY: a register of as many elements.
            unsafe impl Vector for $vector {
                type Element = $t;
                type Array<const N: usize> = ArrayVector<$t, N, true>;
                const LANES: usize = $lanes;
                const TILE: usize = $tile;

                #[inline(always)]
                unsafe fn splat(x: $t) -> Self {
                    // SAFETY: the machine has the instruction.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(from: *const $t) -> Self {
                    // SAFETY: the caller's promise.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $t) {
                    // SAFETY: the caller's promise.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn load_first(from: *const $t, n: usize) -> Self {
                    // SAFETY: the caller's promise: masked elements are not read.
                    unsafe { $load_masked($mask(n), from) }
                }
                #[inline(always)]
                unsafe fn store_first(self, to: *mut $t, n: usize) {
                    // SAFETY: the caller's promise: masked elements are not written.
                    unsafe { $store_masked(to, $mask(n), self) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, y: Self, sum: Self) -> Self {
                    // SAFETY: the machine has the instruction.
                    unsafe { $mul_add(self, y, sum) }
                }
                #[inline(always)]
                unsafe fn mul(self, y: Self) -> Self {
                    // SAFETY: the machine has the instruction.
                    unsafe { $mul(self, y) }
                }
                #[inline(always)]
                unsafe fn add(self, y: Self) -> Self {
                    // SAFETY: the machine has the instruction.
                    unsafe { $add(self, y) }
                }
                #[inline(always)]
                unsafe fn max(self, y: Self) -> Self {
                    // SAFETY: the machine has the instruction.
                    unsafe { $max(self, y) }
                }
                #[inline(always)]
                unsafe fn min(self, y: Self) -> Self {
                    // SAFETY: the machine has the instruction.
                    unsafe { $min(self, y) }
                }
                #[inline(always)]
                unsafe fn widen<S: Factor<Sum = $t>>(from: *const S) -> Self {
                    // SAFETY: the caller's promise: the storage says what the elements are.
                    unsafe {
                        match S::STORAGE {
                            Storage::InPlace => Self::load(from.cast()),
                            Storage::Bf16 => $widen_bf16(from.cast()),
                            Storage::F16 => $widen_f16(from.cast()),
                        }
                    }
                }
                #[inline(always)]
                unsafe fn transpose<S: Factor<Sum = $t>>(
                    (from, from_row): (*const S, usize),
                    (rows, columns): (usize, usize),
                    (to, to_row): (*mut $t, usize),
                ) {
                    // SAFETY: there are as many rows and columns.
                    unsafe {
                        if rows == $lanes && columns == $lanes {
                            let mut block = [Self::splat(0.0); $lanes];
                            for i in 0..$lanes {
                                block[i] = Self::widen(from.add(i * from_row));
                            }
                            let block = $transpose(block);
                            for i in 0..$lanes {
                                block[i].store(to.add(i * to_row));
                            }
                            return;
                        }
                        // Apart from whole blocks, which stay in registers.
                        let mut part = [Self::splat(0.0); $lanes];
                        for i in 0..rows {
                            let from = from.add(i * from_row);
                            part[i] = match columns {
                                $lanes => Self::widen(from),
                                _ => Self::widen_first(from, columns),
                            };
                        }
                        let part = $transpose(part);
                        for i in 0..columns {
                            part[i].store(to.add(i * to_row));
                        }
                    }
                }
                #[inline(always)]
                fn prefetch<S>(at: *const S) {
                    // SAFETY: every machine has the instruction, which reads nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
                $(#[inline(always)] $codes)*
                #[inline(always)]
                unsafe fn with_instructions<W: VectorWork<Self>>(work: W) {
                    #[target_feature(enable = $features)]
                    unsafe fn run<V, W: VectorWork<V>>(work: W) {
                        // SAFETY: the caller's promise.
                        unsafe { work.run() }
                    }
                    // SAFETY: the caller's promise.
                    unsafe { run(work) }
                }
                #[inline(always)]
                unsafe fn apart<W: VectorWork<Self>>(work: W) {
                    #[target_feature(enable = $features)]
                    #[inline(never)]
                    unsafe fn run<V, W: VectorWork<V>>(work: W) {
                        // SAFETY: the caller's promise.
                        unsafe { work.run() }
                    }
                    // SAFETY: the caller's promise.
                    unsafe { run(work) }
                }
            }
        };
    }
    vector!(
        __m512 of 16 f32, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c", 4 vectors, transpose_16,
        _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_add_ps,
        _mm512_max_ps, _mm512_min_ps,
        |n: usize| (1_u16 << n) - 1, _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps,
        |from| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)))),
        |from| _mm512_cvtph_ps(_mm256_loadu_si256(from)),
        unsafe fn from_bytes(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
        },
        unsafe fn biased_codes<const BITS: u32>(cells: *const u32, bit: u32) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let cells = _mm512_srlv_epi32(_mm512_loadu_si512(cells.cast()), _mm512_set1_epi32(bit as i32));
                // The bits of the code, and those of the bias.
                const AND_OR: i32 = 0b1110_1010;
                let mask = _mm512_set1_epi32((1 << BITS) - 1);
                let bias = _mm512_castps_si512(_mm512_set1_ps(BIAS));
                _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<AND_OR>(cells, mask, bias))
            }
        },
        unsafe fn look_up(table: &[f32; 16], cells: *const u32, bit: u32) -> Self {
            // SAFETY: the caller's promise; the instruction ignores all but the lowest four bits of an index.
            unsafe {
                let cells = _mm512_srlv_epi32(_mm512_loadu_si512(cells.cast()), _mm512_set1_epi32(bit as i32));
                _mm512_permutexvar_ps(cells, Self::load(table.as_ptr()))
            }
        }
    );
    vector!(
        __m512d of 8 f64, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c", 4 vectors, transpose_8_doubles,
        _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_fmadd_pd, _mm512_mul_pd, _mm512_add_pd,
        _mm512_max_pd, _mm512_min_pd,
        |n: usize| (1_u8 << n) - 1, _mm512_maskz_loadu_pd, _mm512_mask_storeu_pd,
        Self::load, Self::load
    );
    vector!(
        __m256 of 8 f32, "avx2,fma,f16c", 2 vectors, transpose_8,
        _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_add_ps,
        _mm256_max_ps, _mm256_min_ps,
        |n: usize| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        |mask, from| _mm256_maskload_ps(from, mask), _mm256_maskstore_ps,
        |from| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)))),
        |from| _mm256_cvtph_ps(_mm_loadu_si128(from)),
        unsafe fn from_bytes(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
        },
        unsafe fn biased_codes<const BITS: u32>(cells: *const u32, bit: u32) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let cells = _mm256_srlv_epi32(_mm256_loadu_si256(cells.cast()), _mm256_set1_epi32(bit as i32));
                let codes = _mm256_and_si256(cells, _mm256_set1_epi32((1 << BITS) - 1));
                _mm256_or_ps(_mm256_castsi256_ps(codes), _mm256_set1_ps(BIAS))
            }
        },
        unsafe fn look_up(table: &[f32; 16], cells: *const u32, bit: u32) -> Self {
            // SAFETY: the caller's promise; permutations ignore all but the lowest three bits of an index, and the choice
            // all but the highest bit.
            unsafe {
                let cells = _mm256_srlv_epi32(_mm256_loadu_si256(cells.cast()), _mm256_set1_epi32(bit as i32));
                let first = _mm256_permutevar8x32_ps(Self::load(table.as_ptr()), cells);
                let second = _mm256_permutevar8x32_ps(Self::load(table.as_ptr().add(8)), cells);
                _mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(cells)))
            }
        }
    );
    vector!(
        __m256d of 4 f64, "avx2,fma,f16c", 2 vectors, transpose_4_doubles,
        _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd, _mm256_mul_pd, _mm256_add_pd,
        _mm256_max_pd, _mm256_min_pd,
        |n: usize| _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
        |mask, from| _mm256_maskload_pd(from, mask), _mm256_maskstore_pd,
        Self::load, Self::load
    );

    /// Transposes four rows in each 128 bits: columns 0, 4, 8, … of the first result, 1, 5, 9, … of the second, and so on.
    macro_rules! transpose_4_in_lanes {
        ($rows:expr, $low:ident, $high:ident, $shuffle:ident) => {{
            let [a, b, c, d] = $rows;
            let (ab, ab_high, cd, cd_high) = ($low(a, b), $high(a, b), $low(c, d), $high(c, d));
            [
                $shuffle::<0b01_00_01_00>(ab, cd),
                $shuffle::<0b11_10_11_10>(ab, cd),
                $shuffle::<0b01_00_01_00>(ab_high, cd_high),
                $shuffle::<0b11_10_11_10>(ab_high, cd_high),
            ]
        }};
    }

    /// Transposes a matrix of four by four, whose elements are the 128 bits of vectors.
    ///
    /// # Safety
    /// The machine has AVX-512.
    #[inline(always)]
    unsafe fn transpose_lanes([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        // SAFETY: the caller's promise.
        unsafe {
            let (ab, cd) = (_mm512_shuffle_f32x4::<EVEN>(a, b), _mm512_shuffle_f32x4::<EVEN>(c, d));
            let (ab_odd, cd_odd) = (_mm512_shuffle_f32x4::<ODD>(a, b), _mm512_shuffle_f32x4::<ODD>(c, d));
            [
                _mm512_shuffle_f32x4::<EVEN>(ab, cd),
                _mm512_shuffle_f32x4::<EVEN>(ab_odd, cd_odd),
                _mm512_shuffle_f32x4::<ODD>(ab, cd),
                _mm512_shuffle_f32x4::<ODD>(ab_odd, cd_odd),
            ]
        }
    }

    // Loops, not closures: only what is inlined here has the instructions of the caller.

    /// # Safety
    /// The machine has AVX-512.
    #[inline(always)]
    pub(in super::super) unsafe fn transpose_16(rows: [__m512; 16]) -> [__m512; 16] {
        let (groups, _) = rows.as_chunks::<4>();
        let mut columns = rows;
        // SAFETY: the caller's promise.
        unsafe {
            let mut in_lanes = [[rows[0]; 4]; 4];
            for g in 0..4 {
                in_lanes[g] = transpose_4_in_lanes!(
                    groups[g],
                    _mm512_unpacklo_ps,
                    _mm512_unpackhi_ps,
                    _mm512_shuffle_ps
                );
            }
            for c in 0..4 {
                let [a, b, c_row, d] = in_lanes;
                let lanes = transpose_lanes([a[c], b[c], c_row[c], d[c]]);
                for lane in 0..4 {
                    columns[4 * lane + c] = lanes[lane];
                }
            }
        }
        columns
    }

    /// # Safety
    /// The machine has AVX-512.
    #[inline(always)]
    unsafe fn transpose_8_doubles(rows: [__m512d; 8]) -> [__m512d; 8] {
        let [a, b, c, d, e, f, g, h] = rows;
        // SAFETY: the caller's promise.
        unsafe {
            let even = [
                _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                _mm512_castpd_ps(_mm512_unpacklo_pd(e, f)),
                _mm512_castpd_ps(_mm512_unpacklo_pd(g, h)),
            ];
            let odd = [
                _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(e, f)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(g, h)),
            ];
            let (even, odd) = (transpose_lanes(even), transpose_lanes(odd));
            let mut columns = rows;
            for lane in 0..4 {
                columns[2 * lane] = _mm512_castps_pd(even[lane]);
                columns[2 * lane + 1] = _mm512_castps_pd(odd[lane]);
            }
            columns
        }
    }

    /// # Safety
    /// The machine has AVX2.
    #[inline(always)]
    unsafe fn transpose_8(rows: [__m256; 8]) -> [__m256; 8] {
        let (groups, _) = rows.as_chunks::<4>();
        let mut columns = rows;
        // SAFETY: the caller's promise.
        unsafe {
            let low =
                transpose_4_in_lanes!(groups[0], _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps);
            let high =
                transpose_4_in_lanes!(groups[1], _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps);
            for c in 0..4 {
                columns[c] = _mm256_permute2f128_ps::<0x20>(low[c], high[c]);
                columns[4 + c] = _mm256_permute2f128_ps::<0x31>(low[c], high[c]);
            }
        }
        columns
    }

    /// # Safety
    /// The machine has AVX2.
    #[inline(always)]
    unsafe fn transpose_4_doubles([a, b, c, d]: [__m256d; 4]) -> [__m256d; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let (ab, ab_odd) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
            let (cd, cd_odd) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
            [
                _mm256_permute2f128_pd::<0x20>(ab, cd),
                _mm256_permute2f128_pd::<0x20>(ab_odd, cd_odd),
                _mm256_permute2f128_pd::<0x31>(ab, cd),
                _mm256_permute2f128_pd::<0x31>(ab_odd, cd_odd),
            ]
        }
    }
}
