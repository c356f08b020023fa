//! Tests of the planned driver with a device that takes one segment at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::{vec, vec::Vec};

use dormouse_abi::txn::{Store, Txn};
use proptest::collection::vec;
use proptest::prelude::*;

use super::Memory;
use crate::split::{Device, PlannedDriver, start_at};
use crate::{Area, Bus, DeviceSide, Features, RingError, Segment};

fn planner(memory: &Memory, size: u32, published: &AtomicU64) -> PlannedDriver {
    // SAFETY: the memory outlives the driver in every test, has the layout's size, and is accessed only atomically; the
    // same holds for the shadow.
    unsafe { PlannedDriver::new(memory.base(), size, published.as_ptr()) }.unwrap()
}

/// Executes the stores of a transaction whose guard holds.
fn execute(txn: &Txn) {
    let plain = txn.stores.iter().take(txn.store_count as usize);
    plain.chain([&txn.last]).for_each(execute_store);
}

/// Executes a store as a driver's executor does. Planners make stores of 2 and 8 bytes.
fn execute_store(store: &Store) {
    if store.width == 8 {
        // SAFETY: the planner's targets are aligned, in memory that the test keeps alive.
        let target = unsafe { AtomicU64::from_ptr(store.target.cast()) };
        target.store(store.value, Release);
    } else {
        // SAFETY: the planner's targets are aligned to 2 bytes, in memory that the test keeps alive.
        let target = unsafe { AtomicU16::from_ptr(store.target.cast()) };
        target.store(store.value as u16, Release);
    }
}

/// Commits a transaction like an executor, including its guard.
fn commit(txn: &Txn, published: &AtomicU64) -> bool {
    let holds = published.load(Relaxed) == txn.expected;
    if holds {
        execute(txn);
    }
    holds
}

#[derive(Debug, Clone)]
enum Operation {
    /// Writes one descriptor.
    Add { addr: u64, len: u32 },
    /// Is aborted or killed after `stores` plain stores of a descriptor.
    AddAborted { addr: u64, len: u32, stores: usize },
    /// Plans to publish the state of `behind` descriptors ago. Only the newest may succeed.
    Publish { behind: u64 },
    /// Takes back all used buffers.
    TakeUsed,
    /// Pops up to `count` buffers.
    Pop { count: usize },
    /// Uses the oldest or the newest popped buffer.
    Use { newest: bool },
    /// Publishes all used buffers.
    PublishUsed,
    /// Asks to be woken when (`count` modulo the ring's size) plus 1 buffers are available.
    Arm { count: u16 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => any::<(u64, u32)>().prop_map(|(addr, len)| Operation::Add { addr, len }),
        1 => (any::<(u64, u32)>(), 0..4_usize).prop_map(|((addr, len), stores)| Operation::AddAborted { addr, len, stores }),
        4 => prop_oneof![4 => Just(0), 1 => 1..4_u64].prop_map(|behind| Operation::Publish { behind }),
        3 => Just(Operation::TakeUsed),
        4 => (0..6_usize).prop_map(|count| Operation::Pop { count }),
        5 => any::<bool>().prop_map(|newest| Operation::Use { newest }),
        3 => Just(Operation::PublishUsed),
        2 => prop_oneof![Just(0), any::<u16>()].prop_map(|count| Operation::Arm { count }),
    ]
}

