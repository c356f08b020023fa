//! Gives a buffer pages of its own, for programs that are about to measure with it.
//!
//! ```text
//!   mappings ─ all mapped, all writable? ─▶ page table ─ how much memory? ─▶ is there enough? ─▶ MADV_POPULATE_WRITE
//!        └ below the stack: it grows                                                                    │ Linux before 5.14
//!                                                                                                       └▶ each page: a byte is exchanged for itself
//! ```

use std::fmt;
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::process::{Resource, getrlimit};

use crate::check::check_by;
use crate::error::{BackingError, Mib};
use crate::mapping::{ask_for, populate_by_advice, touch};
use crate::maps::{self, Map};
use crate::page_table::{PageKind, PageTable};
use crate::{NotBacked, os_page_size};

/// Distance that the kernel keeps between a stack that grows and the mapping below it, in `os_page`s
/// (`stack_guard_gap`).
const STACK_GAP_OS_PAGES: u64 = 256;

/// Reason why a buffer cannot be given pages of its own, with a remedy in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotPopulated {
    /// The buffer does not end inside the address space.
    Size {
        /// Number of bytes that were given as its size.
        size_bytes: usize,
    },
    /// Some of it is not mapped.
    NotMapped {
        /// First such address.
        address: usize,
    },
    /// Some of it may not be written to.
    ReadOnly {
        /// First such address.
        address: usize,
    },
    /// It is on the stack of the first thread, which may not grow that far (`RLIMIT_STACK`).
    StackLimit {
        /// Size of the stack that is needed, in bytes.
        wanted_bytes: u64,
        /// Maximum size of the stack, in bytes.
        limit_bytes: u64,
    },
    /// The machine or a memory control group of this process does not have enough memory.
    NotEnough {
        /// Number of bytes that are needed in addition to those that are present.
        wanted_bytes: u64,
        /// Number of bytes that are available.
        available_bytes: u64,
    },
    /// An access to some of it is a `SIGBUS`: it is beyond the end of its file, or there is no free huge page.
    NoPage {
        /// First address that has no page.
        address: usize,
    },
    /// The kernel refused a call.
    System {
        /// Purpose of the call.
        purpose: &'static str,
        /// Error of the kernel.
        errno: Errno,
    },
}

impl fmt::Display for NotPopulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            NotPopulated::Size { size_bytes } => {
                write!(f, "a buffer of {size_bytes} bytes ends outside the address space")
            }
            NotPopulated::NotMapped { address } => {
                write!(f, "nothing is mapped at {address:#x}; give the address and the size of one buffer")
            }
            NotPopulated::ReadOnly { address } => write!(
                f,
                "the memory at {address:#x} is read-only, so that it cannot have pages of its own; make it writable first (mprotect)"
            ),
            NotPopulated::StackLimit { wanted_bytes, limit_bytes } => write!(
                f,
                "the buffer needs a stack of {}, and the stack may have {}; raise its limit (ulimit -s), or allocate the buffer elsewhere",
                Mib(wanted_bytes),
                Mib(limit_bytes)
            ),
            NotPopulated::NotEnough { wanted_bytes, available_bytes } => write!(
                f,
                "{} of memory are wanted and {} are available here (on the machine, or in a control group of this process); use a smaller \
                 buffer, or raise the group's limit",
                Mib(wanted_bytes),
                Mib(available_bytes)
            ),
            NotPopulated::NoPage { address } => write!(
                f,
                "there is no page for address {address:#x}: it is beyond the end of its file, or there is no free huge page (vm.nr_hugepages)"
            ),
            NotPopulated::System { purpose, errno } => write!(f, "cannot {purpose}: {errno}"),
        }
    }
}

impl std::error::Error for NotPopulated {}

fn of_backing(error: BackingError) -> NotPopulated {
    match error {
        BackingError::NotEnough { wanted_bytes, available_bytes } => {
            NotPopulated::NotEnough { wanted_bytes, available_bytes }
        }
        BackingError::System { purpose, errno } => NotPopulated::System { purpose, errno },
        _ => NotPopulated::System { purpose: "read the process's page table", errno: Errno::IO },
    }
}

