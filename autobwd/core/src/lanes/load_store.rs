//! Loads and stores of a fused kernel: operands that are broadcast, converted, or both.
#![allow(unsafe_code)]

use std::{marker::PhantomData, ops::Add, slice};

use half::{bf16, f16};

use super::{
    broadcast_map::BroadcastMap,
    dispatch::{LaneOf, VectorLoops, Vectorised},
};
use crate::{
    Bool, DType, Element,
    tensor::{
        Place,
        half_float::{HalfFloat, with_half},
    },
    with_dtype,
};

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
        T::vectorised(ConvertingLoad { operand: self, first, block });
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

/// A load of elements of another dtype, with the promise of [`LoadedOperand::load`].
struct ConvertingLoad<'a, T> {
    operand: &'a LoadedOperand,
    first: usize,
    block: &'a mut [T],
}
impl<T: LaneType> VectorLoops<T> for ConvertingLoad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let ConvertingLoad { operand, first, block } = self;
        // SAFETY: the promise of `LoadedOperand::load`, which alone makes this struct.
        with_dtype!(operand.dtype, U => unsafe { operand.read::<U, T>(first, block, T::load) });
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
        T::vectorised(ConvertingStore { block, place });
    });
}

/// A store of elements as another dtype.
struct ConvertingStore<'a, T, U> {
    block: &'a [T],
    place: &'a mut [U],
}
impl<T: LaneType + StoredAs<U>, U: Element> VectorLoops<T> for ConvertingStore<'_, T, U> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        self.place.iter_mut().zip(self.block).for_each(|(to, x)| *to = x.store());
    }
}

/// Rounds a block register to the numbers of a 16-bit dtype.
#[inline(never)]
pub(super) fn round<T: LaneType>(block: &mut [T], dtype: DType) {
    with_half!(dtype, U => T::vectorised(Rounding::<T, U>(block, PhantomData)), _ => {});
}

struct Rounding<'a, T, U>(&'a mut [T], PhantomData<U>);
impl<T: LaneType + StoredAs<U>, U: HalfFloat> VectorLoops<T> for Rounding<'_, T, U> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        self.0.iter_mut().for_each(|x| *x = <T as StoredAs<U>>::load(x.store()));
    }
}

/// The number type of lanes.
pub(super) trait LaneType:
    Vectorised
    + Add<Output = Self>
    + StoredAs<Bool>
    + StoredAs<u8>
    + StoredAs<i32>
    + StoredAs<i64>
    + StoredAs<f16>
    + StoredAs<bf16>
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
macro_rules! converts_halves {
    ($($half:ty),*) => {$(
        impl StoredAs<$half> for f32 {
            #[inline(always)]
            fn load(stored: $half) -> f32 {
                stored.single()
            }
            #[inline(always)]
            fn store(self) -> $half {
                <$half>::round(self)
            }
        }
        impl StoredAs<$half> for f64 {
            #[inline(always)]
            fn load(stored: $half) -> f64 {
                stored.single().into()
            }
            #[inline(always)]
            fn store(self) -> $half {
                <$half>::round_double(self)
            }
        }
    )*};
}
converts_halves!(f16, bf16);
