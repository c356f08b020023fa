//! Both sides under a model checker: every interleaving, with each value that a load may see.
//!
//! A ring's words are loom's atomics, and buffers are cells that loom watches. A waiting thread is woken by a
//! notification and by nothing else, so a lost one is a deadlock, which loom finds. Two threads access a buffer that
//! was not handed over properly, which loom also finds. Faults are planted to check that it does: [`Fault`].
//!
//! The checker cannot model accesses of several widths to the same bytes. A packed queue loads offset and flags of an
//! event as one word; here they are two loads, which is weaker.
#![cfg(target_pointer_width = "64")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse_vring::{
    Area, Bus, Chain, DeviceSide, DriverSide, Features, NoMemory, Segment, Word, need_event, packed, split,
};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

/// The part of the protocol that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The driver's fences: between publishing and reading the device's request (E), and between storing its own
    /// request and looking (G).
    DriverFences,
    /// The device's fences: (F) and (H).
    DeviceFences,
    /// Publishing does not release.
    Releases,
    /// Looking does not acquire.
    Acquires,
    /// A side that has asked to be woken does not look again.
    Look,
    /// Indexes are compared as if they did not wrap.
    Comparison,
}

/// Words with their offsets.
type Words = Vec<(usize, AtomicU64)>;

/// A ring's memory: the length and the words of each area.
struct Ring([(usize, Words); 3]);

impl Ring {
    fn new(len: [usize; 3], offsets: [Vec<usize>; 3]) -> Arc<Ring> {
        let mut areas = len.into_iter().zip(offsets);
        Arc::new(Ring([(); 3].map(|()| {
            let (len, offsets) = areas.next().unwrap();
            (len, offsets.into_iter().map(|offset| (offset, AtomicU64::new(0))).collect())
        })))
    }

    fn split(size: usize) -> Arc<Ring> {
        let descriptors = (0..2 * size).map(|word| 8 * word).collect();
        let avail = (0..size + 3).map(|word| 2 * word).collect();
        let used = [0, 2, 4 + 8 * size].into_iter().chain((0..2 * size).map(|word| 4 + 4 * word)).collect();
        Ring::new([16 * size, 6 + 2 * size, 6 + 8 * size], [descriptors, avail, used])
    }

    fn packed(size: usize) -> Arc<Ring> {
        let descriptors = (0..2 * size).map(|word| 8 * word).collect();
        Ring::new([16 * size, 4, 4], [descriptors, vec![0, 2], vec![0, 2]])
    }

    fn word(&self, area: Area, offset: usize) -> &AtomicU64 {
        let (_, words) = &self.0[area as usize];
        &words.iter().find(|(at, _)| *at == offset).expect("a word of the ring").1
    }
}

#[derive(Clone)]
struct Loom {
    ring: Arc<Ring>,
    /// The fault that removes this side's fences.
    fenceless: Fault,
    fault: Fault,
}

impl Loom {
    /// Returns the driver's bus and the device's.
    fn both(ring: Arc<Ring>, fault: Fault) -> [Loom; 2] {
        [Fault::DriverFences, Fault::DeviceFences].map(|fenceless| Loom { ring: ring.clone(), fenceless, fault })
    }
}

impl Bus for Loom {
    fn len(&self, area: Area) -> usize {
        self.ring.0[area as usize].0
    }

    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W {
        let order = if self.fault == Fault::Acquires { Ordering::Relaxed } else { order };
        let word = self.ring.word(area, offset).load(order);
        if size_of::<W>() == 4 && self.ring.0[area as usize].0 == 4 {
            return W::from_u64(word | self.ring.word(area, offset + 2).load(order) << 16);
        }
        W::from_u64(word)
    }

    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering) {
        let order = if self.fault == Fault::Releases { Ordering::Relaxed } else { order };
        self.ring.word(area, offset).store(value.to_u64(), order);
    }

    fn fence(&self) {
        if self.fault != self.fenceless {
            fence(Ordering::SeqCst);
        }
    }

    fn need_event(&self, event: u16, new: u16, old: u16) -> bool {
        if self.fault == Fault::Comparison { old <= event && event < new } else { need_event(event, new, old) }
    }
}

/// A kick or an interrupt: an event that is remembered.
struct Bell {
    is_rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn new() -> Bell {
        Bell { is_rung: Mutex::new(false), ringing: Condvar::new() }
    }

    fn ring(&self) {
        *self.is_rung.lock().unwrap() = true;
        self.ringing.notify_one();
    }

