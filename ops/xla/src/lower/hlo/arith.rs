//! Constants and elementwise operations.

use std::{ops, rc::Rc};

use super::{Hlo, HloDType, HloType};

/// Names of elementwise operations of one operand.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:literal),* $(,)?) => { impl Hlo { $(
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> Hlo {
            self.emit(self.ty.clone(), format_args!(concat!("stablehlo.", $op, " {} : {}"), self, self.ty))
        }
    )* } };
}
unary! {
    /// `|x|`
    abs = "abs",
    /// The smallest integer that is not smaller.
    ceil = "ceil",
    /// Cosine.
    cos = "cosine",
    /// `eˣ`
    exp = "exponential",
    /// `eˣ − 1`
    expm1 = "exponential_minus_one",
    /// The largest integer that is not larger.
    floor = "floor",
    /// Natural logarithm.
    log = "log",
    /// `ln(1 + x)`
    log1p = "log_plus_one",
    /// Logistic function `1 / (1 + e⁻ˣ)`.
    sigmoid = "logistic",
    /// Negation of bool; all bits inverted of integers.
    not = "not",
    /// The nearest integer; halves away from zero.
    round = "round_nearest_afz",
    /// `1 / √x`
    rsqrt = "rsqrt",
    /// −1, 0 or 1.
    sign = "sign",
    /// Sine.
    sin = "sine",
    /// Square root.
    sqrt = "sqrt",
    /// Hyperbolic tangent.
    tanh = "tanh",
}

/// Names of elementwise operations of two operands.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $op:literal),* $(,)?) => { impl Hlo { $(
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self, other: &Hlo) -> Hlo {
            let (x, y) = self.matched(other);
            x.emit(x.ty.clone(), format_args!(concat!("stablehlo.", $op, " {}, {} : {}"), x, y, x.ty))
        }
    )* } };
}
binary! {
    /// Bits or bools that both have.
    and = "and",
    /// The angle of a point.
    atan2 = "atan2",
    /// The larger one; NaN if one is NaN.
    max = "maximum",
    /// The smaller one; NaN if one is NaN.
    min = "minimum",
    /// Bits or bools that one has.
    or = "or",
    /// `xʸ`
    pow = "power",
    /// The remainder, with the sign of the dividend.
    rem = "remainder",
    /// Bits moved up.
    shift_left = "shift_left",
    /// Bits moved down; zeros enter.
    shift_right = "shift_right_logical",
    /// Bits or bools that exactly one has.
    xor = "xor",
    /// The sum.
    plus = "add",
    /// The difference.
    minus = "subtract",
    /// The product.
    times = "multiply",
    /// The quotient; of integers, rounded towards zero.
    over = "divide",
}

/// Comparisons.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = $op:literal),* $(,)?) => { impl Hlo { $(
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self, other: &Hlo) -> Hlo {
            self.compare($op, other)
        }
    )* } };
}
comparisons! {
    /// Whether `x = y`.
    equal = "EQ",
    /// Whether `x ≠ y`.
    not_equal = "NE",
    /// Whether `x < y`.
    less = "LT",
    /// Whether `x ≤ y`.
    less_equal = "LE",
    /// Whether `x > y`.
    greater = "GT",
    /// Whether `x ≥ y`.
    greater_equal = "GE",
}

impl Hlo {
    /// A number in all elements, in the type of this value.
    #[must_use]
    pub fn full_like(&self, x: f64) -> Hlo {
        self.full(self.dtype(), self.dims(), x)
    }

    /// A number in all elements.
    #[must_use]
    pub fn full(&self, dtype: HloDType, dims: &[usize], x: f64) -> Hlo {
        let ty = HloType { dtype, dims: dims.to_vec() };
        self.emit(ty.clone(), format_args!("stablehlo.constant dense<{}> : {ty}", dtype.literal(x)))
    }

    /// A scalar of the dtype of this value.
    #[must_use]
    pub fn scalar(&self, x: f64) -> Hlo {
        self.full(self.dtype(), &[], x)
    }

