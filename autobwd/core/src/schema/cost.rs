//! Cost estimates of operators.

use std::iter::Sum;

/// An estimate of the cost of an operator, from its shapes alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating point operations, as [stated](crate::Infer::flops) by its shape rule.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl Cost {
    /// Time in picoseconds on a core that does 100 operations and moves 20 bytes per nanosecond, without overlap of the
    /// two.
    pub fn picoseconds(self) -> u64 {
        self.flops.saturating_mul(10).saturating_add(self.bytes.saturating_mul(50))
    }
}
impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |a, b| Cost {
            flops: a.flops.saturating_add(b.flops),
            bytes: a.bytes.saturating_add(b.bytes),
        })
    }
}
