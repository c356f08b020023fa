//! The loaded segment that contains an address, and its protection.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;

use dormouse_locks::call_loader;
use rustix::mm::MprotectFlags;

use crate::arch::os_page_bytes;

/// An executable segment as the loader mapped it, in whole os_pages.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) addresses: Range<usize>,
    pub(crate) protection: MprotectFlags,
}

impl Segment {
    /// A segment that contains no address.
    pub(crate) const EMPTY: Segment = Segment { addresses: 0..0, protection: MprotectFlags::empty() };
}

/// Returns the executable segment that contains `address`, or [`Segment::EMPTY`]. The conditions of [`visit_segment`].
pub(crate) fn executable_segment_of(address: usize) -> Segment {
    let mut found = Segment::EMPTY;
    visit_segment(address, |LoadedSegment { addresses, flags, .. }| {
        if flags & libc::PF_X != 0 {
            let addresses = os_page_floor(addresses.start)..os_page_ceil(addresses.end);
            let mut protection = MprotectFlags::EXEC;
            protection.set(MprotectFlags::READ, flags & libc::PF_R != 0);
            protection.set(MprotectFlags::WRITE, flags & libc::PF_W != 0);
            found = Segment { addresses, protection };
        }
    });
    found
}

/// A segment of a loaded object.
#[derive(Debug)]
pub struct LoadedSegment<'a> {
    /// File of the object; empty for the program itself.
    pub object: &'a CStr,
    /// Addresses at which it is mapped.
    pub addresses: Range<usize>,
    /// Protection flags: `PF_R`, `PF_W`, `PF_X`.
    pub flags: u32,
}

/// Calls `visit` with the loaded segment that contains `address`, if there is one.
///
/// Takes the loader's lock (recursive in glibc), under which `visit` runs. Not async-signal-safe; must not be called
/// under this crate's lock; `visit` must not allocate.
pub fn visit_segment(address: usize, mut visit: impl FnMut(LoadedSegment<'_>)) {
    let mut search = Search { address, visit: &mut visit };
    let data = (&raw mut search).cast::<c_void>();
    // SAFETY: dl_iterate_phdr(3) calls `visit_object` before it returns, with `data`, which outlives the call.
    call_loader(|| unsafe { libc::dl_iterate_phdr(Some(visit_object), data) });
}

struct Search<'a> {
    address: usize,
    visit: &'a mut dyn FnMut(LoadedSegment<'_>),
}

unsafe extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the `Search` of the only caller, which nothing else borrows during the call.
    let search = unsafe { &mut *data.cast::<Search<'_>>() };
    // SAFETY: dl_iterate_phdr(3) passes a valid description of one object.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: `dlpi_phdr` points to `dlpi_phnum` program headers, which the loader does not change.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let addresses = start..start.wrapping_add(header.p_memsz as usize);
        if addresses.contains(&search.address) {
            // SAFETY: null, or a NUL-terminated text that exists while the loader's lock is held.
            let object = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
            (search.visit)(LoadedSegment { object, addresses, flags: header.p_flags });
            return 1;
        }
    }
    0
}

/// Returns the start of the os_page that contains `address`.
pub(crate) fn os_page_floor(address: usize) -> usize {
    address & !(os_page_bytes() - 1)
}

/// Returns the end of the os_page that contains the byte before `address`.
pub(crate) fn os_page_ceil(address: usize) -> usize {
    os_page_floor(address.wrapping_add(os_page_bytes() - 1))
}
