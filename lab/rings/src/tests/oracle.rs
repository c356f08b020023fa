//! Compares plain rings, and rings without a shadow, with plain queues, also when the other side is that of
//! `dormouse_vring`.

use std::collections::VecDeque;

use dormouse_vring::{Bus, Chain, Completion, DeviceSide, DriverSide, Features, NoMemory, RingError, Segment, split};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::Memory;
use crate::{PlainDevice, PlainDriver, ReadBack};

#[derive(Debug, Clone)]
enum Operation {
    /// Add a buffer of `len` bytes, which the device writes or not.
    Add {
        len: u32,
        is_writable: bool,
    },
    Publish,
    Kick,
    Take,
    Pop,
    /// Give back any buffer, with `written` bytes written.
    Push {
        any: Index,
        written: u32,
    },
    PublishUsed,
    /// Enable or disable interrupts for the driver.
    Arm(bool),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => any::<(u32, bool)>().prop_map(|(len, is_writable)| Operation::Add { len, is_writable }),
        4 => Just(Operation::Publish),
        1 => Just(Operation::Kick),
        6 => Just(Operation::Take),
        6 => Just(Operation::Pop),
        6 => any::<(Index, u32)>().prop_map(|(any, written)| Operation::Push { any, written }),
        4 => Just(Operation::PublishUsed),
        1 => any::<bool>().prop_map(Operation::Arm),
    ]
}

/// A device for buffers of one segment.
trait Device {
    fn pop(&mut self) -> Option<(u16, Segment)>;
    fn push_used(&mut self, id: u16, len: u32);
    fn publish_used(&mut self);
}

impl<B: Bus, const IS_CACHED: bool> Device for PlainDevice<B, IS_CACHED> {
    fn pop(&mut self) -> Option<(u16, Segment)> {
        PlainDevice::pop(self).unwrap()
    }

    fn push_used(&mut self, id: u16, len: u32) {
        PlainDevice::push_used(self, id, len);
    }

    fn publish_used(&mut self) {
        PlainDevice::publish_used(self);
    }
}

impl<B: Bus> Device for split::Device<B> {
    fn pop(&mut self) -> Option<(u16, Segment)> {
        let mut chain = Chain::default();
        let is_there = DeviceSide::pop(self, &NoMemory, &mut chain).unwrap();
        is_there.then(|| (chain.id(), *chain.readable().first().or(chain.writable().first()).unwrap()))
    }

    fn push_used(&mut self, id: u16, len: u32) {
        self.push_used_id(id, len);
    }

    fn publish_used(&mut self) {
        DeviceSide::publish_used(self);
    }
}

fn run(mut driver: impl DriverSide, mut device: impl Device, size: u16, operations: &[Operation]) {
    let (mut added, mut available, mut held) = (VecDeque::new(), VecDeque::new(), Vec::new());
    let (mut pushed, mut used) = (VecDeque::new(), VecDeque::new());
    let mut under_way = 0;
    for (token, operation) in (0..).zip(operations) {
        match *operation {
            Operation::Add { len, is_writable } => {
                let segment = Segment { addr: token, len };
                let segments = [segment];
                let (readable, writable) = if is_writable { segments.split_at(0) } else { segments.split_at(1) };
                match driver.add(readable, writable, token) {
                    Ok(()) => {
                        assert!(under_way < size);
                        under_way += 1;
                        added.push_back((segment, is_writable));
                    }
                    Err(error) => assert!(matches!(error, RingError::Full { .. }) && under_way == size, "{error}"),
                }
            }
            Operation::Publish => {
                driver.publish();
                available.append(&mut added);
            }
            Operation::Kick => _ = driver.needs_kick(),
            Operation::Take => {
                let expected = used.pop_front();
                assert_eq!(driver.take_used(), Ok(expected));
                under_way -= u16::from(expected.is_some());
            }
            Operation::Pop => {
                let popped = device.pop();
                let expected = available.pop_front();
                assert_eq!(popped.map(|(_, segment)| segment), expected.map(|(segment, _)| segment));
                held.extend(popped.zip(expected));
            }
            Operation::Push { any, written } if !held.is_empty() => {
                let ((id, segment), (_, is_writable)) = held.swap_remove(any.index(held.len()));
                device.push_used(id, written);
                let len = if is_writable { written.min(segment.len) } else { 0 };
                pushed.push_back(Completion { token: segment.addr, len });
            }
            Operation::Push { .. } => {}
            Operation::PublishUsed => {
                device.publish_used();
                used.append(&mut pushed);
            }
            Operation::Arm(true) => assert_eq!(driver.arm_interrupt(), !used.is_empty()),
            Operation::Arm(false) => driver.disarm_interrupt(),
        }
        assert_eq!((driver.free_count(), usize::from(driver.unpublished())), (size - under_way, added.len()));
    }
}

proptest! {
    #[test]
    fn every_form_matches_the_oracle(
        size_log2 in 0..6_u32,
        event_idx in any::<bool>(),
        operations in vec(operation(), 0..600),
    ) {
        let size = 1 << size_log2;
        let features = Features { event_idx, ..Features::default() };
        let memory = Memory::new(split::size_bytes(size).unwrap());
        let plain = |is_empty: bool| if is_empty { memory.split_bus(size) } else { memory.bus(size) };
        let read_back = |is_empty: bool| ReadBack::driver(plain(is_empty), size);
        let of_device = || ReadBack::device(plain(false), size);
        let size_16 = size as u16;

        let driver = PlainDriver::<_, false>::new(plain(true), size, features).unwrap();
        run(driver, PlainDevice::<_, true>::new(plain(false), size).unwrap(), size_16, &operations);
        let driver = PlainDriver::<_, true>::new(plain(true), size, features).unwrap();
        run(driver, split::Device::new(plain(false), size, features).unwrap(), size_16, &operations);
        let driver = PlainDriver::<_, true>::new(read_back(true), size, features).unwrap();
        run(driver, PlainDevice::<_, false>::new(of_device(), size).unwrap(), size_16, &operations);
        let driver = split::Driver::new(read_back(true), size, features).unwrap();
        run(driver, split::Device::new(of_device(), size, features).unwrap(), size_16, &operations);
    }
}