/// Runs the operations on a ring whose indexes begin at `start`, with plain queues as the oracle.
fn run(size_log2: u32, start: u64, operations: Vec<Operation>) {
    let size = 1 << size_log2;
    let memory = Memory::split(size, 0xA5);
    let bus = memory.split_bus(size);
    let published = AtomicU64::new(start);
    let driver = planner(&memory, size, &published);
    start_at(&bus, size, start as u16).unwrap();
    let features = Features { event_idx: true, ..Features::default() };
    let mut device: Device = Device::with_base(bus, size, features, start as u16).unwrap();

    let (mut written, mut available, mut popped) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let (mut pushed, mut used) = (VecDeque::new(), VecDeque::new());
    let mut free = vec![true; size as usize];
    let (mut taken, mut shown, mut event) = (start, start, start);
    for operation in operations {
        let k = published.load(Relaxed);
        let id = (k % u64::from(size)) as u16;
        match operation {
            Operation::Add { addr, len } => {
                if free[id as usize] {
                    assert!(commit(&driver.plan_descriptor(k, addr, len), &published));
                    assert!(!commit(&driver.plan_descriptor(k, addr, len), &published));
                    free[id as usize] = false;
                    written.push_back((id, Segment { addr, len }));
                }
            }
            Operation::AddAborted { addr, len, stores } => {
                if free[id as usize] {
                    for store in driver.plan_descriptor(k, addr, len).stores.iter().take(stores.min(3)) {
                        execute_store(store);
                    }
                }
            }
            Operation::Publish { behind } => {
                let k1 = k.saturating_sub(behind);
                let done = commit(&driver.plan_publish(k1), &published);
                assert_eq!(done, k1 == k);
                if done {
                    available.append(&mut written);
                    // The oracle of notification: whether the step passes the event, counted without wrapping.
                    assert_eq!(driver.needs_kick(shown as u16, k as u16), shown <= event && event < k);
                    shown = k;
                }
            }
            Operation::TakeUsed => {
                assert_eq!(driver.used_count(), taken + used.len() as u64);
                for (id, len) in used.drain(..) {
                    let at = 4 + 8 * (taken % u64::from(size)) as usize;
                    let element: (u32, u32) =
                        (bus.load(Area::Device, at, Relaxed), bus.load(Area::Device, at + 4, Relaxed));
                    assert_eq!(element, (u32::from(id), len));
                    free[usize::from(id)] = true;
                    taken += 1;
                }
            }
            Operation::Pop { count } => {
                for _ in 0..count {
                    let buffer = device.pop_single().unwrap();
                    assert_eq!(buffer, available.pop_front());
                    popped.extend(buffer);
                }
            }
            Operation::Use { newest } => {
                if let Some((id, segment)) = if newest { popped.pop_back() } else { popped.pop_front() } {
                    device.push_used_id(id, segment.len ^ 1);
                    pushed.push_back((id, segment.len ^ 1));
                }
            }
            Operation::PublishUsed => {
                device.publish_used();
                used.append(&mut pushed);
            }
            Operation::Arm { count } => {
                let count = count % size as u16 + 1;
                event = shown - available.len() as u64 + u64::from(count) - 1;
                assert_eq!(device.arm_notification_after(count), available.len() >= count.into());
            }
        }
    }
    assert_eq!(device.violations(), 0);
}

proptest! {
    #[test]
    fn operations_match_the_oracle(
        size_log2 in 0..6_u32,
        start in prop_oneof![Just(0_u64), 65_500..65_536_u64, (1_u64 << 32) - 40..(1 << 32)],
        operations in vec(operation(), 0..400),
    ) {
        run(size_log2, start, operations);
    }
}

#[test]
fn impossible_rings_are_refused() {
    let memory = Memory::split(4, 0);
    let published = AtomicU64::new(0);
    for size in [0, 3, 65_536] {
        // SAFETY: the ring is refused before anything is accessed.
        let refused = unsafe { PlannedDriver::new(memory.base(), size, published.as_ptr()) };
        assert_eq!(refused.err(), Some(RingError::Size { size }));
    }
    let address = memory.base().addr() + 8;
    // SAFETY: the ring is refused before anything is accessed.
    let refused = unsafe { PlannedDriver::new(memory.base().wrapping_add(8), 4, published.as_ptr()) };
    assert_eq!(refused.err(), Some(RingError::Alignment { address }));
    // SAFETY: the ring is refused before anything is accessed.
    let refused = unsafe { Device::at(memory.base().wrapping_add(8), 4) };
    assert_eq!(refused.err(), Some(RingError::Alignment { address }));
}

proptest! {
    /// After arbitrary writes by a device, the used count is at most the published count, and less than 65,536 below
    /// it.
    #[test]
    fn a_hostile_device_is_survived(
        size_log2 in 0..5_u32,
        writes in vec((any::<prop::sample::Index>(), vec(any::<u8>(), 1..24)), 1..40),
    ) {
        let size = 1 << size_log2;
        let memory = Memory::split(size, 0xFF);
        let published = AtomicU64::new(100_000);
        for (at, bytes) in writes {
            memory.put(at.index(memory.len()), &bytes);
            let count = planner(&memory, size, &published).used_count();
            prop_assert!((100_000 - 65_535..=100_000).contains(&count), "{count}");
        }
    }
}
