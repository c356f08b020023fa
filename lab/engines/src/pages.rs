//! The codec of the experiment `zero-page`: one process and one frame buffer, with frames of growing sizes.
//!
//! ```text
//!   dormouse-lab-engine-pages REQUEST     REQUEST and the output are JSON, see `dormouse_lab_harness::pages`
//!
//!   CPU, policy ─▶ advice ─▶ state of the buffer ─▶ for each size: passes, each with its time and its faults ─▶ census
//! ```
//! Each run has a process of its own, because a buffer can be unwritten only once. The paper's document has the unit
//! test of a codec, which uses an uninitialised array for its frames.
//!
//! # Limits
//! Times are read from `CLOCK_MONOTONIC`, which costs some 30 ns; the shortest frame takes several microseconds.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;

use dormouse_backing::maps;
use dormouse_backing::page_table::{PageKind, PageTable};
use dormouse_lab_harness::interrupts;
use dormouse_lab_harness::pages::{
    BUFFER_BYTES_MAX, Census, Frame, HUGE_PAGE_BYTES, Memory, Order, Outcome, Part, Request, Scheduling, State, Thp,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The frame buffer, with room to align its start to a huge page.
struct Buffer(UnsafeCell<[u64; (BUFFER_BYTES_MAX + HUGE_PAGE_BYTES) / 8]>);

// SAFETY: only the main thread of this process uses it.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; (BUFFER_BYTES_MAX + HUGE_PAGE_BYTES) / 8]));

/// Returns a frame buffer of `bytes` bytes. It is a raw slice, because a reference must not outlive the next advice,
/// which may change the memory.
fn buffer(memory: Memory, bytes: usize) -> io::Result<*mut [u64]> {
    let (room, access) = (bytes + HUGE_PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE);
    let first = match memory {
        Memory::Bss => BUFFER.0.get().cast(),
        // SAFETY: the kernel chooses a free address, so the mapping replaces nothing.
        Memory::Anonymous => unsafe { mmap_anonymous(std::ptr::null_mut(), room, access, MapFlags::PRIVATE) }?,
        Memory::DevZeroPrivate | Memory::DevZeroShared => {
            let file = std::fs::File::options().read(true).write(true).open("/dev/zero")?;
            let flags = if memory == Memory::DevZeroShared { MapFlags::SHARED } else { MapFlags::PRIVATE };
            // SAFETY: the kernel chooses a free address, so the mapping replaces nothing; nothing else maps this
            // memory, even if it is shared.
            unsafe { mmap(std::ptr::null_mut(), room, access, flags, file, 0) }?
        }
    };
    let start = first.cast::<u8>().wrapping_add(first.addr().next_multiple_of(HUGE_PAGE_BYTES) - first.addr());
    // The compiler must not know that the buffer was never written.
    Ok(std::ptr::slice_from_raw_parts_mut(black_box(start).cast(), bytes / 8))
}

/// Returns the first `bytes` bytes of a buffer.
fn frame(buffer: *mut [u64], bytes: usize) -> *mut [u64] {
    std::ptr::slice_from_raw_parts_mut(buffer.cast(), bytes / 8)
}

fn read(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

/// Words of a block: 16 KiB, so that a block being decoded is in the first-level cache.
const BLOCK: usize = 2048;

/// Walsh-Hadamard transform of a row of eight coefficients, quantised. Returns their sum.
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

/// Pixels in a line of a decoded frame, one byte each.
const LINE: usize = 1024;

/// Lines of a frame to encode. The encoder's own type for this would compile the encoder for every type of pixel.
struct Gray<'p> {
    pixels: &'p [u8],
    height: u16,
}

impl jpeg_encoder::ImageBuffer for Gray<'_> {
    fn get_jpeg_color_type(&self) -> jpeg_encoder::JpegColorType {
        jpeg_encoder::JpegColorType::Luma
    }

    fn width(&self) -> u16 {
        LINE as u16
    }

    fn height(&self) -> u16 {
        self.height
    }

    fn fill_buffers(&self, y: u16, buffers: &mut [Vec<u8>; 4]) {
        buffers[0].extend(self.pixels.chunks(LINE).nth(y.into()).unwrap_or_default());
    }
}

/// Returns a frame of Motion JPEG that has `bytes` bytes when it is decoded: slopes and a little noise.
fn compressed(bytes: usize) -> Result<Vec<u8>, String> {
    let height = u16::try_from(bytes / LINE).map_err(|_| format!("no frame has {bytes} bytes"))?;
    let pixels: Vec<u8> =
        (0..bytes).map(|at| ((at % LINE) / 8 + at / LINE + ((at * 2_654_435_761) >> 13) % 16) as u8).collect();
    let mut data = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut data, 80);
    encoder.encode_image(Gray { pixels: &pixels, height }).map_err(|error| error.to_string())?;
    Ok(data)
}

