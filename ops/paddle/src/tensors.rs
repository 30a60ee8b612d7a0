//! Tensors in the reference's binary format: `.pdiparams` files, and files of one variable.
//!
//! A tensor is `u32` 0, the number of LoD levels as `u64`, each level as its size in bytes and its data, `u32` 0, the
//! length of a `TensorDesc` message as `i32`, that message, and the elements, all little-endian.

use autobwd::{DType, Error, ErrorKind, Result, Tensor};
use prost::Message;

use crate::proto::var_type::{TensorDesc, Type};

/// The dtype of elements of this type, if autobwd has it.
pub(crate) fn dtype(ty: Type) -> Option<DType> {
    DType::from_code(ty as i32)
}

/// The type of elements of this dtype.
pub(crate) fn element_type(dtype: DType) -> Type {
    match dtype {
        DType::Bool => Type::Bool,
        DType::U8 => Type::Uint8,
        DType::I32 => Type::Int32,
        DType::I64 => Type::Int64,
        DType::F16 => Type::Fp16,
        DType::BF16 => Type::Bf16,
        DType::F32 => Type::Fp32,
        DType::F64 => Type::Fp64,
    }
}

/// The bytes of a file that are not read yet.
pub(crate) struct LodTensorReader<'a> {
    rest: &'a [u8],
}

fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, what)
}

impl<'a> LodTensorReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> LodTensorReader<'a> {
        LodTensorReader { rest: bytes }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or_else(|| {
            refuse(format!("{n} bytes are needed, but the file ends after {}", self.rest.len()))
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn version(&mut self) -> Result<()> {
        match u32::from_le_bytes(self.number()?) {
            0 => Ok(()),
            other => Err(refuse(format!("version {other} of the tensor format is not known"))),
        }
    }

    /// The next tensor.
    ///
    /// # Errors
    /// A file that ends too early; another version; sequences (LoD); a dtype that autobwd does not have.
    pub(crate) fn read(&mut self) -> Result<Tensor> {
        self.version()?;
        if u64::from_le_bytes(self.number()?) != 0 {
            return Err(refuse("it has LoD levels; sequences of this form are not supported"));
        }
        self.version()?;
        let length = i32::from_le_bytes(self.number()?);
        let length = usize::try_from(length).map_err(|_| refuse(format!("a message of {length} bytes")))?;
        let desc = TensorDesc::decode(self.take(length)?)
            .map_err(|e| refuse(format!("not a description of a tensor: {e}")).caused_by(e))?;
        let ty = desc.data_type();
        let dtype = dtype(ty)
            .filter(|_| desc.data_type == ty as i32)
            .ok_or_else(|| refuse(format!("elements of type {} are not supported", ty.as_str_name())))?;
        let dims: Option<Vec<usize>> = desc.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let dims = dims.ok_or_else(|| refuse(format!("{:?} is not a shape", desc.dims)))?;
        let bytes = dims.iter().try_fold(dtype.size(), |n, dim| n.checked_mul(*dim));
        // Before memory is allocated: a file may claim any shape.
        let elements = self.take(bytes.ok_or_else(|| refuse(format!("{dims:?} is too large")))?)?;
        let mut tensor = Tensor::zeros(dtype, &dims)?;
        tensor.bytes_mut().copy_from_slice(elements);
        Ok(tensor)
    }
}

/// Appends a tensor to the bytes of a file.
pub(crate) fn write_tensor(tensor: &Tensor, file: &mut Vec<u8>) {
    let dims = tensor.dims().iter().map(|dim| *dim as i64).collect();
    let desc = TensorDesc { data_type: element_type(tensor.dtype()) as i32, dims }.encode_to_vec();
    file.extend(0_u32.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.extend(0_u32.to_le_bytes());
    file.extend((desc.len() as i32).to_le_bytes());
    file.extend(desc);
    file.extend(tensor.bytes());
}
