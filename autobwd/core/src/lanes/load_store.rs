//! Loads and stores of a fused kernel: operands that are broadcast, converted, or both.
#![allow(unsafe_code)]

use std::{ops::Add, slice};

use super::broadcast_map::BroadcastMap;
use crate::{Bool, DType, Element, tensor::Place, with_dtype};

/// An operand that is read into a register.
pub(super) struct LoadedOperand {
    pub(super) place: Place,
    pub(super) map: BroadcastMap,
    pub(super) dtype: DType,
    /// Whether it has the full shape: then, other elements than those that are read may be written meanwhile.
    pub(super) whole: bool,
}

impl LoadedOperand {
    /// Reads the elements for `first..first + block.len()` of the full shape.
    ///
    /// # Safety
    /// The place holds the operand, and nothing writes it meanwhile: if it has the full shape, nothing writes these
    /// elements.
    #[inline]
    pub(super) unsafe fn load<T: LaneType>(&self, first: usize, block: &mut [T]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype == T::DTYPE {
                true => self.read::<T, T>(first, block, |x| x),
                false => self.convert(first, block),
            }
        }
    }

    /// # Safety
    /// As [`load`](LoadedOperand::load).
    #[inline(never)]
    unsafe fn convert<T: LaneType>(&self, first: usize, block: &mut [T]) {
        // SAFETY: the caller's promise.
        with_dtype!(self.dtype, U => unsafe { self.read::<U, T>(first, block, T::load) });
    }

    /// # Safety
    /// As [`load`](LoadedOperand::load), for elements of this type.
    #[inline(always)]
    unsafe fn read<U: Element, T: Copy>(&self, first: usize, block: &mut [T], of: impl Fn(U) -> T) {
        let elements = self.place.ptr().cast::<U>();
        if self.whole {
            // SAFETY: the caller's promise; these are elements of the operand.
            let elements = unsafe { slice::from_raw_parts(elements.add(first), block.len()) };
            block.iter_mut().zip(elements).for_each(|(b, x)| *b = of(*x));
        } else {
            // SAFETY: the caller's promise.
            let elements = unsafe { slice::from_raw_parts(elements, self.map.numel()) };
            self.map.load(elements, first, block, of);
        }
    }
}

/// Writes the elements from `first` on as another dtype.
///
/// # Safety
/// The place holds that many elements, and nothing else uses these meanwhile.
#[inline(never)]
pub(super) unsafe fn store<T: LaneType>(block: &[T], place: Place, dtype: DType, first: usize) {
    with_dtype!(dtype, U => {
        // SAFETY: the caller's promise.
        let place = unsafe { slice::from_raw_parts_mut(place.ptr().cast::<U>().add(first), block.len()) };
        place.iter_mut().zip(block).for_each(|(to, x)| *to = x.store());
    });
}

/// The number type of lanes.
pub(super) trait LaneType:
    Element
    + Add<Output = Self>
    + StoredAs<Bool>
    + StoredAs<u8>
    + StoredAs<i32>
    + StoredAs<i64>
    + StoredAs<f32>
    + StoredAs<f64>
{
}
impl LaneType for f32 {}
impl LaneType for f64 {}

/// Conversion from and to the type in memory.
pub(super) trait StoredAs<U> {
    fn load(stored: U) -> Self;
    fn store(self) -> U;
}
macro_rules! converts {
    ($($lane:ty: $($u:ty),*;)*) => {$(
        $(impl StoredAs<$u> for $lane {
            #[inline(always)]
            fn load(stored: $u) -> $lane {
                stored as $lane
            }
            #[inline(always)]
            fn store(self) -> $u {
                self as $u
            }
        })*
        impl StoredAs<Bool> for $lane {
            #[inline(always)]
            fn load(stored: Bool) -> $lane {
                stored.get().into()
            }
            #[inline(always)]
            fn store(self) -> Bool {
                (self != 0.0).into()
            }
        }
    )*};
}
converts!(f32: u8, i32, i64, f32, f64; f64: u8, i32, i64, f32, f64;);
