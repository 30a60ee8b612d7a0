//! Tensors of ONNX files.

use autobwd::{
    DType, Error, ErrorKind, Result, Tensor,
    tensor::{Bool, Element, bf16, f16},
};
use prost::{Message, bytes::Bytes};

use crate::{
    elements::ElementType,
    external::ExternalData,
    proto::{
        TensorProto,
        tensor_proto::{DataLocation, DataType},
    },
};

/// A tensor with its type in ONNX.
#[derive(Clone, Debug)]
pub struct OnnxTensor {
    /// The name in the file, which may be empty.
    pub name: String,
    /// The type of the elements in the file.
    pub element: ElementType,
    /// The elements, in a dtype that holds them exactly.
    pub tensor: Tensor,
}

/// Reads a file of one tensor (`TensorProto`) from its bytes.
///
/// # Errors
/// Other messages; elements of types that no dtype holds; elements that do not fill the shape; external data.
pub fn read_tensor(bytes: &[u8]) -> Result<OnnxTensor> {
    let message =
        TensorProto::decode(bytes).map_err(|e| refuse(format!("not a tensor: {e}")).caused_by(e))?;
    read(&message, &ExternalData::none())
}

/// The message of a tensor.
pub(crate) fn message(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: tensor.dims().iter().map(|dim| *dim as i64).collect(),
        data_type: Some(ElementType::of(tensor.dtype()).data_type() as i32),
        raw_data: Some(Bytes::copy_from_slice(tensor.bytes())),
        ..TensorProto::default()
    }
}

fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, what)
}

/// The type of the elements of a message.
pub(crate) fn element_type(message: &TensorProto) -> Result<ElementType> {
    let code = message.data_type.unwrap_or_default();
    ElementType::from_code(code).ok_or_else(|| refuse(format!("{code} is not a type of elements")))
}

/// The tensor in a message.
pub(crate) fn read(message: &TensorProto, external: &ExternalData) -> Result<OnnxTensor> {
    let element = element_type(message)?;
    let unsupported = || Error::new(ErrorKind::DType, format!("dtype {} is not supported", element.name()));
    let dtype = element.dtype().ok_or_else(unsupported)?;
    let dims: Option<Vec<usize>> = message.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
    let dims = dims.ok_or_else(|| refuse(format!("{:?} is not a shape", message.dims)))?;
    let count = dims.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
    let count = count.filter(|n| n.checked_mul(64).is_some());
    let count = count.ok_or_else(|| refuse(format!("{dims:?} is too large")))?;
    if message.segment.is_some() {
        return Err(refuse("tensors in segments are not supported"));
    }
    let loaded;
    let bits = stored_bits(element);
    let size = (count * bits).div_ceil(8);
    let raw = match (&message.raw_data, message.data_location()) {
        (_, DataLocation::External) => {
            loaded = external.read(&message.external_data, size)?;
            Some(&loaded[..])
        }
        (None, DataLocation::Default) if bits < 8 || element.minifloat().is_some() => {
            // A byte for each number of the field.
            loaded = message.int32_data.iter().map(|byte| *byte as u8).collect();
            Some(&loaded[..])
        }
        (raw, DataLocation::Default) => raw.as_deref(),
    };
    // Before memory is allocated: a file may claim any shape.
    let fits = raw.is_none_or(|raw| raw.len() == size);
    let stored = match raw {
        Some(_) if fits => count,
        Some(raw) => raw.len() * 8 / bits,
        None => typed_count(message, element),
    };
    if stored != count || !fits {
        return Err(refuse(format!("{stored} elements do not fill shape {dims:?}")));
    }
    let tensor = match raw {
        Some(raw) => from_raw(raw, element, &dims)?,
        None => from_fields(message, dtype, element, &dims)?,
    };
    Ok(OnnxTensor { name: message.name().to_string(), element, tensor })
}

/// The size of an element in a file, in bits.
fn stored_bits(element: ElementType) -> usize {
    match element.data_type() {
        DataType::Int2 | DataType::Uint2 => 2,
        DataType::Int4 | DataType::Uint4 | DataType::Float4e2m1 => 4,
        DataType::Bool | DataType::Uint8 | DataType::Int8 => 8,
        _ if element.minifloat().is_some() => 8,
        DataType::Int16 | DataType::Uint16 | DataType::Float16 | DataType::Bfloat16 => 16,
        DataType::Int32 | DataType::Uint32 | DataType::Float => 32,
        _ => 64,
    }
}

/// Elements of at most 8 bits, the first ones in the lowest bits of a byte. Each is given in the highest bits of a byte.
fn packed<T: Element>(raw: &[u8], bits: usize, dims: &[usize], of: impl Fn(u8) -> T) -> Result<Tensor> {
    let codes = raw.iter().flat_map(|byte| (0..8 / bits).map(move |i| byte << (8 - bits - i * bits)));
    let mut tensor = Tensor::zeros(T::DTYPE, dims)?;
    tensor.slice_mut::<T>()?.iter_mut().zip(codes).for_each(|(x, code)| *x = of(code));
    Ok(tensor)
}

