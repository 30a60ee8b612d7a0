//! Types of elements: those of ONNX, and the dtypes that hold them.
//!
//! Integers that autobwd lacks are held in a wider dtype. The table of import rules says for which operators that is
//! exact; results are wrapped.

use autobwd::DType;

use crate::{minifloat::Minifloat, proto::tensor_proto::DataType};

/// A type of elements in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementType(DataType);

impl ElementType {
    pub(crate) const BOOL: ElementType = ElementType(DataType::Bool);
    pub(crate) const I64: ElementType = ElementType(DataType::Int64);
    pub(crate) const F32: ElementType = ElementType(DataType::Float);
    pub(crate) const U8: ElementType = ElementType(DataType::Uint8);

    /// The type with this number in a file, except that of no type.
    pub(crate) fn from_code(code: i32) -> Option<ElementType> {
        DataType::try_from(code).ok().filter(|ty| *ty != DataType::Undefined).map(ElementType)
    }

    /// The type in the messages of files.
    pub(crate) fn data_type(self) -> DataType {
        self.0
    }

    /// The type of elements of this dtype.
    pub(crate) fn of(dtype: DType) -> ElementType {
        ElementType(match dtype {
            DType::Bool => DataType::Bool,
            DType::U8 => DataType::Uint8,
            DType::I32 => DataType::Int32,
            DType::I64 => DataType::Int64,
            DType::F16 => DataType::Float16,
            DType::BF16 => DataType::Bfloat16,
            DType::F32 => DataType::Float,
            DType::F64 => DataType::Double,
        })
    }

    /// The dtype that holds every element exactly; of uint64, those below 2⁶³.
    pub(crate) fn dtype(self) -> Option<DType> {
        Some(match self.0 {
            DataType::Bool => DType::Bool,
            DataType::Uint8 => DType::U8,
            DataType::Int2 | DataType::Uint2 | DataType::Int4 | DataType::Uint4 => DType::I32,
            DataType::Int8 | DataType::Int16 | DataType::Uint16 | DataType::Int32 => DType::I32,
            DataType::Uint32 | DataType::Uint64 | DataType::Int64 => DType::I64,
            DataType::Float16 => DType::F16,
            DataType::Bfloat16 => DType::BF16,
            DataType::Float => DType::F32,
            DataType::Double => DType::F64,
            _ => return self.minifloat().map(|_| DType::F32),
        })
    }

    /// Whether the dtype has the same elements.
    pub(crate) fn is_native(self) -> bool {
        self.dtype().is_some_and(|dtype| ElementType::of(dtype) == self)
    }

    /// For integers that are held in a wider dtype: the number of bits, and whether they have a sign.
    pub(crate) fn narrow_integer(self) -> Option<(u32, bool)> {
        Some(match self.0 {
            DataType::Int2 => (2, true),
            DataType::Uint2 => (2, false),
            DataType::Int4 => (4, true),
            DataType::Uint4 => (4, false),
            DataType::Int8 => (8, true),
            DataType::Int16 => (16, true),
            DataType::Uint16 => (16, false),
            DataType::Uint32 => (32, false),
            _ => return None,
        })
    }

    /// The encoding of floating point numbers of 4 and 8 bits; float32 holds them.
    pub(crate) fn minifloat(self) -> Option<Minifloat> {
        Minifloat::of(self.0)
    }

    /// Whether it is float16 or bfloat16.
    pub(crate) fn is_half(self) -> bool {
        matches!(self.0, DataType::Float16 | DataType::Bfloat16)
    }

    /// The name in ONNX.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.as_str_name()
    }
}
