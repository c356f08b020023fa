//! Which loaded segment an address lies in, and how that segment is protected.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use dormouse_locks::call_loader;
use rustix::mm::MprotectFlags;

use crate::arch::os_page_bytes;

/// An executable segment as the loader mapped it, in whole pages.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) addresses: Range<usize>,
    pub(crate) protection: MprotectFlags,
}

impl Segment {
    /// Contains no address.
    pub(crate) const EMPTY: Segment = Segment { addresses: 0..0, protection: MprotectFlags::empty() };
}

/// The executable segment that contains `address`, or [`Segment::EMPTY`].
///
/// Takes the loader's lock (recursive in glibc): not async-signal-safe; do not call it under this crate's lock.
pub(crate) fn executable_segment_of(address: usize) -> Segment {
    let mut search = Search { address, found: Segment::EMPTY };
    let data = (&raw mut search).cast::<c_void>();
    // SAFETY: dl_iterate_phdr(3) calls `visit` before it returns, with `data`, which outlives the call.
    call_loader(|| unsafe { libc::dl_iterate_phdr(Some(visit), data) });
    search.found
}

struct Search {
    address: usize,
    found: Segment,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the `Search` of the one caller, which nobody else borrows meanwhile.
    let search = unsafe { &mut *data.cast::<Search>() };
    // SAFETY: dl_iterate_phdr(3) passes a valid description of one object.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: `dlpi_phdr` points to `dlpi_phnum` program headers, which the loader does not change.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_X == 0 {
            continue;
        }
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let addresses = os_page_floor(start)..os_page_ceil(start.wrapping_add(header.p_memsz as usize));
        if addresses.contains(&search.address) {
            let mut protection = MprotectFlags::EXEC;
            protection.set(MprotectFlags::READ, header.p_flags & libc::PF_R != 0);
            protection.set(MprotectFlags::WRITE, header.p_flags & libc::PF_W != 0);
            search.found = Segment { addresses, protection };
            return 1;
        }
    }
    0
}

/// The start of the page that holds `address`.
pub(crate) fn os_page_floor(address: usize) -> usize {
    address & !(os_page_bytes() - 1)
}

/// The end of the page that holds the byte before `address`.
pub(crate) fn os_page_ceil(address: usize) -> usize {
    os_page_floor(address.wrapping_add(os_page_bytes() - 1))
}
