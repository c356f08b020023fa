//! Pools: operations against an oracle, errors, threads, shared memory and fork.

mod errors;
mod memory;
mod oracle;
mod shared;
mod threads;
mod valgrind;

use std::alloc::Layout;

use dormouse_percpu::{Object, Pool, Region};

pub(crate) const OS_PAGE: usize = 4096;

pub(crate) fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Where the copies of a live object are.
pub(crate) fn addresses(pool: &Pool, object: Object) -> Vec<*mut u8> {
    let view = pool.view();
    // SAFETY: the tests ask for live objects only.
    (0..view.cpu_count()).map(|cpu| unsafe { view.address(object, cpu) }).collect()
}

/// Frees what nobody uses.
pub(crate) fn free(pool: &Pool, object: Object) -> Result<(), dormouse_percpu::AllocError> {
    // SAFETY: the tests use no bytes of an object after this.
    unsafe { pool.free(object) }
}

/// Flips a byte that nobody may write, and tells what it holds then.
pub(crate) fn flip(at: *mut u8) -> u8 {
    // SAFETY: inside the pool's memory, and no other thread uses it.
    let byte = unsafe { at.read_volatile() };
    // SAFETY: inside the pool's memory, and no other thread uses it.
    unsafe { at.write_volatile(!byte) };
    !byte
}

pub(crate) fn bytes<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: a live object of the test's alone, which drops the slice before it does anything else with the object.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// Memory for a region, full of what somebody left there.
pub(crate) struct Backing {
    base: *mut u8,
    len: usize,
}

impl Backing {
    pub(crate) fn new(len: usize) -> Backing {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }.unwrap();
        bytes(base.cast(), len).fill(0xee);
        Backing { base: base.cast(), len }
    }

    /// From `offset` on.
    pub(crate) fn region(&self, offset: usize) -> Region {
        // SAFETY: the backing outlives the pool in every test.
        unsafe { Region::new(self.base.wrapping_add(offset), self.len - offset) }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; the pool over it is gone.
        unsafe { rustix::mm::munmap(self.base.cast(), self.len) }.unwrap();
    }
}

pub(crate) fn fork() -> libc::pid_t {
    // SAFETY: the child does nothing that another thread's lock might forbid (see `child_or_wait`).
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    child
}

/// In the child, does `work` and ends; in the parent, says what it came to. The child must take no lock of libc's but
/// malloc's, which glibc sets right after a fork.
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

/// What `work` says in a forked child.
pub(crate) fn in_child(work: impl FnOnce() -> bool) -> bool {
    child_or_wait(fork(), work)
}
