//! Parts of the session's memory that are in this process's page table. Parts that are not are made present before a
//! record is written to them.
//!
//! ```text
//!   the first record   header, owner words, CPUs' control blocks, and all that is in huge pages
//!   a page drawn       its bytes, unless present                 on the slow path that draws a page anyway
//!   a stream used      control block and ring, unless present    the first time on the slow path
//! ```
//!
//! Each `os_page` is touched by writing a word's own value. `madvise(MADV_POPULATE_WRITE)` would be a single system
//! call for this, but a filter of system calls that does not know it would kill the program: records are written
//! without system calls.
//!
//! Each thread's first record takes the slow path, and so does the first of a process. Only a process that joins a
//! second session has threads whose first record there may take any path, so there the memory is made present on
//! joining. A process that joins and records nothing pays nothing.
//!
//! A page fault during a record costs a microsecond or two, which the program does not expect. A process that joins for
//! a moment, however, must not pay for small pages that it never writes to, so these are made present one by one, when
//! drawn.
//!
//! Remaining faults: a page that another process has opened faults once for each 4 KiB, unless the memory is in huge
//! pages. So does the part of a ring beyond its first [`RING_MAX_BYTES`], when pages switch, a CPU's table of events that
//! are not recorded, once, and memory that the kernel itself removes from a page table.
//!
//! Everything here is a hint: a missed part faults, and a part touched twice costs only time.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use dormouse_abi::session::{HUGE_UNIT_BYTES, STREAM_STRIDE_BYTES};
use dormouse_imv::is_filtered;
use dormouse_relay::Memory;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Size of the smallest `os_page`.
const OS_PAGE_SIZE_BYTES: usize = 4096;

/// Maximum size of memory in huge pages that a joining process takes into its page table: 128 entries.
const AT_ONCE_MAX_BYTES: usize = 256 << 20;

/// Maximum size of a ring's part that is taken into the page table at once. Rings of up to 4,096 pages are no larger.
const RING_MAX_BYTES: usize = 128 << 10;

/// A bit for each page and for each stream that is present.
#[derive(Debug)]
pub(crate) struct Presence {
    has_begun: AtomicBool,
    pages: Box<[AtomicU64]>,
    streams: Box<[AtomicU64]>,
    /// Value of [`dormouse_abi::session::SessionHeader::emptied`] when the pages' bits were last cleared.
    emptied: AtomicU32,
}

