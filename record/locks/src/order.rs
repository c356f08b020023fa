//! Record of the locks that each thread holds, in debug builds.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::thread::gettid;

/// One of our locks, by its position in the order of the crate's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A pool of `percpu`. Signal handlers take it too.
    Pool,
    /// The tracer's state. Signal handlers never take it.
    Control,
    /// The sites of `imv`. Signal handlers take it too.
    Registry,
}

/// Records that the thread holds a lock or waits for it, until dropped. Empty in release builds.
#[derive(Debug)]
pub struct HeldLock {
    /// Slot in which the thread is recorded, and the amount by which it was increased.
    noted: Option<(&'static AtomicU64, u64)>,
}

/// Maximum number of threads that hold locks at the same time and are checked.
const THREAD_SLOT_COUNT: usize = 64;

/// Slots, each `tid << 32 | counts` with a byte for each rank; 0 is free. Relaxed: each thread reads only its own
/// writes.
static THREAD_SLOTS: [AtomicU64; THREAD_SLOT_COUNT] = [const { AtomicU64::new(0) }; THREAD_SLOT_COUNT];

const fn one(rank: Rank) -> u64 {
    1 << (8 * rank as u32)
}

const fn count(word: u64, rank: Rank) -> u64 {
    word >> (8 * rank as u32) & 0xFF
}

const COUNTS: u64 = u32::MAX as u64;

impl Rank {
    /// Records that the calling thread holds the lock. Call it before waiting for the lock, and drop the result once
    /// the lock is released.
    ///
    /// Ends the program if the calling thread holds a lock that is below this one. Lock-free; async-signal-safe.
    #[inline]
    pub fn hold(self) -> HeldLock {
        if !cfg!(debug_assertions) {
            return HeldLock { noted: None };
        }
        let me = tid();
        let slot = slot_of(me);
        if let Some(rule) = broken(slot.map_or(0, |slot| slot.load(Relaxed)), self) {
            end(rule);
        }
        // A thread without a slot is not checked.
        let Some(slot) = slot.or_else(|| free_slot(me)) else { return HeldLock { noted: None } };
        // A signal handler on this thread may have run in between; it leaves the word unchanged.
        slot.fetch_add(one(self), Relaxed);
        HeldLock { noted: Some((slot, one(self))) }
    }
}

impl Drop for HeldLock {
    #[inline]
    fn drop(&mut self) {
        let Some((slot, one)) = self.noted else { return };
        // Through the slot, not the thread's id, which is different after a fork.
        let left = slot.fetch_sub(one, Relaxed) - one;
        if left & COUNTS == 0 {
            // A signal handler that runs before this has taken a slot of its own, or released this one: both are
            // correct.
            let _ = slot.compare_exchange(left, 0, Relaxed, Relaxed);
        }
    }
}

/// Calls `work`, which calls the loader.
///
/// Ends the program if the calling thread holds one of our locks. As blocking, and as safe in signal handlers, as
/// `work`.
#[inline]
pub fn call_loader<R>(work: impl FnOnce() -> R) -> R {
    if cfg!(debug_assertions) {
        let word = slot_of(tid()).map_or(0, |slot| slot.load(Relaxed));
        if word & COUNTS != 0 {
            end("the loader is called under a lock that its constructors wait for");
        }
    }
    work()
}

/// Returns the rule that a thread violates by taking a lock, if any. There is no rule for locks that signal handlers
/// take, because a handler may interrupt any code.
fn broken(word: u64, taken: Rank) -> Option<&'static str> {
    let is_below = |rank| count(word, rank) != 0;
    match taken {
        Rank::Control if is_below(Rank::Control) => Some("the tracer's lock is taken by the thread that holds it"),
        Rank::Control if is_below(Rank::Registry) => Some("the tracer's lock is taken under that of the sites"),
        _ => None,
    }
}

fn tid() -> u64 {
    (gettid().as_raw_nonzero().get() as u64) << 32
}

fn slot_of(me: u64) -> Option<&'static AtomicU64> {
    THREAD_SLOTS.iter().find(|slot| slot.load(Relaxed) & !COUNTS == me)
}

fn free_slot(me: u64) -> Option<&'static AtomicU64> {
    THREAD_SLOTS.iter().find(|slot| slot.compare_exchange(0, me, Relaxed, Relaxed).is_ok())
}

/// Ends the program. Does not unwind, because unwinding would call the loader.
#[expect(improper_ctypes_definitions, reason = "called by this module alone")]
extern "C" fn end(rule: &'static str) -> ! {
    panic!("dormouse: {rule} (`dormouse-locks` has the order)");
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_lock_of_a_higher_rank_is_refused() {
        let under = |rank, taken| broken(one(rank), taken).is_some();
        assert!(under(Rank::Control, Rank::Control));
        assert!(under(Rank::Registry, Rank::Control));
        // A fork while the pool is held, by a signal handler.
        assert!(!under(Rank::Pool, Rank::Control));
        assert!(!under(Rank::Control, Rank::Registry));
        assert!(!under(Rank::Registry, Rank::Pool));
        assert!(broken(0, Rank::Control).is_none());
    }

    #[test]
    fn a_thread_is_noted_while_it_holds_something() {
        let word = || slot_of(tid()).map(|slot| slot.load(Relaxed) & COUNTS);
        assert_eq!(word(), None);
        let control = Rank::Control.hold();
        let registry = Rank::Registry.hold();
        let inner = Rank::Registry.hold();
        assert_eq!(word(), Some(one(Rank::Control) + 2 * one(Rank::Registry)));
        drop(inner);
        // Other threads are not affected.
        std::thread::spawn(|| call_loader(|| drop(Rank::Control.hold()))).join().unwrap();
        drop(control);
        drop(registry);
        assert_eq!(word(), None);
        call_loader(|| ());
    }

    /// Runs the two cases that end the program in processes of their own, which run this test again.
    #[test]
    fn a_broken_order_ends_the_program() {
        const WHICH: &str = "DORMOUSE_LOCKS_BREAK";
        match std::env::var(WHICH).as_deref() {
            Ok("loader") => {
                let _held = Rank::Pool.hold();
                call_loader(|| ());
            }
            Ok("order") => {
                let _held = Rank::Registry.hold();
                drop(Rank::Control.hold());
            }
            _ => {
                for (which, said) in [("loader", "the loader is called"), ("order", "is taken under that of the sites")]
                {
                    let program = std::env::current_exe().unwrap();
                    let name = "order::tests::a_broken_order_ends_the_program";
                    let mut again = std::process::Command::new(program);
                    let output = again.args(["--exact", name, "--nocapture"]).env(WHICH, which).output().unwrap();
                    let stderr = std::string::String::from_utf8_lossy(&output.stderr);
                    assert!(!output.status.success() && stderr.contains(said), "{which}: {stderr}");
                }
            }
        }
    }
}
