use std::ops::Range;

use crate::error::BackingError;
use crate::os_page_size;
use crate::page_table::{KernelInterface, PageKind, PageTable};

/// Counts the `os_page`s that overlap `range`, addresses of this process, and are not present: a write to one of them
/// faults.
///
/// It asks the kernel for this process's page table: by `PAGEMAP_SCAN` (Linux 6.7 or later), otherwise by
/// `/proc/self/pagemap`.
///
/// Limits: without `PAGEMAP_SCAN` and without privilege, the zero page counts as present, although it is memory that
/// was never written. An `os_page` that is present may still be write-protected (a private one after a fork; never in
/// shared memory). An `os_page` that is allocated in its file and not yet in this process's page table counts as not
/// present, as does one that was swapped out. The answer is true only at the moment of the call.
///
/// # Errors
/// [`BackingError::System`]: `/proc` is not mounted, or a sandbox forbids it.
pub fn unbacked_os_pages(range: Range<usize>) -> Result<usize, BackingError> {
    unbacked_by(&PageTable::of(None)?, range)
}

pub(crate) fn unbacked_by(table: &PageTable, range: Range<usize>) -> Result<usize, BackingError> {
    if range.is_empty() {
        return Ok(0);
    }
    let os_page = os_page_size();
    let start = range.start / os_page * os_page;
    let end = range.end.checked_next_multiple_of(os_page);
    let end = end.ok_or(BackingError::Range { start: range.start, end: range.end, size_bytes: usize::MAX })?;
    let mut backed_bytes = 0;
    table.runs(start as u64..end as u64, &mut |run| {
        if run.kind.is(PageKind::PRESENT) && !run.kind.is(PageKind::ZERO) {
            backed_bytes += run.range.end - run.range.start;
        }
    })?;
    Ok((end - start - backed_bytes as usize) / os_page)
}

/// Whether the kernel supports `PAGEMAP_SCAN`, without which the zero page counts as memory that is present.
///
/// # Errors
/// [`BackingError::System`]: `/proc` is not mounted, a sandbox forbids it, or the kernel is older than Linux 6.7
/// (`ENOSYS`).
pub fn try_pagemap_scan() -> Result<(), BackingError> {
    PageTable::by(None, &[KernelInterface::Scan]).map(drop)
}