    fn wait(&self) {
        let mut is_rung: MutexGuard<'_, bool> = self.is_rung.lock().unwrap();
        while !*is_rung {
            is_rung = self.ringing.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }
}

/// State that both threads share besides the ring.
struct Shared {
    kick: Bell,
    interrupt: Bell,
    /// Buffers. The owner of one accesses it exclusively, which loom checks.
    buffers: Vec<UnsafeCell<u64>>,
    fault: Fault,
}

// SAFETY: this is under test: loom checks that a buffer has one owner at a time.
unsafe impl Send for Shared {}
// SAFETY: this is under test: loom checks that no two threads access a buffer at once.
unsafe impl Sync for Shared {}

impl Shared {
    fn change(&self, buffer: u64, from: u64, to: u64) {
        self.buffers[buffer as usize].with_mut(|word| {
            // SAFETY: exclusive access is under test: loom checks that no other thread accesses the buffer.
            let word = unsafe { &mut *word };
            assert_eq!(*word, from, "buffer {buffer} holds what its last owner left");
            *word = to;
        });
    }
}

/// Parameters of an exchange.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    /// Number of buffers.
    buffers: u64,
    /// Number of times that a buffer is given to the device.
    rounds: u64,
    /// Number of buffers that the driver publishes at a time.
    batch: u64,
}

/// Gives the device each buffer in turn, and waits if the ring or the buffer is not free.
fn produce(driver: &mut impl DriverSide, shared: &Shared, exchange: Exchange) {
    let (mut sent, mut back) = (0, 0);
    driver.disarm_interrupt();
    while back < exchange.rounds {
        let is_room = sent < exchange.rounds && sent - back < exchange.buffers && driver.free_count() > 0;
        if is_room {
            let buffer = sent % exchange.buffers;
            shared.change(buffer, 2 * (sent / exchange.buffers), 2 * (sent / exchange.buffers) + 1);
            let segment = [Segment { addr: buffer, len: 1 }];
            sent += 1;
            if sent % exchange.batch == 0 || sent == exchange.rounds {
                driver.add_and_publish(&segment, &[], buffer).unwrap();
                if driver.needs_kick() {
                    shared.kick.ring();
                }
            } else {
                driver.add(&segment, &[], buffer).unwrap();
            }
        } else if let Some(completion) = driver.take_used().unwrap() {
            assert_eq!(completion.token, back % exchange.buffers);
            back += 1;
        } else if !driver.arm_interrupt() || shared.fault == Fault::Look {
            shared.interrupt.wait();
            driver.disarm_interrupt();
        }
    }
    let of_buffer = |buffer: u64| (exchange.rounds - buffer).div_ceil(exchange.buffers);
    (0..exchange.buffers).for_each(|buffer| shared.change(buffer, 2 * of_buffer(buffer), 0));
    assert_eq!(driver.violations(), 0);
}

/// Gives each buffer back.
fn consume(device: &mut impl DeviceSide, shared: &Shared, exchange: Exchange) {
    let (mut served, mut chain) = (0, Chain::default());
    device.disarm_notification();
    while served < exchange.rounds {
        if device.pop(&NoMemory, &mut chain).unwrap() {
            let round = served / exchange.buffers;
            shared.change(chain.readable()[0].addr, 2 * round + 1, 2 * round + 2);
            device.push_used(&chain, 0);
            device.publish_used();
            if device.needs_interrupt() {
                shared.interrupt.ring();
            }
            served += 1;
        } else if !device.arm_notification() || shared.fault == Fault::Look {
            shared.kick.wait();
            device.disarm_notification();
        }
    }
    assert_eq!(device.violations(), 0);
}

fn exchange<D: DriverSide, V: DeviceSide + Send + 'static>(
    fault: Fault,
    exchange: Exchange,
    sides: impl Fn() -> (D, V) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    // `LOOM_MAX_PREEMPTIONS` allows more.
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(move || {
        let shared = Arc::new(Shared {
            kick: Bell::new(),
            interrupt: Bell::new(),
            buffers: (0..exchange.buffers).map(|_| UnsafeCell::new(0)).collect(),
            fault,
        });
        let (mut driver, mut device) = sides();
        let consumer = {
            let shared = shared.clone();
            thread::spawn(move || consume(&mut device, &shared, exchange))
        };
        produce(&mut driver, &shared, exchange);
        consumer.join().unwrap();
    });
}

/// Maximum number of preemptions in one run. More find nothing else here, and take minutes.
const PREEMPTIONS: usize = 2;

/// One buffer goes back and forth, so that both sides sleep.
const ONE: Exchange = Exchange { buffers: 1, rounds: 2, batch: 1 };
/// Two buffers, so that one arrives while the other is under way.
const TWO: Exchange = Exchange { buffers: 2, rounds: 2, batch: 1 };
/// A batch. There is room for the next buffer only when it is back.
const BATCH: Exchange = Exchange { buffers: 2, rounds: 3, batch: 2 };

const EVENTS: Features = Features { event_idx: true, indirect: false, in_order: false };
const FLAGS: Features = Features { event_idx: false, indirect: false, in_order: false };
const IN_ORDER: Features = Features { event_idx: true, indirect: false, in_order: true };

/// Checks a split queue of two entries whose indexes begin at `base`.
fn split(features: Features, fault: Fault, what: Exchange, base: u16) {
    split_of(2, features, fault, what, base);
}

