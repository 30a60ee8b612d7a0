//! The memory of the process.

use autobwd_core::__private::return_freed_memory;

/// The bytes of the process that are in memory now, without those that it has freed; 0 where the system does not say.
pub(super) fn resident_bytes() -> usize {
    return_freed_memory();
    // Linux: <https://docs.kernel.org/filesystems/proc.html>
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}
