//! A driver whose device has stopped gets back every buffer that it had, and goes on with the next device.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU8;

use dormouse_vring::{Chain, DeviceSide, Direct, DriverSide, Features, NoMemory, Segment, either};
use proptest::prelude::*;

const SIZE: u32 = 8;

#[repr(align(64))]
struct Memory([AtomicU8; 4096]);

/// What happens before the device stops.
#[derive(Debug, Clone)]
enum Step {
    Add {
        segments: usize,
        publishes: bool,
    },
    /// Pops a buffer, and gives it back.
    Serve,
    /// Pops a buffer, and keeps it.
    Pop,
    PublishUsed,
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4_usize, any::<bool>()).prop_map(|(segments, publishes)| Step::Add { segments, publishes }),
        3 => Just(Step::Serve),
        1 => Just(Step::Pop),
        2 => Just(Step::PublishUsed),
        2 => Just(Step::Take),
    ]
}

proptest! {
    #[test]
    fn a_reset_returns_what_was_not_taken_back(
        is_packed: bool,
        event_idx: bool,
        lives in prop::collection::vec(prop::collection::vec(step(), 0..80), 1..6),
    ) {
        let memory = Memory([const { AtomicU8::new(0) }; 4096]);
        let areas = either::contiguous(is_packed, memory.0.as_ptr().cast_mut().cast(), SIZE).unwrap();
        // SAFETY: the memory outlives both sides, and its bytes are atomics.
        let bus = unsafe { Direct::new(areas) };
        either::init(is_packed, &bus, SIZE).unwrap();
        let features = Features { event_idx, ..Features::default() };
        let mut driver = either::Driver::new(is_packed, bus, SIZE, features).unwrap();
        let mut next = 0;
        for steps in lives {
            let mut device = either::Device::new(is_packed, bus, SIZE, features).unwrap();
            // Tokens that the driver has added and not taken back, by its own account.
            let mut added = VecDeque::new();
            let mut chain = Chain::default();
            for step in steps {
                match step {
                    Step::Add { segments, publishes } => {
                        let segments = vec![Segment { addr: next, len: 1 }; segments];
                        if driver.add(&segments, &[], next).is_ok() {
                            added.push_back(next);
                            next += 1;
                        }
                        if publishes {
                            driver.publish();
                        }
                    }
                    Step::Serve => {
                        if device.pop(&NoMemory, &mut chain).unwrap() {
                            device.push_used(&chain, 0);
                        }
                    }
                    Step::Pop => drop(device.pop(&NoMemory, &mut chain).unwrap()),
                    Step::PublishUsed => device.publish_used(),
                    Step::Take => {
                        if let Some(done) = driver.take_used().unwrap() {
                            let at = added.iter().position(|token| *token == done.token);
                            prop_assert!(at.is_some(), "{} was taken back before, or never added", done.token);
                            added.remove(at.unwrap());
                        }
                    }
                }
            }
            let mut returned = Vec::new();
            driver.reset(|token| returned.push(token));
            returned.sort_unstable();
            prop_assert_eq!(returned, Vec::from(added));
            prop_assert_eq!((u32::from(driver.free_count()), driver.in_flight(), driver.unpublished()), (SIZE, 0, 0));
        }
    }
}

/// Without exchanges, the buffers come back in the order in which they were added.
#[test]
fn the_oldest_buffer_comes_back_first() {
    for is_packed in [false, true] {
        let memory = Memory([const { AtomicU8::new(0) }; 4096]);
        let areas = either::contiguous(is_packed, memory.0.as_ptr().cast_mut().cast(), SIZE).unwrap();
        // SAFETY: the memory outlives the driver, and its bytes are atomics.
        let bus = unsafe { Direct::new(areas) };
        either::init(is_packed, &bus, SIZE).unwrap();
        let mut driver = either::Driver::new(is_packed, bus, SIZE, Features::default()).unwrap();
        for turn in 0..3 {
            for token in 0..5 {
                driver.add(&[Segment { addr: 0, len: 1 }], &[], 10 * turn + token).unwrap();
            }
            driver.publish();
            let mut returned = Vec::new();
            driver.reset(|token| returned.push(token));
            assert_eq!(returned, Vec::from_iter((0..5).map(|token| 10 * turn + token)));
        }
    }
}
