//! Floating point numbers of 4 and of 8 bits.

use crate::proto::tensor_proto::DataType;

/// The encoding of floating point numbers of at most 8 bits ([ONNX, Float stored in 8 bits and in 4
/// bits](https://onnx.ai/onnx/technical/float8.html)).
#[derive(Clone, Copy)]
pub(crate) struct Minifloat {
    exponent: u32,
    fraction: u32,
    bias: i32,
    nan: NanCode,
}

/// How NaN is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NanCode {
    None,
    /// By ones in all bits but the sign.
    AllOnes,
    /// By what would be −0.
    NegativeZero,
    /// By the largest exponent; without a fraction, it is an infinity.
    AsIeee,
}

impl Minifloat {
    /// The encoding of a type, if it is one.
    pub(crate) fn of(ty: DataType) -> Option<Minifloat> {
        let of = |exponent: u32, fraction, bias, nan| Minifloat { exponent, fraction, bias, nan };
        Some(match ty {
            DataType::Float8e4m3fn => of(4, 3, 7, NanCode::AllOnes),
            DataType::Float8e4m3fnuz => of(4, 3, 8, NanCode::NegativeZero),
            DataType::Float8e5m2 => of(5, 2, 15, NanCode::AsIeee),
            DataType::Float8e5m2fnuz => of(5, 2, 16, NanCode::NegativeZero),
            DataType::Float8e8m0 => of(8, 0, 127, NanCode::AllOnes),
            DataType::Float4e2m1 => of(2, 1, 1, NanCode::None),
            _ => return None,
        })
    }

    /// The number of a code; there is a sign unless the exponent takes all 8 bits.
    pub(crate) fn decode(self, code: u8) -> f32 {
        let (code, bits) = (u32::from(code), self.exponent + self.fraction);
        let (sign, low) = (code >> bits & 1, code & ((1 << bits) - 1));
        let (exponent, fraction) = (low >> self.fraction, low & ((1 << self.fraction) - 1));
        let largest = (1 << self.exponent) - 1;
        let is_nan = match self.nan {
            NanCode::None => false,
            NanCode::AllOnes => low == (1 << bits) - 1,
            NanCode::NegativeZero => sign == 1 && low == 0,
            NanCode::AsIeee => exponent == largest && fraction > 0,
        };
        let part = f64::from(fraction) / f64::from(1 << self.fraction);
        // The exponents are those of normal numbers of float64.
        let power = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
        let size = match exponent {
            _ if is_nan => f64::NAN,
            _ if self.nan == NanCode::AsIeee && exponent == largest => f64::INFINITY,
            // Without a fraction, there are no subnormal numbers.
            0 if self.fraction > 0 => part * power(1 - self.bias),
            _ => (1.0 + part) * power(exponent as i32 - self.bias),
        };
        (if sign == 1 { -size } else { size }) as f32
    }
}
