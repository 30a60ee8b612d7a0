//! Matrix products (GEMM) on one thread.
//!
//! The bits of an element depend on its row, its column and the scale, on nothing else: see [`blocks::TERMS`]. Vectors,
//! tiles, panels and loops for few rows are choices of speed.
#![allow(unsafe_code)]
// Indexed loops over arrays are unrolled, and need no closures, which would lack the instructions of their caller.
#![allow(clippy::needless_range_loop)]

mod blocks;
#[cfg(test)]
mod channel_block_tests;
mod channel_layout;
mod depthwise;
mod few_rows;
mod flushing;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod quantized;
mod right_factor;
#[cfg(test)]
mod tests;
mod tile;
mod tiny;
mod vector;
mod windows;

use std::ops;

use blocks::{IN_PLACE, Panels, Product, Widened};
pub use channel_layout::{interleave_channels, separate_channels};
pub use depthwise::DepthwiseProducts;
use few_rows::{FEW, FewDots, FewRows, most_dot_rows};
use flushing::Flushing;
pub(super) use quantized::gemm_quantized_into;
pub use quantized::{Levels, QuantizedMat};
use tiny::Tiny;
use vector::{ArrayVector, Vector};
pub use windows::{CHANNEL_BLOCK, WindowAxis, WindowProducts};

use crate::{
    Buf, Element, Result,
    numbers::fused,
    runtime::{FUSED, isa, submatrix::stride_within},
    tensor::half_float::HalfFloat,
};

/// A matrix in row-major order, possibly read as its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub cols: usize,
    /// Whether it is read as its transpose.
    pub transposed: bool,
}

impl<T> Mat<'_, T> {
    /// Rows and columns as read.
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// The transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Mat { transposed: !self.transposed, ..self }
    }
}

/// A matrix with a distance of `stride` elements between rows, as stored, such as a part of a larger one.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    /// Rows and columns; the slice may continue after the last row.
    pub mat: Mat<'a, T>,
    /// Elements from one row to the next, at least the length of a row; irrelevant for a single row.
    pub stride: usize,
}

impl<'a, T> From<Mat<'a, T>> for Strided<'a, T> {
    fn from(mat: Mat<'a, T>) -> Strided<'a, T> {
        Strided { stride: mat.cols, mat }
    }
}

impl<T> Strided<'_, T> {
    /// The transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Strided { mat: self.mat.t(), ..self }
    }

    /// The stride, limited to the number of elements, if the slice contains the whole matrix.
    #[inline]
    pub(super) fn checked_len(&self) -> Option<usize> {
        stride_within(self.mat.data.len(), self.mat.rows, self.mat.cols, self.stride)
    }

    /// Elements from one row to the next, and from one column to the next, as read.
    pub(super) fn strides(&self) -> (isize, isize) {
        // The length of a slice fits into `isize`.
        let stride = self.stride as isize;
        if self.mat.transposed { (1, stride) } else { (stride, 1) }
    }
}

impl Buf<'_> {
    /// The elements as a matrix.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice), and a shape of another rank.
    pub fn mat<T: Element>(&self) -> Result<Mat<'_, T>> {
        let &[rows, cols] = self.dims() else { return Err(self.wrong("a matrix is needed")) };
        Ok(Mat { data: self.slice()?, rows, cols, transposed: false })
    }
}

/// A pointer to the first element of a matrix, and the distances of its rows and columns.
type Matrix<T> = (*const T, isize, isize);

/// What becomes of a sum: `out = scale · sum`, or with `add`, `out += scale · sum`.
#[derive(Clone, Copy)]
struct Onto<T> {
    add: bool,
    scale: T,
}

impl<T: GemmElement> Onto<T> {
    /// # Safety
    /// As of [`Vector::store`].
    #[inline(always)]
    unsafe fn put<V: Vector<Element = T>>(self, sum: V, out: *mut T) {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = V::splat(self.scale).mul(sum);
            let sum = if self.add { V::load(out).add(sum) } else { sum };
            sum.store(out);
        }
    }

    /// # Safety
    /// As of [`Vector::store_first`].
    #[inline(always)]
    unsafe fn put_first<V: Vector<Element = T>>(self, sum: V, out: *mut T, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = V::splat(self.scale).mul(sum);
            let sum = if self.add { V::load_first(out, n).add(sum) } else { sum };
            sum.store_first(out, n);
        }
    }

    /// # Safety
    /// `out` is an element.
    #[inline(always)]
    unsafe fn put_element(self, sum: T, out: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { *out = if self.add { *out + self.scale * sum } else { self.scale * sum } }
    }
}

