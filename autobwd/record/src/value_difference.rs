//! The difference of two values, element by element.

use std::{cmp::Reverse, fmt};

use autobwd_core::{
    Bool, DType, Tensor,
    half::{bf16, f16},
};
use serde::Serialize;

/// How two values of one dtype and shape differ: the element that differs most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueDifference {
    /// The indices of the element.
    pub element: Vec<usize>,
    /// Its values in the first and in the second run, with all digits.
    pub values: [String; 2],
    /// The difference in units in the last place: the number of steps from one value to the other over the values of the
    /// dtype. `None` if one of them is a NaN.
    pub ulps: Option<u64>,
    /// The number of elements that differ.
    pub different: usize,
    /// The number of elements.
    pub elements: usize,
}

impl fmt::Display for ValueDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = &self.values;
        write!(
            f,
            "{} of {} elements differ, element {:?} most: ",
            self.different, self.elements, self.element
        )?;
        write!(f, "{first} and {second}")?;
        self.ulps.map_or(Ok(()), |ulps| write!(f, ", {ulps} ulp"))
    }
}

/// An element whose distance to others of its dtype is known.
trait Comparable: Copy + fmt::Debug {
    /// A number that grows by 1 from an element to the next larger one; `None` for a NaN.
    fn rank(self) -> Option<i128>;
    /// Whether two elements of the same rank are different ones, as 0 and -0 are.
    fn is_other(self, other: Self) -> bool;
}

macro_rules! comparable {
    (float: $($t:ty as $signed:ty),*) => {$(
        impl Comparable for $t {
            fn rank(self) -> Option<i128> {
                let magnitude = i128::from(self.to_bits() as $signed & <$signed>::MAX);
                (!self.is_nan()).then_some(if self.is_sign_negative() { -magnitude } else { magnitude })
            }
            fn is_other(self, other: Self) -> bool {
                self.to_bits() != other.to_bits() && !(self.is_nan() && other.is_nan())
            }
        }
    )*};
    (integer: $($t:ty),*) => {$(
        impl Comparable for $t {
            fn rank(self) -> Option<i128> {
                Some(self.into())
            }
            fn is_other(self, other: Self) -> bool {
                self != other
            }
        }
    )*};
}
comparable!(float: f16 as i16, bf16 as i16, f32 as i32, f64 as i64);
comparable!(integer: u8, i32, i64);

impl Comparable for Bool {
    fn rank(self) -> Option<i128> {
        Some(self.get().into())
    }
    fn is_other(self, other: Self) -> bool {
        self.get() != other.get()
    }
}

/// The difference of two values; `None` for equal ones, and for values of different dtypes or shapes.
pub(crate) fn difference(a: &Tensor, b: &Tensor) -> Option<ValueDifference> {
    if a.meta() != b.meta() {
        return None;
    }
    macro_rules! compare {
        ($($dtype:ident => $t:ty),*) => {
            match a.dtype() {
                $(DType::$dtype => largest::<$t>(a.slice().ok()?, b.slice().ok()?, a.dims()),)*
            }
        };
    }
    compare!(
        Bool => Bool, U8 => u8, I32 => i32, I64 => i64, F16 => f16, BF16 => bf16, F32 => f32, F64 => f64
    )
}

/// The difference of the elements that differ most: a NaN from a number first, then by ulps.
fn largest<T: Comparable>(a: &[T], b: &[T], dims: &[usize]) -> Option<ValueDifference> {
    let ulps = |x: T, y: T| Some(x.rank()?.abs_diff(y.rank()?));
    let different = || a.iter().zip(b).enumerate().filter(|(_, (x, y))| x.is_other(**y));
    // The first of several.
    let distance =
        |(position, (x, y)): &(usize, (&T, &T))| (ulps(**x, **y).unwrap_or(u128::MAX), Reverse(*position));
    let (position, (x, y)) = different().max_by_key(distance)?;
    Some(ValueDifference {
        element: indices(position, dims),
        values: [format!("{x:?}"), format!("{y:?}")],
        ulps: ulps(*x, *y).map(|ulps| ulps as u64),
        different: different().count(),
        elements: a.len(),
    })
}

/// The indices of an element at a position in row-major order.
pub(crate) fn indices(position: usize, dims: &[usize]) -> Vec<usize> {
    let mut rest = position;
    let mut indices: Vec<usize> = dims
        .iter()
        .rev()
        .map(|size| {
            let index = rest % size.max(&1);
            rest /= size.max(&1);
            index
        })
        .collect();
    indices.reverse();
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &[f32], b: &[f32]) -> Option<ValueDifference> {
        let tensor = |x: &[f32]| Tensor::from_vec([x.len() / 2, 2], x.to_vec()).unwrap();
        difference(&tensor(a), &tensor(b))
    }

    #[test]
    fn element_that_differs_most_is_named() {
        let next = f32::from_bits(1.5_f32.to_bits() + 3);
        let found = of(&[1.0, 2.0, 1.5, f32::NAN], &[1.0, 2.0000002, next, -f32::NAN]).unwrap();
        assert_eq!((found.element, found.ulps, found.different), (vec![1, 0], Some(3), 2));
        assert_eq!(found.values, ["1.5", "1.5000004"]);
    }

    #[test]
    fn zeros_of_both_signs_and_nan_differ_from_numbers() {
        assert_eq!(of(&[0.0, 1.0], &[0.0, 1.0]), None);
        assert_eq!(of(&[0.0, 1.0], &[-0.0, 1.0]).unwrap().ulps, Some(0));
        let found = of(&[0.0, f32::NAN], &[9.0, 1.0]).unwrap();
        assert_eq!((found.element, found.ulps), (vec![0, 1], None));
        let across = of(&[-1e-45, 0.0], &[1e-45, 0.0]).unwrap();
        assert_eq!(across.ulps, Some(2));
    }
}
