//! Which pages a stream of a flight recorder retains, and giving up the oldest. Writers of any stream may do so at any time.
//!
//! ```text
//!   reclaimed ──▶ 5 │ 6 │ 7 │ (8) ◀── number of the current page, in the state word
//!                 └─ retained ─┘
//! ```
//! A writer that gives a page up has counted it as retained from the same value of `reclaimed` that it moves on. So `reclaimed` never passes the
//! current page: otherwise that page would be free as soon as it is closed, and so would all pages after it until the stream has caught up.

use core::sync::atomic::Ordering;

use dormouse_abi::session::{State, StreamControl};

/// The two words, of a stream or of its model.
pub(crate) trait Words {
    /// Pages that were given up.
    fn reclaimed(&self, order: Ordering) -> u64;
    /// The state word.
    fn state(&self, order: Ordering) -> State;
    /// Compare and swap of [`Words::reclaimed`].
    fn exchange_reclaimed(&self, from: u64, to: u64, success: Ordering) -> bool;
}

/// For a type that has both words as fields.
macro_rules! words {
    ($type:ty) => {
        impl Words for $type {
            fn reclaimed(&self, order: Ordering) -> u64 {
                self.reclaimed.load(order)
            }

            fn state(&self, order: Ordering) -> State {
                State::from_word(self.state.load(order))
            }

            fn exchange_reclaimed(&self, from: u64, to: u64, success: Ordering) -> bool {
                self.reclaimed.compare_exchange(from, to, success, Ordering::Relaxed).is_ok()
            }
        }
    };
}

words!(StreamControl);

/// Pages of a stream that are closed and not given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retained {
    /// Number of the first such page.
    pub(crate) oldest: u64,
    /// How many there were at about this moment: at least as many as there were when the words were read.
    pub(crate) count: u32,
}

impl Retained {
    pub(crate) fn of(words: &impl Words) -> Retained {
        // (E') pairs with (E). Read before the state word, so that it cannot be greater: a thread that has moved it on saw a greater state.
        let oldest = words.reclaimed(Ordering::Acquire);
        // (C) pairs with (A).
        let state = words.state(Ordering::Acquire);
        let count = if state.unit == 0 { 0 } else { u32::from(state.seq.wrapping_sub(oldest as u16)) };
        Retained { oldest, count }
    }

    /// Gives the oldest page up. False if somebody else has done so since, or there is none.
    pub(crate) fn give_up(self, words: &impl Words) -> bool {
        // (E) pairs with (E') of threads that draw, and of readers, which check again after they have copied.
        self.count > 0 && words.exchange_reclaimed(self.oldest, self.oldest.wrapping_add(1), Ordering::AcqRel)
    }
}

#[cfg(test)]
mod model {
    use std::sync::Arc;

    use dormouse_abi::session::State;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use super::{Retained, Words};

    struct Stream {
        reclaimed: AtomicU64,
        state: AtomicU64,
    }

    words!(Stream);

    fn word(seq: u16) -> u64 {
        State { seq, unit: 1, offset: 0 }.to_word()
    }

    /// A stream closes pages while others, which all want a page, give up its oldest.
    #[test]
    fn a_page_is_not_given_up_before_it_is_closed() {
        for (first, last) in [(1, 1), (1, 2), (0, 2)] {
            loom::model(move || {
                let stream = Arc::new(Stream { reclaimed: AtomicU64::new(0), state: AtomicU64::new(word(first)) });
                let evictors: Vec<_> = (0..2)
                    .map(|_| {
                        let stream = Arc::clone(&stream);
                        thread::spawn(move || {
                            let retained = Retained::of(&*stream);
                            assert!(retained.count <= u32::from(last), "more than were ever closed");
                            u64::from(retained.give_up(&*stream))
                        })
                    })
                    .collect();
                for seq in first..last {
                    stream.state.store(word(seq + 1), Ordering::Release);
                }
                let given_up: u64 = evictors.into_iter().map(|evictor| evictor.join().unwrap()).sum();
                let reclaimed = stream.reclaimed.load(Ordering::Relaxed);
                assert_eq!(reclaimed, given_up);
                assert!(reclaimed <= u64::from(last), "the current page is given up");
            });
        }
    }
}
