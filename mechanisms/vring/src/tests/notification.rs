//! Notification after any number of buffers without a check.

use super::Memory;
use crate::{Chain, DeviceSide, DriverSide, Features, NoMemory, Segment, packed, split};

/// Sends `count` buffers there and back, a few at a time, without checking for notifications.
fn go(driver: &mut impl DriverSide, device: &mut impl DeviceSide, count: u32) {
    let mut chain = Chain::default();
    let mut left = count;
    while left > 0 {
        let some = left.min(u32::from(driver.free_count())).min(3);
        (0..some).for_each(|_| driver.add(&[Segment { addr: 0, len: 8 }], &[], 0).unwrap());
        driver.publish();
        (0..some).for_each(|_| {
            assert!(device.pop(&NoMemory, &mut chain).unwrap());
            device.push_used(&chain, 0);
        });
        device.publish_used();
        (0..some).for_each(|_| assert!(driver.take_used().unwrap().is_some()));
        left -= some;
    }
}

/// A side that wants to be notified of the next buffer is notified once, at any index.
fn check(mut driver: impl DriverSide, mut device: impl DeviceSide, size: u32) {
    let laps = (1..=4).flat_map(|laps| [laps * size - 1, laps * size, laps * size + 1]);
    let wraps = [65_535, 65_536, 65_537, 131_072];
    for count in laps.chain(wraps) {
        device.arm_notification();
        driver.arm_interrupt();
        go(&mut driver, &mut device, count);
        assert_eq!((driver.needs_kick(), device.needs_interrupt()), (count > 0, count > 0), "{count} of {size}");
        assert_eq!((driver.needs_kick(), device.needs_interrupt()), (false, false), "and nothing since");
    }
}

#[test]
fn a_late_request_for_a_notification_is_noticed() {
    for event_idx in [false, true] {
        let features = Features { event_idx, ..Features::default() };
        for size in [1, 2, 8, 256] {
            let memory = Memory::split(size, 0xA5);
            let bus = memory.split_bus(size);
            let driver: split::Driver<_> = split::Driver::new(bus, size, features).unwrap();
            let device: split::Device<_> = split::Device::new(bus, size, features).unwrap();
            check(driver, device, size);
        }
        for size in [1, 2, 3, 7, 8, 100] {
            let memory = Memory::packed(size, 0xA5);
            let bus = memory.packed_bus(size);
            let driver: packed::Driver<_> = packed::Driver::new(bus, size, features).unwrap();
            let device: packed::Device<_> = packed::Device::new(bus, size, features).unwrap();
            check(driver, device, size);
        }
    }
}
