//! Tests with peers that write arbitrary values.

use std::vec::Vec;

use dormouse_abi::vring::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, RING_SIZE_MAX};
use proptest::collection::vec;
use proptest::prelude::*;

use super::Memory;
use crate::{
    Area, AreaLocation, Areas, Chain, DeviceSide, Direct, DriverSide, Features, IndirectTables, NoMemory, Region,
    Regions, RingError, Segment, packed, split,
};

/// Device's address of the memory of tables.
const TABLES: u64 = 0x4000;

const ALL: Features = Features { indirect: true, event_idx: true, in_order: false };

/// Generates bytes, some of which are indexes or descriptors that may be valid.
fn scribbles() -> impl Strategy<Value = Vec<(prop::sample::Index, Vec<u8>)>> {
    let bytes = prop_oneof![
        vec(any::<u8>(), 1..24),
        (0..40_u16).prop_map(|index| index.to_le_bytes().to_vec()),
        (0..8_u64, 0..8_u16, 0..8_u16).prop_map(|(len, flags, next)| {
            (len << 4 | u64::from(flags) << 32 | u64::from(next) << 48).to_le_bytes().to_vec()
        }),
    ];
    vec((any::<prop::sample::Index>(), bytes), 1..60)
}

/// Pops buffers and gives them back while there are any, at most `limit` times.
fn serve(device: &mut impl DeviceSide, tables: &Memory, size: u32, limit: u32) {
    let space = tables.regions(TABLES);
    let mut chain = Chain::default();
    for _ in 0..limit {
        let violations = device.violations();
        match device.pop(&space, &mut chain) {
            Ok(false) => break,
            Ok(true) => {
                let count = chain.readable().len() + chain.writable().len();
                assert!((1..=size as usize).contains(&count));
                device.push_used(&chain, 1);
            }
            Err(_) => assert_eq!(device.violations(), violations + 1),
        }
    }
    device.publish_used();
    device.needs_interrupt();
    device.arm_notification();
    device.disarm_notification();
}

/// Adds buffers while there is room, and takes back all used ones.
fn drive(driver: &mut impl DriverSide, size: u32) {
    let segments = [Segment { addr: 1, len: 2 }; 3];
    let mut token = 0;
    while driver.add(&segments[..1], &segments[1..1 + token % 3], token as u64).is_ok() {
        token += 1;
    }
    driver.publish();
    driver.needs_kick();
    let in_flight = u32::from(driver.in_flight());
    let mut taken = 0;
    for _ in 0..2 * size {
        let violations = driver.violations();
        match driver.take_used() {
            Ok(None) => break,
            Ok(Some(_)) => taken += 1,
            Err(_) => assert_eq!(driver.violations(), violations + 1),
        }
    }
    // The driver takes back no more buffers than it published.
    assert!(taken <= in_flight);
    assert!(u32::from(driver.free_count()) <= size);
    driver.arm_interrupt();
    driver.disarm_interrupt();
}

fn of_order(in_order: bool) -> Features {
    Features { in_order, ..ALL }
}

