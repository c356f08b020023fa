//! Handles the truncation of a file that is mapped as memory: the kernel sends SIGBUS to a thread that touches the
//! missing part, which would end the session owner. The handler replaces the page of the fault by one of zeroes, and
//! counts it.
//!
//! ```text
//!   fault at an address ── in a guarded range? ── no ──▶ the former handler of SIGBUS (by default: the process dies)
//!                                 │ yes
//!                                 ▼
//!   one `os_page` of zeroes, private to this process, is mapped there; the range's count grows; the access is repeated
//! ```
//!
//! A full file system has the same effect where a file has holes. The contents of the page are lost. Code that reads
//! the zeroes finds no page of a session, no packet and no event there, and reports that memory is gone
//! ([`Guard::replaced`]).
//!
//! # Ordering
//! A range is published by its length and withdrawn by it: (L) the store of the length, after that of the base, pairs
//! with (L'), the handler's load, before that of the base. (N) the store of the list's head, after the fields it leads
//! to, pairs with (N').

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use dormouse_backing::BackingError;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Unit in which replaced memory is counted, in bytes: the smallest `os_page`.
const UNIT_BYTES: usize = 4096;

/// Size of an `os_page`, for the handler. Set before the handler is installed.
static OS_PAGE_BYTES: OnceLock<usize> = OnceLock::new();

/// A range, or a free place for one. Places are never freed: a handler may be walking the list at any time.
#[derive(Debug)]
struct Range {
    base: AtomicUsize,
    /// Length in bytes; 0 if there is no range.
    len: AtomicUsize,
    /// 1 while it belongs to a guard.
    is_taken: AtomicUsize,
    replaced: AtomicU64,
    next: *const Range,
}

// SAFETY: `next` is written before the range is published and never again; all other fields are atomics.
unsafe impl Sync for Range {}

static RANGES: AtomicPtr<Range> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps faults in a range from ending the process, as long as it lives. Must be dropped before the addresses are
/// mapped to other memory.
#[derive(Debug)]
pub(crate) struct Guard(&'static Range);

fn ranges() -> impl Iterator<Item = &'static Range> {
    // (N') pairs with (N).
    let mut next: *const Range = RANGES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: the pointer is null, or it leads to a range that was leaked and whose fields were written before it
        // was published.
        let range = unsafe { next.as_ref() }?;
        next = range.next;
        Some(range)
    })
}

impl Guard {
    /// Guards `len` bytes from `base` on, which this process has mapped from a file for reading and writing.
    pub(crate) fn new(base: *const u8, len: usize) -> Guard {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install);
        let take = |range: &&Range| range.is_taken.swap(1, Ordering::Relaxed) == 0;
        let range = ranges().find(take).unwrap_or_else(add);
        range.replaced.store(0, Ordering::Relaxed);
        range.base.store(base.addr(), Ordering::Relaxed);
        // (L) pairs with (L').
        range.len.store(len, Ordering::Release);
        Guard(range)
    }

    /// Returns how much of it has been replaced so far, in units of 4 KiB.
    pub(crate) fn replaced(&self) -> u64 {
        self.0.replaced.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Relaxed: no code touches the memory any more, so no handler looks for the range.
        self.0.len.store(0, Ordering::Relaxed);
        // A guard that reuses the place writes base and length anew; a handler that sees the new base also sees that
        // the old length is gone, because (L) comes later.
        self.0.is_taken.store(0, Ordering::Relaxed);
    }
}

/// Adds a place for a range.
fn add() -> &'static Range {
    let range = Box::leak(Box::new(Range {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        is_taken: AtomicUsize::new(1),
        replaced: AtomicU64::new(0),
        next: std::ptr::null(),
    }));
    loop {
        let head = RANGES.load(Ordering::Relaxed);
        range.next = head;
        // (N) pairs with (N').
        if RANGES.compare_exchange(head, range, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return range;
        }
    }
}

