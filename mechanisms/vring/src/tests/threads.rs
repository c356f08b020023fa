//! Two threads that sleep whenever they may. A lost notification would show as a timeout.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::Memory;
use crate::{Chain, DeviceSide, Direct, DriverSide, Features, NoMemory, Segment, packed, split};

/// More than four wraps of 16 bits.
const COUNT: u64 = 300_000;
const PATIENCE: Duration = Duration::from_secs(600);

fn wait(bell: &Receiver<()>, what: &str) {
    bell.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} was lost"));
}

fn be_device(mut device: impl DeviceSide, kicked: &Receiver<()>, interrupt: &Sender<()>) -> u64 {
    let (mut chain, mut next, mut sleeps) = (Chain::default(), 0, 0);
    while next < COUNT {
        if device.pop(&NoMemory, &mut chain).unwrap() {
            let segments = [Segment { addr: next, len: next as u32 }, Segment { addr: !next, len: 7 }];
            let (readable, writable) = if next % 3 == 0 { segments.split_at(1) } else { segments[..1].split_at(1) };
            assert_eq!((chain.readable(), chain.writable()), (readable, writable));
            device.push_used(&chain, if writable.is_empty() { 0 } else { (next % 8) as u32 });
            next += 1;
            if next % 5 != 0 {
                continue;
            }
        }
        device.publish_used();
        if device.needs_interrupt() {
            // The other side no longer listens when it has everything.
            _ = interrupt.send(());
        }
        if next < COUNT && !device.arm_notification() {
            sleeps += 1;
            wait(kicked, "a kick");
        }
        device.disarm_notification();
    }
    device.publish_used();
    if device.needs_interrupt() {
        _ = interrupt.send(());
    }
    sleeps
}

fn be_driver<D: DriverSide>(mut driver: D, kick: &Sender<()>, interrupted: &Receiver<()>) -> u64 {
    let (mut next, mut taken, mut sleeps) = (0, 0, 0);
    while taken < COUNT {
        while next < COUNT {
            let segments = [Segment { addr: next, len: next as u32 }, Segment { addr: !next, len: 7 }];
            let (readable, writable) = if next % 3 == 0 { segments.split_at(1) } else { segments[..1].split_at(1) };
            // Published alone, or as the last of several.
            let is_last = next % 7 == 6;
            let added = if is_last { D::add_and_publish } else { D::add };
            if added(&mut driver, readable, writable, next).is_err() {
                break;
            }
            next += 1;
            if is_last {
                break;
            }
        }
        driver.publish();
        if driver.needs_kick() {
            // The other side ends as soon as it has everything.
            _ = kick.send(());
        }
        let mut any = false;
        while let Some(completion) = driver.take_used().unwrap() {
            let written = if taken % 3 == 0 { (taken % 8) as u32 } else { 0 };
            assert_eq!((completion.token, completion.len), (taken, written));
            taken += 1;
            any = true;
        }
        let is_stuck = next == COUNT || driver.free_count() < 2;
        if !any && taken < COUNT && is_stuck && !driver.arm_interrupt() {
            sleeps += 1;
            wait(interrupted, "an interrupt");
            driver.disarm_interrupt();
        }
    }
    assert_eq!((next, driver.violations()), (COUNT, 0));
    sleeps
}

fn hand_over(driver: impl DriverSide + Send, device: impl DeviceSide + Send) {
    let (kick, kicked) = channel();
    let (interrupt, interrupted) = channel();
    let sleeps = std::thread::scope(|scope| {
        let device = scope.spawn(move || be_device(device, &kicked, &interrupt));
        let of_driver = be_driver(driver, &kick, &interrupted);
        (of_driver, device.join().unwrap())
    });
    assert!(sleeps.0 > 0 && sleeps.1 > 0, "{sleeps:?}: each side has slept");
}

fn all_features() -> impl Iterator<Item = Features> {
    (0..4).map(|bits| Features { event_idx: bits & 1 != 0, in_order: bits & 2 != 0, indirect: false })
}

#[test]
fn split_queues_lose_nothing_and_no_notification() {
    for features in all_features() {
        let memory = Memory::split(16, 0);
        let bus = memory.split_bus(16);
        let driver: split::Driver<Direct> = split::Driver::new(bus, 16, features).unwrap();
        let device: split::Device = split::Device::new(bus, 16, features).unwrap();
        hand_over(driver, device);
    }
}

#[test]
fn packed_queues_lose_nothing_and_no_notification() {
    for features in all_features() {
        let memory = Memory::packed(15, 0);
        let bus = memory.packed_bus(15);
        let driver: packed::Driver<Direct> = packed::Driver::new(bus, 15, features).unwrap();
        let device: packed::Device<Direct> = packed::Device::new(bus, 15, features).unwrap();
        hand_over(driver, device);
    }
}
