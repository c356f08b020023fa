//! The instruction that touched each page of a command and its descendants last: the kernel's event for page faults
//! (`perf_event_open(2)`), which needs no privilege for programs of the same user.
//!
//! ```text
//!   each CPU: fault ─▶ record (instruction, process, time, address) ─▶ ring, shared with the kernel ─▶ last fault of each page
//! ```
//! A page that is the zero page now was entered by its last fault, which was a read: a write would have replaced it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_backing::os_page_size;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Size of a ring's data, in bytes: as much as the kernel lets a user lock for a CPU (`kernel.perf_event_mlock_kb`).
const RING_BYTES: usize = 512 << 10;
/// Maximum number of pages whose faults are kept.
const PAGES_MAX: usize = 1 << 20;

/// The first version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

// Values from `linux/perf_event.h`.
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_PAGE_FAULTS: u64 = 2;
const PERF_SAMPLE_IP: u64 = 1 << 0;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_SAMPLE_ADDR: u64 = 1 << 3;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
/// Offsets in `struct perf_event_mmap_page`, in words.
const DATA_HEAD: usize = 1024 / 8;
const DATA_TAIL: usize = 1032 / 8;

/// The ring of one CPU.
#[derive(Debug)]
struct Ring {
    base: *mut AtomicU64,
    len: usize,
    _event: OwnedFd,
}

// SAFETY: the value owns its mapping, and accesses it only through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens the event of a process on a CPU, and of all threads and processes that it will start.
    fn open(pid: u32, cpu: u32) -> io::Result<Ring> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_PAGE_FAULTS,
            sample_period: 1,
            sample_type: PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR,
            flags: INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            ..Attributes::default()
        };
        let no_group = -1_i32;
        // SAFETY: the structure is the ABI's and states its own size; the kernel only reads it (perf_event_open(2)).
        let event = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, pid, cpu, no_group, PERF_FLAG_FD_CLOEXEC)
        };
        let event = i32::try_from(event).ok().filter(|event| *event >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the descriptor was opened above, and belongs to nothing else.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        let len = RING_BYTES + os_page_size();
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2)).
        let base =
            unsafe { mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, event.as_fd(), 0) };
        Ok(Ring { base: base?.cast(), len, _event: event })
    }

    /// Returns a word of the mapping.
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(8 * index < self.len);
        // SAFETY: the index is inside the mapping, which lives as long as `self`; the kernel writes whole words.
        unsafe { &*self.base.wrapping_add(index) }
    }

    /// Calls `each` with the kind and the words of every new record.
    fn drain(&mut self, mut each: impl FnMut(u32, &[u64])) {
        let (first, words) = (os_page_size() / 8, RING_BYTES as u64 / 8);
        // (A) pairs with the kernel's store of the head, behind its records.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire) / 8;
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed) / 8;
        while tail < head {
            let word = |index: u64| self.word(first + ((tail + index) % words) as usize).load(Ordering::Relaxed);
            let header = word(0);
            let (kind, count) = (header as u32, header >> 51);
            if count == 0 || count > head - tail {
                // Only a broken kernel writes such a record.
                tail = head;
                break;
            }
            // Longer records are of no kind that is known here.
            let mut record = [0; 5];
            let record = &mut record[..(count as usize).min(5)];
            (0..).zip(record.iter_mut()).for_each(|(index, target)| *target = word(index));
            each(kind, &record[1..]);
            tail += count;
        }
        // (B) pairs with the kernel's load of the tail, before it writes over these records.
        self.word(DATA_TAIL).store(8 * tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `open`, whole, of which nothing is used any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// A page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    /// Time of the fault, in nanoseconds of the kernel's clock.
    time_ns: u64,
    /// Address of the instruction.
    instruction: u64,
}

/// The last fault of each page.
#[derive(Debug)]
pub(crate) struct Faults {
    rings: Vec<Ring>,
    /// By process and number of the page.
    last: HashMap<(u32, u64), Fault>,
    /// Number of faults that were not recorded.
    lost_count: u64,
}

impl Faults {
    /// Records the faults of a stopped process, and of all that it starts, from now on.
    ///
    /// # Errors
    /// Errors of the kernel: it has no such event, or does not allow it to this user (`kernel.perf_event_paranoid`).
    pub(crate) fn record(pid: u32) -> io::Result<Faults> {
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        let rings = cpus(&online).map(|cpu| Ring::open(pid, cpu)).collect::<io::Result<_>>()?;
        Ok(Faults { rings, last: HashMap::new(), lost_count: 0 })
    }

    /// Takes over the faults that were recorded since the last call.
    pub(crate) fn update(&mut self) {
        let os_page = os_page_size() as u64;
        let Faults { rings, last, lost_count } = self;
        for ring in rings {
            ring.drain(|kind, words| match (kind, words) {
                (PERF_RECORD_SAMPLE, [instruction, process, time_ns, address]) => {
                    let key = (*process as u32, address / os_page);
                    let fault = Fault { time_ns: *time_ns, instruction: *instruction };
                    let is_full = last.len() >= PAGES_MAX;
                    match last.get_mut(&key) {
                        Some(known) if known.time_ns < fault.time_ns => *known = fault,
                        Some(_) => {}
                        None if is_full => *lost_count += 1,
                        None => drop(last.insert(key, fault)),
                    }
                }
                (PERF_RECORD_LOST, [_, lost, ..]) => *lost_count += lost,
                _ => {}
            });
        }
    }

    /// Returns the instruction that entered the first of these pages, which are the zero page. A huge page is entered by one
    /// fault.
    pub(crate) fn first_reader(&self, pid: u32, zero: impl Iterator<Item = Range<u64>>) -> Option<u64> {
        let os_page = os_page_size() as u64;
        let pages = zero.flat_map(|range| range.start / os_page..range.end.div_ceil(os_page));
        let faults = pages.filter_map(|page| self.last.get(&(pid, page)));
        faults.min_by_key(|fault| fault.time_ns).map(|fault| fault.instruction)
    }

    /// Returns the number of faults that were not recorded.
    pub(crate) fn lost_count(&self) -> u64 {
        self.lost_count
    }
}

/// Returns the CPUs in a list of the kernel, such as `0-3,8`.
fn cpus(list: &str) -> impl Iterator<Item = u32> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse()) {
            (Ok(first), Ok(last)) => first..=last,
            // No CPU.
            #[expect(clippy::reversed_empty_ranges, reason = "it is meant to be empty")]
            _ => 1..=0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(cpus("0-3,8\n").collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("5").collect::<Vec<_>>(), [5]);
        assert_eq!(cpus("").collect::<Vec<_>>(), []);
    }

    /// The last fault of a page counts, and of a buffer's pages the first.
    #[test]
    fn the_first_reader_is_that_of_the_earliest_last_fault() {
        let fault = |time_ns, instruction| Fault { time_ns, instruction };
        let os_page = os_page_size() as u64;
        let faults = Faults {
            rings: Vec::new(),
            last: HashMap::from([((7, 1), fault(30, 100)), ((7, 2), fault(20, 200)), ((8, 1), fault(1, 300))]),
            lost_count: 0,
        };
        let by = |pid, pages: Range<u64>| {
            faults.first_reader(pid, std::iter::once(pages.start * os_page..pages.end * os_page))
        };
        assert_eq!([by(7, 1..9), by(7, 1..2), by(8, 0..9), by(7, 3..9)], [Some(200), Some(100), Some(300), None]);
    }
}
