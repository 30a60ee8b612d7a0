//! Nodes of expression trees.

use super::Float;

/// A node of a [`Formula`](crate::lanes::Formula). Operands are indices into
/// [`Formula::nodes`](crate::lanes::Formula::nodes), each smaller than the node's own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FormulaNode {
    /// The input slot with this index in the schema.
    Input(usize),
    /// A constant, or the value of an attribute.
    Constant(f64),
    /// The constant on the right of an operator, which differentiation treats as a constant.
    Literal(f64),
    /// `-a`.
    Neg(usize),
    /// `a + b`.
    Add(usize, usize),
    /// `a - b`.
    Sub(usize, usize),
    /// `a * b`.
    Mul(usize, usize),
    /// `a / b`.
    Div(usize, usize),
    /// `a * b`, and 0 where `b` is 0, even if `a` is infinite or NaN.
    Scaled(usize, usize),
    /// `a * b + c`, rounded once if the machine supports it.
    MulAdd(usize, usize, usize),
    /// `a^b`.
    Pow(usize, usize),
    /// A function of one number.
    Call(FormulaFunction, usize),
    /// Whether `a > b`: a mask.
    Greater(usize, usize),
    /// Whether `a == b`: a mask.
    Equal(usize, usize),
    /// The mask, the number where it is true, and the number elsewhere.
    Select(usize, usize, usize),
}

impl FormulaNode {
    pub(crate) fn parts(self) -> (u64, [Option<usize>; 3]) {
        match self {
            FormulaNode::Input(_) => (0, [None; 3]),
            FormulaNode::Constant(_) => (1, [None; 3]),
            FormulaNode::Literal(_) => (12, [None; 3]),
            FormulaNode::Neg(a) => (2, [Some(a), None, None]),
            FormulaNode::Add(a, b) => (3, [Some(a), Some(b), None]),
            FormulaNode::Sub(a, b) => (4, [Some(a), Some(b), None]),
            FormulaNode::Mul(a, b) => (5, [Some(a), Some(b), None]),
            FormulaNode::Div(a, b) => (6, [Some(a), Some(b), None]),
            FormulaNode::MulAdd(a, b, c) => (7, [Some(a), Some(b), Some(c)]),
            FormulaNode::Pow(a, b) => (8, [Some(a), Some(b), None]),
            FormulaNode::Greater(a, b) => (9, [Some(a), Some(b), None]),
            FormulaNode::Equal(a, b) => (10, [Some(a), Some(b), None]),
            FormulaNode::Select(a, b, c) => (11, [Some(a), Some(b), Some(c)]),
            FormulaNode::Scaled(a, b) => (13, [Some(a), Some(b), None]),
            FormulaNode::Call(function, a) => (14 + function as u64, [Some(a), None, None]),
        }
    }

    /// The operands of the node.
    pub fn operands(self) -> impl Iterator<Item = usize> {
        self.parts().1.into_iter().flatten()
    }

    /// A key that is the same for equal nodes only; constants are compared by bits.
    pub(crate) fn key(self) -> [u64; 4] {
        let (kind, operands) = self.parts();
        match (self, operands.map(|operand| operand.map_or(u64::MAX, |operand| operand as u64))) {
            (FormulaNode::Input(slot), _) => [kind, slot as u64, 0, 0],
            (FormulaNode::Constant(x) | FormulaNode::Literal(x), _) => [kind, x.to_bits(), 0, 0],
            (_, [a, b, c]) => [kind, a, b, c],
        }
    }

    /// The same node with other operands.
    pub(crate) fn of(self, number: impl Fn(usize) -> usize) -> FormulaNode {
        let n = number;
        match self {
            FormulaNode::Input(_) | FormulaNode::Constant(_) | FormulaNode::Literal(_) => self,
            FormulaNode::Neg(a) => FormulaNode::Neg(n(a)),
            FormulaNode::Add(a, b) => FormulaNode::Add(n(a), n(b)),
            FormulaNode::Sub(a, b) => FormulaNode::Sub(n(a), n(b)),
            FormulaNode::Mul(a, b) => FormulaNode::Mul(n(a), n(b)),
            FormulaNode::Div(a, b) => FormulaNode::Div(n(a), n(b)),
            FormulaNode::Scaled(a, b) => FormulaNode::Scaled(n(a), n(b)),
            FormulaNode::MulAdd(a, b, c) => FormulaNode::MulAdd(n(a), n(b), n(c)),
            FormulaNode::Pow(a, b) => FormulaNode::Pow(n(a), n(b)),
            FormulaNode::Greater(a, b) => FormulaNode::Greater(n(a), n(b)),
            FormulaNode::Equal(a, b) => FormulaNode::Equal(n(a), n(b)),
            FormulaNode::Select(a, b, c) => FormulaNode::Select(n(a), n(b), n(c)),
            FormulaNode::Call(function, a) => FormulaNode::Call(function, n(a)),
        }
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $function:ident $name:ident;)*) => {
        /// A function of [`Float`] that takes one number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum FormulaFunction {
            $(#[doc = concat!("[`Float::", stringify!($name), "`].")] $function,)*
        }

        impl FormulaFunction {
            /// The name of the method of [`Float`].
            pub fn name(self) -> &'static str {
                match self {
                    $(FormulaFunction::$function => stringify!($name),)*
                }
            }

            pub(crate) fn apply<F: Float>(self, x: F) -> F {
                match self {
                    $(FormulaFunction::$function => x.$name(),)*
                }
            }

            /// Applies the function to each number. One loop per function: a common loop would dispatch for every
            /// number.
            #[inline(always)]
            pub(crate) fn apply_to_all<F: Float>(self, numbers: &mut [F]) {
                match self {
                    $(FormulaFunction::$function => {
                        for x in numbers {
                            *x = x.$name();
                        }
                    })*
                }
            }
        }
    };
}
functions! {
    Exp exp; Log log; Tanh tanh; Expm1 expm1; Log1p log1p; Erf erf; NormalCdf normal_cdf; Sigmoid sigmoid; Gelu gelu;
    GeluTanh gelu_tanh; Sqrt sqrt; Abs abs; Sin sin; Cos cos; Floor floor; Round round;
}
