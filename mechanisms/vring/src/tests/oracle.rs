//! Both sides of both kinds of queue, compared with plain queues.

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::Memory;
use crate::{
    AddressSpace, Chain, Completion, DeviceSide, Direct, DriverSide, Features, IndirectTables, NoMemory, RingError,
    Segment, packed, split,
};

/// Device's address of the driver's tables.
const TABLES: u64 = 0x7_0000_0000;

/// Segments with these lengths. Those before index `readable` are readable.
#[derive(Debug, Clone)]
struct Segments {
    lens: Vec<u32>,
    readable: prop::sample::Index,
    /// Whether the buffer is published as it is added.
    is_last: bool,
}

type Operation = super::operation::Operation<Segments>;

fn operation() -> impl Strategy<Value = Operation> {
    let lens = prop_oneof![6 => vec(1..5000_u32, 1..5), 1 => vec(0..9_u32, 0..40), 1 => vec(Just(u32::MAX), 1..4)];
    let segments = (lens, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(lens, readable, is_last)| Segments {
        lens,
        readable,
        is_last,
    });
    super::operation::operation(segments, true, true)
}

/// The oracle's record of a buffer.
#[derive(Debug, Clone)]
struct Buffer {
    token: u64,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    /// Number of descriptors that it takes in the ring.
    takes: u64,
}

impl Buffer {
    fn writable_bytes(&self) -> u64 {
        self.writable.iter().map(|segment| u64::from(segment.len)).sum()
    }
}

/// One side's notification request, in positions that do not wrap: buffers of a split queue, descriptors of a packed
/// one.
#[derive(Debug, Clone, Copy)]
enum Wish {
    At(u64),
    Always,
    Never,
}

/// One side's progress, which the other side's request is compared with.
#[derive(Debug, Default)]
struct Announced {
    old: u64,
    new: u64,
}

impl Announced {
    /// Checks a notification decision `says` against the other side's request. `lap` is the distance up to which an
    /// event can be told from later ones.
    fn check(&mut self, wish: Wish, lap: u64, says: bool) {
        let (old, new) = (self.old, self.new);
        self.old = new;
        match wish {
            Wish::Never => assert!(!says),
            Wish::Always => assert_eq!(says, new > old),
            Wish::At(event) if old <= event && event < new => assert!(says, "{old}..{new} passes {event}"),
            Wish::At(event) => {
                assert!(!says || new - event > lap || new - old > lap, "{old}..{new} does not pass {event}")
            }
        }
    }
}

struct Case {
    size: u64,
    is_packed: bool,
    features: Features,
    /// Number of descriptors of an indirect table.
    entries: Option<usize>,
    start: u64,
}

