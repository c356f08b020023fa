//! Events that carry their own proof.

use crate::mix;

/// What an event's field `check` holds.
pub fn check(thread: u32, number: u64) -> u64 {
    mix((thread as u64) << 48 ^ number)
}

/// The thread that events of signal handlers name.
pub const HANDLER: u32 = 0xFFFF;

/// The longest filler.
pub const FILLER_LEN_MAX: u64 = 40;

/// Emits event `number` of thread `thread`: most are of fixed size, every fourth has a filler of bytes.
#[inline(never)]
pub fn step(thread: u32, number: u64) {
    if number % 4 == 3 {
        let filler = [number as u8; FILLER_LEN_MAX as usize];
        let filler = &filler[..filler_len(number)];
        dormouse::event!(e2e.filled, thread, number, check = check(thread, number), filler);
    } else {
        dormouse::event!(e2e.step, thread, number, check = check(thread, number));
    }
}

/// Bytes of the filler of event `number`, each of which is the number's lowest.
pub fn filler_len(number: u64) -> usize {
    (number % (FILLER_LEN_MAX + 1)) as usize
}
