//! Updates while other threads execute the sites: for each width, by each writer. Negative controls, which patch in
//! forbidden ways, show that the test detects errors.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

#[path = "../alone/mod.rs"]
mod alone;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use dormouse_imv::{
    CodeWriter, StaticKey, disable, enable, imv, imv_read, set_patch_rate, static_branch, static_branch_likely, status,
};

/// Number of updates in each case, unless the variable sets it.
const UPDATES: u64 = 20_000;
const UPDATES_BETWEEN_WAITS: u64 = 1024;
const ENV_UPDATES: &str = "DORMOUSE_STRESS_UPDATES";
/// Variable that is part of the names of the cases to run; all run without it. With it, the result of each case is also
/// written to standard error at once, because a limit of time may end the program before all have run.
const ENV_CASE: &str = "DORMOUSE_STRESS_CASE";

fn updates() -> u64 {
    std::env::var(ENV_UPDATES).map_or(UPDATES, |text| text.parse().expect("a number"))
}

/// State that is shared with the readers of a site, and their findings.
#[derive(Default)]
struct ReaderFindings {
    /// Twice the number of the last completed update, plus one while an update runs.
    phase: AtomicU64,
    stop: AtomicBool,
    reads: AtomicU64,
    settled: AtomicU64,
    wrong: AtomicU64,
}

/// Two threads read without pause while a third makes `times` updates by `change`, and after some of them waits until a
/// thread has read the new value. `expected` returns the value of a
/// read after a number of updates; `is_possible` returns whether a value may ever be read.
///
/// SeqCst throughout: the test orders itself, so that only the sites can be wrong.
fn stress(
    times: u64,
    updates_between_waits: u64,
    read: impl Fn() -> u64 + Sync,
    is_possible: impl Fn(u64) -> bool + Sync,
    expected: impl Fn(u64) -> u64 + Sync,
    change: impl Fn(u64) + Sync,
) -> ReaderFindings {
    let found = ReaderFindings::default();
    // An emulator has already translated the code that it is about to execute, and the kernel's barrier, which it
    // passes on, does not affect translations: a thread may execute the old instruction once more.
    let is_emulated = std::env::var_os(alone::ENV_RUNNER).is_some();
    let reader = || {
        let mut reads = 0_u64;
        while !found.stop.load(Ordering::SeqCst) {
            let before = found.phase.load(Ordering::SeqCst);
            let value = read();
            let settled = before.is_multiple_of(2) && found.phase.load(Ordering::SeqCst) == before;
            if !is_possible(value) || (settled && !is_emulated && value != expected(before / 2)) {
                found.wrong.fetch_add(1, Ordering::SeqCst);
            }
            found.settled.fetch_add(settled.into(), Ordering::SeqCst);
            reads += 1;
        }
        found.reads.fetch_add(reads, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        scope.spawn(reader);
        scope.spawn(reader);
        scope.spawn(|| {
            for number in 1..=times {
                found.phase.fetch_add(1, Ordering::SeqCst);
                change(number);
                found.phase.fetch_add(1, Ordering::SeqCst);
                let seen = found.settled.load(Ordering::SeqCst);
                while number.is_multiple_of(updates_between_waits) && found.settled.load(Ordering::SeqCst) == seen {
                    thread::yield_now();
                }
            }
            found.stop.store(true, Ordering::SeqCst);
        });
    });
    found
}

/// Returns a value of equal bytes, so that a mixture of two values is detected.
fn pattern(number: u64) -> u64 {
    (number & 0xFF) * 0x0101_0101_0101_0101
}

/// Every change is one of code.
fn always_patched(number: u64) {
    if number == 0 {
        set_patch_rate(u32::MAX).expect("an update");
    }
}

/// The value becomes a variable and is patched again, in turn.
fn patched_in_turns(number: u64) {
    match number % 512 {
        0 => set_patch_rate(u32::MAX).expect("an update"),
        256 => set_patch_rate(0).expect("an update"),
        _ => {}
    }
}

macro_rules! stress_value {
    ($name:ident by $pace:ident: $type:ty) => {
        fn $name(times: u64) -> ReaderFindings {
            imv! { static VALUE: $type = 0; }
            $pace(0);
            let mask = u64::from(<$type>::MAX);
            stress(
                times,
                UPDATES_BETWEEN_WAITS,
                || imv_read!(VALUE).into(),
                |value| value == pattern(value) & mask,
                |number| pattern(number) & mask,
                |number| {
                    $pace(number);
                    VALUE.set(pattern(number) as $type).expect("an update");
                },
            )
        }
    };
}

stress_value!(bytes by always_patched: u8);
stress_value!(halves by always_patched: u16);
stress_value!(words by always_patched: u32);
stress_value!(doubles by always_patched: u64);
stress_value!(halves_in_turns by patched_in_turns: u16);
stress_value!(words_in_turns by patched_in_turns: u32);
stress_value!(doubles_in_turns by patched_in_turns: u64);

