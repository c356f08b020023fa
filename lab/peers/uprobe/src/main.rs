//! Engine `uprobe`: the kernel's uprobes, each on a nop of five bytes that is a function's first instruction.
//!
//! # Configuration
//! `perf_event_open` with the PMU `uprobe`, as `perf record` uses it: an event for each case and processor, inherited by the
//! threads; each hit is a sample with process, thread, time (the kernel's default clock) and, as fields, the registers of
//! the function's arguments. Samples go into a ring of 1 MiB that overwrites the oldest. Kernels from 6.18 on x86-64 replace such a nop, once hit, by
//! a call that enters the kernel by a system call; older ones trap by `int3`. An inode's probe has a consumer for each processor here, as each event
//! makes one of its own.
//!
//! # Cases
//! A call of the function, of which the probe is a part. Strings are left out: this interface records registers only. Dormant: a function
//! with such a nop, which has no probe. `empty` is the loop without the call. Armed cases are left out where the kernel refuses the events.
//!
//! # Counts
//! The samples that are in the rings. Beside them stands how many hits the kernel has counted.
//!
//! Source: `perf_event_open(2)`; Linux, `kernel/events/ring_buffer.c` (overwritable rings) and `arch/x86/kernel/uprobes.c`.

use std::ffi::CStr;
use std::io;
use std::process::ExitCode;
use std::sync::Mutex;

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{EMPTY, case, cases, each, report};
use memmap2::{MmapOptions, MmapRaw};
use perf_event::events::Software;
use perf_event::{Builder, Counter, SampleFlag};

/// A ring's data, after a page that describes it.
const RING_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Where that page says how far the kernel has written (`data_head`).
const HEAD_OFFSET: usize = 1024;
/// The program, as the kernel finds it.
const PROGRAM: &CStr = c"/proc/self/exe";
/// A record's kind: PERF_RECORD_SAMPLE.
const SAMPLE: u32 = 9;

// Bits of registers in `sample_regs_user`: asm/perf_regs.h.
const DX: u64 = 1 << 3;
const SI: u64 = 1 << 4;
const DI: u64 = 1 << 5;

/// A function that begins with a nop of five bytes.
type Hook = extern "C" fn(u64, i64, u32);

macro_rules! hooks {
    ($($name:ident),*) => {$(
        #[unsafe(naked)]
        extern "C" fn $name(_: u64, _: i64, _: u32) {
            core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
        }
    )*};
}

hooks!(hook_none, hook_u64, hook_ints3, hook_dormant);

/// Functions with a probe, and the registers that are recorded.
const PROBED: [(Hook, u64); 3] = [(hook_none, 0), (hook_u64, DI), (hook_ints3, DI | SI | DX)];

extern "C" fn armed_none(iterations: u64, first: u64) {
    each(iterations, first, |number| hook_none(number, 0, 0));
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| hook_u64(number, 0, 0));
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    each(iterations, first, |number| hook_ints3(number, -(number as i64), number as u32));
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| hook_dormant(number, 0, 0));
}

/// A probe's event on a processor.
struct Probe {
    counter: Counter,
    ring: MmapRaw,
    registers: u64,
}

/// The probes, or why there are none.
static PROBES: Mutex<Result<Vec<Probe>, String>> = Mutex::new(Ok(Vec::new()));

/// Where in this program's file a function is.
fn offset_in_file(function: Hook) -> Option<u64> {
    let address = function as usize as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(words.nth(1)?)?);
        (start..end).contains(&address).then_some(address - start + offset)
    })
}

/// All processors that are online.
fn processors() -> io::Result<Vec<usize>> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    Ok(online.trim().split(',').filter_map(range).flatten().collect())
}

fn probe(kind: u32, function: Hook, registers: u64, processor: usize) -> io::Result<Probe> {
    // The crate makes no events of its `UProbe`; what one is told apart by takes the place of another event's.
    let mut builder = Builder::new(Software::DUMMY);
    let attributes = builder.attrs_mut();
    attributes.type_ = kind;
    attributes.config = 0;
    attributes.uprobe_path = PROGRAM.as_ptr().addr() as u64;
    attributes.probe_offset = offset_in_file(function).ok_or(io::ErrorKind::NotFound)?;
    builder.one_cpu(processor).inherit(true).sample_period(1).sample(SampleFlag::TID | SampleFlag::TIME);
    if registers != 0 {
        builder.sample(SampleFlag::REGS_USER).sample_regs_user(registers);
    }
    let mut counter = builder.build()?;
    // Read only, which is what has the kernel overwrite.
    let ring = MmapOptions::new().len(PAGE_BYTES + RING_BYTES).map_raw_read_only(&counter)?;
    counter.enable()?;
    Ok(Probe { counter, ring, registers })
}

fn probes() -> io::Result<Vec<Probe>> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind = kind.trim().parse().map_err(io::Error::other)?;
    let mut probes = Vec::new();
    for processor in processors()? {
        for (function, registers) in PROBED {
            probes.push(probe(kind, function, registers, processor)?);
        }
    }
    Ok(probes)
}

/// Reads a word of what the kernel writes.
fn word(ring: &MmapRaw, offset: usize) -> u64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= ring.len());
    let word = ring.as_ptr().wrapping_add(offset).cast::<u64>();
    // SAFETY: within the mapping and aligned, as is asserted; a volatile read of what others may write.
    unsafe { word.read_volatile() }
}

/// Samples in a ring, from the newest to the oldest that is whole. All have as many bytes, and nothing else is in there.
fn samples(ring: &MmapRaw, registers: u64) -> u64 {
    // Header, process and thread, time; kind of registers, registers.
    let size = 24 + if registers == 0 { 0 } else { 8 + 8 * registers.count_ones() as usize };
    let head = word(ring, HEAD_OFFSET) as usize;
    let starts = (1..=RING_BYTES.min(head) / size).map(|nth| head - nth * size);
    let headers = starts.map(|start| word(ring, PAGE_BYTES + (start & (RING_BYTES - 1))));
    headers.take_while(|header| *header as u32 == SAMPLE && (*header >> 48) as usize == size).count() as u64
}

fn arrived() -> Result<u64, String> {
    let mut probes = PROBES.lock().map_err(|error| error.to_string())?;
    let probes = probes.as_mut().map_err(|why| why.clone())?;
    let mut hits = 0;
    for Probe { counter, .. } in probes.iter_mut() {
        counter.disable().map_err(|error| error.to_string())?;
        hits += counter.read().map_err(|error| error.to_string())?;
    }
    let samples = probes.iter().map(|probe| samples(&probe.ring, probe.registers)).sum();
    report(samples, 0, &format!("samples; the kernel has counted {hits} hits"))
}

fn main() -> ExitCode {
    let probes = probes().map_err(|error| format!("not permitted here: {error}"));
    let mut cases = vec![EMPTY, case("dormant_u64", dormant_u64)];
    if probes.is_ok() {
        cases.extend(cases![armed_none, armed_u64, armed_ints3]);
    }
    if let Ok(mut slot) = PROBES.lock() {
        *slot = probes;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = format!("Linux {release}");
    dormouse_lab_harness::main(&Engine { name: "uprobe", version, cases, arrived: Some(arrived) })
}
