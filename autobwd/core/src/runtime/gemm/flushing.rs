//! Products that take and give 0 for subnormal numbers, by the control register of the thread.

/// While it lives, this thread takes and gives 0 for subnormal numbers, as VDPBF16PS does on every machine.
///
/// x86 decides after rounding whether a result is subnormal, aarch64 before. So a result that is less than 2^-126 by
/// 2^-151 at most is 2^-126 on x86 and 0 on aarch64. Other architectures have no such register: there it does nothing.
pub(super) struct Flushing(register::Value);

impl Flushing {
    pub(super) fn new() -> Flushing {
        let before = register::value();
        register::set(before | register::FLUSH);
        Flushing(before)
    }
}
impl Drop for Flushing {
    fn drop(&mut self) {
        register::set(self.0);
    }
}

#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub(super) type Value = u32;

    /// Bits of MXCSR: flush to zero, and denormals are zero.
    pub(super) const FLUSH: Value = 1 << 15 | 1 << 6;

    pub(super) fn value() -> Value {
        let mut value = 0_u32;
        // SAFETY: stores the control register of this thread; every x86-64 machine has it.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        value
    }

    pub(super) fn set(value: Value) {
        // SAFETY: the register has flags of floating point exceptions, and these two bits in addition to what it had. Code
        // that runs meanwhile is not compiled together with its caller (`multiply` is called by its address), and computes
        // nothing but products.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    pub(super) type Value = u64;

    /// The bit FZ of FPCR: inputs and results.
    pub(super) const FLUSH: Value = 1 << 24;

    pub(super) fn value() -> Value {
        let value: u64;
        // SAFETY: reads the control register of this thread; every aarch64 machine has it.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }

    pub(super) fn set(value: Value) {
        // SAFETY: as for x86-64; this bit in addition to what it had. It may touch memory, so that products stay between
        // two calls.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub(super) type Value = u32;

    pub(super) const FLUSH: Value = 0;

    pub(super) fn value() -> Value {
        0
    }

    pub(super) fn set(_: Value) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::hint::black_box;

    use super::Flushing;

    /// Called by its address, as products are.
    #[inline(never)]
    fn product(x: f32, y: f32) -> f32 {
        x * y
    }

    #[test]
    fn subnormal_numbers_are_zeros_meanwhile() {
        let product = black_box(product as fn(f32, f32) -> f32);
        let subnormal = f32::MIN_POSITIVE / 2.0;
        {
            let _flushing = Flushing::new();
            assert_eq!([product(f32::MIN_POSITIVE, 0.5), product(subnormal, 4.0)], [0.0, 0.0]);
        }
        assert_eq!([product(f32::MIN_POSITIVE, 0.5), product(subnormal, 4.0)], [subnormal, 4.0 * subnormal]);
    }
}
