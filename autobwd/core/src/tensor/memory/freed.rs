//! Memory that the process has freed.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    /// Gives the free pages of the C library's heap back to the system, but for this many bytes at its end. It has no
    /// precondition.
    safe fn malloc_trim(kept: usize) -> std::ffi::c_int;
}

/// Gives memory that was freed back to the system, as far as the C library kept it for later: 150 MB after half a gigabyte
/// of weights was quantised and a step planned. Costs milliseconds, and later allocations their page faults.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    malloc_trim(0);
}
