//! Which parts of the session's memory are in this process's page table, so that no record is written to one that is not.
//!
//! ```text
//!   the first record   header, owner words, CPUs' control blocks, and all that is in huge pages
//!   a page drawn       its bytes, unless they are there          on the slow path that draws a page anyway
//!   a stream used      control block and ring, unless there      the first time on the slow path
//! ```
//!
//! Each `os_page` is touched by a write of what is there. `madvise(MADV_POPULATE_WRITE)` would be one system call in place of that, for which a
//! program is killed if a filter of system calls does not know it: records are written without any.
//!
//! Each thread's first record goes the slow path, and so does the first of a process. Only who joins another session has threads whose first
//! record in it may be any: there it is done on joining. A process that joins and records nothing pays nothing.
//!
//! A page fault amid a record costs a microsecond or two, in a program that does not expect any. Who joins for a moment, though, must not pay
//! for small pages that it never writes to: so these come one by one, as they are drawn.
//!
//! What is left: a page that another process has opened, where neither it nor this one's memory is in huge pages, faults once for each 4 KiB.
//! So does what of a ring lies beyond its first [`RING_MAX_BYTES`], when pages switch, and what the kernel takes out of a page table by itself.
//!
//! Everything here is a hint: what is missed faults, and what is done twice is done for nothing.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use dormouse_abi::session::{HUGE_PAGE_SIZE_BYTES, STREAM_STRIDE_BYTES};
use dormouse_imv::is_filtered;
use dormouse_relay::Memory;
use rustix::thread::{CpuSet, sched_getaffinity};

/// What the smallest `os_page` has.
const OS_PAGE_SIZE_BYTES: usize = 4096;

/// Memory in huge pages that a process that joins takes into its page table at most: 128 entries of it.
const AT_ONCE_MAX_BYTES: usize = 256 << 20;

/// Of a ring, taken into the page table at once: the rings of 4,096 pages and fewer have no more.
const RING_MAX_BYTES: usize = 128 << 10;

/// A bit for each page, and one for each stream.
#[derive(Debug)]
pub(crate) struct Presence {
    has_begun: AtomicBool,
    pages: Box<[AtomicU64]>,
    streams: Box<[AtomicU64]>,
    /// [`dormouse_abi::session::SessionHeader::emptied`] when the pages' bits were cleared last.
    emptied: AtomicU32,
}

fn bits(count: u32) -> Box<[AtomicU64]> {
    // Stored to one by one, so that they are there.
    (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// Sets a bit. True if it was not set.
fn set(bits: &[AtomicU64], index: u32) -> bool {
    let Some(word) = bits.get(index as usize / 64) else { return false };
    let bit = 1 << (index % 64);
    // Relaxed, here and below: each word is a hint of its own.
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Touches every `step` bytes of a part of the memory, as a writer would. The memory is mapped until this returns.
fn touch(memory: &Memory, range: Range<usize>, step: usize) {
    let words = memory.words();
    for word in range.step_by(step).filter_map(|offset| words.get(offset / size_of::<AtomicU64>())) {
        // An exchange, because compilers make a mere load of an addition of nothing. Repeated until it succeeds: on some machines one that
        // fails does not store.
        let mut value = word.load(Ordering::Relaxed);
        while let Err(now) = word.compare_exchange_weak(value, value, Ordering::Relaxed, Ordering::Relaxed) {
            value = now;
        }
    }
}

/// The part of the memory that is in huge pages, as its owner has it; never more than there is.
fn huge_part(memory: &Memory) -> Range<usize> {
    let header = memory.header();
    let bytes = |word: &AtomicU32| word.load(Ordering::Relaxed) as usize * HUGE_PAGE_SIZE_BYTES;
    let begin = bytes(&header.huge_begin);
    let end = bytes(&header.huge_end).min(memory.geometry().size_bytes()).min(begin.saturating_add(AT_ONCE_MAX_BYTES));
    begin..end.max(begin)
}

impl Presence {
    /// Of a process that joins: nothing is there. A system call, the first time.
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

    /// Has be there what records are written to without a look at anything here, once. The memory is mapped until this returns.
    /// Async-signal-safe; no system call.
    pub(crate) fn begin(&self, memory: &Memory) {
        // Relaxed: a thread that comes meanwhile does not wait, and may fault.
        if self.has_begun.load(Ordering::Relaxed) || self.has_begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let geometry = memory.geometry();
        let huge = huge_part(memory);
        touch(memory, huge.clone(), HUGE_PAGE_SIZE_BYTES);
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

    /// Page `index` is about to be written to. The memory is mapped until this returns. Async-signal-safe; no system call.
    pub(crate) fn make_page_ready(&self, memory: &Memory, index: u32) {
        // Whoever has drawn a page that had no memory in between knows that by now: (B) of `dormouse_relay`.
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

    /// A stream's control block and its ring are about to be written to. The memory is mapped until this returns. Async-signal-safe; no
    /// system call.
    pub(crate) fn make_stream_ready(&self, memory: &Memory, stream: u32) {
        if stream < memory.geometry().stream_count && set(&self.streams, stream) {
            let (control, ring) = stream_parts(memory, stream);
            touch(memory, control, OS_PAGE_SIZE_BYTES);
            touch(memory, ring.start..ring.end.min(ring.start + RING_MAX_BYTES), OS_PAGE_SIZE_BYTES);
        }
    }
}

/// The CPUs that this process may run on, as it was when it joined a session first. Unknown where the system does not tell, or a filter may kill
/// for the question.
static ALLOWED_CPUS: OnceLock<CpuSet> = OnceLock::new();

fn is_set(cpus: &CpuSet, cpu: u32) -> bool {
    cpu >= CpuSet::MAX_CPU as u32 || cpus.is_set(cpu as usize)
}

/// Where a stream's control block is, and its ring, of which a flight recorder has the chain alone.
fn stream_parts(memory: &Memory, stream: u32) -> (Range<usize>, Range<usize>) {
    let geometry = memory.geometry();
    let control = geometry.streams_offset() + stream as usize * STREAM_STRIDE_BYTES;
    let ring = geometry.rings_offset() + stream as usize * geometry.ring_stride_bytes();
    let unused = if memory.is_overwrite() { geometry.chain_in_ring_region() } else { 0 };
    (control..control + STREAM_STRIDE_BYTES, ring + unused..ring + geometry.ring_stride_bytes())
}
