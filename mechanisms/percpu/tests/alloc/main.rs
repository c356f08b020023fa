//! Pools: operations compared with an oracle, errors, threads, shared memory and fork.
#![cfg(target_pointer_width = "64")]

mod errors;
mod memory;
mod oracle;
mod shared;
mod threads;
mod valgrind;

use std::alloc::Layout;

use dormouse_percpu::{Object, Pool, Region};

/// Returns the size of an os_page. Not by rustix, which reads the auxiliary vector that valgrind hides.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: the call takes no pointers.
    let size_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size_bytes).expect("Linux has a page size")
}

pub(crate) fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Returns the addresses of a live object's copies.
pub(crate) fn addresses(pool: &Pool, object: Object) -> Vec<*mut u8> {
    let view = pool.view();
    // SAFETY: the tests pass only live objects.
    (0..view.cpu_count()).map(|cpu| unsafe { view.address(object, cpu) }).collect()
}

/// Frees an object that is not used any more.
pub(crate) fn free(pool: &Pool, object: Object) -> Result<(), dormouse_percpu::AllocError> {
    // SAFETY: the tests use no bytes of an object after this.
    unsafe { pool.free(object) }
}

/// Flips a byte that must not be written, and returns its new value.
pub(crate) fn flip(at: *mut u8) -> u8 {
    // SAFETY: inside the pool's memory, and no other thread uses it.
    let byte = unsafe { at.read_volatile() };
    // SAFETY: inside the pool's memory, and no other thread uses it.
    unsafe { at.write_volatile(!byte) };
    !byte
}

pub(crate) fn bytes<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: a live object that only the test uses; the test drops the slice before it does anything else with the
    // object.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// Memory for a region, filled with nonzero bytes.
pub(crate) struct Backing {
    base: *mut u8,
    len: usize,
}

impl Backing {
    pub(crate) fn new(len: usize) -> Backing {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }.unwrap();
        bytes(base.cast(), len).fill(0xee);
        Backing { base: base.cast(), len }
    }

    /// Returns the region from `offset` on.
    pub(crate) fn region(&self, offset: usize) -> Region {
        // SAFETY: the backing outlives the pool in every test.
        unsafe { Region::new(self.base.wrapping_add(offset), self.len - offset) }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the pool over it has been dropped.
        unsafe { rustix::mm::munmap(self.base.cast(), self.len) }.unwrap();
    }
}

pub(crate) fn fork() -> libc::pid_t {
    // SAFETY: the child takes no lock that another thread might hold (see `child_or_wait`).
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    child
}

/// In the child, runs `work` and exits; in the parent, returns whether it succeeded. The child must take no lock of
/// libc except malloc's, which glibc reinitialises right after a fork.
pub(crate) fn child_or_wait(child: libc::pid_t, work: impl FnOnce() -> bool) -> bool {
    if child == 0 {
        let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends the child without running what the parent's test harness has registered.
        unsafe { libc::_exit(if is_well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child's id; the kernel writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Returns the result of `work` in a forked child.
pub(crate) fn in_child(work: impl FnOnce() -> bool) -> bool {
    child_or_wait(fork(), work)
}
