//! Adaptive rings hold buffers back only as their documentation says.

use proptest::collection::vec;
use proptest::prelude::*;

use super::Memory;
use crate::{AdaptiveDevice, AdaptiveDriver, PATIENCE};
use dormouse_vring::{Chain, DeviceSide, DriverSide, Features, NoMemory, RingError, Segment, packed, split};

#[derive(Debug, Clone)]
enum Operation {
    Offer,
    Take,
    Flush,
    Arm,
    Pop,
    /// Give back the oldest buffer that the device has.
    OfferUsed,
    FlushUsed,
    ArmNotification,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => Just(Operation::Offer),
        6 => Just(Operation::Take),
        1 => Just(Operation::Flush),
        1 => Just(Operation::Arm),
        6 => Just(Operation::Pop),
        6 => Just(Operation::OfferUsed),
        1 => Just(Operation::FlushUsed),
        1 => Just(Operation::ArmNotification),
    ]
}

fn run(driver: impl DriverSide, device: impl DeviceSide, size: u16, limits: [u16; 2], operations: Vec<Operation>) {
    let mut driver = AdaptiveDriver::with_limit(driver, limits[0]);
    let mut device = AdaptiveDevice::with_limit(device, limits[1]);
    let mut chain = Chain::default();
    // Numbers of buffers offered, popped, offered back and taken. They are also the buffers' names, since the device
    // keeps the order here.
    let (mut offered, mut popped, mut returned, mut taken) = (0, 0, 0, 0);
    let mut held = std::collections::VecDeque::new();
    // Number of consecutive calls that found nothing while the driver held buffers.
    let mut vain = 0;
    // Number of buffers offered when the driver last had everything back, and the number in the burst before that.
    let (mut settled, mut expected) = (0, 1);
    // Whether the driver has just taken a buffer, and may not know yet that it was the last.
    let mut is_unaware = false;
    for operation in operations {
        let (before, was_idle) = (driver.side().unpublished(), driver.side().in_flight() == 0);
        is_unaware &= !matches!(operation, Operation::Offer | Operation::Take);
        match operation {
            Operation::Offer => {
                let found = driver.offer(&[Segment { addr: offered, len: 8 }], &[], offered);
                match found {
                    Ok(is_published) => {
                        offered += 1;
                        assert_eq!(is_published, driver.side().unpublished() == 0);
                        vain = if is_published { 0 } else { vain };
                    }
                    Err(error) => {
                        assert!(matches!(error, RingError::Full { .. }) && offered - taken == u64::from(size));
                        assert_eq!(driver.side().unpublished(), 0, "whoever finds it full holds nothing back");
                        vain = 0;
                    }
                }
            }
            Operation::Take => match driver.take_used().unwrap() {
                Some(completion) => {
                    assert_eq!(completion.token, taken);
                    taken += 1;
                    vain = 0;
                    is_unaware = true;
                    if taken == offered {
                        (settled, expected) = (offered, (offered - settled).min(limits[0].into()));
                    }
                }
                None => {
                    vain = if before > 0 { vain + 1 } else { 0 };
                    if vain >= PATIENCE || was_idle {
                        assert_eq!(driver.side().unpublished(), 0, "found nothing {vain} times");
                    }
                    vain = if driver.side().unpublished() == 0 { 0 } else { vain };
                }
            },
            Operation::Flush => {
                driver.flush();
                assert_eq!(driver.side().unpublished(), 0);
                vain = 0;
            }
            Operation::Arm => {
                driver.arm_interrupt();
                assert_eq!(driver.side().unpublished(), 0);
                vain = 0;
            }
            Operation::Pop => {
                if device.pop(&NoMemory, &mut chain).unwrap() {
                    assert_eq!(chain.readable()[0].addr, popped);
                    popped += 1;
                    held.push_back(chain.clone());
                } else {
                    assert_eq!(
                        popped,
                        offered - u64::from(driver.side().unpublished()),
                        "all that was published is popped"
                    );
                    assert_eq!(device.side().unpublished(), 0, "whoever finds nothing holds nothing back");
                }
            }
            Operation::OfferUsed => {
                if let Some(chain) = held.pop_front() {
                    let is_published = device.offer_used(&chain, 0);
                    returned += 1;
                    assert_eq!(is_published, device.side().unpublished() == 0);
                }
            }
            Operation::FlushUsed => device.flush(),
            Operation::ArmNotification => {
                device.arm_notification();
                assert_eq!(device.side().unpublished(), 0);
            }
        }
        assert!(driver.side().unpublished() < limits[0] && device.side().unpublished() < limits[1]);
        let is_idle = driver.side().in_flight() == 0;
        assert!(
            !is_idle || is_unaware || u64::from(driver.side().unpublished()) < expected,
            "held while the device has nothing"
        );
    }
    // If both sides poll and do nothing else, everything is published.
    for _ in 0..2 * u32::from(PATIENCE) + 4 * u32::from(size) + 8 {
        if device.pop(&NoMemory, &mut chain).unwrap() {
            popped += 1;
            held.push_back(chain.clone());
        } else if let Some(chain) = held.pop_front() {
            device.offer_used(&chain, 0);
            returned += 1;
            device
                .pop(&NoMemory, &mut Chain::default())
                .unwrap()
                .then(|| unreachable!("nothing was published meanwhile"));
        }
        taken += u64::from(driver.take_used().unwrap().is_some());
    }
    assert_eq!((popped, returned, taken), (offered, offered, offered));
}

