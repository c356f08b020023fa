//! The engine of the experiment `imv`: loops over static branches, immediate values and the equivalent global
//! variables.
//!
//! ```text
//!   empty                  the loop alone               branch, variable          … with one closed gate, or a test of a flag
//!   empty_16               the loop alone               branch_16, variable_16    … with 16 of them in a row
//!                                                       value_TYPE_16,            … with 16 immediate values, or variables,
//!                                                       global_TYPE_16            that are added up
//!                                                       constant_i32_16           … with a constant in a register in place of each
//!                                                       chainWHAT_i32_16          … the same, each addition waits for the one before
//!   empty_sites_1000       a call to one of 1,000       branch_sites_1000,        … functions, each with its own gate or test
//!                          functions, scattered         variable_sites_1000
//!   loop_KIND              the loop of the kernel's documentation of immediate values (2008), see below
//!   getppid_KIND           a system call between two markers: `none`, gates (`branch`), values, or tests of flags; `variable` has
//!                          each flag in a line of its own, `pair` both in one line
//!   toggle_N               a key with N sites is enabled and disabled, and the answer of one of its gates is checked each time
//!   toggled_N              the gates of that key, one after the other
//! ```
//! With `footprint` as its first argument, it prints the footprint of one site as JSON; with `updates`, the figures of a
//! reader while another thread changes its value.
//!
//! `TYPE` is `u8`, `u16`, `i32` or `u64`. Every variable has a cache line of its own, and variables that are read one
//! after another are not adjacent in memory.
//!
//! # The loop of 2008
//! A pseudo-random number, modulo the lines of a buffer that no cache holds, gives the address of a line. The line's
//! flag is then tested (`memory`) or not (`base`, and with a branch on something else: `branch`, `value`, `variable`).
//! `memory_awaited` makes the next number depend on the flag. A CPU of today starts further loads while it waits for
//! one, unless it needs its value to find the next.
//!
//! # What is verified
//! Each toggling is an event. It has arrived if the gate has answered `true` after enabling and `false` after
//! disabling. Errors are: a gate or flag that is open in any other loop, a site that does not match its key or value at
//! the end, and a sum that is not that of the values as they were set at the engine's start.

mod footprint;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU64, Ordering};

use dormouse_imv::{CodeWriter, Imv, StaticKey, disable, enable, imv, imv_read, static_branch};
use dormouse_lab_harness::{Case, Engine, Loop, opaque, repeat, report, scattered};

/// A function with one gate or none.
type Site = extern "C" fn(u64);
/// A function that returns its gate's answer.
type ToggledSite = extern "C" fn(u64) -> bool;

/// A variable that shares neither a cache line nor a pair of lines that a CPU fetches together with another.
#[repr(align(128))]
struct Apart<T>(T);

/// A gate as a program without patching would have it.
type Flag = Apart<AtomicBool>;

impl Flag {
    const fn new() -> Flag {
        Apart(AtomicBool::new(false))
    }