    /// An unsigned integer of 64 bits in all elements.
    #[must_use]
    pub fn full_u64(&self, dims: &[usize], x: u64) -> Hlo {
        let ty = HloType { dtype: HloDType::U64, dims: dims.to_vec() };
        self.emit(ty.clone(), format_args!("stablehlo.constant dense<{x}> : {ty}"))
    }

    /// An integer of 64 bits in all elements, in the dimensions of this value.
    #[must_use]
    pub fn full_i64(&self, x: i64) -> Hlo {
        let ty = HloType { dtype: HloDType::I64, ..self.ty.clone() };
        self.emit(ty.clone(), format_args!("stablehlo.constant dense<{x}> : {ty}"))
    }

    /// A vector of integers of 64 bits.
    #[must_use]
    pub fn vector_i64(&self, numbers: &[i64]) -> Hlo {
        let ty = HloType { dtype: HloDType::I64, dims: vec![numbers.len()] };
        match numbers {
            [] => self.full(HloDType::I64, &[0], 0.0),
            numbers => self.emit(ty.clone(), format_args!("stablehlo.constant dense<{numbers:?}> : {ty}")),
        }
    }

    /// A vector of integers or floating point numbers.
    #[must_use]
    pub fn vector(&self, dtype: HloDType, numbers: &[f64]) -> Hlo {
        if let [first, others @ ..] = numbers
            && !others.iter().all(|x| x == first)
        {
            let ty = HloType { dtype, dims: vec![numbers.len()] };
            let list: Vec<String> = numbers.iter().map(|x| dtype.literal(*x)).collect();
            return self
                .emit(ty.clone(), format_args!("stablehlo.constant dense<[{}]> : {ty}", list.join(", ")));
        }
        self.full(dtype, &[numbers.len()], numbers.first().copied().unwrap_or(0.0))
    }

    /// Positions along an axis.
    #[must_use]
    pub fn iota(&self, dtype: HloDType, dims: &[usize], axis: usize) -> Hlo {
        let ty = HloType { dtype, dims: dims.to_vec() };
        self.emit(ty.clone(), format_args!("stablehlo.iota dim = {axis} : {ty}"))
    }

    /// Both operands in one type; a scalar is broadcast.
    fn matched(&self, other: &Hlo) -> (Hlo, Hlo) {
        let (x, y) = (self.clone(), other.clone());
        if x.ty == y.ty {
            return (x, y);
        }
        if x.dtype() != y.dtype() || (x.rank() != 0 && y.rank() != 0) {
            self.fail(format!("an elementwise operation of {} and {}", x.ty, y.ty));
            return (x.clone(), x);
        }
        if x.rank() == 0 {
            (x.broadcast(y.dims(), &[]), y)
        } else {
            let y = y.broadcast(x.dims(), &[]);
            (x, y)
        }
    }

    fn compare(&self, op: &str, other: &Hlo) -> Hlo {
        let (x, y) = self.matched(other);
        let ty = HloType { dtype: HloDType::Bool, ..x.ty.clone() };
        let kind = x.dtype().comparison();
        let text = format!("stablehlo.compare {op}, {x}, {y}, {kind} : ({}, {}) -> {ty}", x.ty, y.ty);
        x.emit(ty, text)
    }

    /// Where this bool is true, elements of `yes`, elsewhere of `no`. A scalar, of the three, is broadcast.
    #[must_use]
    pub fn select(&self, yes: &Hlo, no: &Hlo) -> Hlo {
        let (yes, no) = yes.matched(no);
        let (mask, yes, no) = match (self.rank(), yes.rank()) {
            (_, 0) if self.rank() > 0 => {
                (self.clone(), yes.broadcast(self.dims(), &[]), no.broadcast(self.dims(), &[]))
            }
            _ => (self.clone(), yes, no),
        };
        if mask.dtype() != HloDType::Bool || (mask.rank() != 0 && mask.dims() != yes.dims()) {
            self.fail(format!("a choice of elements of {} by {}", yes.ty, mask.ty));
        }
        let text = format!("stablehlo.select {mask}, {yes}, {no} : {}, {}", mask.ty, yes.ty);
        yes.emit(yes.ty.clone(), text)
    }

