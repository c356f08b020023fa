//! Forbidden ways of patching, and their effects: x86-64.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_testing::{Lack, skip};
use rustix::mm::{MapFlags, ProtFlags};

use crate::alone;

/// Size of a cache line, in bytes.
const LINE: usize = 64;
/// Time after which a run that has seen no tear and no crash is considered unable to detect them; they usually occur
/// within milliseconds.
const PATIENCE: Duration = Duration::from_secs(600);

/// Maps writable and executable code for the test, filled with undefined instructions.
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
        // SAFETY: inside the mapping, which no thread executes yet.
        unsafe { code.wrapping_add(offset).cast::<[u8; 2]>().write_volatile([0x0F, 0x0B]) };
    }
    code
}

/// Makes one store at any alignment, like the CPU does.
fn store_anywhere(at: *mut u8, value: u64) {
    // SAFETY: inside the callers' own mapping.
    unsafe {
        std::arch::asm!("mov qword ptr [{at}], {value}", at = in(reg) at, value = in(reg) value, options(nostack))
    };
}

/// Makes a function of at most eight bytes, whose changed part starts `before` bytes before the end of a cache line.
fn function_at(code: *mut u8, before: usize, lead: &[u8], states: [u64; 2]) -> (extern "C" fn(u64) -> u64, *mut u8) {
    let at = code.wrapping_add(64 * LINE - before);
    let start = at.wrapping_sub(lead.len());
    for (offset, byte) in lead.iter().enumerate() {
        // SAFETY: inside the mapping, which no thread executes yet.
        unsafe { start.wrapping_add(offset).write_volatile(*byte) };
    }
    store_anywhere(at, states[0]);
    // SAFETY: the bytes that were written are a function of that type.
    (unsafe { std::mem::transmute::<*mut u8, extern "C" fn(u64) -> u64>(start) }, at)
}

/// Two threads call a function while a third changes its code back and forth.
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

/// Whether there is only one CPU; the negative controls need two.
fn is_uniprocessor() -> bool {
    let alone = thread::available_parallelism().is_ok_and(|count| count.get() < 2);
    if alone {
        skip(Lack::machine("with one CPU nothing can be torn", "a machine with two"));
    }
    alone
}

#[test]
fn an_immediate_across_a_cache_line_without_synchronisation_is_torn() {
    if alone::is_child() {
        return torn_immediate();
    }
    if is_uniprocessor() {
        return;
    }
    let output = alone::run("controls::an_immediate_across_a_cache_line_without_synchronisation_is_torn", |_| {});
    assert!(output.status.success(), "nothing was torn: {output:?}");
}

fn torn_immediate() {
    // mov eax, imm32 (two bytes of which are on either line); ret; nop…
    let states = [0x9090_90C3_1111_1111, 0x9090_90C3_2222_2222];
    let (function, at) = function_at(scratch_code(), 2, &[0xB8], states);
    let torn = rewrite(at, states, || matches!(function(0) as u32, 0x1111_1111 | 0x2222_2222));
    assert!(torn);
}

#[test]
fn a_store_of_five_bytes_across_a_cache_line_crashes() {
    if alone::is_child() {
        return torn_branch();
    }
    if is_uniprocessor() {
        return;
    }
    let output = alone::run("controls::a_store_of_five_bytes_across_a_cache_line_crashes", |_| {});
    let signal = output.status.signal();
    assert!(matches!(signal, Some(libc::SIGILL | libc::SIGSEGV | libc::SIGBUS)), "no crash: {output:?}");
}

fn torn_branch() {
    // nop [rax + rax] or jmp +1; then ret, nop, ret: both paths return. A mixture of the two instructions does not.
    let states = [0xC390_C300_0044_1F0F, 0xC390_C300_0000_01E9];
    let (function, at) = function_at(scratch_code(), 2, &[], states);
    rewrite(at, states, || {
        function(0);
        true
    });
}
