//! The registers of 4.2 with a driver that is written from the specification, and with random accesses.

use std::sync::atomic::AtomicU64;

use dormouse_vring::mmio::{Registers, Written, register, status};
use dormouse_vring::{Chain, DeviceSide, Direct, DriverSide, Features, Region, Regions, RingError, Segment, either};
use proptest::prelude::*;

const DEVICE_ID: u32 = 42;
/// Feature of the device itself.
const FEATURE: u64 = 1 << 3;
const SIZE_MAX: u16 = 64;
/// Driver's address of its memory.
const ADDR: u64 = 0x8000_0000;
const BYTES: usize = 32 << 10;

#[repr(align(4096))]
struct Memory([AtomicU64; BYTES / 8]);

fn memory() -> Box<Memory> {
    Box::new(Memory([const { AtomicU64::new(0) }; BYTES / 8]))
}

fn load(registers: &mut Registers, offset: u64) -> u32 {
    let mut bytes = [0xEE; 4];
    registers.read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn store(registers: &mut Registers, offset: u64, value: u32) -> Written {
    registers.write(offset, &value.to_le_bytes())
}

fn registers(offered: u64) -> Registers {
    Registers::new(DEVICE_ID, 7, offered, &[SIZE_MAX, SIZE_MAX], b"configuration".to_vec())
}

/// Does steps 1 to 6 of 3.1.1 with the features `wanted`, by the registers of 4.2.2. Returns whether the device accepted them.
fn negotiate(device: &mut Registers, wanted: u64) -> bool {
    assert_eq!(load(device, 0x000), 0x7472_6976, "magic value");
    assert_eq!((load(device, 0x004), load(device, 0x008), load(device, 0x00C)), (2, DEVICE_ID, 7));
    assert_eq!(store(device, 0x070, 0), Written::Reset);
    assert_eq!(load(device, 0x070), 0);
    for bits in [1, 1 | 2] {
        store(device, 0x070, bits);
        assert_eq!(load(device, 0x070), bits);
    }
    for half in [0, 1] {
        store(device, 0x014, half);
        let _offered = load(device, 0x010);
        store(device, 0x024, half);
        store(device, 0x020, (wanted >> (32 * half)) as u32);
    }
    store(device, 0x070, 1 | 2 | 8);
    load(device, 0x070) & 8 != 0
}

/// Does 4.2.3.2 for a queue whose areas are contiguous at `addr`.
fn set_up_queue(device: &mut Registers, queue: u16, size: u16, addrs: [u64; 3]) {
    store(device, 0x030, queue.into());
    assert_eq!(load(device, 0x044), 0, "the queue is not in use");
    assert!(load(device, 0x034) >= size.into(), "there is such a queue");
    store(device, 0x038, size.into());
    for (offset, addr) in [0x080, 0x090, 0x0A0].into_iter().zip(addrs) {
        store(device, offset, addr as u32);
        store(device, offset + 4, (addr >> 32) as u32);
    }
    assert_eq!(store(device, 0x044, 1), Written::QueueReady(queue, true));
    assert_eq!(load(device, 0x044), 1);
}

#[test]
fn a_driver_that_follows_the_specification_exchanges_buffers() {
    for (is_packed, size, event_idx) in [(false, 16, false), (false, 64, true), (true, 16, true), (true, 11, false)] {
        let memory = memory();
        let base: *mut u8 = memory.0.as_ptr().cast_mut().cast();
        // SAFETY: the memory outlives the regions, and its words are atomics.
        let space = unsafe { Regions::new(vec![Region { addr: ADDR, len: BYTES as u64, base }]) }.unwrap();
        let features = Features { event_idx, indirect: false, in_order: false };
        let bits = features.to_bits() | Features::VERSION_1 | if is_packed { Features::PACKED } else { 0 };
        let mut device = registers(bits | FEATURE);
        assert!(negotiate(&mut device, bits));
        assert_eq!(device.accepted(), bits);

        let areas = either::contiguous(is_packed, base, u32::from(size)).unwrap();
        // SAFETY: the memory outlives both sides, and its words are atomics.
        let bus = unsafe { Direct::new(areas) };
        either::init(is_packed, &bus, u32::from(size)).unwrap();
        let of_driver = |at: *mut u8| ADDR + (at.addr() - base.addr()) as u64;
        let addrs = [areas.descriptor.0, areas.driver.0, areas.device.0].map(of_driver);
        set_up_queue(&mut device, 1, size, addrs);
        assert_eq!(store(&mut device, 0x050, 1), Written::Stored, "no notification before DRIVER_OK");
        assert_eq!(device.violations(), 1);
        assert!(!device.is_live());
        assert_eq!(store(&mut device, 0x070, 1 | 2 | 8 | 4), Written::Started);
        assert!(device.is_live());

        // SAFETY: the memory outlives the device side, and its words are atomics.
        let mut side = unsafe { device.connect(1, &space) }.unwrap();
        // SAFETY: as long as the result is used, the memory is there.
        assert!(matches!(unsafe { device.connect(0, &space) }, Err(RingError::Size { .. } | RingError::Area { .. })));
        let mut driver = either::Driver::new(is_packed, bus, u32::from(size), features).unwrap();
        let mut chain = Chain::default();
        let (mut interrupts, mut notifications) = (0, 0);
        for number in 0..200_u64 {
            assert!(!side.arm_notification());
            assert!(!driver.arm_interrupt());
            let data = Segment { addr: ADDR + 0x4000 + number * 8, len: 8 };
            driver.add_and_publish(&[], &[data], number).unwrap();
            if driver.needs_kick() {
                assert_eq!(store(&mut device, 0x050, 1), Written::Notified(1));
                notifications += 1;
            }
            assert!(side.pop(&space, &mut chain).unwrap());
            assert_eq!(chain.writable(), [data]);
            side.push_used(&chain, 8);
            side.publish_used();
            if side.needs_interrupt() {
                device.notify_used();
            }
            if device.has_interrupt() {
                // 4.2.3.4: the driver reads the causes and acknowledges them.
                let causes = load(&mut device, 0x060);
                assert_eq!(causes, 1);
                store(&mut device, 0x064, causes);
                assert!(!device.has_interrupt() && load(&mut device, 0x060) == 0);
                interrupts += 1;
            }
            assert_eq!(driver.take_used().unwrap().map(|done| done.token), Some(number));
        }
        assert_eq!((interrupts, notifications), (200, 200));

        // The configuration (4.2.2.2): any width, and another generation after a change.
        let mut text = [0; 13];
        device.read(0x100, &mut text);
        assert_eq!(&text, b"configuration");
        let mut last = [0xEE; 4];
        device.read(0x100 + 12, &mut last);
        assert_eq!(&last, b"n\0\0\0");
        let before = load(&mut device, 0x0FC);
        device.set_config(b"other".to_vec());
        assert_ne!(load(&mut device, 0x0FC), before);
        assert_eq!(load(&mut device, 0x060), 2);
        assert_eq!(load(&mut device, register::SHM_LEN_LOW), u32::MAX);

        // A device that needs a reset is not used before it.
        device.need_reset();
        assert!(!device.is_live() && load(&mut device, 0x070) & status::DEVICE_NEEDS_RESET != 0);
        assert_eq!(store(&mut device, 0x050, 1), Written::Stored);
        assert_eq!(store(&mut device, 0x070, 0), Written::Reset);
        assert_eq!((load(&mut device, 0x070), load(&mut device, 0x060), load(&mut device, 0x044)), (0, 0, 0));
        assert!(device.queues().iter().all(|queue| !queue.is_ready && queue.size == 0));
    }
}

#[test]
fn features_that_are_not_offered_are_not_accepted() {
    let version = Features::VERSION_1;
    for (wanted, is_accepted) in [
        (version, true),
        (version | FEATURE, true),
        (FEATURE, false),
        (version | 1 << 40, false),
        (version | Features::PACKED, false),
    ] {
        let mut device = registers(FEATURE);
        assert_eq!(negotiate(&mut device, wanted), is_accepted, "{wanted:#x}");
        assert_eq!(device.accepted(), if is_accepted { wanted } else { 0 });
        // Without FEATURES_OK there is no DRIVER_OK.
        store(&mut device, 0x070, 1 | 2 | 8 | 4);
        assert_eq!(device.is_live(), is_accepted);
    }
}

/// Accesses that 4.2 does not allow change nothing, and are counted.
#[test]
fn accesses_that_are_not_allowed_change_nothing() {
    let set_up = |until: u32| {
        let mut device = registers(FEATURE);
        assert!(negotiate(&mut device, Features::VERSION_1));
        if until & 4 != 0 {
            set_up_queue(&mut device, 0, 16, [ADDR, ADDR + 0x1000, ADDR + 0x2000]);
            store(&mut device, 0x070, 1 | 2 | 8 | 4);
        }
        device
    };
    type Access = fn(&mut Registers);
    let accesses: [(u32, Access); 12] = [
        (8, |device| _ = store(device, 0x020, 1)),
        (8, |device| _ = store(device, 0x070, 1 | 2)),
        (8, |device| _ = store(device, 0x070, 1 | 2 | 8 | 16)),
        (8, |device| _ = store(device, 0x038, 3)),
        (8, |device| _ = store(device, 0x038, 0)),
        (8, |device| _ = store(device, 0x038, 2 * u32::from(SIZE_MAX))),
        (8, |device| _ = store(device, 0x044, 1)),
        (12, |device| _ = store(device, 0x038, 8)),
        (12, |device| _ = store(device, 0x080, 8)),
        (12, |device| _ = store(device, 0x050, 1)),
        (12, |device| _ = store(device, 0x050, 0x10000)),
        (12, |device| _ = device.write(0x050, &[0, 0])),
    ];
    for (index, (until, access)) in accesses.into_iter().enumerate() {
        let mut device = set_up(until);
        let (before, violations) = (device.clone(), device.violations());
        access(&mut device);
        assert_eq!(device.violations(), violations + 1, "access {index}");
        assert_eq!(load(&mut device, 0x070), until | 3, "access {index}");
        assert_eq!(device.queues(), before.queues(), "access {index}");
        assert_eq!(device.accepted(), before.accepted(), "access {index}");
    }
    let mut device = set_up(12);
    // A queue that the device does not have.
    store(&mut device, 0x030, 2);
    assert_eq!((load(&mut device, 0x034), load(&mut device, 0x044)), (0, 0));
    let violations = device.violations();
    device.read(0x071, &mut [0; 4]);
    device.read(0x070, &mut [0; 8]);
    assert_eq!(device.violations(), violations + 2);
}

/// What a driver must have written since the last reset, in this order, for queues to be served.
const STEPS: [u32; 4] = [1, 1 | 2, 1 | 2 | 8, 1 | 2 | 8 | 4];

proptest! {
    /// Random accesses: the device is live only after the steps of 3.1.1, and every queue that is ready is one that can be used.
    #[test]
    fn random_accesses_lead_to_no_wrong_state(
        accesses in proptest::collection::vec(
            (
                prop_oneof![
                    3 => Just(0x070_u64), 2 => Just(0x020), 1 => Just(0x024), 1 => Just(0x030), 2 => Just(0x038), 2 => Just(0x044),
                    1 => Just(0x050), 1 => Just(0x064), 1 => 0_u64..0x110,
                ],
                prop_oneof![
                    4 => prop_oneof![Just(0_u32), Just(1), Just(3), Just(11), Just(15)],
                    2 => prop_oneof![Just(16_u32), Just(64), Just(128), Just(64 | 15)],
                    1 => any::<u32>(),
                ],
            ),
            0..200,
        )
    ) {
        let mut device = registers(FEATURE);
        // The oracle: how many of the steps the driver has done.
        let mut done = 0;
        for (offset, value) in accesses {
            let before = load(&mut device, 0x070);
            let written = store(&mut device, offset, value);
            let after = load(&mut device, 0x070);
            if offset == 0x070 && value == 0 {
                prop_assert_eq!((written, after), (Written::Reset, 0));
                done = 0;
            } else {
                // Bits are only added, and only by writes of the status.
                prop_assert_eq!(after & before, before);
                prop_assert!(after == before || (offset == 0x070 && after & !value == 0));
                done = STEPS.iter().position(|step| after & !128 == *step).map_or(done, |index| index + 1);
            }
            prop_assert_eq!(device.is_live(), done == STEPS.len() && after & 128 == 0);
            prop_assert_eq!(written == Written::Started, before & 4 == 0 && after & 4 != 0);
            prop_assert!(after & 8 == 0 || device.accepted() & !(FEATURE | Features::VERSION_1) == 0);
            for queue in device.queues() {
                prop_assert!(!queue.is_ready || (queue.size.is_power_of_two() && queue.size <= SIZE_MAX && after & 8 != 0));
            }
            if let Written::Notified(queue) = written {
                prop_assert!(device.is_live() && device.queues()[usize::from(queue)].is_ready);
            }
        }
    }
}