/// How the elements of a factor are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Storage {
    /// In the type of sums.
    InPlace,
    /// The upper halves of single precision numbers.
    Bf16,
    /// Half precision numbers.
    F16,
}

/// Seals [`Factor`] and [`GemmElement`]: there are vectors for no other types.
mod sealed {
    use std::{cell::RefCell, thread::LocalKey};

    use super::{AnyVectorWork, ArrayVector, FUSED, Panels, Storage, fused, isa};

    #[allow(private_interfaces)]
    pub trait Stored {
        const STORAGE: Storage;
    }

    pub trait GemmKernel: Sized + 'static {
        /// `self · x + y`, rounded once; `FUSED` if there is an instruction for it.
        fn mul_add<const FUSED: bool>(self, x: Self, y: Self) -> Self;

        /// The memory of this thread.
        #[allow(private_interfaces)]
        fn panels() -> &'static LocalKey<RefCell<Panels<Self>>>;

        /// Does work in the vectors of this machine.
        ///
        /// # Safety
        /// As of the work.
        #[allow(private_bounds)]
        unsafe fn in_vectors<W: AnyVectorWork<Self>>(work: W);
    }
    macro_rules! product {
        ($t:ident, $fused:path, $avx512:ident, $avx2:ident) => {
            #[allow(private_interfaces)]
            impl Stored for $t {
                const STORAGE: Storage = Storage::InPlace;
            }

            #[allow(private_interfaces, private_bounds)]
            impl GemmKernel for $t {
                #[inline(always)]
                fn mul_add<const FUSED: bool>(self, x: $t, y: $t) -> $t {
                    if FUSED { self.mul_add(x, y) } else { $fused(self, x, y) }
                }

                fn panels() -> &'static LocalKey<RefCell<Panels<$t>>> {
                    thread_local!(static PANELS: RefCell<Panels<$t>> = RefCell::default());
                    &PANELS
                }

                unsafe fn in_vectors<W: AnyVectorWork<$t>>(work: W) {
                    // SAFETY: the caller's promise; the machine has these instructions.
                    unsafe {
                        match isa() {
                            #[cfg(target_arch = "x86_64")]
                            crate::runtime::Isa::Avx512 => work.run::<std::arch::x86_64::$avx512>(),
                            #[cfg(target_arch = "x86_64")]
                            crate::runtime::Isa::Avx2 => work.run::<std::arch::x86_64::$avx2>(),
                            _ => work.run::<ArrayVector<$t, { 16 / size_of::<$t>() }, FUSED>>(),
                        }
                    }
                }
            }
        };
    }
    product!(f32, fused::mul_add_f32, __m512, __m256);
    product!(f64, fused::mul_add_f64, __m512d, __m256d);

    #[allow(private_interfaces)]
    impl Stored for half::bf16 {
        const STORAGE: Storage = Storage::Bf16;
    }
    #[allow(private_interfaces)]
    impl Stored for half::f16 {
        const STORAGE: Storage = Storage::F16;
    }
}

/// Element types of factors of matrix products, which are widened exactly before they are multiplied: `f32`, `f64`,
/// `bf16` and `f16`.
pub trait Factor: sealed::Stored + Element {
    /// The type in which products are summed: `f32` for factors of 16 bits.
    type Sum: GemmElement;

    /// The number.
    fn widened(self) -> Self::Sum;

    /// The nearest number to a sum.
    fn rounded(sum: Self::Sum) -> Self;
}
impl Factor for half::bf16 {
    type Sum = f32;

    #[inline(always)]
    fn widened(self) -> f32 {
        self.single()
    }

    #[inline(always)]
    fn rounded(sum: f32) -> half::bf16 {
        HalfFloat::round(sum)
    }
}
impl Factor for half::f16 {
    type Sum = f32;

    #[inline(always)]
    fn widened(self) -> f32 {
        self.single()
    }

    #[inline(always)]
    fn rounded(sum: f32) -> half::f16 {
        HalfFloat::round(sum)
    }
}

