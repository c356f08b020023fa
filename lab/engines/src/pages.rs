//! The codec of the experiment `zero-page`: one process, one frame buffer in `.bss`, frames of growing sizes.
//!
//! ```text
//!   dormouse-lab-engine-pages ORDER       ORDER and what is printed: JSON, see `dormouse_lab_harness::pages`
//!
//!   processor, policy ─▶ advice ─▶ state of the buffer ─▶ for each size: passes, each with its time and its faults ─▶ census
//! ```
//! Each run has a process of its own, because a buffer that nobody has written is so once. The document that it grew out of has a codec's unit
//! test, which takes an array that was not initialised for its frames.
//!
//! # Limits
//! Times are of `CLOCK_MONOTONIC`, which costs some 30 ns; the shortest frame takes several microseconds.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use dormouse_backing::page_table::{PageKind, PageTable};
use dormouse_lab_harness::pages::{
    BUFFER_BYTES_MAX, Census, Frame, HUGE_PAGE_BYTES, Order, Outcome, Part, Scheduling, State, Thp,
};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The frame buffer, with room to begin where a huge page may.
struct Buffer(UnsafeCell<[u64; (BUFFER_BYTES_MAX + HUGE_PAGE_BYTES) / 8]>);

// SAFETY: this process has one thread that uses it.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; (BUFFER_BYTES_MAX + HUGE_PAGE_BYTES) / 8]));

/// The first `bytes` of the buffer. A slice of them would be one of memory that the next advice may change.
fn frame(bytes: usize) -> *mut [u64] {
    let first = BUFFER.0.get().cast::<u8>();
    let start = first.wrapping_add(first.addr().next_multiple_of(HUGE_PAGE_BYTES) - first.addr());
    // The compiler is not to know that nobody has written it.
    std::ptr::slice_from_raw_parts_mut(black_box(start).cast(), bytes / 8)
}

