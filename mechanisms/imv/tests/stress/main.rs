//! Updates while other threads run through the sites: for each width, by each writer. And, so that this is known to see
//! anything: the same with what must not be done.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

#[path = "../alone/mod.rs"]
mod alone;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use dormouse_imv::{StaticKey, Writer, disable, enable, imv, imv_read, static_branch, status};

/// How many updates each case makes, unless the variable says so.
const UPDATES: u64 = 20_000;
const ENV_UPDATES: &str = "DORMOUSE_STRESS_UPDATES";

fn updates() -> u64 {
    std::env::var(ENV_UPDATES).map_or(UPDATES, |text| text.parse().expect("a number"))
}

/// What readers of a site have found.
#[derive(Default)]
struct Found {
    /// The number of the last update that is done, and while one runs half of the way to the next.
    phase: AtomicU64,
    stop: AtomicBool,
    reads: AtomicU64,
    settled: AtomicU64,
    wrong: AtomicU64,
}

/// Two threads read without pause what a third changes `times` times by `change`. `expected` is what a read gives after so
/// many updates, `is_possible` says whether anybody may ever read this.
///
/// SeqCst throughout: the test orders itself, so that only the sites can be wrong.
fn stress(
    times: u64,
    read: impl Fn() -> u64 + Sync,
    is_possible: impl Fn(u64) -> bool + Sync,
    expected: impl Fn(u64) -> u64 + Sync,
    change: impl Fn(u64) + Sync,
) -> Found {
    let found = Found::default();
    // An emulator has translated what it is about to execute, and the kernel's barrier, which it hands on, does not reach that: a
    // thread may run once more through the old instruction.
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
                // Now and then somebody is to have read what has been set.
                let seen = found.settled.load(Ordering::SeqCst);
                while number.is_multiple_of(1024) && found.settled.load(Ordering::SeqCst) == seen {
                    thread::yield_now();
                }
            }
            found.stop.store(true, Ordering::SeqCst);
        });
    });
    found
}

/// All bytes alike, so that a mixture of two values shows.
fn pattern(number: u64) -> u64 {
    (number & 0xFF) * 0x0101_0101_0101_0101
}

macro_rules! stress_value {
    ($name:ident: $type:ty) => {
        fn $name(times: u64) -> Found {
            imv! { static VALUE: $type = 0; }
            let mask = u64::from(<$type>::MAX);
            stress(
                times,
                || imv_read!(VALUE).into(),
                |value| value == pattern(value) & mask,
                |number| pattern(number) & mask,
                |number| VALUE.set(pattern(number) as $type).expect("an update"),
            )
        }
    };
}

stress_value!(bytes: u8);
stress_value!(halves: u16);
stress_value!(words: u32);
stress_value!(doubles: u64);

fn branches(times: u64) -> Found {
    static KEY: StaticKey = StaticKey::new();
    let found = stress(
        times,
        || static_branch!(KEY).into(),
        |taken| taken < 2,
        |number| number % 2,
        |number| if number % 2 == 1 { enable(&KEY) } else { disable(&KEY) }.expect("an update"),
    );
    if times % 2 == 1 {
        disable(&KEY).expect("an update");
    }
    found
}

#[test]
fn nothing_is_torn_by_any_writer() {
    if alone::is_child() {
        return each_width();
    }
    for writer in [Writer::Mprotect, Writer::ProcMem, Writer::None] {
        let output = alone::run("nothing_is_torn_by_any_writer", |command| {
            command.env("DORMOUSE_IMV_WRITER", writer.name());
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
    type Case = fn(u64) -> Found;
    let cases: [(&str, Case); 5] =
        [("branch", branches), ("1 byte", bytes), ("2 bytes", halves), ("4 bytes", words), ("8 bytes", doubles)];
    for (name, case) in cases {
        let start = Instant::now();
        let found = case(times);
        let [reads, settled, wrong] =
            [&found.reads, &found.settled, &found.wrong].map(|count| count.load(Ordering::SeqCst));
        let writer = status().unwrap().writer.name();
        println!(
            "{writer}, {name}: {times} updates, {reads} reads, {settled} of them settled, {wrong} wrong, {:?}",
            start.elapsed()
        );
        assert_eq!(wrong, 0, "{name}");
        assert!(settled >= times / 1024, "{name}: {settled}");
        assert_eq!(writer, std::env::var("DORMOUSE_IMV_WRITER").unwrap());
    }
}

#[cfg(target_arch = "x86_64")]
mod controls;