/// Gives every `os_page` that `slice` overlaps memory of its own, in this process's page table: afterwards no access to it
/// faults, and none goes to the zero page. The contents stay the same.
///
/// The buffer may be anywhere: in `.bss`, on the heap, on a stack, in a mapping without a file, in a private mapping of a
/// file. Pages that are a fork's, a file's or the zero page are replaced by copies; pages that were swapped out are read
/// back; others stay. Of a shared mapping, the pages that all its processes share become present. The kernel takes huge
/// pages where its settings say so.
///
/// Limits: the pages are present at the end of the call, and the kernel may take them out later; see the
/// [limits](crate#limits). The pages at the edges may hold other variables too, which also stay the same. Before
/// Linux 5.14, a part of a file's mapping beyond the file's end is a `SIGBUS`, not an error.
///
/// Blocking: it reads `/proc/self/maps`, and takes as long as the page faults of writing to the buffer would. Not
/// async-signal-safe.
///
/// ```
/// let mut table = vec![0u64; 1 << 20];
/// assert!(dormouse_backing::check_backed(&table).is_err());
/// dormouse_backing::populate(&mut table).unwrap();
/// assert_eq!(dormouse_backing::check_backed(&table), Ok(()));
/// ```
///
/// # Errors
/// See [`NotPopulated`]. After [`NotPopulated::NoPage`] and [`NotPopulated::System`] a part may be present.
pub fn populate<T>(slice: &mut [T]) -> Result<(), NotPopulated> {
    // SAFETY: the reference guarantees that the bytes are mapped, and that no other thread accesses them.
    unsafe { populate_raw(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// Does [`populate`] for `size_bytes` bytes at an address of this process. Other threads and processes may use the memory at
/// the same time; what they write is not lost.
///
/// # Safety
/// The bytes are memory that this program has obtained, or not mapped at all. If Rust code of other threads accesses them
/// during the call, it does so atomically.
///
/// # Errors
/// See [`NotPopulated`].
pub unsafe fn populate_raw(base: *mut u8, size_bytes: usize) -> Result<(), NotPopulated> {
    if size_bytes == 0 {
        return Ok(());
    }
    let os_page = os_page_size();
    let start = base.addr() / os_page * os_page;
    let end = base.addr().checked_add(size_bytes).and_then(|end| end.checked_next_multiple_of(os_page));
    let pages = start..end.ok_or(NotPopulated::Size { size_bytes })?;
    let first = base.wrapping_sub(base.addr() - start);
    let mut maps = mappings()?;
    if stack_must_grow(&maps, &pages)? {
        // SAFETY: the caller guarantees that the byte belongs to a buffer of this program; it is below the stack and above
        // the next mapping, so it is on the stack, which the access makes grow.
        unsafe { touch(base, 1) };
        maps = mappings()?;
    }
    check_mappings(&maps, &pages)?;
    if ask_for(pages.len() as u64).is_err() {
        ask_for(missing_bytes(&maps, &pages)?).map_err(of_backing)?;
    }
    // SAFETY: `check_mappings` has found the range mapped and writable; it is whole pages.
    match unsafe { populate_by_advice(first, pages.len()) } {
        Err(Errno::INVAL) if !is_advice_known() => {
            // SAFETY: `check_mappings` has found the bytes mapped and writable, and the caller guarantees that Rust code
            // accesses them only atomically. Bytes that the program has not initialised have the value that the preceding
            // call gave them, as far as the compiler knows.
            unsafe { touch(base, size_bytes) };
            Ok(())
        }
        Err(Errno::FAULT) => Err(NotPopulated::NoPage { address: first_missing(&pages) }),
        result => result.map_err(|errno| NotPopulated::System { purpose: "populate the buffer", errno }),
    }
}

fn mappings() -> Result<Vec<Map>, NotPopulated> {
    maps::read(std::process::id()).map_err(|error| NotPopulated::System {
        purpose: "read the process's mappings",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })
}

/// Whether `pages` begin below the stack of the first thread, and nothing else is mapped there.
fn stack_must_grow(maps: &[Map], pages: &Range<usize>) -> Result<bool, NotPopulated> {
    let start = pages.start as u64;
    let Some(index) = maps.iter().position(|map| map.name == b"[stack]") else { return Ok(false) };
    let stack = &maps[index].range;
    let gap = STACK_GAP_OS_PAGES * os_page_size() as u64;
    let floor = index.checked_sub(1).map_or(0, |below| maps[below].range.end.saturating_add(gap));
    if !(floor..stack.start).contains(&start) {
        return Ok(false);
    }
    let wanted_bytes = stack.end - start;
    match getrlimit(Resource::Stack).current {
        Some(limit_bytes) if wanted_bytes > limit_bytes => Err(NotPopulated::StackLimit { wanted_bytes, limit_bytes }),
        _ => Ok(true),
    }
}

/// Checks that all of it is mapped and writable.
fn check_mappings(maps: &[Map], pages: &Range<usize>) -> Result<(), NotPopulated> {
    let mut next = pages.start;
    for map in maps {
        let map_range = map.range.start as usize..map.range.end as usize;
        if map_range.end <= next {
            continue;
        }
        if next >= pages.end || map_range.start > next {
            break;
        }
        if !map.is_writable() {
            return Err(NotPopulated::ReadOnly { address: next });
        }
        next = map_range.end;
    }
    if next < pages.end { Err(NotPopulated::NotMapped { address: next }) } else { Ok(()) }
}

/// Returns the number of bytes that need memory: those that are not present, those on the zero page, and a file's pages
/// that will be copied.
fn missing_bytes(maps: &[Map], pages: &Range<usize>) -> Result<u64, NotPopulated> {
    let table = PageTable::of(None).map_err(of_backing)?;
    let mut missing_bytes = pages.len() as u64;
    for map in maps {
        let inside = map.range.start.max(pages.start as u64)..map.range.end.min(pages.end as u64);
        if inside.is_empty() {
            continue;
        }
        let walked = table.runs(inside, &mut |run| {
            let is_copied = run.kind.is(PageKind::FILE) && !map.is_shared();
            if run.kind.is(PageKind::PRESENT) && !run.kind.is(PageKind::ZERO) && !is_copied {
                missing_bytes = missing_bytes.saturating_sub(run.range.end - run.range.start);
            }
        });
        walked.map_err(of_backing)?;
    }
    Ok(missing_bytes)
}

/// Returns the first address that is not present.
fn first_missing(pages: &Range<usize>) -> usize {
    match PageTable::of(None).map(|table| check_by(&table, pages.start, pages.len())) {
        Ok(Err(NotBacked::Missing(missing))) => missing.first,
        _ => pages.start,
    }
}

/// Whether the kernel has `MADV_POPULATE_WRITE`: it accepts an empty range.
fn is_advice_known() -> bool {
    // SAFETY: the range is empty, so that nothing happens to any memory (madvise(2)).
    unsafe { rustix::mm::madvise(std::ptr::null_mut(), 0, Advice::LinuxPopulateWrite) }.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    fn map(range: Range<u64>, access: &[u8; 4], name: &[u8]) -> Map {
        Map { range, access: *access, offset: 0, inode: 0, name: name.to_vec() }
    }

    #[test]
    fn gaps_and_read_only_parts_are_named_by_their_first_address() {
        let maps =
            [map(0x1000..0x3000, b"rw-p", b""), map(0x3000..0x5000, b"r--p", b""), map(0x6000..0x8000, b"rw-p", b"")];
        let check = |pages| check_mappings(&maps, &pages);
        assert_eq!([check(0x1000..0x3000), check(0x2000..0x3000), check(0x6000..0x7000)], [Ok(()); 3]);
        assert_eq!(check(0x2000..0x4000), Err(NotPopulated::ReadOnly { address: 0x3000 }));
        assert_eq!(check(0x4000..0x7000), Err(NotPopulated::ReadOnly { address: 0x4000 }));
        assert_eq!(check(0x5000..0x7000), Err(NotPopulated::NotMapped { address: 0x5000 }));
        assert_eq!(check(0x7000..0x9000), Err(NotPopulated::NotMapped { address: 0x8000 }));
        assert_eq!(check(0x0..0x2000), Err(NotPopulated::NotMapped { address: 0 }));
    }

    #[test]
    fn only_what_lies_between_the_stack_and_the_mapping_below_is_the_stack() {
        let gap = 256 * os_page_size();
        let top: u64 = if cfg!(target_pointer_width = "64") { 1 << 40 } else { 0xC000_0000 };
        let maps = [map(0x1000..0x10_0000, b"rw-p", b""), map(top - 0x10000..top, b"rw-p", b"[stack]")];
        let grows = |start: usize| stack_must_grow(&maps, &(start..start + 4096));
        assert_eq!(grows(top as usize - 0x10000), Ok(false));
        assert_eq!(grows(top as usize - 0x11000), Ok(true));
        assert_eq!(grows(0xF_0000), Ok(false));
        assert_eq!(grows(0x10_0000 + gap - 4096), Ok(false));
        if let Some(limit_bytes) = getrlimit(Resource::Stack).current {
            let beyond = 0x10_0000 + 2 * gap;
            let refused = Err(NotPopulated::StackLimit { wanted_bytes: top - beyond as u64, limit_bytes });
            assert_eq!(grows(beyond), refused);
        }
    }

    /// The fallback for Linux before 5.14. Each word is in a page of its own, so that each exchange meets the additions of
    /// another thread.
    #[test]
    fn touching_loses_no_write_of_another_thread() {
        const ADDITIONS: u64 = 200_000;
        let words = std::iter::repeat_with(|| AtomicU64::new(0)).take(3 * 4096).collect::<Vec<_>>();
        let (base, size_bytes) = (words.as_ptr().cast::<u8>().cast_mut(), size_of_val(&*words));
        let is_done = std::sync::atomic::AtomicBool::new(false);
        // The bytes that the fallback exchanges: the first, and the first of each later page.
        let first =
            words.iter().position(|word| std::ptr::from_ref(word).addr().is_multiple_of(os_page_size())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..ADDITIONS).for_each(|_| {
                    words[0].fetch_add(1, Relaxed);
                    words[first].fetch_add(1, Relaxed);
                });
                is_done.store(true, Relaxed);
            });
            while !is_done.load(Relaxed) {
                // SAFETY: the bytes are those of the words, which live; all access to them is atomic.
                unsafe { touch(base, size_bytes) };
            }
        });
        assert_eq!([&words[0], &words[first]].map(|word| word.load(Relaxed)), [ADDITIONS; 2]);
    }
}