macro_rules! stress_branch {
    ($name:ident: $gate:ident!(KEY $($announce:tt)*)) => {
        fn $name(times: u64) -> ReaderFindings {
            static KEY: StaticKey = StaticKey::new();
            let found = stress(
                times,
                UPDATES_BETWEEN_WAITS,
                || $gate!(KEY $($announce)*).into(),
                |taken| taken < 2,
                |number| number % 2,
                |number| if number % 2 == 1 { enable(&KEY) } else { disable(&KEY) }.expect("an update"),
            );
            if times % 2 == 1 {
                disable(&KEY).expect("an update");
            }
            found
        }
    };
}

fn announced() {}

stress_branch!(unlikely: static_branch!(KEY));
stress_branch!(likely: static_branch_likely!(KEY));
stress_branch!(keyed: static_branch!(KEY, announce("test_announced", announced)));

macro_rules! taken {
    ($key:path; $($gate:literal)*) => { [$({ let _ = $gate; u64::from(static_branch!($key)) }),*].iter().sum::<u64>() };
}

/// How many of 64 gates of a key are open.
macro_rules! taken_of_64 {
    ($key:path) => {
        taken!($key;
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63)
    };
}

/// One key with many gates: an update changes all of them, so a few updates are many changes of instructions. `times` is the
/// number of these. `taken` returns how many of the gates are open.
fn at_once(key: &'static StaticKey, gates: u64, times: u64, taken: impl Fn() -> u64 + Sync) -> ReaderFindings {
    let updates = times.div_ceil(gates);
    let found = stress(
        updates,
        1,
        taken,
        |taken| taken <= gates,
        |number| number % 2 * gates,
        |number| if number % 2 == 1 { enable(key) } else { disable(key) }.expect("an update"),
    );
    if updates % 2 == 1 {
        disable(key).expect("an update");
    }
    found
}

fn many(times: u64) -> ReaderFindings {
    static KEY: StaticKey = StaticKey::new();
    at_once(&KEY, 64, times, || taken_of_64!(KEY))
}

/// These gates are on several pages.
fn most(times: u64) -> ReaderFindings {
    static KEY: StaticKey = StaticKey::new();
    let taken = || {
        let first = taken_of_64!(KEY) + taken_of_64!(KEY) + taken_of_64!(KEY) + taken_of_64!(KEY);
        first + taken_of_64!(KEY) + taken_of_64!(KEY) + taken_of_64!(KEY) + taken_of_64!(KEY)
    };
    at_once(&KEY, 512, times, taken)
}

#[test]
fn nothing_is_torn_by_any_writer() {
    if alone::is_child() {
        return each_width();
    }
    for writer in [CodeWriter::Mprotect, CodeWriter::ProcMem, CodeWriter::None] {
        let output = alone::run("nothing_is_torn_by_any_writer", |command| {
            command.env("DORMOUSE_IMV_WRITER", writer.name());
            if std::env::var_os(ENV_CASE).is_some() {
                command.stderr(Stdio::inherit());
            }
        });
        let text = String::from_utf8_lossy(&output.stdout);
        alone::assert_passed(&output);
        print!(
            "{}",
            text.lines().filter(|line| line.contains("reads")).fold(String::new(), |all, line| all + line + "\n")
        );
    }
}

fn each_width() {
    let times = updates();
    type Case = fn(u64) -> ReaderFindings;
    let cases: [(&str, Case); 12] = [
        ("branch", unlikely),
        ("64 branches at once", many),
        ("512 branches at once", most),
        ("likely branch", likely),
        ("announced branch", keyed),
        ("1 byte", bytes),
        ("2 bytes", halves),
        ("4 bytes", words),
        ("8 bytes", doubles),
        ("2 bytes, at times a variable", halves_in_turns),
        ("4 bytes, at times a variable", words_in_turns),
        ("8 bytes, at times a variable", doubles_in_turns),
    ];
    let wanted = std::env::var(ENV_CASE);
    let is_chosen = wanted.is_ok();
    let wanted = wanted.unwrap_or_default();
    for (name, case) in cases.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let start = Instant::now();
        let found = case(times);
        let [reads, settled, wrong] =
            [&found.reads, &found.settled, &found.wrong].map(|count| count.load(Ordering::SeqCst));
        let writer = status().unwrap().writer.name();
        let result = format!(
            "{writer}, {name}: {times} updates, {reads} reads, {settled} of them settled, {wrong} wrong, {:?}",
            start.elapsed()
        );
        println!("{result}");
        if is_chosen {
            eprintln!("{result}");
        }
        assert_eq!(wrong, 0, "{name}");
        assert!(settled >= times / 64 / 1024, "{name}: {settled}");
        assert_eq!(writer, std::env::var("DORMOUSE_IMV_WRITER").unwrap());
    }
}

#[cfg(target_arch = "x86_64")]
mod controls;
mod sides;
