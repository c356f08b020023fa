//! The driver side with an independent device: rust-vmm's `virtio-queue`, on random operations, with plain queues as
//! the oracle.
//!
//! The device supports split queues, with tables and event indexes, publishes each used buffer at once, and ignores the
//! driver's flags.
#![cfg(target_pointer_width = "64")]

use std::collections::VecDeque;

use dormouse_abi::vring::RingLayout;
use dormouse_vring::split::{self, Driver, contiguous};
use dormouse_vring::{Direct, DriverSide, Features, IndirectTables, Segment};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Device's address of the ring.
const RING: u64 = 0x1_0000;
/// Number of descriptors of a table.
const ENTRIES: u16 = 4;

#[path = "../src/tests/operation.rs"]
mod operation;

/// An operation whose buffers are given as the numbers of segments to read and to write.
type Operation = operation::Operation<(usize, usize)>;

fn operation() -> impl Strategy<Value = Operation> {
    operation::operation((0..4_usize, 0..4_usize), true, false)
}

/// The oracle's record of a buffer.
#[derive(Debug, Clone)]
struct Buffer {
    token: u64,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
}

/// One side's progress since it last checked, and the position at which the other side wants to be notified, counted
/// without wrapping.
#[derive(Debug)]
struct Announced {
    old: i64,
    new: i64,
    /// `None`: the other side never wants to be notified, which is possible only without event indexes.
    wish: Option<i64>,
}

impl Announced {
    fn expect(&mut self, has_events: bool) -> bool {
        let (old, new) = (self.old, self.new);
        self.old = new;
        self.wish.is_some_and(|event| if has_events { old <= event && event < new } else { new > old })
    }
}

struct Bench<'a> {
    memory: &'a GuestMemoryMmap,
    features: Features,
    driver: Driver<Direct>,
    device: Queue,
    kicks: Announced,
    interrupts: Announced,
    popped: i64,
    taken: i64,
    tokens: u64,
    added: VecDeque<Buffer>,
    available: VecDeque<Buffer>,
    held: VecDeque<(u16, Buffer)>,
    used: VecDeque<(Buffer, u32)>,
}

/// Returns as much memory as a ring and its tables need.
fn memory(size: u32) -> GuestMemoryMmap {
    let len = RingLayout { size }.size_bytes() + IndirectTables::size_bytes(size, ENTRIES);
    GuestMemoryMmap::from_ranges(&[(GuestAddress(RING), len.next_multiple_of(4096))]).unwrap()
}

