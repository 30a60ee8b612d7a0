//! Attribute values of operators.

use std::fmt;

use super::BlockId;

/// The value of an attribute. A dtype is stored as its [`code`](crate::DType::code), an enum as its name.
#[derive(Clone, Debug, PartialEq)]
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