#[test]
fn a_driver_waiting_for_four_gets_them_with_the_fourth() {
    let memory = Memory::new(split::size_bytes(16).unwrap());
    let bus = memory.split_bus(16);
    let mut driver: AdaptiveDriver<split::Driver<_>> =
        AdaptiveDriver::with_limit(split::Driver::new(bus, 16, Features::default()).unwrap(), 8);
    let mut device: split::Device<_> = split::Device::new(bus, 16, Features::default()).unwrap();
    let mut chain = Chain::default();
    let mut give_back = |driver: &mut AdaptiveDriver<_>, count| {
        for _ in 0..count {
            assert!(device.pop(&NoMemory, &mut chain).unwrap());
            device.push_used(&chain, 0);
        }
        assert!(!device.pop(&NoMemory, &mut chain).unwrap());
        device.publish_used();
        (0..count).for_each(|_| assert!(driver.take_used().unwrap().is_some()));
    };
    let offer = |driver: &mut AdaptiveDriver<_>| driver.offer(&[Segment { addr: 0, len: 8 }], &[], 0).unwrap();
    // The length of the first burst is unknown.
    assert_eq!([(); 4].map(|()| offer(&mut driver)), [true, false, false, false]);
    driver.flush();
    give_back(&mut driver, 4);
    for _ in 0..3 {
        assert_eq!([(); 4].map(|()| offer(&mut driver)), [false, false, false, true]);
        give_back(&mut driver, 4);
    }
    // A shorter burst is held until the next call. Its length is what the driver expects from then on.
    assert!(!offer(&mut driver));
    assert!(driver.take_used().unwrap().is_none());
    assert_eq!(driver.side().unpublished(), 0);
    give_back(&mut driver, 1);
    assert!(offer(&mut driver));
}

proptest! {
    #[test]
    fn buffers_are_held_back_no_longer_than_documented(
        size_log2 in 0..5_u32,
        is_packed in any::<bool>(),
        in_order in any::<bool>(),
        limits in [1..20_u16, 1..20],
        operations in vec(operation(), 0..400),
    ) {
        let (size, features) = (1_u16 << size_log2, Features { in_order, event_idx: true, ..Features::default() });
        if is_packed {
            let memory = Memory::new(packed::size_bytes(size.into()).unwrap());
            let bus = memory.packed_bus(size.into());
            let driver: packed::Driver<_> = packed::Driver::new(bus, size.into(), features).unwrap();
            let device: packed::Device<_> = packed::Device::new(bus, size.into(), features).unwrap();
            run(driver, device, size, limits, operations);
        } else {
            let memory = Memory::new(split::size_bytes(size.into()).unwrap());
            let bus = memory.split_bus(size.into());
            let driver: split::Driver<_> = split::Driver::new(bus, size.into(), features).unwrap();
            let device: split::Device<_> = split::Device::new(bus, size.into(), features).unwrap();
            run(driver, device, size, limits, operations);
        }
    }
}