/// Former action of SIGBUS.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn install() {
    OS_PAGE_BYTES.get_or_init(dormouse_backing::os_page_size);
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) without a new action only writes the old one to `before`; it does not fail for an existing
    // signal.
    unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) };
    // SAFETY: filled by the call above.
    let before = *BEFORE.get_or_init(|| unsafe { before.assume_init() });
    // On some machines the structure has private fields.
    let mut action = before;
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO requires and only calls async-signal-safe functions, except
    // for a former handler, for which the code that installed it is responsible.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the handler a valid description (sigaction(2), SA_SIGINFO).
    let info_read = unsafe { &*info };
    // SAFETY: this variant of the description is set for SIGBUS.
    let address = unsafe { info_read.si_addr() }.addr();
    let holds = |range: &&Range| {
        // (L') pairs with (L).
        let len = range.len.load(Ordering::Acquire);
        let base = range.base.load(Ordering::Relaxed);
        address.checked_sub(base).is_some_and(|offset| offset < len)
    };
    if ranges().find(holds).is_some_and(|range| replace(range, address)) {
        return;
    }
    if let Some(before) = BEFORE.get()
        && before.sa_flags & libc::SA_SIGINFO != 0
    {
        // SAFETY: a handler with this flag has this signature (sigaction(2)).
        let former: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(before.sa_sigaction) };
        return former(signal, info, context);
    }
    // SAFETY: signal(2) only restores the default action; async-signal-safe. The access is repeated, and ends the
    // process as it would have without this handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Maps zeroes in place of the `os_page` at an address of a range. Returns false if there are too many mappings.
fn replace(range: &Range, address: usize) -> bool {
    let Some(&os_page) = OS_PAGE_BYTES.get() else { return false };
    let page = std::ptr::with_exposed_provenance_mut(address & !(os_page - 1));
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: `page` is an `os_page` of a guarded range, which this process has mapped and accesses only by atomics and
    // raw copies, which permit that its bytes change. Only a system call is made: no lock is taken and no memory
    // allocated.
    let mapped = unsafe { mmap_anonymous(page, os_page, ProtFlags::READ | ProtFlags::WRITE, flags) };
    range.replaced.fetch_add((os_page / UNIT_BYTES) as u64, Ordering::Relaxed);
    mapped.is_ok()
}

/// Makes a write that exceeds the file size limit (`ulimit -f`) fail instead of ending the process.
pub(crate) fn survive_file_size_limits() {
    // SAFETY: signal(2) only sets the signal to be ignored, without a handler. Other parts of this process that would
    // be killed by it get an error instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Whether memory could not be created because the kernel applies the file size limit to it.
pub(crate) fn is_limit_of_file_sizes(error: &BackingError) -> bool {
    matches!(error, BackingError::System { errno: Errno::FBIG, .. })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use dormouse_testing::{Lack, is_emulated, skip};
    use memmap2::{MmapOptions, MmapRaw};

    use super::*;

    fn byte(map: &MmapRaw, offset: usize) -> u8 {
        // SAFETY: inside the mapping, which outlives the load; all bytes are valid values.
        unsafe { AtomicU8::from_ptr(map.as_mut_ptr().wrapping_add(offset)) }.load(Ordering::Relaxed)
    }

    #[test]
    fn truncated_memory_reads_as_zeroes_and_is_counted() {
        if is_emulated() && cfg!(target_endian = "big") {
            return skip(Lack::emulated("QEMU passes SIGBUS on with the two halves of its address exchanged"));
        }
        let os_page = dormouse_backing::os_page_size();
        let replaced = (5 * os_page / UNIT_BYTES) as u64;
        for _ in 0..3 {
            let file = tempfile::tempfile().unwrap();
            file.set_len(8 * os_page as u64).unwrap();
            let map = MmapOptions::new().map_raw(&file).unwrap();
            let guard = Guard::new(map.as_ptr(), map.len());
            let write = |offset: usize| {
                // SAFETY: inside the mapping, which outlives the store.
                unsafe { AtomicU8::from_ptr(map.as_mut_ptr().wrapping_add(offset)) }.store(7, Ordering::Relaxed);
            };
            (0..8).for_each(|page| write(page * os_page));
            assert_eq!(guard.replaced(), 0);
            file.set_len(3 * os_page as u64).unwrap();
            let found: Vec<u8> = (0..8).map(|page| byte(&map, page * os_page)).collect();
            assert_eq!((found, guard.replaced()), (vec![7, 7, 7, 0, 0, 0, 0, 0], replaced));
            // The zeroes can be written to.
            write(5 * os_page);
            assert_eq!((byte(&map, 5 * os_page), guard.replaced()), (7, replaced));
        }
        // A place is reused.
        assert!(ranges().filter(|range| range.is_taken.load(Ordering::Relaxed) == 0).count() >= 1);
    }
}
