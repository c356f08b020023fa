//! Memory from the kernel, and its placement on nodes. It is never from malloc: the caller may be a wrapper of malloc.

use core::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A mapping of private, zeroed memory, unmapped on drop.
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes, not touched yet, aligned to `align`, a power of two.
    pub(crate) fn new(len: usize, align: usize) -> Result<Mapping, Errno> {
        let os_page = os_page_size_bytes();
        let len = len.checked_next_multiple_of(os_page).ok_or(Errno::NOMEM)?;
        // The kernel aligns to os_pages. The excess is unmapped.
        let reserve = align.saturating_sub(os_page);
        let len_all = len.checked_add(reserve).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len_all, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = start.cast::<u8>().map_addr(|address| address.next_multiple_of(align.max(os_page)));
        let before = base.addr() - start.addr();
        unmap(start.cast(), before);
        unmap(base.wrapping_add(len), reserve - before);
        Ok(Mapping { base, len })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base, self.len);
    }
}

/// Unmaps memory that this module has mapped and that is not used any more.
fn unmap(base: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: part of a mapping that this module made, to which its caller has no reference left.
        let result = unsafe { munmap(base.cast(), len) };
        // It fails only if the kernel cannot split a mapping: then the memory stays mapped, unused.
        debug_assert!(result.is_ok());
    }
}

pub(crate) fn os_page_size_bytes() -> usize {
    // Not rustix's function: it looks for the vDSO by the kernel's auxiliary vector, and faults if valgrind has hidden
    // it.
    // SAFETY: the call takes no pointers; libc answers from a variable.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Makes `node` the preferred node of the os_pages, regardless of the CPU that touches them first (`MPOL_PREFERRED`,
/// mbind(2)). Failure is ignored: the memory is then only farther away.
pub(crate) fn prefer_node(base: *mut u8, len: usize, node: u32) {
    const MPOL_PREFERRED: libc::c_long = 1;
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else { return };
    *word = 1 << (node % 64);
    // The kernel subtracts one from the number of bits before it reads the mask.
    let bits = 8 * size_of_val(&mask) + 1;
    // SAFETY: sets the policy of the caller's own memory; the mask is as long as stated.
    let _ = unsafe { libc::syscall(libc::SYS_mbind, base, len, MPOL_PREFERRED, mask.as_ptr(), bits, 0_usize) };
}

/// Makes the memory present and writable. `base` and `len` cover whole os_pages that are private, zeroed, and not used
/// yet.
pub(crate) fn prefault(base: *mut u8, len: usize) {
    // SAFETY: memory that this module has mapped; madvise(2) keeps its contents.
    if unsafe { madvise(base.cast(), len, Advice::LinuxPopulateWrite) }.is_ok() {
        return;
    }
    // Before Linux 5.14: touch each os_page.
    for offset in (0..len).step_by(os_page_size_bytes()) {
        // SAFETY: inside the memory, which contains zeroes and is not used yet.
        unsafe { base.wrapping_add(offset).write_volatile(0) };
    }
}

/// Forbids huge pages: one would also make untouched memory of a neighbouring stride present.
pub(crate) fn keep_lazy(base: *mut u8, len: usize) {
    // SAFETY: memory that this module has mapped; madvise(2) keeps its contents.
    let _ = unsafe { madvise(base.cast(), len, Advice::LinuxNoHugepage) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_zeroed_and_prefaulted() {
        for align in [1, os_page_size_bytes(), 1 << 16, 1 << 21] {
            let mapping = Mapping::new(10_000, align).unwrap();
            assert!(mapping.base().addr().is_multiple_of(align.max(os_page_size_bytes())));
            prefer_node(mapping.base(), mapping.len, 0);
            prefer_node(mapping.base(), mapping.len, 1_000_000);
            prefault(mapping.base(), mapping.len);
            for offset in 0..mapping.len {
                // SAFETY: inside the mapping.
                assert_eq!(unsafe { mapping.base().wrapping_add(offset).read() }, 0);
            }
        }
        assert!(Mapping::new(usize::MAX, 1).is_err());
        let too_much = 1 << if cfg!(target_pointer_width = "64") { 50 } else { 31 };
        assert!(Mapping::new(too_much, too_much).is_err());
    }
}
