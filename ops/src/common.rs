//! What several families need: numbers of any dtype, and cutting tensors.

use autobwd::{Bool, Element, Product};

/// Elements of a unit of shared work.
pub(crate) const PART: usize = 1 << 16;

/// `f32` or `f64`, for kernels that calculate.
pub(crate) trait Real: Product + num_traits::Float + Into<f64> {
    /// The nearest number.
    fn of(x: f64) -> Self;
}
impl Real for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
}
impl Real for f64 {
    fn of(x: f64) -> f64 {
        x
    }
}

/// A number between two dtypes: every element of every dtype fits in without loss.
#[derive(Clone, Copy)]
pub(crate) enum Wide {
    Int(i64),
    Float(f64),
}

/// An element as a number.
pub(crate) trait Number: Element {
    fn widen(self) -> Wide;
    /// Integers wrap around; fractions are cut off, and what is out of range becomes the nearest integer there is.
    fn narrow(wide: Wide) -> Self;
}
macro_rules! numbers {
    ($($t:ty => $kind:ident),*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn widen(self) -> Wide {
                Wide::$kind(self.into())
            }
            #[inline(always)]
            fn narrow(wide: Wide) -> $t {
                match wide {
                    Wide::Int(x) => x as $t,
                    Wide::Float(x) => x as $t,
                }
            }
        }
    )*};
}
numbers!(u8 => Int, i32 => Int, i64 => Int, f32 => Float, f64 => Float);
impl Number for Bool {
    #[inline(always)]
    fn widen(self) -> Wide {
        Wide::Int(self.get().into())
    }
    #[inline(always)]
    fn narrow(wide: Wide) -> Bool {
        match wide {
            Wide::Int(x) => (x != 0).into(),
            Wide::Float(x) => (x != 0.0).into(),
        }
    }
}

/// Positions before, on and after an axis.
pub(crate) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// Calls `each(row, column, piece)` for every piece of `part`, of which the first element is number `at` of rows of
/// `width` elements. A piece lies in one row and has at most `longest` elements.
pub(crate) fn pieces<T>(
    part: &mut [T],
    mut at: usize,
    width: usize,
    longest: usize,
    mut each: impl FnMut(usize, usize, &mut [T]),
) {
    let mut rest = part;
    while !rest.is_empty() {
        let (row, column) = (at / width, at % width);
        let len = (width - column).min(longest).min(rest.len());
        let (piece, tail) = rest.split_at_mut(len);
        each(row, column, piece);
        at += len;
        rest = tail;
    }
}
