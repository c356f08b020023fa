//! Checks that a buffer is memory that was written, for programs that are about to measure with it.

use std::fmt;

use crate::error::{BackingError, Mib};
use crate::os_page_size;
use crate::page_table::{PageKind, PageTable};

/// The parts of a buffer that are not present. It has C layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingBytes {
    /// Size of the buffer: bytes of all `os_page`s that it overlaps.
    pub size_bytes: usize,
    /// Bytes that no process has touched, or that another process has touched and this one has not: the first access
    /// faults.
    pub untouched_bytes: usize,
    /// Bytes on the zero page: they were read and never written.
    pub zero_bytes: usize,
    /// Bytes that were swapped out.
    pub swapped_bytes: usize,
    /// Bytes for which the kernel does not tell whether they are on the zero page.
    pub unknown_bytes: usize,
    /// First address that is not memory of this buffer, or may not be.
    pub first: usize,
}

/// Reason why a buffer is not known to be memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotBacked {
    /// Some of it is not present.
    Missing(MissingBytes),
    /// All of it can be read without a fault, but the kernel does not tell for all of it whether it is the zero page: on Linux before 6.7,
    /// without privilege, for memory that another process may share.
    ZeroUnseen(MissingBytes),
    /// The kernel tells nothing.
    Unknown(BackingError),
}

impl fmt::Display for NotBacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotBacked::Missing(missing) => {
                let absent = missing.untouched_bytes + missing.zero_bytes + missing.swapped_bytes;
                write!(
                    f,
                    "{} of a buffer of {} are not memory of its own, from address {:#x} on",
                    Mib(absent as u64),
                    Mib(missing.size_bytes as u64),
                    missing.first
                )?;
                let parts = [
                    (missing.untouched_bytes, "untouched"),
                    (missing.zero_bytes, "on the zero page"),
                    (missing.swapped_bytes, "swapped out"),
                    (missing.unknown_bytes, "that may be the zero page, which this kernel does not tell"),
                ];
                let mut separator = ": ";
                for (bytes, name) in parts.into_iter().filter(|(bytes, _)| *bytes > 0) {
                    write!(f, "{separator}{bytes} bytes {name}")?;
                    separator = ", ";
                }
                write!(f, "; write to every os_page of it before measuring, or take it from dormouse-backing")
            }
            NotBacked::ZeroUnseen(missing) => write!(
                f,
                "{} bytes of a buffer of {}, from address {:#x} on, may be the zero page, which this kernel tells only root; use \
                 Linux 6.7 or later, or be root",
                missing.unknown_bytes,
                Mib(missing.size_bytes as u64),
                missing.first
            ),
            NotBacked::Unknown(error) => write!(f, "cannot find out whether a buffer is memory: {error}"),
        }
    }
}

impl std::error::Error for NotBacked {}

/// Checks that every `os_page` that `slice` overlaps is memory of its own, in this process's page table: no access to
/// it faults, and none goes to the page of zeroes, which stands for memory that was never written.
///
/// Limits: the answer is true only at the moment of the call. A page that was shared by a fork is present, but its
/// first write faults nevertheless. Before Linux 6.7, without privilege, the zero page is recognised only in memory
/// that only this process has; the rest is [`NotBacked::ZeroUnseen`], which does not mean that it is present.
///
/// Blocking: it opens a file of `/proc` and walks the page table once, about 20 µs and 20 ns for each `os_page`. Not async-signal-safe.
///
/// ```
/// let mut buffer = vec![0u64; 1 << 20];
/// assert!(dormouse_backing::check_backed(&buffer).is_err());
/// buffer.fill(1);
/// assert_eq!(dormouse_backing::check_backed(&buffer), Ok(()));
/// ```
///
/// # Errors
/// See [`NotBacked`].
pub fn check_backed<T>(slice: &[T]) -> Result<(), NotBacked> {
    check_backed_raw(slice.as_ptr().cast(), size_of_val(slice))
}

/// Does [`check_backed`] for `size_bytes` bytes at an address of this process. The bytes are not accessed, so this also
/// works for memory that other threads or processes write to, for which there can be no slice.
///
/// # Errors
/// See [`NotBacked`].
pub fn check_backed_raw(base: *const u8, size_bytes: usize) -> Result<(), NotBacked> {
    if size_bytes == 0 {
        return Ok(());
    }
    let table = PageTable::of(None).map_err(NotBacked::Unknown)?;
    check_by(&table, base.addr(), size_bytes)
}

/// Panics with the missing parts if [`check_backed`] fails. For the start of a benchmark, whose results would otherwise
/// be wrong.
///
/// # Panics
/// If [`check_backed`] returns an error, even if only because the kernel does not tell.
#[track_caller]
pub fn assert_backed<T>(slice: &[T]) {
    if let Err(error) = check_backed(slice) {
        panic!("{error}");
    }
}

pub(crate) fn check_by(table: &PageTable, start: usize, size_bytes: usize) -> Result<(), NotBacked> {
    let os_page = os_page_size();
    let begin = start / os_page * os_page;
    let range_error =
        BackingError::Range { start, end: start.saturating_add(size_bytes), size_bytes: isize::MAX as usize };
    let end = start.checked_add(size_bytes).and_then(|end| end.checked_next_multiple_of(os_page));
    let end = end.ok_or(NotBacked::Unknown(range_error))?;
    let mut missing = MissingBytes {
        size_bytes: end - begin,
        untouched_bytes: 0,
        zero_bytes: 0,
        swapped_bytes: 0,
        unknown_bytes: 0,
        first: usize::MAX,
    };
    // Runs ascend: addresses between two of them are not present.
    let mut next = begin;
    let untouched = |missing: &mut MissingBytes, from: usize, to: usize| {
        if from < to {
            missing.untouched_bytes += to - from;
            missing.first = missing.first.min(from);
        }
    };
    let walked = table.runs(begin as u64..end as u64, &mut |run| {
        let (from, to) = ((run.range.start as usize).max(begin), (run.range.end as usize).min(end));
        if from >= to {
            return;
        }
        untouched(&mut missing, next, from);
        next = to;
        let bytes = match run.kind {
            kind if kind.is(PageKind::ZERO) => &mut missing.zero_bytes,
            kind if kind.is(PageKind::SWAPPED) => &mut missing.swapped_bytes,
            kind if !kind.is(PageKind::PRESENT) => &mut missing.untouched_bytes,
            kind if !table.interface().sees_zero() && !kind.is(PageKind::EXCLUSIVE) => &mut missing.unknown_bytes,
            _ => return,
        };
        *bytes += to - from;
        missing.first = missing.first.min(from);
    });
    walked.map_err(NotBacked::Unknown)?;
    untouched(&mut missing, next, end);
    if missing.untouched_bytes + missing.zero_bytes + missing.swapped_bytes > 0 {
        Err(NotBacked::Missing(missing))
    } else if missing.unknown_bytes > 0 {
        Err(NotBacked::ZeroUnseen(missing))
    } else {
        Ok(())
    }
}