    #[inline(always)]
    fn read(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of gates and flags that were found open.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Function that every gate guards.
#[cold]
#[inline(never)]
fn taken() {
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

include!(concat!(env!("OUT_DIR"), "/imv_sites.rs"));

imv! {
    static IS_WANTED: bool = false;
    static IS_WANTED_TOO: bool = false;
}

static KEY: StaticKey = StaticKey::new();
static FLAG: Flag = Flag::new();

repeat!(empty, number => {});
repeat!(branch, number => if static_branch!(KEY) { taken(); });
repeat!(variable, number => if FLAG.read() { taken(); });

/// Expands a macro with 16 names, in an order other than that of their definition.
macro_rules! each_of_16 {
    ($each:ident) => {
        $each!(A);
        $each!(H);
        $each!(O);
        $each!(F);
        $each!(M);
        $each!(D);
        $each!(K);
        $each!(B);
        $each!(I);
        $each!(P);
        $each!(G);
        $each!(N);
        $each!(E);
        $each!(L);
        $each!(C);
        $each!(J);
    };
}

mod updates;

macro_rules! statics {
    ($module:ident: $type:ty = $new:expr; $($name:ident)*) => {
        pub(crate) mod $module {
            use super::*;
            $(pub(crate) static $name: $type = $new;)*
        }
    };
}

statics!(keys: StaticKey = StaticKey::new(); A B C D E F G H I J K L M N O P);
statics!(flags: Flag = Flag::new(); A B C D E F G H I J K L M N O P);

extern "C" fn empty_16(iterations: u64, first: u64) {
    for number in first..first.wrapping_add(iterations) {
        opaque(number);
    }
}

extern "C" fn branch_16(iterations: u64, first: u64) {
    macro_rules! each {
        ($name:ident) => {
            if static_branch!(keys::$name) {
                taken();
            }
        };
    }
    for number in first..first.wrapping_add(iterations) {
        opaque(number);
        each_of_16!(each);
    }
}

extern "C" fn variable_16(iterations: u64, first: u64) {
    macro_rules! each {
        ($name:ident) => {
            if flags::$name.read() {
                taken();
            }
        };
    }
    for number in first..first.wrapping_add(iterations) {
        opaque(number);
        each_of_16!(each);
    }
}

/// Value that the first of 16 values is set to when the engine starts.
const VALUE_FIRST: u64 = 3;
/// Difference of each value from the one before.
const VALUE_STEP: u64 = 7;

/// Sum of the last loop over values or variables.
static SUM: AtomicU64 = AtomicU64::new(0);

/// Defines 16 immediate values of a type, as many variables, loops that add them up, and functions that set and check
/// them.
macro_rules! values {
    ($module:ident, $type:ty, $atomic:ty, $value:ident, $global:ident) => {
        mod $module {
            use super::*;

            statics!(values: Imv<$type> = Imv::new(1); A B C D E F G H I J K L M N O P);
            statics!(globals: Apart<$atomic> = Apart(<$atomic>::new(1)); A B C D E F G H I J K L M N O P);

            pub(super) extern "C" fn $value(iterations: u64, first: u64) {
                let mut sum: $type = 0;
                macro_rules! each {
                    ($name:ident) => {
                        sum = sum.wrapping_add(imv_read!(values::$name))
                    };
                }
                for number in first..first.wrapping_add(iterations) {
                    opaque(number);
                    each_of_16!(each);
                }
                SUM.store(sum as u64, Ordering::Relaxed);
            }

            pub(super) extern "C" fn $global(iterations: u64, first: u64) {
                let mut sum: $type = 0;
                macro_rules! each {
                    ($name:ident) => {
                        sum = sum.wrapping_add(globals::$name.0.load(Ordering::Relaxed))
                    };
                }
                for number in first..first.wrapping_add(iterations) {
                    opaque(number);
                    each_of_16!(each);
                }
                SUM.store(sum as u64, Ordering::Relaxed);
            }

            /// Gives each a value of its own. It fails if the text is sealed already.
            pub(super) fn set() -> Result<(), dormouse_imv::Error> {
                let mut next = VALUE_FIRST;
                macro_rules! each {
                    ($name:ident) => {
                        values::$name.set(next as $type)?;
                        globals::$name.0.store(next as $type, Ordering::Relaxed);
                        next += VALUE_STEP;
                    };
                }
                each_of_16!(each);
                black_box(next);
                Ok(())
            }

            /// Whether the loops read the values that were set.
            pub(super) fn is_right() -> bool {
                const TIMES: u64 = 3;
                let sum: u64 = (0..16).map(|index| VALUE_FIRST + index * VALUE_STEP).sum();
                let wanted = (sum * TIMES) as $type;
                [$value as Loop, $global].into_iter().all(|run| {
                    run(TIMES, 0);
                    SUM.load(Ordering::Relaxed) == wanted as u64
                })
            }
        }
    };
}

values!(of_u8, u8, AtomicU8, value_u8_16, global_u8_16);
values!(of_u16, u16, AtomicU16, value_u16_16, global_u16_16);
values!(of_i32, i32, AtomicI32, value_i32_16, global_i32_16);
values!(of_u64, u64, AtomicU64, value_u64_16, global_u64_16);

/// Returns a constant in a register: the shortest instruction for it, which the compiler cannot merge with others.
#[inline(always)]
fn constant() -> u32 {
    opaque(VALUE_FIRST) as u32
}

/// Returns the sum, which the compiler may compute as several.
#[inline(always)]
fn same(sum: u32) -> u32 {
    sum
}

/// Returns the sum, by a chain of additions that the compiler cannot divide into several.
#[inline(always)]
fn chained(sum: u32) -> u32 {
    opaque(sum.into()) as u32
}

/// Defines loops that add up 16 numbers of 32 bits, which `$read` returns for each name.
macro_rules! sums {
    ($($loop:ident: $then:ident, $read:ident;)*) => {$(
        extern "C" fn $loop(iterations: u64, first: u64) {
            let mut sum: u32 = 0;
            macro_rules! each {
                ($name:ident) => {
                    sum = $then(sum.wrapping_add($read!($name)))
                };
            }
            for number in first..first.wrapping_add(iterations) {
                opaque(number);
                each_of_16!(each);
            }
            SUM.store(sum.into(), Ordering::Relaxed);
        }
    )*};
}

macro_rules! read_constant {
    ($name:ident) => {
        constant()
    };
}
macro_rules! read_value {
    ($name:ident) => {
        imv_read!(of_i32::values::$name) as u32
    };
}
macro_rules! read_global {
    ($name:ident) => {
        of_i32::globals::$name.0.load(Ordering::Relaxed) as u32
    };
}

sums! {
    constant_i32_16: same, read_constant;
    chainvalue_i32_16: chained, read_value;
    chainglobal_i32_16: chained, read_global;
    chainconstant_i32_16: chained, read_constant;
}

macro_rules! sites_1000 {
    ($($name:ident: $sites:ident),* $(,)?) => {$(
        extern "C" fn $name(iterations: u64, first: u64) {
            scattered(&$sites, 1000, iterations, first);
        }
    )*};
}

sites_1000! {
    empty_sites_1000: EMPTY_SITES,
    branch_sites_1000: BRANCH_SITES,
    variable_sites_1000: VARIABLE_SITES,
}

/// Environment variable with the size of the buffer that no cache holds, in bytes.
const MEMORY_BYTES: &str = "DORMOUSE_LAB_MEMORY_BYTES";
const MEMORY_BYTES_DEFAULT: usize = 256 << 20;

/// A cache line of the buffer, with its flag.
#[repr(align(64))]
struct Line {
    flag: AtomicBool,
    _rest: [u8; 63],
}

/// Returns the buffer. The first call allocates it and writes every line: memory that was only read is one page of
/// zeroes.
fn memory() -> &'static [Line] {
    static LINES: OnceLock<Vec<Line>> = OnceLock::new();
    LINES.get_or_init(|| {
        let bytes = std::env::var(MEMORY_BYTES).ok().and_then(|text| text.parse().ok()).unwrap_or(MEMORY_BYTES_DEFAULT);
        let line = || Line { flag: AtomicBool::new(false), _rest: [1; 63] };
        std::iter::repeat_with(line).take((bytes / size_of::<Line>()).max(1)).collect()
    })
}

/// Runs the loop of 2008. The return value of `test` is added to the pseudo-random number.
#[inline(always)]
fn modulo(iterations: u64, first: u64, test: impl Fn(&Line) -> u64) {
    let lines = memory();
    let mut random = first;
    for _ in 0..iterations {
        // Knuth's MMIX generator, of whose bits the high ones are random.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let line = &lines[(random >> 33) as usize % lines.len()];
        random = random.wrapping_add(test(black_box(line)));
    }
    black_box(random);
}

extern "C" fn loop_base(iterations: u64, first: u64) {
    modulo(iterations, first, |_| 0);
}

extern "C" fn loop_branch(iterations: u64, first: u64) {
    modulo(iterations, first, |_| {
        if static_branch!(KEY) {
            taken();
        }
        0
    });
}

extern "C" fn loop_value(iterations: u64, first: u64) {
    modulo(iterations, first, |_| {
        if imv_read!(IS_WANTED) {
            taken();
        }
        0
    });
}

extern "C" fn loop_variable(iterations: u64, first: u64) {
    modulo(iterations, first, |_| {
        if FLAG.read() {
            taken();
        }
        0
    });
}

extern "C" fn loop_memory(iterations: u64, first: u64) {
    modulo(iterations, first, |line| {
        if line.flag.load(Ordering::Relaxed) {
            taken();
        }
        0
    });
}

extern "C" fn loop_memory_awaited(iterations: u64, first: u64) {
    modulo(iterations, first, |line| {
        let flag = black_box(line.flag.load(Ordering::Relaxed));
        if flag {
            taken();
        }
        u64::from(flag)
    });
}

/// Makes the system call every time: rustix caches nothing and does not call libc.
#[inline(always)]
fn getppid() {
    black_box(rustix::process::getppid());
}

repeat!(getppid_none, number => getppid());
repeat!(getppid_branch, number => {
    if static_branch!(keys::A) {
        taken();
    }
    getppid();
    if static_branch!(keys::B) {
        taken();
    }
});
repeat!(getppid_value, number => {
    if imv_read!(IS_WANTED) {
        taken();
    }
    getppid();
    if imv_read!(IS_WANTED_TOO) {
        taken();
    }
});
repeat!(getppid_variable, number => {
    if flags::A.read() {
        taken();
    }
    getppid();
    if flags::B.read() {
        taken();
    }
});

/// Two variables that share a line, as the paper's did.
static PAIR: Apart<[AtomicBool; 2]> = Apart([const { AtomicBool::new(false) }; 2]);

repeat!(getppid_pair, number => {
    if PAIR.0[0].load(Ordering::Relaxed) {
        taken();
    }
    getppid();
    if PAIR.0[1].load(Ordering::Relaxed) {
        taken();
    }
});

/// Number of times that a gate answered as its key wanted, both enabled and disabled.
static RIGHT: AtomicU64 = AtomicU64::new(0);

fn toggle(key: &'static StaticKey, sites: &[ToggledSite], iterations: u64, first: u64) {
    for number in first..first.wrapping_add(iterations) {
        let site = sites[number as usize % sites.len()];
        let is_taken = enable(key).is_ok() && site(number);
        let is_passed = disable(key).is_ok() && !site(number);
        RIGHT.fetch_add(u64::from(is_taken && is_passed), Ordering::Relaxed);
    }
}

macro_rules! toggles {
    ($($toggle:ident, $toggled:ident: $key:ident, $sites:ident);* $(;)?) => {$(
        extern "C" fn $toggle(iterations: u64, first: u64) {
            toggle(&$key, &$sites, iterations, first);
        }

        extern "C" fn $toggled(iterations: u64, first: u64) {
            for number in first..first.wrapping_add(iterations) {
                let site = $sites[number as usize % $sites.len()];
                black_box(site(number));
            }
        }
    )*};
}

toggles! {
    toggle_1, toggled_1: TOGGLED_1, TOGGLED_1_SITES;
    toggle_100, toggled_100: TOGGLED_100, TOGGLED_100_SITES;
    toggle_1000, toggled_1000: TOGGLED_1000, TOGGLED_1000_SITES;
}

/// Returns the median distance of neighbouring functions, in bytes. If it differs between the kinds, so does the number
/// of cache lines that they take.
fn bytes_apart(sites: &[Site; 1000]) -> usize {
    let mut addresses = sites.map(|site| site as usize);
    addresses.sort_unstable();
    let mut steps: Vec<usize> = addresses.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable();
    steps[steps.len() / 2]
}

/// Checks sites, gates and values, and reports on them to the lab.
fn verify() -> Result<u64, String> {
    let taken = TAKEN.load(Ordering::Relaxed);
    if taken > 0 {
        return Err(format!("{taken} closed gates were found open"));
    }
    let status = dormouse_imv::status().map_err(|error| error.to_string())?;
    let (sites, patched, writer) = (status.count.sites, status.count.patched, status.writer);
    if writer == CodeWriter::Mprotect && patched != sites {
        return Err(format!("{patched} of {sites} sites are as they should be, though {} writes", writer.name()));
    }
    let is_right = [of_u8::is_right, of_u16::is_right, of_i32::is_right, of_u64::is_right];
    if let Some(index) = is_right.iter().position(|is_right| !is_right()) {
        return Err(format!("a sum of values of {} bytes is wrong", 1 << index));
    }
    let how = format!("writer {}, {}", writer.name(), status.reason);
    let apart =
        [&EMPTY_SITES, &BRANCH_SITES, &VARIABLE_SITES].map(bytes_apart).map(|bytes| bytes.to_string()).join(", ");
    let how = format!("{how}; functions without, with a gate and with a flag lie {apart} bytes apart");
    report(RIGHT.load(Ordering::Relaxed), 0, &format!("{patched} of {sites} sites are as they should be; {how}"))
}

fn footprint_as_json() -> Result<String, String> {
    serde_json::to_string(&footprint::counts()?).map_err(|error| error.to_string())
}

/// Prints an answer.
fn print(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("dormouse: {error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("footprint", _)) => return print(footprint_as_json()),
        Some(("updates", rest)) => return print(updates::run(rest)),
        _ => {}
    }
    // Nothing sets them, but the compiler must not know.
    black_box(&FLAG);
    black_box(&FLAGS);
    black_box(&PAIR);
    macro_rules! hide {
        ($name:ident) => {
            black_box(&flags::$name);
        };
    }
    each_of_16!(hide);
    for set in [of_u8::set, of_u16::set, of_i32::set, of_u64::set] {
        if let Err(error) = set() {
            eprintln!("dormouse: {error}");
            return ExitCode::FAILURE;
        }
    }
    let cases: &[(&str, Loop)] = &[
        ("empty", empty),
        ("branch", branch),
        ("variable", variable),
        ("empty_16", empty_16),
        ("branch_16", branch_16),
        ("variable_16", variable_16),
        ("value_u8_16", of_u8::value_u8_16),
        ("value_u16_16", of_u16::value_u16_16),
        ("value_i32_16", of_i32::value_i32_16),
        ("value_u64_16", of_u64::value_u64_16),
        ("global_u8_16", of_u8::global_u8_16),
        ("global_u16_16", of_u16::global_u16_16),
        ("global_i32_16", of_i32::global_i32_16),
        ("global_u64_16", of_u64::global_u64_16),
        ("constant_i32_16", constant_i32_16),
        ("chainvalue_i32_16", chainvalue_i32_16),
        ("chainglobal_i32_16", chainglobal_i32_16),
        ("chainconstant_i32_16", chainconstant_i32_16),
        ("empty_sites_1000", empty_sites_1000),
        ("branch_sites_1000", branch_sites_1000),
        ("variable_sites_1000", variable_sites_1000),
        ("loop_base", loop_base),
        ("loop_branch", loop_branch),
        ("loop_value", loop_value),
        ("loop_variable", loop_variable),
        ("loop_memory", loop_memory),
        ("loop_memory_awaited", loop_memory_awaited),
        ("getppid_none", getppid_none),
        ("getppid_branch", getppid_branch),
        ("getppid_value", getppid_value),
        ("getppid_variable", getppid_variable),
        ("getppid_pair", getppid_pair),
        ("toggle_1", toggle_1),
        ("toggle_100", toggle_100),
        ("toggle_1000", toggle_1000),
        ("toggled_1", toggled_1),
        ("toggled_100", toggled_100),
        ("toggled_1000", toggled_1000),
    ];
    let case = |(name, run): &(&'static str, Loop)| {
        let events_per_iteration = name.starts_with("toggle_").into();
        Case { name, run: *run, events_per_iteration }
    };
    dormouse_lab_harness::main(&Engine {
        name: "dormouse",
        version: env!("CARGO_PKG_VERSION").into(),
        cases: cases.iter().map(case).collect(),
        arrived: Some(verify),
    })
}