fn decompress(data: &[u8], frame: *mut [u64]) -> Result<(), String> {
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::Luma);
    let pixels = std::ptr::slice_from_raw_parts_mut(frame.cast::<u8>(), 8 * frame.len());
    // SAFETY: inside the buffer, whose memory is zeroed or mapped from the start; nothing else refers to it during the
    // call.
    let pixels = unsafe { &mut *pixels };
    JpegDecoder::new_with_options(ZCursor::new(data), options).decode_into(pixels).map_err(|error| format!("{error:?}"))
}

/// Makes one pass over a frame. `data` is the codec's input.
fn work(part: Part, frame: *mut [u64], data: &[u8]) -> Result<u64, String> {
    Ok(match part {
        // SAFETY: inside the buffer, and nothing writes to it during the call.
        Part::Read => read(unsafe { &*frame }),
        // SAFETY: inside the buffer, and nothing writes to it during the call.
        Part::Decode => decode(unsafe { &*frame }),
        Part::Write => {
            // Writes zeroes, so that later reads see the same values whether the frame was written or not.
            // SAFETY: inside the buffer, and nothing else refers to it during the call.
            unsafe { &mut *frame }.fill(black_box(0));
            0
        }
        Part::Codec => decompress(data, frame).map(|()| 0)?,
    })
}