proptest! {
    #[test]
    fn split_devices_survive(size_log2 in 0..6_u32, in_order: bool, scribbles in scribbles(), in_tables in scribbles()) {
        let size = 1 << size_log2;
        let (memory, tables) = (Memory::split(size, 0), Memory::new(256, 0));
        let mut device: split::Device = split::Device::new(memory.split_bus(size), size, of_order(in_order)).unwrap();
        for (number, (at, bytes)) in scribbles.iter().enumerate() {
            memory.put(at.index(memory.len()), bytes);
            in_tables.get(number).inspect(|(at, bytes)| tables.put(at.index(tables.len()), bytes));
            // Usually there seems to be a buffer.
            memory.put(16 * size as usize + 2, &device.base().wrapping_add(1 + number as u16 % 4).to_le_bytes());
            serve(&mut device, &tables, size, 2 * size);
        }
    }

    #[test]
    fn packed_devices_survive(size in 1..40_u32, in_order: bool, scribbles in scribbles(), in_tables in scribbles()) {
        let (memory, tables) = (Memory::packed(size, 0), Memory::new(256, 0));
        let mut device: packed::Device<Direct> = packed::Device::new(memory.packed_bus(size), size, of_order(in_order)).unwrap();
        for (number, (at, bytes)) in scribbles.iter().enumerate() {
            memory.put(at.index(memory.len()), bytes);
            in_tables.get(number).inspect(|(at, bytes)| tables.put(at.index(tables.len()), bytes));
            serve(&mut device, &tables, size, 2 * size);
        }
    }

    #[test]
    fn split_drivers_survive(size_log2 in 0..6_u32, in_order: bool, scribbles in scribbles()) {
        let size = 1 << size_log2;
        let (memory, tables) = (Memory::split(size, 0), Memory::new(IndirectTables::size_bytes(size, 2), 0));
        let mut driver: split::Driver<Direct> = split::Driver::new(memory.split_bus(size), size, of_order(in_order)).unwrap();
        // SAFETY: the vector outlives the driver and is large enough for the tables.
        unsafe { driver.use_indirect(IndirectTables { base: tables.base(), addr: TABLES, entries: 2 }) }.unwrap();
        for (number, (at, bytes)) in scribbles.iter().enumerate() {
            memory.put(at.index(memory.len()), bytes);
            let used = memory.len() - (8 * size as usize + 8).next_multiple_of(64);
            memory.put(used + 2, &(number as u16).to_le_bytes());
            drive(&mut driver, size);
        }
    }

    #[test]
    fn packed_drivers_survive(size in 1..40_u32, in_order: bool, scribbles in scribbles()) {
        let (memory, tables) = (Memory::packed(size, 0), Memory::new(IndirectTables::size_bytes(size, 2), 0));
        let mut driver: packed::Driver<Direct> = packed::Driver::new(memory.packed_bus(size), size, of_order(in_order)).unwrap();
        // SAFETY: the vector outlives the driver and is large enough for the tables.
        unsafe { driver.use_indirect(IndirectTables { base: tables.base(), addr: TABLES, entries: 2 }) }.unwrap();
        for (at, bytes) in &scribbles {
            memory.put(at.index(memory.len()), bytes);
            // Also writes a descriptor that usually seems used: in the first lap, then in the second.
            for flags in [0x8080_u16, 0] {
                let slot = at.index(size as usize);
                memory.put(16 * slot + 12, &(slot as u16).to_le_bytes());
                memory.put(16 * slot + 14, &flags.to_le_bytes());
                drive(&mut driver, size);
            }
        }
    }
}

/// A split ring of four entries, with its device and the chain that it popped last.
struct Split {
    memory: Memory,
    device: split::Device,
    chain: Chain,
}

impl Split {
    fn new(features: Features) -> Split {
        let memory = Memory::split(4, 0);
        let device = split::Device::new(memory.split_bus(4), 4, features).unwrap();
        Split { memory, device, chain: Chain::default() }
    }

    fn descriptor(&self, slot: usize, addr: u64, len: u32, flags: u16, next: u16) {
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.put(16 * slot, &addr.to_le_bytes());
        self.memory.put(16 * slot + 8, &rest.to_le_bytes());
    }

    /// Makes the chain at `head` available, and pops it.
    fn pop(&mut self, head: u16) -> Result<bool, RingError> {
        let index = self.device.base();
        self.memory.put(64 + 4 + 2 * (index as usize % 4), &head.to_le_bytes());
        self.memory.put(64 + 2, &index.wrapping_add(1).to_le_bytes());
        let tables = Memory::new(64, 0);
        // A table at `TABLES`: segments whose chain has a loop, one with an invalid `next`, and one that is a table.
        for (entry, flags, next) in
            [(0, DESC_F_NEXT, 1), (1, DESC_F_NEXT, 0), (2, DESC_F_NEXT, 9), (3, DESC_F_INDIRECT, 0)]
        {
            let rest = 5 | u64::from(flags) << 32 | (next as u64) << 48;
            tables.put(16 * entry + 8, &rest.to_le_bytes());
        }
        let result = self.device.pop(&tables.regions(TABLES), &mut self.chain);
        self.device.push_used_id(head & 3, 0);
        self.device.publish_used();
        result
    }
}