impl Bench<'_> {
    fn new(memory: &GuestMemoryMmap, size: u32, features: Features, base: u16) -> Bench<'_> {
        let ring = memory.get_host_address(GuestAddress(RING)).unwrap();
        // SAFETY: the memory is mapped as long as `memory` is borrowed; the device accesses it by volatile loads and
        // stores, on this thread.
        let bus = unsafe { Direct::new(contiguous(ring, size).unwrap()) };
        split::start_at(&bus, size, base).unwrap();
        let mut driver = Driver::with_base(bus, size, features, base).unwrap();
        let layout = RingLayout { size };
        if features.indirect {
            let offset = layout.size_bytes();
            let tables =
                IndirectTables { base: ring.wrapping_add(offset), addr: RING + offset as u64, entries: ENTRIES };
            // SAFETY: the tables are after the ring, in memory that is large enough for them.
            unsafe { driver.use_indirect(tables) }.unwrap();
        }
        let mut device = Queue::new(size as u16).unwrap();
        device.try_set_desc_table_address(GuestAddress(RING + layout.desc() as u64)).unwrap();
        device.try_set_avail_ring_address(GuestAddress(RING + layout.avail() as u64)).unwrap();
        device.try_set_used_ring_address(GuestAddress(RING + layout.used() as u64)).unwrap();
        device.set_event_idx(features.event_idx);
        device.set_next_avail(base);
        device.set_next_used(base);
        device.set_ready(true);
        assert!(device.is_valid(memory));
        let start = i64::from(base);
        let announced = || Announced { old: start, new: start, wish: Some(start) };
        Bench {
            memory,
            features,
            driver,
            device,
            kicks: announced(),
            interrupts: announced(),
            popped: start,
            taken: start,
            tokens: 0,
            added: VecDeque::new(),
            available: VecDeque::new(),
            held: VecDeque::new(),
            used: VecDeque::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Add((readable, writable)) => self.add(readable, writable),
            Operation::Publish => {
                self.driver.publish();
                self.kicks.new += self.added.len() as i64;
                self.available.append(&mut self.added);
            }
            Operation::Kick => {
                assert_eq!(self.driver.needs_kick(), self.kicks.expect(self.features.event_idx));
            }
            Operation::Take { count } => (0..count).for_each(|_| self.take()),
            Operation::Pop { count } => (0..count).for_each(|_| self.pop()),
            Operation::Push { any, written } => self.push(any, written),
            // The device publishes by itself.
            Operation::PublishUsed => {}
            Operation::Interrupt => {
                let says = self.device.needs_notification(self.memory).unwrap();
                assert_eq!(says, self.interrupts.expect(true) || !self.features.event_idx);
            }
            Operation::ArmNotification { is_wanted: true } => {
                let found = self.device.enable_notification(self.memory).unwrap();
                assert_eq!(found, !self.available.is_empty());
                self.kicks.wish = Some(self.popped);
            }
            // With event indexes, the previous request stays in force.
            Operation::ArmNotification { is_wanted: false } => {
                self.device.disable_notification(self.memory).unwrap();
                self.kicks.wish = self.kicks.wish.filter(|_| self.features.event_idx);
            }
            Operation::ArmInterrupt { is_wanted: true } => {
                assert_eq!(self.driver.arm_interrupt(), !self.used.is_empty());
                self.interrupts.wish = Some(self.taken);
            }
            Operation::ArmInterrupt { is_wanted: false } => {
                self.driver.disarm_interrupt();
                self.interrupts.wish = Some(self.taken - 1);
            }
        }
    }

    fn add(&mut self, readable: usize, writable: usize) {
        let segments: Vec<Segment> = (0..readable + writable)
            .map(|index| Segment { addr: self.tokens << 8 | index as u64, len: 7 * index as u32 })
            .collect();
        let (readable, writable) = segments.split_at(readable);
        let buffer = Buffer { token: self.tokens, readable: readable.to_vec(), writable: writable.to_vec() };
        if self.driver.add(readable, writable, self.tokens).is_ok() {
            self.tokens += 1;
            self.added.push_back(buffer);
        }
    }

    fn pop(&mut self) {
        let chain = self.device.pop_descriptor_chain(self.memory);
        assert_eq!(chain.is_some(), !self.available.is_empty());
        if let (Some(chain), Some(buffer)) = (chain, self.available.pop_front()) {
            let segment = |descriptor: Descriptor| Segment { addr: descriptor.addr().0, len: descriptor.len() };
            assert_eq!(chain.clone().readable().map(segment).collect::<Vec<_>>(), buffer.readable);
            assert_eq!(chain.clone().writable().map(segment).collect::<Vec<_>>(), buffer.writable);
            self.popped += 1;
            self.held.push_back((chain.head_index(), buffer));
        }
    }

    fn push(&mut self, any: Option<prop::sample::Index>, written: Option<u32>) {
        let any = any.filter(|_| !self.features.in_order && !self.held.is_empty());
        if let Some((head, buffer)) = self.held.remove(any.map_or(0, |any| any.index(self.held.len()))) {
            let all = buffer.writable.iter().map(|segment| segment.len).sum::<u32>();
            let len = written.map_or(all, |written| written % (all + 1));
            self.device.add_used(self.memory, head, len).unwrap();
            self.interrupts.new += 1;
            self.used.push_back((buffer, len));
        }
    }

    fn take(&mut self) {
        let taken = self.driver.take_used().unwrap().map(|completion| (completion.token, completion.len));
        let expected = self.used.pop_front();
        assert_eq!(taken, expected.as_ref().map(|(buffer, len)| (buffer.token, *len)));
        self.taken += i64::from(expected.is_some());
    }
}

fn run(size_log2: u32, features: Features, base: u16, operations: &[Operation]) {
    let memory = memory(1 << size_log2);
    let mut bench = Bench::new(&memory, 1 << size_log2, features, base);
    operations.iter().for_each(|operation| bench.apply(operation.clone()));
    assert_eq!(bench.driver.violations(), 0);
}

fn features() -> impl Strategy<Value = Features> {
    any::<(bool, bool, bool)>().prop_map(|(indirect, event_idx, in_order)| Features { indirect, event_idx, in_order })
}

proptest! {
    #[test]
    fn drivers_and_virtio_queue_match_the_oracle(
        size_log2 in 0..6_u32,
        features in features(),
        base in prop_oneof![Just(0_u16), 65_500..=65_535_u16],
        operations in vec(operation(), 0..300),
    ) {
        run(size_log2, features, base, &operations);
    }
}

/// Runs one ring for more than two wraps of 65,536, deterministically.
#[test]
fn two_wraps_of_the_index_go_unnoticed() {
    fn go(features: Features) {
        let memory = memory(32);
        let mut bench = Bench::new(&memory, 32, features, 0);
        let (operation, mut runner) = (operation(), TestRunner::deterministic());
        while bench.taken < 2 * 65_536 + 1_000 {
            bench.apply(operation.new_tree(&mut runner).unwrap().current());
        }
        assert_eq!(bench.driver.violations(), 0);
    }
    go(Features { indirect: true, event_idx: true, in_order: false });
    go(Features { indirect: false, event_idx: true, in_order: false });
}