/// Returns the number of page faults of this thread so far.
fn faults() -> u64 {
    // SAFETY: all of its members are numbers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is one structure of the type that getrusage(2) writes.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

fn census(table: &PageTable, frame: *mut [u64]) -> io::Result<Census> {
    let start = frame.cast::<u8>().addr() as u64;
    let end = start + 8 * frame.len() as u64;
    let mut census = Census { unbacked: end - start, ..Census::default() };
    let walked = table.runs(start..end.next_multiple_of(dormouse_backing::os_page_size() as u64), &mut |run| {
        // A huge page may end after the frame.
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
    // SAFETY: sched_setscheduler(2) changes the calling thread only, and reads `parameters` only.
    match unsafe { libc::sched_setscheduler(0, number, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn advise(frame: *mut [u64], advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the buffer's own memory; the advices that callers give do not change what readers may rely on: memory
    // stays mapped, and dropped pages read as zeroes.
    match unsafe { libc::madvise(frame.cast(), 8 * frame.len(), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that the passes after the first read together, within bounds.
const PASSES_BYTES: usize = 128 << 20;

fn passes(part: Part, bytes: usize) -> usize {
    1 + if part == Part::Codec { 3 } else { (PASSES_BYTES / bytes).clamp(3, 16) }
}

/// Returns the time in microseconds since 1970.
fn time_of_day() -> f64 {
    let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: `now` is one structure of the type that gettimeofday(2) writes.
    unsafe { libc::gettimeofday(&raw mut now, std::ptr::null_mut()) };
    now.tv_sec as f64 * 1e6 + now.tv_usec as f64
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu % CpuSet::MAX_CPU);
    Ok(sched_setaffinity(None, &cpus)?)
}

fn run(order: &Order) -> Result<Outcome, String> {
    let whole = order.sizes.iter().copied().max().unwrap_or(0);
    if order.sizes.iter().any(|bytes| *bytes == 0 || bytes % 4096 != 0) || whole > BUFFER_BYTES_MAX {
        return Err(format!("frames are whole pages, up to {BUFFER_BYTES_MAX} bytes"));
    }
    let mut refused = BTreeMap::new();
    let mut try_to = |axis: &str, what: &str, result: io::Result<()>| {
        if let Err(error) = result {
            refused.insert(axis.to_string(), format!("{what}: {error}"));
        }
    };
    try_to("cpu", "to be pinned", pin(order.cpu as usize));
    try_to("policy", order.policy.as_str(), schedule(order.policy));
    let all = buffer(order.memory, whole).map_err(|error| format!("{}: {error}", order.memory.as_str()))?;
    match order.thp {
        // A kernel without huge pages refuses the advice, and its pages are small anyway.
        Thp::Never if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() => {}
        Thp::Never => try_to("thp", "MADV_NOHUGEPAGE", advise(all, libc::MADV_NOHUGEPAGE)),
        Thp::Unasked => {}
        Thp::Asked => try_to("thp", "MADV_HUGEPAGE", advise(all, libc::MADV_HUGEPAGE)),
    }
    match order.state {
        State::Never => {}
        State::Written => _ = work(Part::Write, all, &[])?,
        State::PopulateRead => try_to("state", "MADV_POPULATE_READ", advise(all, libc::MADV_POPULATE_READ)),
        State::PopulateWrite => try_to("state", "MADV_POPULATE_WRITE", advise(all, libc::MADV_POPULATE_WRITE)),
        State::ReadFromDevZero => try_to("state", "/dev/zero", fill_from_dev_zero(all)),
    }
    let table = PageTable::of(None).map_err(|error| error.to_string())?;
    // The first pass loads code and stack before any pass is timed. None of it belongs to the buffer.
    let mut small = [0; 2 * BLOCK];
    let data = if order.part == Part::Codec { compressed(8 * small.len())? } else { Vec::new() };
    black_box(work(order.part, &raw mut small, &data)?);
    black_box((Instant::now().elapsed(), time_of_day(), faults()));
    let mut frames = Vec::new();
    for &bytes in &order.sizes {
        let frame = frame(all, bytes);
        let data = if order.part == Part::Codec { compressed(bytes)? } else { Vec::new() };
        let [mut ns, mut ns_by_time_of_day] = [const { Vec::new() }; 2];
        let mut counts = Vec::with_capacity(32);
        ns.reserve(32);
        ns_by_time_of_day.reserve(32);
        // Small frames would find the caches changed by these.
        let is_watched = order.sizes.len() == 1;
        let mut ns_beside = Vec::new();
        for _ in 0..passes(order.part, bytes) {
            let before = faults();
            let begun_of_day = time_of_day();
            let begun = Instant::now();
            black_box(work(order.part, frame, &data)?);
            ns.push(begun.elapsed().as_nanos() as f64);
            ns_by_time_of_day.push((time_of_day() - begun_of_day) * 1e3);
            counts.push(faults() - before);
            if is_watched {
                // The kernel's work on this text lasts longer than what is still under way after a pass over memory.
                black_box(interrupts::of_cpu(order.cpu as usize, |_| true));
                ns_beside.push(read_beside(&raw mut small[..BLOCK])?);
            }
        }
        // A decoder's data are those of a whole frame.
        let mut ns_undisturbed = Vec::new();
        if is_watched && order.part != Part::Codec {
            for _ in 0..passes(order.part, bytes) {
                ns_undisturbed.extend(undisturbed(order, frame)?);
            }
        }
        let census = census(&table, frame).map_err(|error| error.to_string())?;
        frames.push(Frame { bytes, ns, ns_by_time_of_day, ns_beside, ns_undisturbed, faults: counts, census });
    }
    Ok(Outcome { refused, frames, sees_zero: table.interface().sees_zero() })
}

/// Parts of a pass whose interrupts are counted apart: each takes less time than lies between two ticks of a timer.
const PASS_PARTS: usize = 16;

/// Works on each part of a frame, and returns the times of those during which the CPU has taken no interrupt, each times the
/// number of parts, in ns; no times if the kernel does not tell interrupts.
fn undisturbed(order: &Order, frame: *mut [u64]) -> Result<Vec<f64>, String> {
    let interrupts = || interrupts::of_cpu(order.cpu as usize, |_| true);
    let words = frame.len() / PASS_PARTS;
    let mut times = Vec::new();
    for part in 0..PASS_PARTS {
        let part = std::ptr::slice_from_raw_parts_mut(frame.cast::<u64>().wrapping_add(part * words), words);
        let before = interrupts();
        let begun = Instant::now();
        black_box(work(order.part, part, &[])?);
        let ns = begun.elapsed().as_nanos() as f64;
        if before.is_some() && before == interrupts() {
            times.push(ns * PASS_PARTS as f64);
        }
    }
    Ok(times)
}

/// Number of reads of the small buffer that are timed together, since the clock has coarse steps.
const READS_BESIDE: u32 = 16;

/// Returns the time of reading a small buffer that is in the first-level cache, in nanoseconds: the quickest of several.
fn read_beside(small: *mut [u64]) -> Result<f64, String> {
    let mut quickest = f64::INFINITY;
    for _ in 0..8 {
        let begun = Instant::now();
        for _ in 0..READS_BESIDE {
            black_box(work(Part::Read, small, &[])?);
        }
        quickest = quickest.min(begun.elapsed().as_nanos() as f64 / f64::from(READS_BESIDE));
    }
    Ok(quickest)
}

fn fill_from_dev_zero(frame: *mut [u64]) -> io::Result<()> {
    let bytes = std::ptr::slice_from_raw_parts_mut(frame.cast::<u8>(), 8 * frame.len());
    // SAFETY: inside the buffer, whose memory is zeroed or mapped from the start; nothing else refers to it during the
    // call.
    std::fs::File::open("/dev/zero")?.read_exact(unsafe { &mut *bytes })
}

/// Bytes that each thread touches in a pass.
const TOUCHED_BYTES: usize = 4 << 20;
/// Number of timed passes.
const TOUCHED_TIMES: usize = 8;

/// Touches memory page by page and gives it back, [`TOUCHED_TIMES`] times. Returns nanoseconds of this thread's CPU
/// time for each page.
fn touch(is_written: bool, start: &Barrier) -> io::Result<f64> {
    let all = buffer(Memory::Anonymous, TOUCHED_BYTES);
    let all = all.and_then(|all| advise(all, libc::MADV_NOHUGEPAGE).map(|()| all));
    // A thread that has failed returns only after the barrier, or the others would wait for ever.
    start.wait();
    let all = all?;
    let page_bytes = dormouse_backing::os_page_size();
    let pages = TOUCHED_BYTES / page_bytes;
    let pass = || {
        for page in 0..pages {
            let word = all.cast::<u64>().wrapping_add(page * page_bytes / 8);
            if is_written {
                // SAFETY: inside the buffer, which only this thread uses.
                unsafe { word.write_volatile(1) };
            } else {
                // SAFETY: inside the buffer, which only this thread uses.
                black_box(unsafe { word.read_volatile() });
            }
        }
        advise(all, libc::MADV_DONTNEED)
    };
    // The first pass makes the page table, which stays.
    pass()?;
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    };
    let begun = now();
    (0..TOUCHED_TIMES).try_for_each(|_| pass())?;
    Ok((now() - begun) / (TOUCHED_TIMES * pages) as f64)
}

fn touch_at_once(threads: usize, is_written: bool) -> io::Result<f64> {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let start = Barrier::new(threads);
    let costs: Vec<io::Result<f64>> = std::thread::scope(|scope| {
        let spawn = |index: usize| {
            let (start, cpu) = (&start, cpus[index % cpus.len()]);
            scope.spawn(move || {
                let pinned = pin(cpu);
                touch(is_written, start).and_then(|cost| pinned.map(|()| cost))
            })
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread died"))))
            .collect()
    });
    let costs: Vec<f64> = costs.into_iter().collect::<io::Result<_>>()?;
    Ok(costs.iter().sum::<f64>() / threads as f64)
}

/// Returns the number of mappings of the zero page, small or huge, in all processes whose page table may be read.
fn zero_mappings() -> io::Result<Option<f64>> {
    let mut count = 0;
    let pids =
        std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        // Processes of other users need root, and some processes end meanwhile.
        let Ok((maps, table)) =
            maps::read(pid).and_then(|maps| Ok((maps, PageTable::of(Some(pid)).map_err(io::Error::other)?)))
        else {
            continue;
        };
        if !table.interface().sees_zero() {
            return Ok(None);
        }
        for map in maps.iter().filter(|map| map.inode == 0 && !map.is_shared()) {
            let _ = table.runs(map.range.clone(), &mut |run| {
                if run.kind.is(PageKind::PRESENT.and(PageKind::ZERO)) {
                    let page_bytes =
                        if run.kind.is(PageKind::HUGE) { HUGE_PAGE_BYTES } else { dormouse_backing::os_page_size() };
                    count += (run.range.end - run.range.start).div_ceil(page_bytes as u64);
                }
            });
        }
    }
    Ok(Some(count as f64))
}

fn answer(request: &Request) -> Result<String, String> {
    let failed = |error: io::Error| error.to_string();
    let text = match request {
        Request::Frames(order) => serde_json::to_string(&run(order)?),
        Request::Touch { threads, is_written } => {
            serde_json::to_string(&touch_at_once(*threads, *is_written).map_err(failed)?)
        }
        Request::Machine => serde_json::to_string(&zero_mappings().map_err(failed)?),
    };
    text.map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let request = std::env::args().nth(1).ok_or_else(|| "usage: dormouse-lab-engine-pages REQUEST".to_string());
    let request = request.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    match request.and_then(|request| answer(&request)) {
        // The reader of the output may be gone.
        Ok(text) => writeln!(io::stdout(), "{text}").map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("dormouse-lab-engine-pages: {error}");
            ExitCode::FAILURE
        }
    }
}