#[test]
fn a_split_device_reports_protocol_violations() {
    let mut split = Split::new(ALL);
    split.descriptor(0, 10, 1, DESC_F_NEXT, 1);
    split.descriptor(1, 11, 2, DESC_F_WRITE, 0);
    assert_eq!(split.pop(0), Ok(true));
    assert_eq!(split.chain.readable(), [Segment { addr: 10, len: 1 }]);
    assert_eq!(split.chain.writable(), [Segment { addr: 11, len: 2 }]);
    assert_eq!((split.chain.readable_len(), split.chain.writable_len()), (1, 2));

    split.descriptor(1, 11, 2, DESC_F_NEXT, 0);
    assert_eq!(split.pop(0), Err(RingError::TooLong { segments: 5 }), "a loop");
    split.descriptor(1, 11, 2, DESC_F_NEXT, 4);
    assert_eq!(split.pop(0), Err(RingError::NextIndex { index: 1, value: 4 }));
    split.descriptor(0, 10, 1, DESC_F_NEXT | DESC_F_WRITE, 1);
    split.descriptor(1, 11, 2, 0, 0);
    assert_eq!(split.pop(0), Err(RingError::Order { index: 1 }));
    split.descriptor(0, 10, u32::MAX, DESC_F_NEXT, 1);
    assert_eq!(split.pop(0), Err(RingError::TotalLength));
    split.descriptor(0, 10, 1, 8, 1);
    assert_eq!(split.pop(0), Err(RingError::DescriptorFlags { index: 0, value: 8 }));
    assert_eq!(split.pop(4), Err(RingError::AvailId { index: 6, value: 4 }));

    for (addr, len) in [(TABLES, 0), (TABLES, 24), (TABLES + 48, 32), (TABLES - 1, 16), (u64::MAX - 8, 16)] {
        split.descriptor(2, addr, len, DESC_F_INDIRECT, 0);
        assert_eq!(split.pop(2), Err(RingError::IndirectTable { index: 2, addr, len }));
    }
    split.descriptor(2, TABLES, 32, DESC_F_INDIRECT, 0);
    assert_eq!(split.pop(2), Err(RingError::TooLong { segments: 5 }), "a loop in a table");
    split.descriptor(2, TABLES + 32, 16, DESC_F_INDIRECT, 0);
    assert_eq!(split.pop(2), Err(RingError::NextIndex { index: 0, value: 9 }));
    split.descriptor(2, TABLES + 48, 16, DESC_F_INDIRECT, 0);
    assert_eq!(split.pop(2), Err(RingError::DescriptorFlags { index: 0, value: DESC_F_INDIRECT }));
    split.descriptor(2, TABLES, 32, DESC_F_INDIRECT | DESC_F_NEXT, 0);
    let flags = DESC_F_INDIRECT | DESC_F_NEXT;
    assert_eq!(split.pop(2), Err(RingError::DescriptorFlags { index: 2, value: flags }));

    let index = split.device.base();
    split.memory.put(64 + 2, &index.wrapping_add(5).to_le_bytes());
    let value = index.wrapping_add(5);
    assert_eq!(split.device.pop(&NoMemory, &mut split.chain), Err(RingError::AvailIndex { index, value }));
    assert_eq!(split.device.violations(), 16);

    let mut split = Split::new(Features::default());
    split.descriptor(2, TABLES, 16, DESC_F_INDIRECT, 0);
    assert_eq!(split.pop(2), Err(RingError::DescriptorFlags { index: 2, value: DESC_F_INDIRECT }), "not negotiated");
}

#[test]
fn a_split_driver_reports_protocol_violations() {
    let memory = Memory::split(4, 0);
    let mut driver: split::Driver<Direct> = split::Driver::new(memory.split_bus(4), 4, Features::default()).unwrap();
    let segment = [Segment { addr: 0, len: 8 }];
    assert_eq!(driver.add(&[], &[], 0), Err(RingError::Empty));
    assert_eq!(driver.add(&[segment[0]; 5], &[], 0), Err(RingError::TooLong { segments: 5 }));
    assert_eq!(driver.add(&[Segment { addr: 0, len: u32::MAX }; 2], &[], 0), Err(RingError::TotalLength));
    (0..4).for_each(|token| driver.add(&[], &segment, token).unwrap());
    assert_eq!(driver.add(&[], &segment, 4), Err(RingError::Full { index: 0 }));
    driver.publish();
    // The used ring begins on the line after the avail ring's. The first element claims nine bytes in a buffer of
    // eight.
    let used = |index: u16, id: u32, len: u32| {
        memory.put(128 + 4 + 8 * (index as usize % 4), &(u64::from(id) | u64::from(len) << 32).to_le_bytes());
        memory.put(128 + 2, &(index + 1).to_le_bytes());
    };
    used(0, 3, 9);
    assert_eq!(driver.take_used().map(|taken| taken.map(|taken| (taken.token, taken.len))), Ok(Some((3, 8))));
    assert_eq!(driver.violations(), 1);
    used(1, 3, 8);
    assert_eq!(driver.take_used(), Err(RingError::UsedId { index: 1, value: 3 }), "it does not have it any more");
    used(2, 4, 8);
    assert_eq!(driver.take_used(), Err(RingError::UsedId { index: 2, value: 4 }));
    memory.put(128 + 2, &7_u16.to_le_bytes());
    assert_eq!(driver.take_used(), Err(RingError::UsedIndex { index: 3, value: 7 }));
    assert_eq!(driver.take_used(), Err(RingError::UsedIndex { index: 3, value: 7 }), "it comes again");
    assert_eq!(driver.violations(), 5);
}

