//! Detection of the machine's instruction set.

use std::sync::OnceLock;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// The instructions of every machine of the target.
    Baseline,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, VL, DQ and BW.
    Avx512,
}

impl Isa {
    /// What users should know about runs with this instruction set, if it has no fused multiply-add.
    pub fn warning(self) -> Option<&'static str> {
        (self == Isa::Baseline && !FUSED).then_some(
            "this machine has no AVX2 and FMA, which are emulated exactly: results are the same, but take much longer",
        )
    }
}

/// The instruction set that block functions and products use on this machine; `AUTOBWD_ISA=baseline` or `avx2` lowers
/// it.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        let cap = std::env::var("AUTOBWD_ISA").unwrap_or_default();
        match detect() {
            Isa::Baseline => Isa::Baseline,
            _ if cap == "baseline" => Isa::Baseline,
            Isa::Avx512 if cap == "avx2" => Isa::Avx2,
            isa => isa,
        }
    })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    // Every feature in the `target_feature` lists.
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Baseline,
    }
}
#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Baseline
}

/// Whether every machine of the target has fused multiply-add.
pub const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