/// Checks a split queue of `size` entries. With a single entry, a stale element names the right descriptor, so only
/// loom notices that it is stale.
fn split_of(size: u32, features: Features, fault: Fault, what: Exchange, base: u16) {
    exchange(fault, what, move || {
        let [bus, device] = Loom::both(Ring::split(size as usize), fault);
        split::start_at(&bus, size, base).unwrap();
        let driver = split::Driver::with_base(bus, size, features, base).unwrap();
        (driver, split::Device::with_base(device, size, features, base).unwrap())
    });
}

/// Checks a packed queue of `size` descriptors.
fn packed(features: Features, fault: Fault, what: Exchange, size: u32) {
    exchange(fault, what, move || {
        let [bus, device] = Loom::both(Ring::packed(size as usize), fault);
        packed::init(&bus, size).unwrap();
        let driver = packed::Driver::new(bus, size, features).unwrap();
        (driver, packed::Device::new(device, size, features).unwrap())
    });
}

/// Base with which the index wraps between the first buffer and the second.
const BEFORE_THE_WRAP: u16 = u16::MAX;

#[test]
fn split_queues_lose_neither_buffers_nor_notifications() {
    for what in [ONE, TWO, BATCH] {
        split(EVENTS, Fault::None, what, BEFORE_THE_WRAP);
        split(FLAGS, Fault::None, what, BEFORE_THE_WRAP);
    }
}

#[test]
fn split_queues_in_order_lose_neither_buffers_nor_notifications() {
    for what in [ONE, TWO, BATCH] {
        split(IN_ORDER, Fault::None, what, BEFORE_THE_WRAP);
    }
}

#[test]
fn packed_queues_lose_neither_buffers_nor_notifications() {
    for features in [EVENTS, FLAGS, IN_ORDER] {
        // Rings that wrap at each buffer, and one in which a batch crosses the end.
        for (what, size) in [(ONE, 1), (ONE, 2), (TWO, 2), (TWO, 3), (BATCH, 3)] {
            packed(features, Fault::None, what, size);
        }
    }
}

/// The plain comparison is correct as long as nothing wraps, so the fault does not show for 65,536 buffers, or for a
/// lap.
#[test]
fn a_plain_comparison_is_correct_only_before_the_wrap() {
    split(EVENTS, Fault::Comparison, TWO, 0);
    packed(EVENTS, Fault::Comparison, TWO, 4);
}

/// Defines tests that find a planted fault. `expected` is part of loom's message.
macro_rules! planted {
    ($($name:ident: $expected:literal, $run:expr;)*) => {
        $(
            #[test]
            #[should_panic(expected = $expected)]
            fn $name() {
                $run;
            }
        )*
    };
}

planted! {
    a_plain_comparison_loses_a_kick_of_a_split_queue: "deadlock",
        split(EVENTS, Fault::Comparison, TWO, BEFORE_THE_WRAP);
    a_plain_comparison_loses_a_kick_of_a_packed_queue: "deadlock",
        packed(EVENTS, Fault::Comparison, TWO, 2);
    a_missing_fence_of_the_drivers_loses_a_notification_of_a_split_queue: "deadlock",
        split(EVENTS, Fault::DriverFences, ONE, 0);
    a_missing_fence_of_the_devices_loses_a_notification_of_a_split_queue: "deadlock",
        split(EVENTS, Fault::DeviceFences, ONE, 0);
    a_missing_fence_of_the_drivers_loses_a_notification_of_a_packed_queue: "deadlock",
        packed(EVENTS, Fault::DriverFences, ONE, 2);
    a_missing_fence_of_the_devices_loses_a_notification_of_a_packed_queue: "deadlock",
        packed(EVENTS, Fault::DeviceFences, ONE, 2);
    a_missing_fence_of_the_drivers_loses_a_notification_by_flags: "deadlock",
        split(FLAGS, Fault::DriverFences, ONE, 0);
    a_missing_fence_of_the_devices_loses_a_notification_by_flags: "deadlock",
        split(FLAGS, Fault::DeviceFences, ONE, 0);
    who_does_not_look_again_sleeps_for_ever_by_a_split_queue: "deadlock",
        split(EVENTS, Fault::Look, ONE, 0);
    who_does_not_look_again_sleeps_for_ever_by_a_packed_queue: "deadlock",
        packed(EVENTS, Fault::Look, ONE, 2);
    a_relaxed_publishing_hands_nothing_over: "Causality violation",
        split_of(1, EVENTS, Fault::Releases, ONE, 0);
    a_relaxed_look_takes_nothing_over: "Causality violation",
        split_of(1, EVENTS, Fault::Acquires, ONE, 0);
    a_relaxed_publishing_of_a_packed_queue_hands_nothing_over: "Causality violation",
        packed(EVENTS, Fault::Releases, ONE, 2);
    a_relaxed_look_at_a_packed_queue_takes_nothing_over: "Causality violation",
        packed(EVENTS, Fault::Acquires, ONE, 2);
}
