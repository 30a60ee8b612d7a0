//! One dimension, and its arithmetic in shape rules.

use std::{
    fmt,
    ops::{Add, Div, Mul, Sub},
};

/// One dimension of a variable; it may be unknown (`-1`) until the program is planned.
///
/// Shape rules compute with dimensions and integers as on paper. The result is unknown if an operand is. Differences may
/// be negative on the way; an output with a negative dimension is an error that names its slot. A dimension that
/// overflows, or is divided by 0, is too large for every tensor, which planning reports. A dimension that data decides has
/// a bound ([`at_most`](Dim::at_most)), and is unknown to other rules until its operator has run.
///
/// ```
/// use autobwd::tensor::Dim;
///
/// let (n, kernel) = (Dim::from(28), Dim::from(5));
/// assert_eq!((n + 2 * 1 - kernel) / 2 + 1, 13);
/// assert_eq!(Dim::UNKNOWN - kernel + 1, Dim::UNKNOWN);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim(i64);

/// Bounds of dimensions that data decides are below; these are the numbers from `i64::MIN` on.
const MOST_BOUNDED: usize = 1 << 62;

impl Dim {
    /// A dimension that is unknown until the program is planned.
    pub const UNKNOWN: Dim = Dim(-1);
    /// The result of an overflow or a division by 0. No tensor is as long.
    const OVERFLOW: Dim = Dim(i64::MAX);

    /// A dimension that the elements of the inputs decide, with its upper bound: the kernel says it
    /// ([`Buf::decide`](crate::Buf::decide)). Unknown if the bound is.
    ///
    /// ```
    /// use autobwd::tensor::Dim;
    ///
    /// let selected = Dim::at_most(Dim::from(4) * 3);
    /// assert_eq!((selected.bound(), selected.get()), (Some(12), None));
    /// assert_eq!(Dim::at_most(Dim::UNKNOWN), Dim::UNKNOWN);
    /// ```
    pub fn at_most(bound: Dim) -> Dim {
        match bound.get() {
            Some(n) if n < MOST_BOUNDED => Dim(i64::MIN + n as i64),
            Some(_) => Dim::OVERFLOW,
            None => bound,
        }
    }

    /// The upper bound of a dimension that data decides; the number of a known one.
    pub fn bound(self) -> Option<usize> {
        if self.is_decided() { usize::try_from(self.0 - i64::MIN).ok() } else { self.get() }
    }

    /// Whether data decides it.
    pub(crate) fn is_decided(self) -> bool {
        self.0 < i64::MIN + MOST_BOUNDED as i64
    }

    /// The number, if known.
    pub fn get(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Whether both can be the same dimension: equal, or one of them unknown.
    pub fn agrees(self, other: Dim) -> bool {
        self == other || self.is_open() || other.is_open()
    }

    /// Whether it is unknown, with a bound or without.
    fn is_open(self) -> bool {
        self == Dim::UNKNOWN || self.is_decided()
    }

    /// The known one of two dimensions that agree.
    pub fn or(self, other: Dim) -> Dim {
        if self.is_open() { other } else { self }
    }

    /// The same without a bound: what programs declare.
    pub(crate) fn without_bound(self) -> Dim {
        if self.is_decided() { Dim::UNKNOWN } else { self }
    }

    /// Its form in programs: the number, or −1.
    pub fn wire(self) -> i64 {
        self.without_bound().0
    }

    /// The dimension of this form in programs.
    pub(super) fn from_wire(wire: i64) -> Dim {
        Dim(wire)
    }

    /// The number, which may be negative in the middle of a formula; negative ones are stored below −1.
    fn number(self) -> Option<i64> {
        match self.0 {
            -1 => None,
            _ if self.is_decided() => None,
            n if n < 0 => Some(n + 1),
            n => Some(n),
        }
    }

    fn of_number(n: Option<i64>) -> Dim {
        match n {
            None => Dim::OVERFLOW,
            Some(n) if n < 0 => Dim((n - 1).max(i64::MIN + MOST_BOUNDED as i64)),
            Some(n) => Dim(n),
        }
    }

    /// The number, if it is negative.
    pub(super) fn negative(self) -> Option<i64> {
        self.number().filter(|n| *n < 0)
    }

    fn combine(self, other: Dim, by: fn(i64, i64) -> Option<i64>) -> Dim {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) if self != Dim::OVERFLOW && other != Dim::OVERFLOW => Dim::of_number(by(a, b)),
            (Some(_), Some(_)) => Dim::OVERFLOW,
            _ => Dim::UNKNOWN,
        }
    }
}
impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        i64::try_from(n).map_or(Dim::OVERFLOW, Dim)
    }
}

