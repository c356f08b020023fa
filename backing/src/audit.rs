use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::error::BackingError;
use crate::os_page_size;

/// How many `os_page`s that overlap `range`, addresses of this process, are not there: a write to one of them faults.
///
/// It asks the kernel for this process's page table: by `PAGEMAP_SCAN` (Linux 6.7 or later), else by
/// `/proc/self/pagemap`.
///
/// What it cannot tell: without `PAGEMAP_SCAN`, the zero page counts as being there, although it stands for memory that
/// nobody wrote. An `os_page` that is there may still be write-protected, which in shared memory it is not (a private
/// one is, after a fork). An `os_page` that is allocated in its file and not yet in this process's page table counts as
/// not there, as does one that was swapped out. And the answer is as of the call.
///
/// # Errors
/// [`BackingError::System`]: `/proc` is not mounted, or a sandbox forbids it.
pub fn unbacked_os_pages(range: Range<usize>) -> Result<usize, BackingError> {
    if range.is_empty() {
        return Ok(0);
    }
    let os_page = os_page_size();
    let start = range.start / os_page * os_page;
    let end = range.end.checked_next_multiple_of(os_page);
    let end = end.ok_or(BackingError::Range { start: range.start, end: range.end, size_bytes: usize::MAX })?;
    let failed = |error: io::Error| BackingError::System {
        purpose: "read this process's page table",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    };
    let pagemap = File::open("/proc/self/pagemap").map_err(failed)?;
    let backed = match backed_by_scan(&pagemap, start..end) {
        // ENOTTY: the kernel has no such ioctl.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => backed_by_pagemap(&pagemap, start..end),
        result => result,
    };
    Ok((end - start) / os_page - backed.map_err(failed)?)
}

/// `struct pm_scan_arg` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<ScanArguments>(b'f' as u32, 16);
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// `os_page`s that are present and not the zero page.
pub(crate) fn backed_by_scan(pagemap: &File, range: Range<usize>) -> io::Result<usize> {
    let mut regions = [PageRegion::default(); 64];
    let (mut start, end) = (range.start as u64, range.end as u64);
    let mut backed_bytes = 0;
    while start < end {
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start,
            end,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            category_inverted: PAGE_IS_PFNZERO,
            category_mask: PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArguments::default()
        };
        // SAFETY: the structure is the ABI's, states its own size, and points to as many regions as it says; without
        // flags the call changes nothing else (Documentation/admin-guide/mm/pagemap.rst).
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        backed_bytes += regions.iter().take(count).map(|region| region.end - region.start).sum::<u64>();
        if arguments.walk_end <= start {
            return Err(io::ErrorKind::InvalidData.into());
        }
        start = arguments.walk_end;
    }
    Ok(backed_bytes as usize / os_page_size())
}

/// `os_page`s that are present, by bit 63 of their words.
pub(crate) fn backed_by_pagemap(pagemap: &File, range: Range<usize>) -> io::Result<usize> {
    let os_page = os_page_size();
    let mut words = [0_u8; 8 * 512];
    let (mut next, end) = (range.start / os_page, range.end / os_page);
    let mut backed = 0;
    while next < end {
        let wanted = (8 * (end - next)).min(words.len());
        let words = words.get_mut(..wanted).unwrap_or_default();
        pagemap.read_exact_at(words, 8 * next as u64)?;
        for word in words.chunks_exact(8) {
            // In the machine's byte order; `chunks_exact` makes the length right.
            let word = <[u8; 8]>::try_from(word).map_or(0, u64::from_ne_bytes);
            backed += (word >> 63) as usize;
        }
        next += words.len() / 8;
    }
    Ok(backed)
}

/// Whether the kernel answers `PAGEMAP_SCAN`, without which the zero page counts as memory that is there.
///
/// # Errors
/// [`BackingError::System`]: `/proc` is not mounted, a sandbox forbids it, or the kernel is older than Linux 6.7
/// (`ENOTTY`).
pub fn try_pagemap_scan() -> Result<(), BackingError> {
    let failed = |error: io::Error| BackingError::System {
        purpose: "scan this process's page table by PAGEMAP_SCAN",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    };
    let pagemap = File::open("/proc/self/pagemap").map_err(failed)?;
    let local = 0_u8;
    let start = (&raw const local).addr() / os_page_size() * os_page_size();
    backed_by_scan(&pagemap, start..start + os_page_size()).map(|_| ()).map_err(failed)
}
