//! The instruction sets that results are compared between.

use autobwd::op::{Isa, isa};

/// An instruction set, as `AUTOBWD_ISA` chooses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum InstructionSet {
    /// AVX2 and FMA, the least with full speed.
    Avx2,
    /// AVX-512.
    Avx512,
    /// The instructions that all machines of the target have. If there is no fused multiply-add among them, it is computed
    /// exactly by others.
    Baseline,
}

impl InstructionSet {
    pub(crate) const ALL: [InstructionSet; 3] =
        [InstructionSet::Avx2, InstructionSet::Avx512, InstructionSet::Baseline];

    pub(crate) fn name(self) -> &'static str {
        match self {
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Baseline => "baseline",
        }
    }

    /// Whether it has no fused multiply-add.
    pub(crate) fn is_emulated(self) -> bool {
        self == InstructionSet::Baseline && Isa::Baseline.warning().is_some()
    }

    /// Why it cannot be used here.
    pub(crate) fn is_missing(self) -> Option<&'static str> {
        match (self, isa()) {
            (InstructionSet::Avx2, Isa::Baseline) => Some("no AVX2 and FMA here"),
            (InstructionSet::Avx512, Isa::Baseline | Isa::Avx2) => Some("no AVX-512 here"),
            _ => None,
        }
    }

    /// The first one that this machine has; the others are compared with it.
    pub(crate) fn reference() -> InstructionSet {
        let mut all = InstructionSet::ALL.into_iter();
        all.find(|isa| isa.is_missing().is_none()).unwrap_or(InstructionSet::Baseline)
    }
}
