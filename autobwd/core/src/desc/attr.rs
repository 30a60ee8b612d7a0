//! Attribute values of operators.

use std::fmt;

use super::BlockId;

/// The value of an attribute. A dtype is stored as its [`code`](crate::DType::code), an enum as its name.
///
/// Numbers are equal if their bits are: NaN equals itself, and −0 is another value than 0, which it is for operators.
#[derive(Clone, Debug)]
pub enum Attr {
    /// A bool.
    Bool(bool),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// A float32 number.
    F32(f32),
    /// A float64 number.
    F64(f64),
    /// A string.
    Str(String),
    /// Bools.
    Bools(Vec<bool>),
    /// 32-bit integers.
    I32s(Vec<i32>),
    /// 64-bit integers.
    I64s(Vec<i64>),
    /// float32 numbers.
    F32s(Vec<f32>),
    /// float64 numbers.
    F64s(Vec<f64>),
    /// Strings.
    Strs(Vec<String>),
    /// A sub-block.
    Block(BlockId),
    /// Sub-blocks.
    Blocks(Vec<BlockId>),
}

impl Attr {
    /// Whether it contains a NaN.
    pub(crate) fn has_nan(&self) -> bool {
        match self {
            Attr::F32(x) => x.is_nan(),
            Attr::F64(x) => x.is_nan(),
            Attr::F32s(all) => all.iter().any(|x| x.is_nan()),
            Attr::F64s(all) => all.iter().any(|x| x.is_nan()),
            _ => false,
        }
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Attr) -> bool {
        match (self, other) {
            (Attr::Bool(x), Attr::Bool(y)) => x == y,
            (Attr::I32(x), Attr::I32(y)) => x == y,
            (Attr::I64(x), Attr::I64(y)) => x == y,
            (Attr::F32(x), Attr::F32(y)) => x.to_bits() == y.to_bits(),
            (Attr::F64(x), Attr::F64(y)) => x.to_bits() == y.to_bits(),
            (Attr::Str(x), Attr::Str(y)) => x == y,
            (Attr::Bools(x), Attr::Bools(y)) => x == y,
            (Attr::I32s(x), Attr::I32s(y)) => x == y,
            (Attr::I64s(x), Attr::I64s(y)) => x == y,
            (Attr::F32s(x), Attr::F32s(y)) => x.iter().map(|x| x.to_bits()).eq(y.iter().map(|y| y.to_bits())),
            (Attr::F64s(x), Attr::F64s(y)) => x.iter().map(|x| x.to_bits()).eq(y.iter().map(|y| y.to_bits())),
            (Attr::Strs(x), Attr::Strs(y)) => x == y,
            (Attr::Block(x), Attr::Block(y)) => x == y,
            (Attr::Blocks(x), Attr::Blocks(y)) => x == y,
            _ => false,
        }
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Bool(x) => x.fmt(f),
            Attr::I32(x) => x.fmt(f),
            Attr::I64(x) => x.fmt(f),
            Attr::F32(x) => write!(f, "{x:?}"),
            // The suffix tells it from float32.
            Attr::F64(x) => write!(f, "{x:?}f64"),
            Attr::Str(x) => write!(f, "{x:?}"),
            Attr::Bools(x) => write!(f, "{x:?}"),
            Attr::I32s(x) => write!(f, "{x:?}"),
            Attr::I64s(x) => write!(f, "{x:?}"),
            Attr::F32s(x) => write!(f, "{x:?}"),
            Attr::F64s(x) => write!(f, "{x:?}"),
            Attr::Strs(x) => write!(f, "{x:?}"),
            Attr::Block(x) => write!(f, "block {}", x.index()),
            Attr::Blocks(x) => write!(f, "blocks {:?}", x.iter().map(|b| b.index()).collect::<Vec<_>>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_equal_if_their_bits_are() {
        assert_eq!(Attr::F64(f64::NAN), Attr::F64(f64::NAN));
        assert_eq!(Attr::F32s(vec![f32::NAN, 1.0]), Attr::F32s(vec![f32::NAN, 1.0]));
        assert_ne!(Attr::F64(0.0), Attr::F64(-0.0));
        assert_ne!(Attr::F64s(vec![0.0]), Attr::F64s(vec![-0.0]));
        assert_ne!(Attr::F32s(vec![0.0]), Attr::F32s(vec![0.0; 2]));
        assert_ne!(Attr::I32(1), Attr::I64(1));
    }
}
