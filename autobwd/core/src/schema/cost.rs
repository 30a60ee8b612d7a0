use std::iter::Sum;

/// An estimate of what running an operator takes, from its shapes alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating point operations, as its shape rule [states](crate::Infer::flops) them.
    pub flops: u64,
    /// Bytes that it reads and writes.
    pub bytes: u64,
}

impl Cost {
    /// Time on one core that does 100 operations and moves 20 bytes in a nanosecond, one after the other: picoseconds.
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