/// Elements from their little-endian bytes.
fn from_raw(raw: &[u8], element: ElementType, dims: &[usize]) -> Result<Tensor> {
    fn all<const N: usize, T: Element>(
        raw: &[u8],
        dims: &[usize],
        of: impl Fn([u8; N]) -> T,
    ) -> Result<Tensor> {
        // Memory as kernels need it.
        let mut tensor = Tensor::zeros(T::DTYPE, dims)?;
        let (elements, _) = raw.as_chunks();
        tensor.slice_mut::<T>()?.iter_mut().zip(elements).for_each(|(x, bytes)| *x = of(*bytes));
        Ok(tensor)
    }
    let bits = stored_bits(element);
    if let Some(format) = element.minifloat() {
        return packed(raw, bits, dims, |code| format.decode(code >> (8 - bits)));
    }
    match element.data_type() {
        DataType::Int2 | DataType::Int4 => {
            packed(raw, bits, dims, |code| i32::from(code as i8 >> (8 - bits)))
        }
        DataType::Uint2 | DataType::Uint4 => packed(raw, bits, dims, |code| i32::from(code >> (8 - bits))),
        DataType::Bool => all(raw, dims, |[x]| Bool::from(x != 0)),
        DataType::Uint8 => all(raw, dims, |[x]| x),
        DataType::Int8 => all(raw, dims, |[x]| i32::from(x as i8)),
        DataType::Int16 => all(raw, dims, |x| i32::from(i16::from_le_bytes(x))),
        DataType::Uint16 => all(raw, dims, |x| i32::from(u16::from_le_bytes(x))),
        DataType::Float16 => all(raw, dims, f16::from_le_bytes),
        DataType::Bfloat16 => all(raw, dims, bf16::from_le_bytes),
        DataType::Int32 => all(raw, dims, i32::from_le_bytes),
        DataType::Uint32 => all(raw, dims, |x| i64::from(u32::from_le_bytes(x))),
        DataType::Float => all(raw, dims, f32::from_le_bytes),
        DataType::Double => all(raw, dims, f64::from_le_bytes),
        DataType::Uint64 => {
            require_small(raw.as_chunks().0.iter().map(|x| u64::from_le_bytes(*x)))?;
            all(raw, dims, i64::from_le_bytes)
        }
        _ => all(raw, dims, i64::from_le_bytes),
    }
}

/// The number of elements in the field for that type.
fn typed_count(message: &TensorProto, element: ElementType) -> usize {
    match element.data_type() {
        DataType::Float => message.float_data.len(),
        DataType::Double => message.double_data.len(),
        DataType::Int64 => message.int64_data.len(),
        DataType::Uint32 | DataType::Uint64 => message.uint64_data.len(),
        _ => message.int32_data.len(),
    }
}

/// Elements from the field for their type.
fn from_fields(message: &TensorProto, dtype: DType, element: ElementType, dims: &[usize]) -> Result<Tensor> {
    let small = message.int32_data.iter();
    match (element.data_type(), dtype) {
        (DataType::Uint32 | DataType::Uint64, _) => {
            require_small(message.uint64_data.iter().copied())?;
            Tensor::from_vec(dims, message.uint64_data.iter().map(|x| *x as i64).collect())
        }
        (DataType::Int8, _) => Tensor::from_vec(dims, small.map(|x| i32::from(*x as i8)).collect()),
        (DataType::Int16, _) => Tensor::from_vec(dims, small.map(|x| i32::from(*x as i16)).collect()),
        (DataType::Uint16, _) => Tensor::from_vec(dims, small.map(|x| i32::from(*x as u16)).collect()),
        (_, DType::Bool) => Tensor::from_vec(dims, small.map(|x| Bool::from(*x != 0)).collect()),
        (_, DType::U8) => Tensor::from_vec(dims, small.map(|x| *x as u8).collect()),
        (_, DType::I32) => Tensor::from_vec(dims, message.int32_data.clone()),
        (_, DType::I64) => Tensor::from_vec(dims, message.int64_data.clone()),
        (_, DType::F16) => Tensor::from_vec(dims, small.map(|x| f16::from_bits(*x as u16)).collect()),
        (_, DType::BF16) => Tensor::from_vec(dims, small.map(|x| bf16::from_bits(*x as u16)).collect()),
        (_, DType::F32) => Tensor::from_vec(dims, message.float_data.clone()),
        (_, DType::F64) => Tensor::from_vec(dims, message.double_data.clone()),
    }
}

/// Unsigned numbers must be representable as int64.
fn require_small(mut elements: impl Iterator<Item = u64>) -> Result<()> {
    match elements.find(|x| i64::try_from(*x).is_err()) {
        Some(x) => Err(refuse(format!("{x} exceeds int64, which holds elements of uint64"))),
        None => Ok(()),
    }
}