#[test]
fn a_packed_device_reports_protocol_violations() {
    const AVAIL: u16 = 1 << 7;
    let all = |words: &[(u64, u32, u16, u16)]| {
        let memory = Memory::packed(4, 0);
        for (slot, (addr, len, id, flags)) in words.iter().enumerate() {
            let rest = u64::from(*len) | u64::from(*id) << 32 | u64::from(*flags) << 48;
            memory.put(16 * slot, &addr.to_le_bytes());
            memory.put(16 * slot + 8, &rest.to_le_bytes());
        }
        let tables = Memory::new(64, 0);
        tables.put(8, &(u64::from(DESC_F_NEXT) << 48).to_le_bytes());
        let mut device: packed::Device<Direct> = packed::Device::new(memory.packed_bus(4), 4, ALL).unwrap();
        device.pop(&tables.regions(TABLES), &mut Chain::default())
    };
    assert_eq!(all(&[(0, 1, 3, AVAIL)]), Ok(true));
    assert_eq!(all(&[(0, 1, 3, 0)]), Ok(false));
    assert_eq!(all(&[(0, 1, 4, AVAIL)]), Err(RingError::BufferId { index: 0, value: 4 }));
    assert_eq!(all(&[(0, 1, 3, AVAIL | DESC_F_NEXT)]), Err(RingError::NotAvailable { index: 1 }));
    let next = (0, 1, 3, AVAIL | DESC_F_NEXT);
    assert_eq!(all(&[next, next, next, next]), Err(RingError::TooLong { segments: 5 }));
    assert_eq!(all(&[(0, 1, 3, AVAIL | 8)]), Err(RingError::DescriptorFlags { index: 0, value: AVAIL | 8 }));
    let (long, written) = ((0, u32::MAX, 3, AVAIL | DESC_F_NEXT), (0, 1, 3, AVAIL | DESC_F_NEXT | DESC_F_WRITE));
    assert_eq!(all(&[long, (0, 2, 3, AVAIL)]), Err(RingError::TotalLength));
    assert_eq!(all(&[written, (0, 2, 3, AVAIL)]), Err(RingError::Order { index: 1 }));
    let table = |addr, len| (addr, len, 3, AVAIL | DESC_F_INDIRECT);
    for (addr, len) in [(TABLES, 0), (TABLES, 24), (TABLES + 48, 32)] {
        assert_eq!(all(&[table(addr, len)]), Err(RingError::IndirectTable { index: 0, addr, len }));
    }
    assert_eq!(all(&[table(TABLES, 80)]), Err(RingError::TooLong { segments: 5 }));
    assert_eq!(all(&[table(TABLES, 16)]), Ok(true), "flags but WRITE are ignored there");
    let chained = (TABLES, 16, 3, AVAIL | DESC_F_INDIRECT | DESC_F_NEXT);
    assert_eq!(all(&[chained, (0, 2, 3, AVAIL)]), Err(RingError::DescriptorFlags { index: 0, value: chained.3 }));
}

/// A buffer frees as many descriptors as were added for it, whatever other flags its used descriptor has.
#[test]
fn no_flags_make_several_descriptors_look_like_one() {
    const USED: u16 = 1 << 7 | 1 << 15;
    let memory = Memory::packed(16, 0);
    for count in 1..=16 {
        for flags in (0..=u16::MAX).filter(|flags| flags & USED == USED) {
            let mut driver: packed::Driver<Direct> =
                packed::Driver::new(memory.packed_bus(16), 16, Features::default()).unwrap();
            driver.add(&[], &[Segment { addr: 0, len: 1 }; 16][..count], 7).unwrap();
            driver.publish();
            memory.put(8, &(u64::from(flags) << 48).to_le_bytes());
            assert_eq!(driver.take_used().map(|taken| taken.map(|taken| taken.token)), Ok(Some(7)));
            assert_eq!((driver.free_count(), driver.in_flight()), (16, 0), "{count} descriptors, flags {flags:#x}");
        }
    }
}

