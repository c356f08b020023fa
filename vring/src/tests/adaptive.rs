//! What publishes by itself holds nothing back beyond what its documentation says.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::Memory;
use crate::{
    AdaptiveDevice, AdaptiveDriver, Chain, DeviceSide, DriverSide, Features, NoMemory, PATIENCE, RingError, Segment,
    packed, split,
};

#[derive(Debug, Clone)]
enum Operation {
    Offer,
    Take,
    Flush,
    Arm,
    Pop,
    /// Give back the oldest that the device has.
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
    let mut driver = AdaptiveDriver::new(driver).with_limit(limits[0]);
    let mut device = AdaptiveDevice::new(device, size).with_limit(limits[1]);
    let mut chain = Chain::default();
    // Buffers that were offered, popped, offered back and taken: each a number, in order, since the device keeps the order here.
    let (mut offered, mut popped, mut returned, mut taken) = (0, 0, 0, 0);
    let mut held = std::collections::VecDeque::new();
    // What the driver held when it last found nothing in a row, so often.
    let mut vain = 0;
    for operation in operations {
        let before = driver.held();
        match operation {
            Operation::Offer => {
                let found = driver.offer(&[Segment { addr: offered, len: 8 }], &[], offered);
                match found {
                    Ok(is_published) => {
                        offered += 1;
                        assert_eq!(is_published, driver.held() == 0);
                        vain = if is_published { 0 } else { vain };
                    }
                    Err(error) => {
                        assert!(matches!(error, RingError::Full { .. }) && offered - taken == u64::from(size));
                        assert_eq!(driver.held(), 0, "whoever finds it full holds nothing back");
                        vain = 0;
                    }
                }
            }
            Operation::Take => match driver.take_used().unwrap() {
                Some(completion) => {
                    assert_eq!(completion.token, taken);
                    taken += 1;
                    vain = 0;
                }
                None => {
                    vain = if before > 0 { vain + 1 } else { 0 };
                    if vain >= PATIENCE || driver.side().in_flight() == 0 {
                        assert_eq!(driver.held(), 0, "found nothing {vain} times");
                        vain = 0;
                    }
                }
            },
            Operation::Flush => {
                driver.flush();
                assert_eq!(driver.held(), 0);
                vain = 0;
            }
            Operation::Arm => {
                driver.arm_interrupt();
                assert_eq!(driver.held(), 0);
                vain = 0;
            }
            Operation::Pop => {
                if device.pop(&NoMemory, &mut chain).unwrap() {
                    assert_eq!(chain.readable()[0].addr, popped);
                    popped += 1;
                    held.push_back(chain.clone());
                } else {
                    assert_eq!(popped, offered - u64::from(driver.held()), "all that was published is popped");
                    assert_eq!(device.held(), 0, "whoever finds nothing holds nothing back");
                }
            }
            Operation::OfferUsed => {
                if let Some(chain) = held.pop_front() {
                    let is_published = device.offer_used(&chain, 0);
                    returned += 1;
                    assert_eq!(is_published, device.held() == 0);
                }
            }
            Operation::FlushUsed => device.flush(),
            Operation::ArmNotification => {
                device.arm_notification();
                assert_eq!(device.held(), 0);
            }
        }
        assert!(driver.held() < limits[0] && device.held() < limits[1]);
        assert!(driver.held() == 0 || driver.side().in_flight() > 0, "held while the device has nothing");
    }
    // Whoever goes on polling on both sides, and does nothing else, gets everything.
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

proptest! {
    #[test]
    fn nothing_is_held_back_for_longer_than_is_said(
        size_log2 in 0..5_u32,
        is_packed in any::<bool>(),
        in_order in any::<bool>(),
        limits in [1..20_u16, 1..20],
        operations in vec(operation(), 0..400),
    ) {
        let (size, features) = (1_u16 << size_log2, Features { in_order, event_idx: true, ..Features::default() });
        if is_packed {
            let memory = Memory::packed(size.into(), 0xA5);
            let bus = memory.packed_bus(size.into());
            let driver: packed::Driver<_> = packed::Driver::new(bus, size.into(), features).unwrap();
            let device: packed::Device<_> = packed::Device::new(bus, size.into(), features).unwrap();
            run(driver, device, size, limits, operations);
        } else {
            let memory = Memory::split(size.into(), 0xA5);
            let bus = memory.split_bus(size.into());
            let driver: split::Driver<_> = split::Driver::new(bus, size.into(), features).unwrap();
            let device: split::Device<_> = split::Device::new(bus, size.into(), features).unwrap();
            run(driver, device, size, limits, operations);
        }
    }
}
