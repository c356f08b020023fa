//! Engine `uprobe`: the kernel's uprobes, each on a nop of five bytes at the start of a function.
//!
//! # Configuration
//! `perf_event_open` with the PMU `uprobe`, as `perf record` uses it: an event for each case and CPU, inherited by the
//! threads. Each hit is a sample with process, thread, time (the kernel's default clock) and, as fields, the registers
//! of the function's arguments. Samples go into a ring of 1 MiB that overwrites the oldest. Kernels from 6.18 on x86-64
//! replace such a nop, once hit, by a call that enters the kernel by a system call; older kernels trap by `int3`. Each
//! event adds a consumer to the inode's probe, so there is one for each CPU.
//!
//! # Cases
//! An event is a call of the function, including the probe. Strings are left out: this interface records registers
//! only. Dormant: a function with the nop and without a probe. `empty` is the loop without the call. Armed cases are
//! left out if the kernel refuses the events.
//!
//! # Counts
//! The samples in the rings. The report also gives the number of hits that the kernel has counted.
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

/// Size of a ring's data, in bytes.
const RING_BYTES: usize = 1 << 20;
/// Size of the page before the data, which describes the ring, in bytes.
const PAGE_BYTES: usize = 4096;
/// Offset in that page of the kernel's write position (`data_head`).
const HEAD_OFFSET: usize = 1024;
/// Path of the program, for the kernel.
const PROGRAM: &CStr = c"/proc/self/exe";
/// Kind of a record: PERF_RECORD_SAMPLE.
const SAMPLE: u32 = 9;

// Bits of registers in `sample_regs_user`: asm/perf_regs.h.
const DX: u64 = 1 << 3;
const SI: u64 = 1 << 4;
const DI: u64 = 1 << 5;

/// A function that starts with a nop of five bytes.
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

/// Functions with a probe, and the registers that it records.
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

/// A probe's event on a CPU.
struct Probe {
    counter: Counter,
    ring: MmapRaw,
    registers: u64,
}

/// The probes, or the reason why there are none.
static PROBES: Mutex<Result<Vec<Probe>, String>> = Mutex::new(Ok(Vec::new()));

/// Returns a function's offset in this program's file.
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

/// Returns all CPUs that are online.
fn processors() -> io::Result<Vec<usize>> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    Ok(online.trim().split(',').filter_map(range).flatten().collect())
}

fn probe(kind: u32, function: Hook, registers: u64, processor: usize) -> io::Result<Probe> {
    // The crate cannot make events of its `UProbe`, so another event's identifying attributes are replaced.
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
    // Mapped read-only, which makes the kernel overwrite the oldest samples.
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

/// Reads a word of memory that the kernel writes.
fn word(ring: &MmapRaw, offset: usize) -> u64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= ring.len());
    let word = ring.as_ptr().wrapping_add(offset).cast::<u64>();
    // SAFETY: within the mapping and aligned, as asserted; a volatile read of memory that the kernel may write
    // meanwhile.
    unsafe { word.read_volatile() }
}

/// Counts the samples in a ring, from the newest to the oldest that is whole. All have the same size, and the ring has
/// no other records.
fn samples(ring: &MmapRaw, registers: u64) -> u64 {
    // Header, process and thread, time; then kind of registers, registers.
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