#[test]
fn a_packed_driver_reports_protocol_violations() {
    let memory = Memory::packed(4, 0);
    let mut driver: packed::Driver<Direct> = packed::Driver::new(memory.packed_bus(4), 4, Features::default()).unwrap();
    let segment = [Segment { addr: 0, len: 8 }];
    (0..3).for_each(|token| driver.add(&[], &segment, token).unwrap());
    driver.publish();
    driver.add(&[], &segment, 3).unwrap();
    assert_eq!(driver.add(&[], &segment, 4), Err(RingError::Full { index: 0 }));
    let used = |slot: usize, id: u16, len: u32| {
        let rest = u64::from(len) | u64::from(id) << 32 | u64::from(0x8080 | DESC_F_WRITE) << 48;
        memory.put(16 * slot + 8, &rest.to_le_bytes());
    };
    for id in [4, 3] {
        used(0, id, 8);
        assert_eq!(
            driver.take_used(),
            Err(RingError::UsedId { index: 0, value: id.into() }),
            "no such buffer; not published"
        );
    }
    used(0, 2, 9);
    assert_eq!(driver.take_used().map(|taken| taken.map(|taken| (taken.token, taken.len))), Ok(Some((2, 8))));
    used(1, 2, 8);
    assert_eq!(driver.take_used(), Err(RingError::UsedId { index: 1, value: 2 }), "it does not have it any more");
    assert_eq!(driver.violations(), 4);
}

#[test]
fn impossible_rings_are_refused() {
    let memory = Memory::new(4096, 0);
    for size in [0, 3, 2 * RING_SIZE_MAX] {
        assert_eq!(split::contiguous(memory.base(), size).err(), Some(RingError::Size { size }));
    }
    let areas = |descriptor, len| Areas {
        descriptor: AreaLocation(memory.base().wrapping_add(descriptor), len),
        driver: AreaLocation(memory.base().wrapping_add(1024), 14),
        device: AreaLocation(memory.base().wrapping_add(2048), 38),
    };
    // SAFETY: the areas are inside the vector, whose bytes are atomics.
    let bus = |descriptor, len| unsafe { Direct::new(areas(descriptor, len)) };
    assert_eq!(split::init(&bus(0, 64), 4), Ok(()));
    let area = |area, needed, found| Err(RingError::Area { area, needed, found });
    assert_eq!(split::init(&bus(0, 63), 4), area(Area::Descriptor, 64, 63));
    assert_eq!(split::init(&bus(8, 64), 4), area(Area::Descriptor, 64, 0));
    assert_eq!(split::init(&bus(0, 256), 8), area(Area::Driver, 22, 14));
    assert_eq!(packed::init(&bus(0, 64), 4), Ok(()));
    assert_eq!(packed::init(&bus(0, 64), 5), area(Area::Descriptor, 80, 64));
    for size in [0, RING_SIZE_MAX + 1] {
        assert_eq!(packed::init(&bus(0, 64), size), Err(RingError::Size { size }));
        assert_eq!(packed::contiguous(memory.base(), size).err(), Some(RingError::Size { size }));
    }
    let mut driver: split::Driver<Direct> = split::Driver::new(bus(0, 64), 4, Features::default()).unwrap();
    let tables = IndirectTables { base: memory.base().wrapping_add(3072), addr: 0, entries: 2 };
    // SAFETY: the tables are inside the vector.
    assert_eq!(unsafe { driver.use_indirect(tables) }, Err(RingError::IndirectNotNegotiated));
}

#[test]
fn memory_is_translated_in_one_piece_or_not_at_all() {
    let memory = Memory::new(256, 0);
    let region = |addr, len, offset| Region { addr, len, base: memory.base().wrapping_add(offset) };
    // SAFETY: the regions are inside the vector.
    let regions = unsafe { Regions::new(std::vec![region(0x200, 64, 64), region(0x100, 64, 0)]) }.unwrap();
    use crate::AddressSpace;
    let at = |addr, len| regions.translate(addr, len).map(|at| at.addr() - memory.base().addr());
    assert_eq!((at(0x100, 64), at(0x13F, 1), at(0x210, 16)), (Some(0), Some(63), Some(80)));
    for (addr, len) in [(0xFF, 1), (0x100, 65), (0x13F, 2), (0x141, 1), (0x200, u64::MAX), (u64::MAX, 2), (0x240, 1)] {
        assert_eq!(at(addr, len), None, "{addr:#x}, {len}");
    }
    // SAFETY: the regions are inside `memory`, which lives; invalid ones are refused before anything is accessed.
    let wrong = |regions| unsafe { Regions::new(regions) }.err();
    assert_eq!(wrong(std::vec![region(0x100, 64, 0), region(0x120, 64, 64)]), Some(RingError::Regions { addr: 0x120 }));
    assert_eq!(wrong(std::vec![region(u64::MAX, 2, 0)]), Some(RingError::Regions { addr: u64::MAX }));
}

