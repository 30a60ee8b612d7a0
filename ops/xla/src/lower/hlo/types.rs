//! Types of values.

use std::fmt;

use autobwd::{
    DType, Meta,
    tensor::{bf16, f16},
};

/// The element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HloDType {
    /// True or false.
    Bool,
    /// Unsigned integers of 8 bits.
    U8,
    /// Unsigned integers of 32 bits, for computations within a rule.
    U32,
    /// Unsigned integers of 64 bits, for computations within a rule.
    U64,
    /// Integers of 32 bits.
    I32,
    /// Integers of 64 bits.
    I64,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl HloDType {
    /// Whether it is one of the floating point types of 16 bits.
    pub(super) fn is_half(self) -> bool {
        matches!(self, HloDType::F16 | HloDType::BF16)
    }
}

impl From<DType> for HloDType {
    fn from(dtype: DType) -> HloDType {
        match dtype {
            DType::Bool => HloDType::Bool,
            DType::U8 => HloDType::U8,
            DType::I32 => HloDType::I32,
            DType::I64 => HloDType::I64,
            DType::F16 => HloDType::F16,
            DType::BF16 => HloDType::BF16,
            DType::F32 => HloDType::F32,
            DType::F64 => HloDType::F64,
        }
    }
}

impl HloDType {
    /// Whether it is a floating point type.
    pub fn is_float(self) -> bool {
        matches!(self, HloDType::F16 | HloDType::BF16 | HloDType::F32 | HloDType::F64)
    }

    /// The smallest number.
    pub fn lowest(self) -> f64 {
        match self {
            HloDType::F16 | HloDType::BF16 | HloDType::F32 | HloDType::F64 => f64::NEG_INFINITY,
            HloDType::I32 => f64::from(i32::MIN),
            HloDType::I64 => i64::MIN as f64,
            HloDType::Bool | HloDType::U8 | HloDType::U32 | HloDType::U64 => 0.0,
        }
    }

    /// The largest number.
    pub fn highest(self) -> f64 {
        match self {
            HloDType::F16 | HloDType::BF16 | HloDType::F32 | HloDType::F64 => f64::INFINITY,
            HloDType::Bool => 1.0,
            HloDType::U8 => f64::from(u8::MAX),
            HloDType::U32 => f64::from(u32::MAX),
            HloDType::U64 => u64::MAX as f64,
            HloDType::I32 => f64::from(i32::MAX),
            HloDType::I64 => i64::MAX as f64,
        }
    }

    fn name(self) -> &'static str {
        match self {
            HloDType::Bool => "i1",
            HloDType::U8 => "ui8",
            HloDType::U32 => "ui32",
            HloDType::U64 => "ui64",
            HloDType::I32 => "i32",
            HloDType::I64 => "i64",
            HloDType::F16 => "f16",
            HloDType::BF16 => "bf16",
            HloDType::F32 => "f32",
            HloDType::F64 => "f64",
        }
    }

    /// The kind of a comparison.
    pub(super) fn comparison(self) -> &'static str {
        match self {
            HloDType::F16 | HloDType::BF16 | HloDType::F32 | HloDType::F64 => "FLOAT",
            HloDType::I32 | HloDType::I64 => "SIGNED",
            HloDType::Bool | HloDType::U8 | HloDType::U32 | HloDType::U64 => "UNSIGNED",
        }
    }

    /// A number as a literal; floating point numbers by their bits, so that no digit is lost.
    pub(super) fn literal(self, x: f64) -> String {
        match self {
            HloDType::Bool => (x != 0.0).to_string(),
            HloDType::U8 => (x as u8).to_string(),
            HloDType::U32 => (x as u32).to_string(),
            HloDType::U64 => (x as u64).to_string(),
            HloDType::I32 => (x as i32).to_string(),
            HloDType::I64 => (x as i64).to_string(),
            HloDType::F16 => format!("0x{:04X}", f16::from_f64(x).to_bits()),
            HloDType::BF16 => format!("0x{:04X}", bf16::from_f64(x).to_bits()),
            HloDType::F32 => format!("0x{:08X}", (x as f32).to_bits()),
            HloDType::F64 => format!("0x{:016X}", x.to_bits()),
        }
    }
}

/// Dtype and dimensions of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HloType {
    /// The element type.
    pub dtype: HloDType,
    /// The dimensions.
    pub dims: Vec<usize>,
}

impl HloType {
    /// A scalar.
    pub fn scalar(dtype: HloDType) -> HloType {
        HloType { dtype, dims: vec![] }
    }

    /// The type of that many values, along a new first dimension.
    pub(crate) fn stacked(&self, count: usize) -> HloType {
        HloType { dtype: self.dtype, dims: std::iter::once(count).chain(self.dims.iter().copied()).collect() }
    }

    /// The type of a dense tensor whose dimensions are known; unknown ones count as 0.
    pub(crate) fn of(meta: &Meta) -> HloType {
        let dims = meta.dims.iter().map(|dim| dim.get().unwrap_or(0)).collect();
        HloType { dtype: meta.dtype.into(), dims }
    }
}

impl fmt::Display for HloType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        self.dims.iter().try_for_each(|dim| write!(f, "{dim}x"))?;
        write!(f, "{}>", self.dtype.name())
    }
}

/// Types in a list: `tensor<2xf32>, tensor<i32>`.
pub(super) fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// `(tensor<2xf32>, tensor<i32>)`; a single type has no parentheses where it is a result.
pub(super) fn results(types: &[HloType]) -> String {
    match types {
        [one] => one.to_string(),
        types => format!("({})", list(types)),
    }
}
