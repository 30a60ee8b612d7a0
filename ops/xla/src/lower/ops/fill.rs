//! Constant tensors and ranges.

use autobwd::operators::FillConstant;
use autobwd_ops::{fill::AssignValue, random::Seed, ranges::Range};

use super::prelude::*;

rules!(AssignValue, FillConstant, Range, Seed);

/// The number of an attribute `value`, or of `str_value`, which represents more numbers, in the type of an output.
fn filled(out: &Hlo, value: f32, text: &str) -> Hlo {
    match (text.trim(), text.trim().parse::<i64>()) {
        ("", _) => out.full_like(f64::from(value)),
        // Integers beyond 2^53 are no floating point numbers.
        (_, Ok(number)) if out.dtype() == HloDType::I64 => out.full_i64(number),
        (text, _) => out.full_like(text.parse().unwrap_or(f64::from(value))),
    }
}

impl Rule<Hlo> for FillConstant<Hlo> {
    fn apply(&mut self) {
        self.out = match &self.value_tensor {
            Some(value) => value.reshape(&[]).broadcast(self.out.dims(), &[]),
            None => filled(&self.out, self.value, &self.str_value),
        };
    }
}
impl Rule<Hlo> for Seed<Hlo> {
    fn apply(&mut self) {
        self.out = self.out.full_like(f64::from(self.seed));
    }
}

impl Rule<Hlo> for AssignValue<Hlo> {
    fn apply(&mut self) {
        let numbers: Vec<f64> = match self.out.dtype() {
            HloDType::F32 => self.fp32_values.iter().map(|x| f64::from(*x)).collect(),
            HloDType::F64 => self.fp64_values.clone(),
            HloDType::I32 => self.int32_values.iter().map(|x| f64::from(*x)).collect(),
            HloDType::I64 => {
                self.out = self.out.vector_i64(&self.int64_values);
                return;
            }
            _ => self.bool_values.iter().map(|x| f64::from(*x)).collect(),
        };
        self.out = self.out.vector(self.out.dtype(), &numbers);
    }
}

impl Rule<Hlo> for Range<Hlo> {
    fn apply(&mut self) {
        let first = |value: &Hlo| value.known().and_then(<[f64]>::first).copied().unwrap_or_default();
        let (start, step) = (first(&self.start), first(&self.step));
        self.out = self.out.iota(self.out.dtype(), self.out.dims(), 0) * step + start;
    }
}
