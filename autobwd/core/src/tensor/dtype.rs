//! Element types.

use std::fmt;

use half::{bf16, f16};

/// Element type of a tensor.
///
/// Two floating point types have 16 bits: `F16`, with the digits of 3 decimals up to 65,504, and `BF16`, with the digits
/// of 2 and the range of `F32`. 16 bits are for storage: operators compute in `F32`, and round each result once, to the
/// nearest number, ties to even. Fusion does not change results.
///
/// ```
/// use autobwd::{Tensor, tensor::bf16};
/// let x = Tensor::from_vec([2], vec![bf16::from_f32(1.0), bf16::from_f32(0.1)])?;
/// assert_eq!(x.dtype().name(), "bfloat16");
/// assert_eq!(x.to_f64s(), [1.0, 0.10009765625]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte; zero is false.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision; in Rust, [`half::f16`](crate::half::f16).
    F16,
    /// The upper half of a single precision number; in Rust, [`half::bf16`](crate::half::bf16).
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl DType {
    /// All dtypes.
    pub const ALL: [DType; 8] =
        [DType::Bool, DType::U8, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64];

    /// Size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether values of this dtype have gradients.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// The dtype in which operators compute with elements of this one: `F32` for 16-bit floating point numbers, itself
    /// for others.
    pub fn arithmetic(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        }
    }

    /// Whether it is a 16-bit floating point type.
    pub fn is_half(self) -> bool {
        self.arithmetic() != self
    }

    /// Whether it is an integer type that formulas support.
    pub fn is_signed_integer(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// The name used in programs and messages, as in NumPy.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    /// The dtype of this [`name`](DType::name).
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The number of this dtype in operator attributes (PaddlePaddle's `VarType`).
    pub fn code(self) -> i32 {
        match self {
            DType::Bool => 0,
            DType::I32 => 2,
            DType::I64 => 3,
            DType::F16 => 4,
            DType::F32 => 5,
            DType::F64 => 6,
            DType::U8 => 20,
            DType::BF16 => 22,
        }
    }

    /// The dtype with this [`code`](DType::code).
    pub fn from_code(code: i32) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.code() == code)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that tensors can hold.
///
/// # Safety
/// Every bit pattern is a value, and size and alignment are both `DTYPE.size()`.
#[diagnostic::on_unimplemented(
    message = "tensors cannot hold `{Self}`",
    label = "elements are `f32`, `f64`, `f16`, `bf16`, `i32`, `i64`, `u8` or `Bool`"
)]
#[allow(unsafe_code)]
pub unsafe trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The dtype of a tensor with such elements.
    const DTYPE: DType;
}

/// A bool as tensors store it: one byte, with every bit pattern valid.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// The value.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}
impl From<bool> for Bool {
    fn from(value: bool) -> Bool {
        Bool(value.into())
    }
}
impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}
impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => {$(
        // SAFETY: a plain number (or one byte) of the dtype's size; all its bit patterns are values.
        #[allow(unsafe_code)]
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}
elements!(Bool => Bool, u8 => U8, i32 => I32, i64 => I64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

/// Runs `$body` with `$t` as the Rust type of a dtype.
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => {
                type $t = $crate::Bool;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::F16 => {
                type $t = $crate::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = $crate::half::bf16;
                $body
            }
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
        }
    };
}

/// Runs `$body` with `$t` as `f32`, `f64`, `i32` or `i64`; for another dtype the enclosing function returns an error
/// that names the slot of `$buf`.
#[macro_export]
macro_rules! with_signed {
    ($buf:expr, $t:ident => $body:expr) => {
        match $buf.dtype() {
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => return Err($buf.wrong("signed or floating point numbers are needed")),
        }
    };
}

/// Runs `$body` with `$t` as `f32` or `f64`; for another dtype the enclosing function returns an error that names the
/// slot of `$buf`.
#[macro_export]
macro_rules! with_float {
    ($buf:expr, $t:ident => $body:expr) => {
        match $buf.dtype() {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => return Err($buf.wrong("floating point numbers are needed")),
        }
    };
}

/// Runs `$body` with `$t` as `f32`, `f64`, `f16` or `bf16`, which products multiply; for another dtype the enclosing
/// function returns an error that names the slot of `$buf`.
#[macro_export]
macro_rules! with_factor {
    ($buf:expr, $t:ident => $body:expr) => {
        match $buf.dtype() {
            $crate::DType::F16 => {
                type $t = $crate::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = $crate::half::bf16;
                $body
            }
            _ => $crate::with_float!($buf, $t => $body),
        }
    };
}