/// Element types in which products are summed: `f32` and `f64`.
pub trait GemmElement:
    sealed::GemmKernel
    + Factor<Sum = Self>
    + ops::Add<Output = Self>
    + ops::Mul<Output = Self>
    + ops::Neg<Output = Self>
    + PartialOrd
    + From<u8>
    + From<f32>
{
    /// 1.
    const ONE: Self;
    /// 0.
    const ZERO: Self;
}
macro_rules! elements {
    ($($t:ident),*) => {$(
        impl Factor for $t {
            type Sum = $t;

            #[inline(always)]
            fn widened(self) -> $t {
                self
            }

            #[inline(always)]
            fn rounded(sum: $t) -> $t {
                sum
            }
        }

        impl GemmElement for $t {
            const ONE: $t = 1.0;
            const ZERO: $t = 0.0;
        }
    )*};
}
elements!(f32, f64);

/// Columns from which vectors along columns are better than vectors along rows.
const COLUMNS: usize = 8;

/// Work in vectors of any type.
trait AnyVectorWork<T> {
    /// # Safety
    /// The machine has the instructions of the vector; the work may have further promises.
    unsafe fn run<V: Vector<Element = T>>(self);
}

impl<X: Factor, Y: Factor<Sum = X::Sum>> AnyVectorWork<X::Sum> for Product<X, Matrix<Y>> {
    unsafe fn run<V: Vector<Element = X::Sum>>(self) {
        // SAFETY: the caller's promise, as of [`Product::run`].
        unsafe { multiply::<V, X, Y>(self) }
    }
}

/// Chooses the loops of a product.
///
/// # Safety
/// As [`Product::run`], and the machine has the instructions of the vector.
unsafe fn multiply<V: Vector, X: Factor<Sum = V::Element>, Y: Factor<Sum = V::Element>>(
    product: Product<X, Matrix<Y>>,
) {
    let (m, n, _) = product.size;
    // SAFETY: the caller's promise.
    unsafe {
        if tiny::pays(&product) {
            V::with_instructions(Tiny(product));
        } else if n < COLUMNS && m > n {
            multiply_rows::<V, Y, X>(product.transposed());
        } else {
            multiply_rows::<V, X, Y>(product);
        }
    }
}

/// # Safety
/// As [`multiply`].
unsafe fn multiply_rows<V: Vector, X: Factor<Sum = V::Element>, Y: Factor<Sum = V::Element>>(
    product: Product<X, Matrix<Y>>,
) {
    let ((m, n, k), (_, y_row, y_col)) = (product.size, product.y);
    <V::Element as sealed::GemmKernel>::panels().with_borrow_mut(|panels| {
        // SAFETY: the caller's promise.
        unsafe {
            if m <= FEW && y_col == 1 && n.saturating_mul(k) > IN_PLACE {
                V::with_instructions(FewRows { product, panels });
            } else if m <= most_dot_rows::<V>() && y_row == 1 && y_col != 1 {
                V::with_instructions(FewDots(product));
            } else {
                #[cfg(target_arch = "x86_64")]
                if let Some((product, panels)) = pairs::of::<V, X, Y>(product, panels) {
                    return product.run::<std::arch::x86_64::__m512, pairs::Pairs>(panels);
                }
                product.run::<V, Widened>(panels);
            }
        }
    });
}

/// Reserves the memory of this thread.
pub(super) fn reserve() {
    <f32 as sealed::GemmKernel>::panels().with_borrow_mut(Panels::reserve);
    <f64 as sealed::GemmKernel>::panels().with_borrow_mut(Panels::reserve);
}

/// # Safety
/// The pointers lead to matrices of these sizes with these strides; one stride of each is 1. Nothing else uses the
/// rectangle of `out` meanwhile.
pub(super) unsafe fn gemm_into<X: Factor, Y: Factor<Sum = X::Sum>>(
    size: (usize, usize, usize),
    (out, out_row): (*mut X::Sum, isize),
    (add, scale): (bool, X::Sum),
    x: Matrix<X>,
    y: Matrix<Y>,
) {
    let product = Product { size, out: (out, out_row, 1), onto: Onto { add, scale }, x, y };
    let _flushing = (X::STORAGE == Storage::Bf16 && Y::STORAGE == Storage::Bf16).then(Flushing::new);
    // Its address hides the function from the compiler, which must not compute anything of it before or after.
    let multiply = std::hint::black_box(
        <X::Sum as sealed::GemmKernel>::in_vectors::<Product<X, Matrix<Y>>> as unsafe fn(_),
    );
    // SAFETY: the caller's promise.
    unsafe { multiply(product) }
}