    /// The value in another dtype; floating point numbers become integers by truncation, and bool by comparison with 0.
    #[must_use]
    pub fn convert(&self, dtype: impl Into<HloDType>) -> Hlo {
        let dtype = dtype.into();
        if dtype == self.dtype() {
            return self.clone();
        }
        if dtype == HloDType::Bool {
            return self.not_equal(&self.full_like(0.0));
        }
        let ty = HloType { dtype, ..self.ty.clone() };
        let converted =
            self.emit(ty.clone(), format_args!("stablehlo.convert {self} : ({}) -> {ty}", self.ty));
        let narrow = (self.dtype().is_half() && !dtype.is_half()).then(|| Rc::new(self.clone()));
        Hlo { narrow, ..converted }
    }

    /// A rearrangement of its elements; where they were converted, the elements of 16 bits are rearranged.
    pub(super) fn rearranged(&self, by: impl Fn(&Hlo) -> Hlo) -> Option<Hlo> {
        self.narrow.as_deref().map(|narrow| by(narrow).convert(self.dtype()))
    }

    /// The bits in another dtype of the same size.
    #[must_use]
    pub fn bitcast(&self, dtype: HloDType) -> Hlo {
        if dtype == self.dtype() {
            return self.clone();
        }
        let ty = HloType { dtype, ..self.ty.clone() };
        self.emit(ty.clone(), format_args!("stablehlo.bitcast_convert {self} : ({}) -> {ty}", self.ty))
    }

    /// Whether elements are neither infinite nor NaN.
    #[must_use]
    pub fn is_finite(&self) -> Hlo {
        let ty = HloType { dtype: HloDType::Bool, ..self.ty.clone() };
        self.emit(ty.clone(), format_args!("stablehlo.is_finite {self} : ({}) -> {ty}", self.ty))
    }

    /// A function that StableHLO defines by an expansion: `erf`, `lgamma`, `tan`, `asin`, `sinh`, …
    #[must_use]
    pub fn chlo(&self, function: &str) -> Hlo {
        self.emit(self.ty.clone(), format_args!("chlo.{function} {self} : {} -> {}", self.ty, self.ty))
    }

    /// `x²`
    #[must_use]
    pub fn square(&self) -> Hlo {
        self * self
    }

    /// `1 / x`
    #[must_use]
    pub fn reciprocal(&self) -> Hlo {
        self.full_like(1.0) / self
    }

    /// The smaller of the value and a number.
    #[must_use]
    pub fn at_most(&self, x: f64) -> Hlo {
        self.min(&self.full_like(x))
    }

    /// The larger of the value and a number.
    #[must_use]
    pub fn at_least(&self, x: f64) -> Hlo {
        self.max(&self.full_like(x))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $name:ident),*) => {$(
        impl ops::$trait<&Hlo> for &Hlo {
            type Output = Hlo;
            fn $method(self, other: &Hlo) -> Hlo { Hlo::$name(self, other) }
        }
        impl ops::$trait<Hlo> for Hlo {
            type Output = Hlo;
            fn $method(self, other: Hlo) -> Hlo { Hlo::$name(&self, &other) }
        }
        impl ops::$trait<&Hlo> for Hlo {
            type Output = Hlo;
            fn $method(self, other: &Hlo) -> Hlo { Hlo::$name(&self, other) }
        }
        impl ops::$trait<Hlo> for &Hlo {
            type Output = Hlo;
            fn $method(self, other: Hlo) -> Hlo { Hlo::$name(self, &other) }
        }
        impl ops::$trait<f64> for &Hlo {
            type Output = Hlo;
            fn $method(self, other: f64) -> Hlo { Hlo::$name(self, &self.full_like(other)) }
        }
        impl ops::$trait<f64> for Hlo {
            type Output = Hlo;
            fn $method(self, other: f64) -> Hlo { Hlo::$name(&self, &self.full_like(other)) }
        }
    )*};
}
operators!(Add add plus, Sub sub minus, Mul mul times, Div div over);

impl ops::Neg for &Hlo {
    type Output = Hlo;
    fn neg(self) -> Hlo {
        self.emit(self.ty.clone(), format_args!("stablehlo.negate {self} : {}", self.ty))
    }
}
impl ops::Neg for Hlo {
    type Output = Hlo;
    fn neg(self) -> Hlo {
        -&self
    }
}