fn run(
    case: &Case,
    driver: &mut impl DriverSide,
    device: &mut impl DeviceSide,
    space: &impl AddressSpace,
    operations: Vec<Operation>,
) {
    let Case { size, is_packed, features, entries, start } = *case;
    let lap = if is_packed { size } else { 32_768 };
    let unit = |buffer: &Buffer| if is_packed { buffer.takes } else { 1 };
    let wish = |is_wanted: bool, at: u64| match (is_wanted, features.event_idx) {
        (true, true) => Wish::At(at),
        (true, false) => Wish::Always,
        // A split queue with event indexes can request only an index.
        (false, true) if !is_packed => Wish::At(at.wrapping_sub(1)),
        (false, _) => Wish::Never,
    };
    let first = |_| if features.event_idx && !is_packed { Wish::At(start) } else { Wish::Always };
    let (mut wants_kick, mut wants_interrupt) = (first(()), first(()));
    let (mut kicks, mut interrupts) = (Announced { old: start, new: start }, Announced { old: start, new: start });
    let (mut popped, mut taken) = (start, start);

    let (mut added, mut available, mut held) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let (mut pushed, mut used) = (VecDeque::<(Buffer, u32)>::new(), VecDeque::<(Buffer, u32)>::new());
    let mut free = size;
    let mut tokens = 0..;
    let mut chain = Chain::default();
    for operation in operations {
        match operation {
            Operation::Add(Segments { lens, readable, is_last }) => {
                let token = tokens.next().unwrap();
                let segment = |(index, len): (usize, &u32)| Segment { addr: token << 32 | index as u64, len: *len };
                let segments: Vec<Segment> = lens.iter().enumerate().map(segment).collect();
                let (readable, writable) = segments.split_at(readable.index(segments.len() + 1));
                let count = segments.len() as u64;
                let takes = if count > 1 && entries.is_some_and(|entries| count <= entries as u64) { 1 } else { count };
                let total: u64 = lens.iter().map(|len| u64::from(*len)).sum();
                let result = if is_last {
                    driver.add_and_publish(readable, writable, token)
                } else {
                    driver.add(readable, writable, token)
                };
                match result {
                    Ok(()) => {
                        assert!(count > 0 && total <= 1 << 32 && count <= size && takes <= free);
                        free -= takes;
                        added.push_back(Buffer {
                            token,
                            readable: readable.to_vec(),
                            writable: writable.to_vec(),
                            takes,
                        });
                        if is_last {
                            kicks.new += added.iter().map(unit).sum::<u64>();
                            available.append(&mut added);
                        }
                    }
                    Err(RingError::Empty) => assert_eq!(count, 0),
                    Err(RingError::TotalLength) => assert!(total > 1 << 32),
                    Err(RingError::TooLong { segments }) => assert!(segments as u64 == count && count > size),
                    Err(RingError::Full { .. }) => assert!(takes > free),
                    Err(error) => panic!("{error}"),
                }
            }
            Operation::Publish => {
                driver.publish();
                kicks.new += added.iter().map(unit).sum::<u64>();
                available.append(&mut added);
            }
            Operation::Kick => kicks.check(wants_kick, lap, driver.needs_kick()),
            Operation::Take { count } => {
                for _ in 0..count {
                    let expected = used.pop_front();
                    let completion =
                        expected.as_ref().map(|(buffer, len)| Completion { token: buffer.token, len: *len });
                    assert_eq!(driver.take_used(), Ok(completion));
                    if let Some((buffer, _)) = expected {
                        free += buffer.takes;
                        taken += unit(&buffer);
                    }
                }
            }
            Operation::Pop { count } => {
                for _ in 0..count {
                    let expected: Option<Buffer> = available.pop_front();
                    assert_eq!(device.pop(space, &mut chain), Ok(expected.is_some()));
                    if let Some(buffer) = expected {
                        assert_eq!((chain.readable(), chain.writable()), (&buffer.readable[..], &buffer.writable[..]));
                        popped += unit(&buffer);
                        held.push_back((buffer, chain.clone()));
                    }
                }
            }
            Operation::Push { any, written } => {
                let index =
                    any.filter(|_| !features.in_order && !held.is_empty()).map_or(0, |any| any.index(held.len()));
                if let Some((buffer, chain)) = held.remove(index) {
                    let all = buffer.writable_bytes();
                    let len = written.map_or(all, |written| u64::from(written) % (all + 1)).min(u32::MAX.into()) as u32;
                    device.push_used(&chain, len);
                    pushed.push_back((buffer, len));
                }
            }
            Operation::PublishUsed => {
                device.publish_used();
                interrupts.new += pushed.iter().map(|(buffer, _)| unit(buffer)).sum::<u64>();
                used.append(&mut pushed);
            }
            Operation::Interrupt => interrupts.check(wants_interrupt, lap, device.needs_interrupt()),
            Operation::ArmNotification { is_wanted } => {
                if is_wanted {
                    assert_eq!(device.arm_notification(), !available.is_empty());
                } else {
                    device.disarm_notification();
                }
                wants_kick = wish(is_wanted, popped);
            }
            Operation::ArmInterrupt { is_wanted } => {
                if is_wanted {
                    assert_eq!(driver.arm_interrupt(), !used.is_empty());
                } else {
                    driver.disarm_interrupt();
                }
                wants_interrupt = wish(is_wanted, taken);
            }
        }
        assert_eq!(u64::from(driver.free_count()), free);
        assert_eq!(usize::from(driver.unpublished()), added.len());
        assert_eq!(usize::from(driver.in_flight()), available.len() + held.len() + pushed.len() + used.len());
    }
    assert_eq!((driver.violations(), device.violations()), (0, 0));
}

fn features() -> impl Strategy<Value = Features> {
    any::<(bool, bool, bool)>().prop_map(|(indirect, event_idx, in_order)| Features { indirect, event_idx, in_order })
}

fn tables(memory: &Memory, entries: u16) -> IndirectTables {
    IndirectTables { base: memory.base(), addr: TABLES, entries }
}

