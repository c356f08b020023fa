//! Shared parts of the tests of sections: the context word, the session, a slow path that counts, and a thread that
//! stays on one CPU.

use std::arch::{asm, global_asm};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU64, Ordering};

use dormouse_abi::session::Geometry;
use dormouse_percpu::Rseq;
use dormouse_relay::arch::Session;
use dormouse_testing::{Lack, skip};

global_asm!(
    ".pushsection .tbss.test_context, \"awT\", @nobits",
    ".globl test_context",
    ".type test_context, @object",
    ".size test_context, 8",
    ".balign 8",
    "test_context:",
    ".zero 8",
    ".popsection",
);

/// Sets the thread's context word.
pub fn set_context(word: u64) {
    // SAFETY: writes the thread's own word.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov {address}, qword ptr [rip + test_context@GOTTPOFF]",
            "mov qword ptr fs:[{address}], {word}",
            address = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: writes the thread's own word.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:test_context",
            "ldr {offset}, [{offset}, :gottprel_lo12:test_context]",
            "mrs {pointer}, tpidr_el0",
            "str {word}, [{pointer}, {offset}]",
            offset = out(reg) _,
            pointer = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

/// An empty session, to which nothing can be written.
pub static NONE: Session = Session::none();
/// The session that the sections write to.
pub static SESSION: AtomicPtr<Session> = AtomicPtr::new((&raw const NONE).cast_mut());
/// Offset of the thread's rseq structure from the thread pointer, in bytes.
pub static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);
/// Number of calls of the slow path, and the sum of the last call's arguments.
pub static SLOW: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Counts a call of the slow path for words, and stores the sum of its arguments.
///
/// # Safety
/// `id` may be read.
pub unsafe extern "C" fn slow(id: *const u32, size_bytes: usize, _: MaybeUninit<u64>, w0: u64, w1: u64, w2: u64) {
    SLOW[0].fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller guarantees that `id` may be read.
    let id = unsafe { id.read() };
    let sum = u64::from(id).wrapping_add(size_bytes as u64).wrapping_add(w0).wrapping_add(w1).wrapping_add(w2);
    SLOW[1].store(sum, Ordering::Relaxed);
}

/// Geometry with one stream for a CPU, and one for a claimant.
pub const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 4096, page_count: 9, cpu_count: 1, stream_count: 2, has_register: false };

/// An os_page, of which the session's memory consists.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct OsPage(pub [u8; 4096]);

/// Restricts the thread to CPU 0 and returns rseq; `None` if there are no sections.
pub fn on_one_cpu() -> Option<Rseq> {
    let rseq = Rseq::detect();
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    if rseq.is_none() {
        skip(Lack::machine("there are no restartable sequences here", "a kernel that has rseq(2), and no emulator"));
    } else if rustix::thread::sched_setaffinity(None, &set).is_err() {
        skip(Lack::machine("this process may not run on CPU 0", "`taskset -c 0-` before the tests"));
        return None;
    }
    rseq
}