fn bits(count: u32) -> Box<[AtomicU64]> {
    // Written one by one, so that the bits' own memory is present.
    (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// Sets a bit. Returns whether it was clear.
fn set(bits: &[AtomicU64], index: u32) -> bool {
    let Some(word) = bits.get(index as usize / 64) else { return false };
    let bit = 1 << (index % 64);
    // Relaxed, here and below: each word is an independent hint.
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Touches every `step` bytes of a part of the memory by a write. The memory must stay mapped until this returns.
fn touch(memory: &Memory, range: Range<usize>, step: usize) {
    let words = memory.words();
    for word in range.step_by(step).filter_map(|offset| words.get(offset / size_of::<AtomicU64>())) {
        // An exchange, because compilers turn the addition of zero into a mere load. Repeated until it succeeds,
        // because on some machines an exchange that fails does not store.
        let mut value = word.load(Ordering::Relaxed);
        while let Err(now) = word.compare_exchange_weak(value, value, Ordering::Relaxed, Ordering::Relaxed) {
            value = now;
        }
    }
}

/// Returns the part of the memory that its owner has in huge pages, within the memory and [`AT_ONCE_MAX_BYTES`].
fn huge_part(memory: &Memory) -> Range<usize> {
    let header = memory.header();
    let bytes = |word: &AtomicU32| word.load(Ordering::Relaxed) as usize * HUGE_UNIT_BYTES;
    let begin = bytes(&header.huge_begin);
    let end = bytes(&header.huge_end).min(memory.geometry().size_bytes()).min(begin.saturating_add(AT_ONCE_MAX_BYTES));
    begin..end.max(begin)
}

impl Presence {
    /// Returns the state of a process that joins: nothing is present. Makes a system call the first time.
    pub(crate) fn new(memory: &Memory) -> Presence {
        if !is_filtered()
            && ALLOWED_CPUS.get().is_none()
            && let Ok(cpus) = sched_getaffinity(None)
        {
            let _ = ALLOWED_CPUS.set(cpus);
        }
        let geometry = memory.geometry();
        let emptied = AtomicU32::new(memory.header().emptied.load(Ordering::Relaxed));
        let (pages, streams) = (bits(geometry.page_count), bits(geometry.stream_count));
        Presence { has_begun: AtomicBool::new(false), pages, streams, emptied }
    }

    /// Makes present, once, the parts that records are written to without further checks. The memory must stay mapped
    /// until this returns.
    /// Async-signal-safe; no system call.
    pub(crate) fn begin(&self, memory: &Memory) {
        // Relaxed: a thread that arrives meanwhile does not wait, and may fault.
        if self.has_begun.load(Ordering::Relaxed) || self.has_begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let geometry = memory.geometry();
        let huge = huge_part(memory);
        touch(memory, huge.clone(), HUGE_UNIT_BYTES);
        let is_huge = |begin: usize, size_bytes: usize| huge.start <= begin && begin + size_bytes <= huge.end;
        if !is_huge(0, geometry.streams_offset()) {
            touch(memory, 0..geometry.streams_offset(), OS_PAGE_SIZE_BYTES);
        }
        let page_size_bytes = geometry.page_size_bytes as usize;
        let of_page = |index: u32| geometry.pages_offset() + index as usize * page_size_bytes;
        for index in (0..geometry.page_count).filter(|index| is_huge(of_page(*index), page_size_bytes)) {
            set(&self.pages, index);
        }
        for stream in 0..geometry.stream_count {
            let (control, ring) = stream_parts(memory, stream);
            if is_huge(control.start, control.len()) && is_huge(ring.start, ring.len()) {
                set(&self.streams, stream);
            }
        }
        let is_allowed = |cpu: &u32| ALLOWED_CPUS.get().is_none_or(|cpus| is_set(cpus, *cpu));
        for cpu in (0..geometry.cpu_count).filter(is_allowed) {
            let (control, _) = stream_parts(memory, cpu);
            if !is_huge(control.start, control.len()) {
                touch(memory, control, OS_PAGE_SIZE_BYTES);
            }
        }
    }

    /// Makes page `index` present before it is written to. The memory must stay mapped until this returns.
    /// Async-signal-safe; no system call.
    pub(crate) fn make_page_ready(&self, memory: &Memory, index: u32) {
        // A thread that has drawn a page that had no memory in between has seen the new count: (B) of `dormouse_relay`.
        let emptied = memory.header().emptied.load(Ordering::Relaxed);
        if self.emptied.load(Ordering::Relaxed) != emptied {
            self.pages.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.emptied.store(emptied, Ordering::Relaxed);
        }
        let geometry = memory.geometry();
        if index < geometry.page_count && set(&self.pages, index) {
            let size_bytes = geometry.page_size_bytes as usize;
            let begin = geometry.pages_offset() + index as usize * size_bytes;
            touch(memory, begin..begin + size_bytes, OS_PAGE_SIZE_BYTES);
        }
    }

    /// Makes a stream's control block and ring present before they are written to. The memory must stay mapped until
    /// this returns. Async-signal-safe; no system call.
    pub(crate) fn make_stream_ready(&self, memory: &Memory, stream: u32) {
        if stream < memory.geometry().stream_count && set(&self.streams, stream) {
            let (control, ring) = stream_parts(memory, stream);
            touch(memory, control, OS_PAGE_SIZE_BYTES);
            touch(memory, ring.start..ring.end.min(ring.start + RING_MAX_BYTES), OS_PAGE_SIZE_BYTES);
        }
    }
}

/// CPUs that this process was allowed to run on when it first joined a session. Not set if the system does not tell, or
/// a filter may kill for the question.
static ALLOWED_CPUS: OnceLock<CpuSet> = OnceLock::new();

fn is_set(cpus: &CpuSet, cpu: u32) -> bool {
    cpu >= CpuSet::MAX_CPU as u32 || cpus.is_set(cpu as usize)
}

/// Returns the ranges of a stream's control block and of its ring; in overwrite mode only the chain of the ring is
/// used.
fn stream_parts(memory: &Memory, stream: u32) -> (Range<usize>, Range<usize>) {
    let geometry = memory.geometry();
    let control = geometry.streams_offset() + stream as usize * STREAM_STRIDE_BYTES;
    let ring = geometry.rings_offset() + stream as usize * geometry.ring_stride_bytes();
    let unused = if memory.is_overwrite() { geometry.chain_in_ring_region() } else { 0 };
    (control..control + STREAM_STRIDE_BYTES, ring + unused..ring + geometry.ring_stride_bytes())
}