fn read(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

/// Words of a block: 16 KiB, so that what is decoded is in the first-level cache.
const BLOCK: usize = 2048;

/// Eight coefficients of a row: a Walsh-Hadamard transform, quantised.
fn transform(row: &mut [i32; 8]) -> i32 {
    for distance in [4, 2, 1] {
        for index in 0..8 {
            if index & distance == 0 {
                let (a, b) = (row[index], row[index + distance]);
                row[index] = a.wrapping_add(b);
                row[index + distance] = a.wrapping_sub(b);
            }
        }
    }
    row.iter().fold(0, |sum, value| sum.wrapping_add(value.wrapping_mul(13) >> 4))
}

fn decode(words: &[u64]) -> u64 {
    let mut sum = 0_i32;
    let mut block = [0_u64; BLOCK];
    for part in words.chunks(BLOCK) {
        let target = &mut block[..part.len()];
        target.copy_from_slice(part);
        for row in black_box(target).as_chunks::<4>().0 {
            let mut values = [0; 8];
            for (pair, word) in values.as_chunks_mut::<2>().0.iter_mut().zip(row) {
                *pair = [*word as i32, (*word >> 32) as i32];
            }
            sum = sum.wrapping_add(transform(&mut values));
        }
    }
    sum as u64
}

fn work(part: Part, frame: *mut [u64]) -> u64 {
    match part {
        // SAFETY: inside the buffer, and nobody writes it meanwhile.
        Part::Read => read(unsafe { &*frame }),
        // SAFETY: as above.
        Part::Decode => decode(unsafe { &*frame }),
        Part::Write => {
            // SAFETY: inside the buffer, and nobody else has it.
            unsafe { &mut *frame }.fill(black_box(0x0101_0101_0101_0101));
            0
        }
    }
}

/// Faults of this thread so far.
fn faults() -> u64 {
    // SAFETY: all of its members are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes one structure of that type.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

fn census(table: &PageTable, frame: *mut [u64]) -> io::Result<Census> {
    let start = frame.cast::<u8>().addr() as u64;
    let end = start + 8 * frame.len() as u64;
    let mut census = Census { unbacked: end - start, ..Census::default() };
    let walked = table.runs(start..end.next_multiple_of(dormouse_backing::os_page_size() as u64), &mut |run| {
        // A huge page may end behind the frame.
        let bytes = run.range.end.min(end).saturating_sub(run.range.start.max(start));
        let is_huge = run.kind.is(PageKind::HUGE);
        let kind = match (run.kind.is(PageKind::PRESENT), run.kind.is(PageKind::ZERO)) {
            (false, _) => return,
            (true, true) if is_huge => &mut census.huge_zero,
            (true, true) => &mut census.zero,
            (true, false) if is_huge => &mut census.huge,
            (true, false) => &mut census.small,
        };
        *kind += bytes;
        census.unbacked -= bytes;
    });
    walked.map_err(io::Error::other)?;
    Ok(census)
}

fn schedule(policy: Scheduling) -> io::Result<()> {
    let (number, sched_priority) = match policy {
        Scheduling::Other => (libc::SCHED_OTHER, 0),
        Scheduling::Batch => (libc::SCHED_BATCH, 0),
        Scheduling::Idle => (libc::SCHED_IDLE, 0),
        Scheduling::Fifo => (libc::SCHED_FIFO, 1),
        Scheduling::Rr => (libc::SCHED_RR, 1),
    };
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: concerns the calling thread; `parameters` is read only.
    match unsafe { libc::sched_setscheduler(0, number, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn advise(frame: *mut [u64], advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the buffer's own memory; none of these advices changes what it holds.
    match unsafe { libc::madvise(frame.cast(), 8 * frame.len(), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Passes over a frame: the first, and others until they have read as much as this together, within bounds.
const PASSES_BYTES: usize = 128 << 20;

fn passes(bytes: usize) -> usize {
    1 + (PASSES_BYTES / bytes).clamp(3, 16)
}

fn run(order: &Order) -> Result<Outcome, String> {
    let whole = order.sizes.iter().copied().max().unwrap_or(0);
    if order.sizes.iter().any(|bytes| *bytes == 0 || bytes % 4096 != 0) || whole > BUFFER_BYTES_MAX {
        return Err(format!("frames are whole pages, up to {BUFFER_BYTES_MAX} bytes"));
    }
    let mut refused = Vec::new();
    let mut try_to = |what: &str, result: io::Result<()>| {
        if let Err(error) = result {
            refused.push(format!("{what}: {error}"));
        }
    };
    let mut cpus = CpuSet::new();
    cpus.set(order.cpu as usize % CpuSet::MAX_CPU);
    try_to("to be pinned", sched_setaffinity(None, &cpus).map_err(io::Error::from));
    try_to(order.policy.as_str(), schedule(order.policy));
    let all = frame(whole);
    match order.thp {
        Thp::Never => try_to("MADV_NOHUGEPAGE", advise(all, libc::MADV_NOHUGEPAGE)),
        Thp::Unasked => {}
        Thp::Asked => try_to("MADV_HUGEPAGE", advise(all, libc::MADV_HUGEPAGE)),
    }
    match order.state {
        State::Never => {}
        State::Written => _ = work(Part::Write, all),
        State::PopulateRead => try_to("MADV_POPULATE_READ", advise(all, libc::MADV_POPULATE_READ)),
        State::PopulateWrite => try_to("MADV_POPULATE_WRITE", advise(all, libc::MADV_POPULATE_WRITE)),
    }
    let table = PageTable::of(None).map_err(|error| error.to_string())?;
    // Code and stack are there before they are timed; none of it belongs to the buffer.
    let mut small = [0; 2 * BLOCK];
    black_box(work(order.part, &raw mut small));
    black_box((Instant::now().elapsed(), faults()));
    let mut frames = Vec::new();
    for &bytes in &order.sizes {
        let frame = frame(bytes);
        let (mut ns, mut counts) = (Vec::with_capacity(32), Vec::with_capacity(32));
        for _ in 0..passes(bytes) {
            let before = faults();
            let begun = Instant::now();
            black_box(work(order.part, frame));
            ns.push(begun.elapsed().as_nanos() as f64);
            counts.push(faults() - before);
        }
        let census = census(&table, frame).map_err(|error| error.to_string())?;
        frames.push(Frame { bytes, ns, faults: counts, census });
    }
    Ok(Outcome { refused, frames, sees_zero: table.way().sees_zero() })
}

fn main() -> ExitCode {
    let order = std::env::args().nth(1).ok_or_else(|| "usage: dormouse-lab-engine-pages ORDER".to_string());
    let order = order.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let outcome = order.and_then(|order| run(&order));
    match outcome.and_then(|outcome| serde_json::to_string(&outcome).map_err(|error| error.to_string())) {
        // Who ordered it may be gone.
        Ok(text) => writeln!(io::stdout(), "{text}").map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("dormouse-lab-engine-pages: {error}");
            ExitCode::FAILURE
        }
    }
}
