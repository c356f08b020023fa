//! Events that can be verified by their own contents.

use std::sync::LazyLock;

use crate::mix;

/// Returns the value of an event's field `check`.
pub fn check(thread: u32, number: u64) -> u64 {
    mix((thread as u64) << 48 ^ number)
}

/// Number of events that a child of a family of processes emits.
pub const CHILD_EVENTS: u64 = 300;

/// Thread number in events of signal handlers.
pub const HANDLER: u32 = 0xFFFF;

/// Maximum length of the filler.
pub const FILLER_LEN_MAX: u64 = 40;

/// Environment variable: with `1`, a thread's number includes its process's.
pub const ENV_MARKED: &str = "E2E_MARKED";

/// Bits of a thread's own number, if its number includes the process's too.
const THREAD_BITS: u32 = 8;

/// Returns the number in a thread's events: its own, or both, for traces that do not tell processes apart.
fn marked(thread: u32) -> u32 {
    static IS_MARKED: LazyLock<bool> = LazyLock::new(|| std::env::var(ENV_MARKED).is_ok_and(|value| value == "1"));
    // Queried each time: a process may have forked.
    if *IS_MARKED { std::process::id() << THREAD_BITS | thread } else { thread }
}

/// Returns process and thread of a marked number.
pub fn unmarked(thread: u32) -> (u32, u32) {
    (thread >> THREAD_BITS, thread & ((1 << THREAD_BITS) - 1))
}

/// Emits event `number` of thread `thread`: most are of fixed size, every fourth has a filler of bytes.
#[inline(never)]
pub fn step(thread: u32, number: u64) {
    let thread = marked(thread);
    if number % 4 == 3 {
        let filler = [number as u8; FILLER_LEN_MAX as usize];
        let filler = &filler[..filler_len(number)];
        dormouse::event!(e2e.filled, thread, number, check = check(thread, number), filler);
    } else {
        dormouse::event!(e2e.step, thread, number, check = check(thread, number));
    }
}

/// Returns the length of the filler of event `number`. Each byte of the filler is the number's lowest.
pub fn filler_len(number: u64) -> usize {
    (number % (FILLER_LEN_MAX + 1)) as usize
}
