//! Quantised weights: frozen weights of products in 8 or 4 bits.

mod encode;
mod plan;
mod quantizer;
mod rewrite;

use std::{fmt, str::FromStr};

use autobwd::{Error, ErrorKind, Result};

pub use crate::matmul::QuantizedKind;
pub use quantizer::{QuantizeReport, Quantizer, quantize};

/// How weights are quantised: what codes stand for, and how many rows share a scale.
///
/// ```
/// use autobwd_ops::quantization::{Quantization, QuantizedKind};
/// let quantization: Quantization = "int4:128:asymmetric".parse()?;
/// assert_eq!(
///     quantization,
///     Quantization { kind: QuantizedKind::Int4, group_size: 128, zero_points: true }
/// );
/// assert_eq!("nf4".parse::<Quantization>()?.group_size, 64);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// What codes stand for.
    pub kind: QuantizedKind,
    /// Rows of a column, terms of the product, with a common scale: a multiple of 4 for int8, of 8 for the others.
    pub group_size: usize,
    /// Whether each group has a zero point (asymmetric), for numbers that lie unevenly around 0; not for NF4.
    pub zero_points: bool,
}

impl Quantization {
    /// 8 bits, groups of 32: 9 bits a weight, with a scale of float32.
    pub const INT8: Quantization =
        Quantization { kind: QuantizedKind::Int8, group_size: 32, zero_points: false };
    /// 4 bits, groups of 32: 5 bits a weight.
    pub const INT4: Quantization =
        Quantization { kind: QuantizedKind::Int4, group_size: 32, zero_points: false };
    /// 4 bits of NF4, groups of 64: 4.5 bits a weight.
    pub const NF4: Quantization =
        Quantization { kind: QuantizedKind::Nf4, group_size: 64, zero_points: false };

    /// Checks the group size, and that NF4 has no zero points.
    fn check(self) -> Result<()> {
        let per_cell = self.kind.rows_of_cell();
        let fail = |text: String| Err(Error::new(ErrorKind::Attr, text));
        if self.group_size == 0
            || !self.group_size.is_multiple_of(per_cell)
            || self.group_size > i32::MAX as usize
        {
            return fail(format!(
                "`{self}`: the group size must be a multiple of {per_cell}, not {}",
                self.group_size
            ));
        }
        match self.zero_points && self.kind == QuantizedKind::Nf4 {
            true => fail(format!("`{self}`: nf4 has no zero points")),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            QuantizedKind::Int8 => "int8",
            QuantizedKind::Int4 => "int4",
            QuantizedKind::Nf4 => "nf4",
        };
        write!(f, "{kind}:{}{}", self.group_size, if self.zero_points { ":asymmetric" } else { "" })
    }
}

/// `int8`, `int4` or `nf4`, then a group size, then `asymmetric`, with colons between them.
impl FromStr for Quantization {
    type Err = Error;

    fn from_str(text: &str) -> Result<Quantization> {
        let unknown = || {
            let known = "int8, int4 or nf4, with a group size (`int4:128`), and with zero points (`int4:128:asymmetric`)";
            Error::new(ErrorKind::Attr, format!("`{text}` is no quantisation: {known}"))
        };
        let mut parts = text.split(':');
        let mut quantization = match parts.next() {
            Some("int8") => Quantization::INT8,
            Some("int4") => Quantization::INT4,
            Some("nf4") => Quantization::NF4,
            _ => return Err(unknown()),
        };
        if let Some(group_size) = parts.next() {
            quantization.group_size = group_size.parse().map_err(|_| unknown())?;
        }
        quantization.zero_points = match parts.next() {
            None => false,
            Some("asymmetric") => true,
            Some(_) => return Err(unknown()),
        };
        if parts.next().is_some() {
            return Err(unknown());
        }
        quantization.check()?;
        Ok(quantization)
    }
}
