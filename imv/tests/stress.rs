//! Updates while other threads run through the sites: for each width, by each writer. And, so that this is known to see
//! anything: the same with what must not be done.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(feature = "generic")))]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_imv::{StaticKey, Writer, disable, enable, imv, imv_read, static_branch, status};
use rustix::mm::{MapFlags, ProtFlags};

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
    let reader = || {
        let mut reads = 0_u64;
        while !found.stop.load(Ordering::SeqCst) {
            let before = found.phase.load(Ordering::SeqCst);
            let value = read();
            let settled = before.is_multiple_of(2) && found.phase.load(Ordering::SeqCst) == before;
            if !is_possible(value) || (settled && value != expected(before / 2)) {
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

/// Runs one ignored test of this program in a process of its own.
fn run_alone(name: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env_remove("DORMOUSE_IMV_WRITER")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn nothing_is_torn_by_any_writer() {
    for writer in [Writer::Mprotect, Writer::ProcMem, Writer::None] {
        let output = run_alone("alone_each_width", &[("DORMOUSE_IMV_WRITER", writer.name())]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{}: {output:?}", writer.name());
        print!(
            "{}",
            text.lines().filter(|line| line.contains("reads")).fold(String::new(), |all, line| all + line + "\n")
        );
    }
}

#[test]
#[ignore = "run by nothing_is_torn_by_any_writer"]
fn alone_each_width() {
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

/// Where a cache line ends.
const LINE: usize = 64;
/// Tears or crashes come within milliseconds; who has not seen one after so long does not look.
const PATIENCE: Duration = Duration::from_secs(60);

/// Code of the test's own, writable and executable, full of undefined instructions.
fn scratch_code() -> *mut u8 {
    const LEN: usize = 1 << 20;
    // SAFETY: a new mapping (mmap(2)).
    let code = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            LEN,
            ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC,
            MapFlags::PRIVATE,
        )
    };
    let code = code.expect("memory to execute").cast::<u8>();
    for offset in (0..LEN).step_by(2) {
        // SAFETY: inside the mapping, which nobody executes yet.
        unsafe { code.wrapping_add(offset).cast::<[u8; 2]>().write_volatile([0x0F, 0x0B]) };
    }
    code
}

/// One store, wherever it lies, as the processor does it.
fn store_anywhere(at: *mut u8, value: u64) {
    // SAFETY: the callers' own mapping.
    unsafe {
        std::arch::asm!("mov qword ptr [{at}], {value}", at = in(reg) at, value = in(reg) value, options(nostack))
    };
}

/// A function of eight bytes at most, the changed part of which starts `before` bytes before the end of a cache line.
fn function_at(code: *mut u8, before: usize, lead: &[u8], states: [u64; 2]) -> (extern "C" fn(u64) -> u64, *mut u8) {
    let at = code.wrapping_add(64 * LINE - before);
    let start = at.wrapping_sub(lead.len());
    for (offset, byte) in lead.iter().enumerate() {
        // SAFETY: inside the mapping, which nobody executes yet.
        unsafe { start.wrapping_add(offset).write_volatile(*byte) };
    }
    store_anywhere(at, states[0]);
    // SAFETY: what was written is a function of that type.
    (unsafe { std::mem::transmute::<*mut u8, extern "C" fn(u64) -> u64>(start) }, at)
}

/// Two threads call a function of which a third changes the code, forwards and back.
fn rewrite(at: *mut u8, states: [u64; 2], call: impl Fn() -> bool + Sync) -> bool {
    let (stop, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
    let at = at.expose_provenance();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    if !call() {
                        wrong.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE && wrong.load(Ordering::SeqCst) == 0 {
            for _ in 0..100 {
                for state in [states[1], states[0]] {
                    store_anywhere(std::ptr::with_exposed_provenance_mut(at), state);
                    for _ in 0..50 {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    wrong.load(Ordering::SeqCst) > 0
}

/// The negative controls need two processors.
fn is_alone() -> bool {
    let alone = thread::available_parallelism().is_ok_and(|count| count.get() < 2);
    if alone {
        eprintln!("skipped: with one processor nothing can be torn");
    }
    alone
}

#[test]
fn an_immediate_across_a_cache_line_without_synchronisation_is_torn() {
    if is_alone() {
        return;
    }
    let output = run_alone("alone_torn_immediate", &[]);
    assert!(output.status.success(), "nothing was torn: {output:?}");
}

#[test]
#[ignore = "run by an_immediate_across_a_cache_line_without_synchronisation_is_torn"]
fn alone_torn_immediate() {
    // mov eax, imm32 (of which two bytes lie on either line); ret; nop…
    let states = [0x9090_90C3_1111_1111, 0x9090_90C3_2222_2222];
    let (function, at) = function_at(scratch_code(), 2, &[0xB8], states);
    let torn = rewrite(at, states, || matches!(function(0) as u32, 0x1111_1111 | 0x2222_2222));
    assert!(torn);
}

#[test]
fn a_store_of_five_bytes_across_a_cache_line_crashes() {
    if is_alone() {
        return;
    }
    let output = run_alone("alone_torn_branch", &[]);
    let signal = output.status.signal();
    assert!(matches!(signal, Some(libc::SIGILL | libc::SIGSEGV | libc::SIGBUS)), "no crash: {output:?}");
}

#[test]
#[ignore = "run by a_store_of_five_bytes_across_a_cache_line_crashes"]
fn alone_torn_branch() {
    // nop [rax + rax] or jmp +1; then ret, nop, ret: both ways return. Half of the one and half of the other goes astray.
    let states = [0xC390_C300_0044_1F0F, 0xC390_C300_0000_01E9];
    let (function, at) = function_at(scratch_code(), 2, &[], states);
    rewrite(at, states, || {
        function(0);
        true
    });
}
