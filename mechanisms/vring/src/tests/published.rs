//! Drivers know what they have published, however long ago. A used buffer that was never published is a protocol
//! violation; an old one is not.

use core::sync::atomic::Ordering::Relaxed;

use super::Memory;
use crate::{Area, Bus, Chain, DeviceSide, DriverSide, Features, NoMemory, RingError, Segment, packed, split};

const SEGMENT: [Segment; 1] = [Segment { addr: 0x1000, len: 8 }];

#[test]
fn a_buffer_of_a_split_queue_that_is_not_published_is_not_used() {
    let memory = Memory::split(4, 0);
    let mut driver: split::Driver<_> = split::Driver::new(memory.split_bus(4), 4, Features::default()).unwrap();
    driver.add(&[], &SEGMENT, 10).unwrap();
    driver.publish();
    driver.add(&[], &SEGMENT, 11).unwrap();
    let device = memory.split_bus(4);
    // The first used element names the second buffer, with all of its bytes.
    device.store(Area::Device, 4, 1_u32, Relaxed);
    device.store(Area::Device, 8, 8_u32, Relaxed);
    device.store(Area::Device, 2, 1_u16, Relaxed);
    assert_eq!(driver.take_used(), Err(RingError::UsedId { index: 0, value: 1 }));
    assert_eq!((driver.violations(), driver.free_count()), (1, 2));
}

/// The device keeps the first buffer, while 65,535 others are used and taken back, and one more is not published.
fn overtake(mut driver: impl DriverSide, mut device: impl DeviceSide) {
    let (mut kept, mut chain) = (Chain::default(), Chain::default());
    driver.add(&[], &SEGMENT, 0).unwrap();
    driver.publish();
    assert_eq!(device.pop(&NoMemory, &mut kept), Ok(true));
    for token in 1..=65_535 {
        driver.add(&[], &SEGMENT, token).unwrap();
        driver.publish();
        assert_eq!(device.pop(&NoMemory, &mut chain), Ok(true));
        device.push_used(&chain, 8);
        device.publish_used();
        assert_eq!(driver.take_used().unwrap().map(|completion| completion.token), Some(token));
    }
    driver.add(&[], &SEGMENT, 65_536).unwrap();
    device.push_used(&kept, 8);
    device.publish_used();
    assert_eq!(driver.take_used().unwrap().map(|completion| completion.token), Some(0));
    assert_eq!((driver.violations(), device.violations()), (0, 0));
}

#[test]
fn a_buffer_overtaken_by_65_535_others_is_not_a_violation() {
    let features = Features::default();
    let memory = Memory::split(4, 0);
    let driver: split::Driver<_> = split::Driver::new(memory.split_bus(4), 4, features).unwrap();
    let device: split::Device<_> = split::Device::new(memory.split_bus(4), 4, features).unwrap();
    overtake(driver, device);
    let memory = Memory::packed(4, 0);
    let driver: packed::Driver<_> = packed::Driver::new(memory.packed_bus(4), 4, features).unwrap();
    let device: packed::Device<_> = packed::Device::new(memory.packed_bus(4), 4, features).unwrap();
    overtake(driver, device);
}
