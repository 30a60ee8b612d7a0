//! One dimension, and its arithmetic in shape rules.

use std::{
    fmt,
    ops::{Add, Div, Mul, Sub},
    str::FromStr,
    sync::Arc,
};

use super::named_size::{self, MOST_SIZES, Polynomial};
use crate::{Error, ErrorKind, Result};

/// One dimension of a variable; it may be unknown (`-1`) until the program is planned, and then have a name.
///
/// Shape rules compute with dimensions and integers as on paper. The result is unknown if an operand is. Dimensions with
/// names are unknown numbers, but rules compute with them, and they are equal if their polynomials are. Differences may
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
///
/// let (batch, length) = (Dim::named("B"), Dim::named("T"));
/// assert_eq!((batch * length * 12 / batch).to_string(), "T*12");
/// assert_eq!(batch * length * 12 / length, batch * 12);
/// assert_eq!(((length - 1) / 2 + 1).to_string(), "(T + 1)/2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim(i64);

/// Bounds of dimensions that data decides are below; these are the numbers from `i64::MIN` on.
const MOST_BOUNDED: i64 = 1 << 62;
/// The indices of polynomials follow the bounds.
const FIRST_NAMED: i64 = i64::MIN + MOST_BOUNDED;
/// Negative numbers follow these.
const LOWEST: i64 = FIRST_NAMED + MOST_SIZES as i64;

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
            Some(n) if (n as i64) < MOST_BOUNDED => Dim(i64::MIN + n as i64),
            Some(_) => Dim::OVERFLOW,
            None => Dim::UNKNOWN,
        }
    }

    /// A dimension with a name, such as a batch or a length: unknown, and equal wherever it is used. Any text that is not
    /// empty is a name. A process has room for 65,536 names and polynomials of names; others are unknown.
    pub fn named(name: &str) -> Dim {
        if name.is_empty() { Dim::UNKNOWN } else { Dim::of_polynomial(Some(Polynomial::named(name))) }
    }

    /// The name, if it is one: not for polynomials of names.
    pub fn name(self) -> Option<Arc<str>> {
        self.polynomial().and_then(|size| size.name().cloned())
    }

    /// All names in it, perhaps several times.
    pub fn names(self) -> Vec<Arc<str>> {
        self.polynomial().map(|size| size.names()).unwrap_or_default()
    }

    /// The dimension where names have sizes; a name without one stays.
    ///
    /// ```
    /// use autobwd::tensor::Dim;
    ///
    /// let (batch, length) = (Dim::named("B"), Dim::named("T"));
    /// let size = |name: &str| (name == "B").then_some(Dim::from(8));
    /// assert_eq!((batch * length * 2).at(&size), length * 16);
    /// ```
    #[must_use]
    pub fn at(self, size: &dyn Fn(&str) -> Option<Dim>) -> Dim {
        match self.polynomial().filter(|_| self.is_named()) {
            Some(polynomial) => polynomial.at(&|name| size(name).unwrap_or_else(|| Dim::named(name))),
            None => self,
        }
    }

    /// Whether it has a name, or is a polynomial of names.
    pub fn is_named(self) -> bool {
        (FIRST_NAMED..LOWEST).contains(&self.0)
    }

    /// The upper bound of a dimension that data decides; the number of a known one.
    pub fn bound(self) -> Option<usize> {
        if self.is_decided() { usize::try_from(self.0 - i64::MIN).ok() } else { self.get() }
    }

    /// Whether data decides it.
    pub(crate) fn is_decided(self) -> bool {
        self.0 < FIRST_NAMED
    }

    /// The number, if known.
    pub fn get(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Whether both can be the same dimension: equal, or one of them unknown.
    pub fn agrees(self, other: Dim) -> bool {
        self == other || self.is_open() || other.is_open()
    }

    /// Whether it is unknown, with a bound, with a name or without.
    pub fn is_open(self) -> bool {
        self == Dim::UNKNOWN || self.is_decided() || self.is_named()
    }

    /// The known one of two dimensions that agree, or else one with a name.
    pub fn or(self, other: Dim) -> Dim {
        match self.is_open() && !(self.is_named() && other.is_open()) {
            true => other,
            false => self,
        }
    }

    /// The dimension that two broadcast to; `None` if both are known, and differ, and none is 1. Of two open ones, either
    /// may be 1.
    pub fn broadcast(self, other: Dim) -> Option<Dim> {
        match (self, other) {
            (a, b) if a == b || b == 1 => Some(a),
            (a, b) if a == 1 => Some(b),
            (a, b) if a.is_open() && b.is_open() => Some(Dim::UNKNOWN),
            (a, b) => a.agrees(b).then(|| a.or(b)),
        }
    }

    /// The same without a bound: what programs declare.
    pub(crate) fn without_bound(self) -> Dim {
        if self.is_decided() { Dim::UNKNOWN } else { self }
    }

    /// Its form in programs: the number, or −1.
    pub fn wire(self) -> i64 {
        if self.is_open() { Dim::UNKNOWN.0 } else { self.0 }
    }

    /// A number that only equal dimensions of a process have.
    pub(crate) fn key(self) -> u64 {
        self.0 as u64
    }

    /// The dimension of this form in programs.
    pub(super) fn from_wire(wire: i64) -> Dim {
        Dim(wire)
    }

    /// The number, which may be negative in the middle of a formula; negative ones are stored below −1.
    fn number(self) -> Option<i64> {
        match self.0 {
            -1 => None,
            _ if self.is_decided() || self.is_named() => None,
            n if n < 0 => Some(n + 1),
            n => Some(n),
        }
    }

    fn of_number(n: Option<i64>) -> Dim {
        match n {
            None => Dim::OVERFLOW,
            Some(n) if n < 0 => Dim(n.saturating_sub(1).max(LOWEST)),
            Some(n) => Dim(n),
        }
    }

    /// The number, if it is negative.
    pub(super) fn negative(self) -> Option<i64> {
        self.number().filter(|n| *n < 0)
    }

    fn polynomial(self) -> Option<Arc<Polynomial>> {
        match self.number() {
            Some(n) => Some(Polynomial::constant(n).into()),
            None if self.is_named() => named_size::size((self.0 - FIRST_NAMED) as usize),
            None => None,
        }
    }

    fn of_polynomial(size: Option<Polynomial>) -> Dim {
        let Some(size) = size else { return Dim::UNKNOWN };
        match size.number() {
            Some(n) => Dim::of_number(Some(n)),
            None => named_size::index(size).map_or(Dim::UNKNOWN, |index| Dim(FIRST_NAMED + index as i64)),
        }
    }

    fn combine(
        self,
        other: Dim,
        by: fn(i64, i64) -> Option<i64>,
        of_names: fn(&Polynomial, &Polynomial) -> Option<Polynomial>,
    ) -> Dim {
        let has_overflow = self == Dim::OVERFLOW || other == Dim::OVERFLOW;
        match (self.number(), other.number()) {
            (Some(a), Some(b)) if !has_overflow => Dim::of_number(by(a, b)),
            (Some(_), Some(_)) => Dim::OVERFLOW,
            _ if has_overflow || !(self.is_named() || other.is_named()) => Dim::UNKNOWN,
            _ => {
                let sizes = self.polynomial().zip(other.polynomial());
                Dim::of_polynomial(sizes.and_then(|(a, b)| of_names(&a, &b)))
            }
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
    Add, add, |a, b| a.combine(b, i64::checked_add, Polynomial::sum);
    /// The difference, which may be negative; unknown if either is.
    Sub, sub, |a, b| a.combine(b, i64::checked_sub, Polynomial::difference);
    /// The product; unknown if either is. A factor 0 makes an overflow 0.
    Mul, mul, |a, b| match (a.number(), b.number()) {
        (Some(0), Some(_)) | (Some(_), Some(0)) => Dim(0),
        _ => a.combine(b, i64::checked_mul, Polynomial::product),
    };
    /// The quotient, rounded down; unknown if either is.
    Div, div, |a, b| a.combine(b, floor_div, Polynomial::quotient);
);

/// `None` if it is divided by 0 or overflows.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// A number, −1 for an unknown dimension, or a polynomial of names as it is displayed.
impl FromStr for Dim {
    type Err = Error;
    fn from_str(text: &str) -> Result<Dim> {
        let size = named_size::parse(text).filter(|size| size.number().is_none_or(|n| n >= -1));
        let size = size.ok_or_else(|| {
            let text = format!(
                "`{text}` is not a dimension: a number, a name, or a sum, product or quotient of them"
            );
            Error::new(ErrorKind::Shape, text)
        })?;
        Ok(if size.number() == Some(-1) { Dim::UNKNOWN } else { Dim::of_polynomial(Some(size)) })
    }
}
impl PartialEq<usize> for Dim {
    fn eq(&self, other: &usize) -> bool {
        self.get() == Some(*other)
    }
}
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.polynomial().filter(|_| self.is_named()) {
            Some(size) => size.fmt(f),
            None => self.number().unwrap_or(-1).fmt(f),
        }
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

    fn dim(text: &str) -> Dim {
        text.parse().expect("it is a dimension")
    }

    #[test]
    fn polynomials_of_names_are_equal_if_they_are_equal_on_paper() {
        let (b, t, n) = (Dim::named("B"), Dim::named("T"), Dim::from(5));
        for (size, text) in [
            (b * t * 12 / (t * 4), "B*3"),
            ((b + 1) * (b - 1) + 1, "B*B"),
            ((t - 1) / 2 + 1, "(T + 1)/2"),
            ((t * 2 - 2) / 2, "T - 1"),
            ((b * t + b) / (t + 1), "B"),
            ((t + 3) / t, "3/T + 1"),
            (t / b * 2, "(T/B)*2"),
            ((t * 4 + 6) / 4, "T + 1"),
            ((t * 6 + 7) / 4, "T + (T*2 + 3)/4 + 1"),
            (Dim::from(2) - t, "-T + 2"),
            (t / b / 2, "(T/B)/2"),
            (Dim::named("past + 1") * b, "B*`past + 1`"),
        ] {
            assert_eq!(size.to_string(), text);
            assert_eq!(dim(text), size, "{text}");
            assert!(size.is_named() && size.is_open() && size.get().is_none() && size.negative().is_none());
        }
        assert_eq!([t - t, t * Dim::from(0), (t * b) / (b * t)], [0, 0, 1].map(Dim::from));
        for unknown in [
            t / 0,
            t / (Dim::from(0) - 2),
            t + Dim::UNKNOWN,
            Dim::UNKNOWN / t,
            Dim::at_most(t),
            Dim::named(""),
        ] {
            assert_eq!(unknown, Dim::UNKNOWN);
        }
        assert_eq!(t * Dim::from(usize::MAX), Dim::UNKNOWN);
        assert_eq!((b.name().as_deref(), (b * 2).name()), (Some("B"), None));
        assert_eq!((b + t / (b + 1)).names().iter().map(|name| &**name).collect::<Vec<_>>(), ["B", "T", "B"]);
        assert_eq!(dim("(T - 1)//2 + 1"), (t + 1) / 2);
        let size = |name: &str| (name == "T").then_some(Dim::from(7));
        assert_eq!(
            [t * t - b * 3 + t / b / 2, (t + 2) / 4, n].map(|dim| dim.at(&size)),
            [Dim::from(49) - b * 3 + Dim::from(7) / b / 2, Dim::from(2), n,]
        );
    }

    #[test]
    fn names_agree_with_anything_open_and_yield_to_numbers() {
        let (b, t, n) = (Dim::named("B"), Dim::named("T"), Dim::from(3));
        assert!(b.agrees(t) && b.agrees(n) && n.agrees(b) && b.agrees(Dim::UNKNOWN) && b != t);
        assert_eq!([b.or(n), n.or(b), b.or(Dim::UNKNOWN), Dim::UNKNOWN.or(b), b.or(t)], [n, n, b, b, b]);
        assert_eq!((b.wire(), b.without_bound()), (-1, b));
        let one = Dim::from(1);
        let broadcast = [(b, b), (b, one), (one, b), (b, n), (b, t), (b, Dim::UNKNOWN), (n, Dim::from(4))];
        assert_eq!(
            broadcast.map(|(x, y)| x.broadcast(y)),
            [Some(b), Some(b), Some(b), Some(n), Some(Dim::UNKNOWN), Some(Dim::UNKNOWN), None]
        );
    }

    #[test]
    fn text_that_is_no_dimension_is_refused() {
        assert_eq!([dim("-1"), dim("7"), dim("3 * 4")], [Dim::UNKNOWN, Dim::from(7), Dim::from(12)]);
        let deep = "(".repeat(199) + "B";
        for text in [
            "",
            "-2",
            "2B",
            "B +",
            "B B",
            "(B",
            "``",
            "`B",
            "B/0",
            "9999999999999999999",
            &deep,
            &"B*".repeat(999),
            &["(a + b + c + d + e + f)"; 8].join("*"),
        ] {
            let e = text.parse::<Dim>().unwrap_err();
            assert!(e.message().contains("is not a dimension"), "{text}");
        }
        // Too long a product of names is unknown.
        assert_eq!(dim(&["B"; 99].join("*")) * Dim::named("B") * Dim::named("B"), Dim::UNKNOWN);
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