#[test]
fn the_largest_rings_are_filled_and_drained() {
    const SIZE: u32 = RING_SIZE_MAX;
    fn rounds(mut driver: impl DriverSide, mut device: impl DeviceSide) {
        let mut chain = Chain::default();
        for round in 0..5 {
            let token = |n: u32| u64::from(round * SIZE + n);
            for n in 0..SIZE {
                driver.add(&[Segment { addr: token(n), len: n }], &[], token(n)).unwrap();
            }
            assert!(matches!(driver.add(&[Segment::default()], &[], 0), Err(RingError::Full { .. })));
            driver.publish();
            assert!(driver.needs_kick());
            for n in 0..SIZE {
                assert_eq!(device.pop(&NoMemory, &mut chain), Ok(true));
                assert_eq!(chain.readable(), [Segment { addr: token(n), len: n }]);
                device.push_used(&chain, 0);
            }
            assert_eq!(device.pop(&NoMemory, &mut chain), Ok(false));
            device.publish_used();
            for n in 0..SIZE {
                assert_eq!(driver.take_used().unwrap().map(|taken| taken.token), Some(token(n)));
            }
            assert_eq!(driver.take_used(), Ok(None));
        }
        assert_eq!((driver.violations(), device.violations()), (0, 0));
    }
    for in_order in [false, true] {
        let features = Features { in_order, ..Features::default() };
        let (of_split, of_packed) = (Memory::split(SIZE, 0xFF), Memory::packed(SIZE, 0xFF));
        let (split_bus, packed_bus) = (of_split.split_bus(SIZE), of_packed.packed_bus(SIZE));
        let driver: split::Driver<Direct> = split::Driver::new(split_bus, SIZE, features).unwrap();
        rounds(driver, split::Device::<Direct>::new(split_bus, SIZE, features).unwrap());
        let driver: packed::Driver<Direct> = packed::Driver::new(packed_bus, SIZE, features).unwrap();
        rounds(driver, packed::Device::<Direct>::new(packed_bus, SIZE, features).unwrap());
    }
}

/// A driver offers more buffers than the ring has, while nothing is published as used.
#[test]
fn no_more_is_popped_than_the_ring_has() {
    for in_order in [false, true] {
        let features = Features { in_order, ..Features::default() };
        let memory = Memory::split(4, 0);
        let mut device: split::Device<_> = split::Device::new(memory.split_bus(4), 4, features).unwrap();
        let mut chain = Chain::default();
        let mut pop = |device: &mut split::Device<_>, index: u16| {
            memory.put(64 + 2, &index.to_le_bytes());
            let result = device.pop(&NoMemory, &mut chain);
            if result == Ok(true) {
                device.push_used(&chain, 0);
            }
            result
        };
        assert_eq!([1, 2, 3, 4].map(|index| pop(&mut device, index)), [Ok(true); 4]);
        assert_eq!(pop(&mut device, 5), Err(RingError::AvailIndex { index: 4, value: 5 }));
        device.publish_used();
        assert_eq!(pop(&mut device, 5), Ok(true));

        let memory = Memory::packed(4, 0);
        let mut device: packed::Device<_> = packed::Device::new(memory.packed_bus(4), 4, features).unwrap();
        // Available in the first lap, then in the second.
        let mut pop = |device: &mut packed::Device<_>, at: usize, flags: u16| {
            memory.put(16 * at + 14, &flags.to_le_bytes());
            let result = device.pop(&NoMemory, &mut chain);
            if result == Ok(true) {
                device.push_used(&chain, 0);
            }
            result
        };
        assert_eq!([0, 1, 2, 3].map(|at| pop(&mut device, at, 1 << 7)), [Ok(true); 4]);
        assert_eq!(pop(&mut device, 0, 1 << 15), Ok(false));
        device.publish_used();
        assert_eq!(pop(&mut device, 0, 1 << 15), Ok(true));
    }
}