/// The device sees memory only if there are tables in it.
fn run_with_tables(
    case: &Case,
    driver: &mut impl DriverSide,
    device: &mut impl DeviceSide,
    of_tables: &Memory,
    operations: Vec<Operation>,
) {
    if case.features.indirect {
        run(case, driver, device, &of_tables.regions(TABLES), operations);
    } else {
        run(case, driver, device, &NoMemory, operations);
    }
}

fn split(size_log2: u32, features: Features, start: u16, entries: u16, operations: Vec<Operation>) {
    let size = 1 << size_log2;
    let (memory, of_tables) = (Memory::split(size, 0xA5), Memory::new(IndirectTables::size_bytes(size, entries), 0x5A));
    let bus = memory.split_bus(size);
    split::start_at(&bus, size, start).unwrap();
    let mut driver = split::Driver::with_base(bus, size, features, start).unwrap();
    let mut device = split::Device::with_base(bus, size, features, start).unwrap();
    let case = Case {
        size: size.into(),
        is_packed: false,
        features,
        entries: features.indirect.then_some(entries.into()),
        start: start.into(),
    };
    if features.indirect {
        // SAFETY: the vector outlives the driver and is large enough for the tables.
        unsafe { driver.use_indirect(tables(&of_tables, entries)) }.unwrap();
    }
    run_with_tables(&case, &mut driver, &mut device, &of_tables, operations);
}

proptest! {
    #[test]
    fn split_queues_match_the_oracle(
        size_log2 in 0..9_u32,
        features in features(),
        start in prop_oneof![Just(0_u16), 65_500..=65_535_u16],
        entries in 1..8_u16,
        operations in vec(operation(), 0..800),
    ) {
        split(size_log2, features, start, entries, operations);
    }

    #[test]
    fn packed_queues_match_the_oracle(
        size in prop_oneof![1..40_u32, 40..200_u32],
        features in features(),
        entries in 1..8_u16,
        operations in vec(operation(), 0..800),
    ) {
        let (memory, of_tables) = (Memory::packed(size, 0xA5), Memory::new(IndirectTables::size_bytes(size, entries), 0x5A));
        let bus = memory.packed_bus(size);
        let mut driver: packed::Driver<Direct> = packed::Driver::new(bus, size, features).unwrap();
        let mut device: packed::Device<Direct> = packed::Device::new(bus, size, features).unwrap();
        let entries_if = features.indirect.then_some(entries.into());
        let case = Case { size: size.into(), is_packed: true, features, entries: entries_if, start: 0 };
        if features.indirect {
            // SAFETY: the vector outlives the driver and is large enough for the tables.
            unsafe { driver.use_indirect(tables(&of_tables, entries)) }.unwrap();
        }
        run_with_tables(&case, &mut driver, &mut device, &of_tables, operations);
    }
}

proptest! {
    /// A device that stopped without holding buffers is followed by another, repeatedly.
    #[test]
    fn a_device_continues_where_another_stopped(
        size in 1..9_u32,
        features in features(),
        lens in vec(1..4_usize, 1..100),
    ) {
        let memory = Memory::packed(size, 0xA5);
        let bus = memory.packed_bus(size);
        let mut driver: packed::Driver<Direct> = packed::Driver::new(bus, size, features).unwrap();
        let mut base = packed::Device::<Direct>::new(bus, size, features).unwrap().base();
        let mut chain = Chain::default();
        for (token, count) in (0..).zip(lens) {
            let segments: Vec<Segment> = (0..count.min(size as usize)).map(|at| Segment { addr: at as u64, len: 1 }).collect();
            driver.add(&segments, &[], token).unwrap();
            driver.publish();
            let mut device: packed::Device<Direct> = packed::Device::with_base(bus, size, features, base).unwrap();
            prop_assert_eq!(device.pop(&NoMemory, &mut chain), Ok(true));
            prop_assert_eq!(chain.readable(), &segments[..]);
            device.push_used(&chain, 0);
            device.publish_used();
            prop_assert_eq!(device.pop(&NoMemory, &mut chain), Ok(false));
            base = device.base();
            prop_assert_eq!(driver.take_used(), Ok(Some(Completion { token, len: 0 })));
        }
        prop_assert!(packed::Device::<Direct>::with_base(bus, size, features, size as u16).is_err());
    }
}
