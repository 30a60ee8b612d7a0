//! Huge pages for large copies.

use std::mem::MaybeUninit;

/// The least size in bytes of memory with huge pages; NumPy has the same.
const MIN_BYTES: usize = 4 << 20;

/// Asks the system for huge pages where a copy will be written: it gives memory at the first write to each page, and with
/// pages of 4 KB that takes several times as long as the copy itself. Does nothing for small memory and on other systems
/// than Linux.
pub(in crate::tensor) fn prefer_huge_pages<T>(spare: &mut [MaybeUninit<T>]) {
    if size_of_val(spare) >= MIN_BYTES {
        #[cfg(target_os = "linux")]
        linux::advise(spare);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        ffi::{c_int, c_void},
        mem::MaybeUninit,
    };

    /// The least size in bytes of a page. Where pages are larger, the advice may be refused, which changes nothing.
    const PAGE: usize = 4096;

    /// The advice of `madvise` for huge pages.
    const HUGE_PAGES: c_int = 14;

    unsafe extern "C" {
        fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }

    pub(super) fn advise<T>(spare: &mut [MaybeUninit<T>]) {
        let (start, bytes) = (spare.as_mut_ptr().cast::<u8>(), size_of_val(spare));
        let front = start.align_offset(PAGE).min(bytes);
        // SAFETY: `front` is within the slice. This advice leaves the content of memory as it is.
        unsafe { madvise(start.add(front).cast(), bytes - front, HUGE_PAGES) };
    }

    #[cfg(test)]
    mod tests {
        use std::{fs, path::Path};

        use crate::{DType, Tensor};

        /// The flags of the mapping that has an address, by Linux's `proc(5)`.
        fn flags(address: usize) -> Option<String> {
            let maps = fs::read_to_string("/proc/self/smaps").ok()?;
            let mut is_inside = false;
            maps.lines().find_map(|line| {
                if let Some((start, rest)) = line.split_once('-')
                    && let Ok(start) = usize::from_str_radix(start, 16)
                {
                    let end = rest.split(' ').next().and_then(|end| usize::from_str_radix(end, 16).ok());
                    is_inside = (start..end.unwrap_or(0)).contains(&address);
                }
                line.strip_prefix("VmFlags:").filter(|_| is_inside).map(str::to_string)
            })
        }

        #[test]
        fn large_copies_have_huge_pages() {
            if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
                eprintln!("this system has no huge pages");
                return;
            }
            let zeros = Tensor::zeros(DType::F32, &[1 << 24]).expect("64 MB");
            let copy = zeros.to_array::<f32>().expect("another 64 MB");
            let middle = copy.as_ptr().addr() + (32 << 20);
            match flags(middle) {
                Some(flags) => assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}"),
                None => eprintln!("this system does not tell the flags of its mappings"),
            }
        }
    }
}
