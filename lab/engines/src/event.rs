//! Engine of Dormouse, and of the floor: loops for the experiment `event`.
//!
//! ```text
//!   empty          the loop alone                          empty_sites_N     a call to one of N functions, in scattered order
//!   dormant_u64    an event that is not armed              dormant_sites_N   …  each of which has a dormant event
//!   armed_FIELDS   an event that the session records       armed_sites_N     …  an armed one
//!   load_u64       a test of a global variable
//!   rdtsc          reading the timestamp counter           floor_FIELDS      … and storing the bytes of a record
//! ```
//! `FIELDS` is `none`, `u64`, `ints3` (u64, i64, u32) or `str32` (a string of 32 bytes).
//!
//! The floor is the cost that no tracer with this format can go below: a clock read and plain stores of as many bytes,
//! 16 of header and the fields, into a buffer of 1 MiB. Each thread has its own, and every byte of it was written
//! before.

use std::hint::black_box;
use std::process::ExitCode;

use dormouse_lab_harness::{Case, Engine, Loop, opaque, repeat, scattered};

/// A function with one tracepoint or none.
type Site = extern "C" fn(u64);

include!(concat!(env!("OUT_DIR"), "/sites.rs"));

/// Field values: strings of 32 bytes.
static STRINGS: [&str; 4] = [
    "GET /orders/1831/items?page=0017",
    "PUT /orders/1832/items?page=0023",
    "GET /basket/7741/price?cur=eurXX",
    "DEL /basket/7741/items?page=0001",
];

fn string(number: u64) -> &'static str {
    STRINGS[number as usize % STRINGS.len()]
}

repeat!(empty, number => {});
repeat!(dormant_u64, number => dormouse::event!(lab.dormant_u64, number));

/// A gate as a program without patching would have it, in a cache line of its own.
#[repr(align(64))]
struct Gate(std::sync::atomic::AtomicBool);

static GATE: Gate = Gate(std::sync::atomic::AtomicBool::new(false));

repeat!(load_u64, number => if GATE.0.load(std::sync::atomic::Ordering::Relaxed) {
    dormouse::event!(lab.behind_variable, number);
});
repeat!(armed_none, number => dormouse::event!(lab.armed_none));
repeat!(armed_u64, number => dormouse::event!(lab.armed_u64, number));
repeat!(armed_ints3, number => dormouse::event!(
    lab.armed_ints3, number, delta = number as i64 - 7, kind = number as u32
));
repeat!(armed_str32, number => dormouse::event!(lab.armed_str32, text = string(number)));
repeat!(empty_str32, number => black_box(string(number)));

macro_rules! sites {
    ($($name:ident: $count:literal of $sites:ident),* $(,)?) => {$(
        extern "C" fn $name(iterations: u64, first: u64) {
            scattered(&$sites, $count, iterations, first);
        }
    )*};
}

sites! {
    empty_sites_10: 10 of EMPTY_SITES,
    empty_sites_1000: 1000 of EMPTY_SITES,
    dormant_sites_10: 10 of DORMANT_SITES,
    dormant_sites_1000: 1000 of DORMANT_SITES,
    armed_sites_10: 10 of ARMED_SITES,
    armed_sites_1000: 1000 of ARMED_SITES,
}

/// Reads the floor's clock.
#[inline(always)]
fn timestamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Linux lets programs read the counter.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

repeat!(rdtsc, number => black_box(timestamp()));

/// Size of the floor's buffer, in bytes: as many as the pages of the session that Dormouse is measured in.
const FLOOR_BYTES: usize = 1 << 20;
/// Room for the longest record at the end, in bytes.
const FLOOR_SLACK_BYTES: usize = 64;

std::thread_local! {
    /// The floor's buffer. Every byte of it is written before a loop is timed.
    static FLOOR: std::cell::RefCell<Vec<u8>> = {
        let buffer = vec![1; FLOOR_BYTES + FLOOR_SLACK_BYTES];
        dormouse_lab_harness::assure_backed("the floor's buffer", &buffer);
        std::cell::RefCell::new(buffer)
    };
}

/// Stores records: a header of two words, then the `LEN` bytes that `fields` writes.
#[inline(always)]
fn store<const LEN: usize>(iterations: u64, first: u64, fields: impl Fn(u64, &mut [u8; LEN])) {
    FLOOR.with_borrow_mut(|buffer| {
        let mut offset = 0;
        for number in first..first.wrapping_add(iterations) {
            let number = opaque(number);
            let record = &mut buffer[offset..offset + 16 + LEN];
            record[..8].copy_from_slice(&(timestamp() << 16 | 7).to_le_bytes());
            record[8..16].copy_from_slice(&(first << 32 | 9).to_le_bytes());
            if let Some(rest) = record.last_chunk_mut() {
                fields(number, rest);
            }
            black_box(record.as_ptr());
            offset += 16 + LEN;
            if offset > FLOOR_BYTES {
                offset = 0;
            }
        }
    });
}

extern "C" fn floor_none(iterations: u64, first: u64) {
    store::<0>(iterations, first, |_, _| ());
}

extern "C" fn floor_u64(iterations: u64, first: u64) {
    store::<8>(iterations, first, |number, to| *to = number.to_le_bytes());
}

extern "C" fn floor_ints3(iterations: u64, first: u64) {
    store::<20>(iterations, first, |number, to| {
        to[..8].copy_from_slice(&number.to_le_bytes());
        to[8..16].copy_from_slice(&(number as i64 - 7).to_le_bytes());
        to[16..].copy_from_slice(&(number as u32).to_le_bytes());
    });
}

extern "C" fn floor_str32(iterations: u64, first: u64) {
    store::<33>(iterations, first, |number, to| {
        to[..32].copy_from_slice(string(number).as_bytes());
        to[32] = 0;
    });
}

fn case(name: &'static str, run: Loop) -> Case {
    Case { name, run, events_per_iteration: name.starts_with("armed").into() }
}

fn main() -> ExitCode {
    // Nothing sets it, but the compiler must not know.
    black_box(&GATE);
    let cases: &[(&str, Loop)] = &[
        ("empty", empty),
        ("empty_str32", empty_str32),
        ("dormant_u64", dormant_u64),
        ("load_u64", load_u64),
        ("armed_none", armed_none),
        ("armed_u64", armed_u64),
        ("armed_ints3", armed_ints3),
        ("armed_str32", armed_str32),
        ("empty_sites_10", empty_sites_10),
        ("empty_sites_1000", empty_sites_1000),
        ("dormant_sites_10", dormant_sites_10),
        ("dormant_sites_1000", dormant_sites_1000),
        ("armed_sites_10", armed_sites_10),
        ("armed_sites_1000", armed_sites_1000),
        ("rdtsc", rdtsc),
        ("floor_none", floor_none),
        ("floor_u64", floor_u64),
        ("floor_ints3", floor_ints3),
        ("floor_str32", floor_str32),
    ];
    dormouse_lab_harness::main(&Engine {
        name: "dormouse",
        version: env!("CARGO_PKG_VERSION").into(),
        cases: cases.iter().map(|(name, run)| case(name, *run)).collect(),
        // The lab owns the session and counts the events itself.
        arrived: None,
    })
}
