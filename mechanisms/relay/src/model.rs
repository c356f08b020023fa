//! Tests in a model checker: several threads give up pages while their stream closes others.

use std::sync::Arc;

use loom::thread;

use crate::abi::session::State;
use crate::atomic::{AtomicU64, Fault, Ordering, check};
use crate::retained::Retained;

mod switch;

struct Stream {
    reclaimed: AtomicU64,
    state: AtomicU64,
}

fn word(seq: u16) -> u64 {
    State { seq, unit: 1, offset: 0 }.to_word()
}

/// A stream closes pages while two threads, which both want a page, give up its oldest.
#[test]
fn a_page_is_not_given_up_before_it_is_closed() {
    for (first, last) in [(1, 1), (1, 2), (0, 2)] {
        check(None, Fault::None, move || {
            let stream = Arc::new(Stream { reclaimed: AtomicU64::new(0), state: AtomicU64::new(0) });
            stream.state.store(word(first), Ordering::Relaxed);
            let evictors: Vec<_> = (0..2)
                .map(|_| {
                    let stream = Arc::clone(&stream);
                    thread::spawn(move || {
                        let retained = Retained::of(&stream.reclaimed, &stream.state);
                        assert!(retained.count <= u32::from(last), "more than were ever closed");
                        u64::from(retained.give_up(&stream.reclaimed))
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