macro_rules! arithmetic {
    ($($(#[$doc:meta])* $op:ident, $method:ident, |$a:ident, $b:ident| $of:expr;)*) => {$(
        impl $op for Dim {
            type Output = Dim;
            $(#[$doc])*
            fn $method(self, $b: Dim) -> Dim {
                let $a = self;
                $of
            }
        }
        impl $op<i64> for Dim {
            type Output = Dim;
            $(#[$doc])*
            fn $method(self, other: i64) -> Dim {
                self.$method(Dim::of_number(Some(other)))
            }
        }
    )*};
}
arithmetic!(
    /// The sum; unknown if either is.
    Add, add, |a, b| a.combine(b, i64::checked_add);
    /// The difference, which may be negative; unknown if either is.
    Sub, sub, |a, b| a.combine(b, i64::checked_sub);
    /// The product; unknown if either is. A factor 0 makes an overflow 0.
    Mul, mul, |a, b| match (a.number(), b.number()) {
        (Some(0), Some(_)) | (Some(_), Some(0)) => Dim(0),
        _ => a.combine(b, i64::checked_mul),
    };
    /// The quotient, rounded down; unknown if either is.
    Div, div, |a, b| a.combine(b, floor_div);
);

/// `None` if it is divided by 0 or overflows.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient })
}

impl PartialEq<usize> for Dim {
    fn eq(&self, other: &usize) -> bool {
        self.get() == Some(*other)
    }
}
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().unwrap_or(-1).fmt(f)
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Dim;

    #[test]
    fn arithmetic_keeps_the_unknown_and_the_impossible() {
        let n = |n: usize| Dim::from(n);
        assert_eq!(
            [n(7) - 3 + 1, n(3) - 5 + 2, (n(9) - n(4)) / 2, n(4) * 2 * n(3)],
            [n(5), n(0), n(2), n(24)]
        );
        assert_eq!((n(1) - 4) / 2, n(0) - 2, "rounded down");
        for unknown in [Dim::UNKNOWN + 1, n(2) - Dim::UNKNOWN, Dim::UNKNOWN * n(3), Dim::UNKNOWN / 2] {
            assert_eq!((unknown, unknown.negative()), (Dim::UNKNOWN, None));
        }
        assert_eq!((n(3) - 4).get(), None);
        assert_eq!((n(3) - 4).negative(), Some(-1));
        let huge = n(1 << 62) * 4;
        for overflow in [huge, huge - 5, n(3) / 0, n(usize::MAX)] {
            assert_eq!(overflow, n(usize::MAX));
        }
        let zero = n(0);
        assert_eq!([huge * zero, zero * huge], [zero; 2]);
    }

    #[test]
    fn bounded_dimension_is_unknown_to_rules() {
        let bounded = Dim::at_most(Dim::from(7));
        assert_eq!((bounded.get(), bounded.bound(), bounded.negative()), (None, Some(7), None));
        assert_eq!([bounded + 1, bounded * 3, bounded / 2], [Dim::UNKNOWN; 3]);
        assert_eq!(Dim::at_most(Dim::from(usize::MAX)).bound(), Dim::from(usize::MAX).get());
        let lowest = Dim::from(0) - (i64::MAX - 1);
        assert!(lowest.negative().is_some() && lowest.bound().is_none());
    }
}
