use proptest::collection::vec;
use proptest::prelude::*;

use super::protocol::State;
use super::*;
use dormouse_lab_rings::{PlainDriver, ReadBack};
use dormouse_vring::{DriverSide, Features, packed, split};

const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// Both schedules, in order and not, with notifications and without, in each batch size.
fn workloads() -> impl Iterator<Item = Workload> {
    let kinds = [Schedule::Stream, Schedule::Lockstep].into_iter().flat_map(|schedule| {
        [(false, false), (false, true), (true, false), (true, true)].map(|flags| (schedule, flags))
    });
    kinds.flat_map(|(schedule, (in_order, is_notified))| {
        let features = Features { in_order, event_idx: true, ..Features::default() };
        let workload = Workload { features, schedule, is_notified, items: 1024, ..Workload::default() };
        BATCHES.map(|batch| Workload { batch, ..workload })
    })
}

fn split(workload: &Workload) -> Counts {
    run_split(workload).unwrap()
}

fn packed(workload: &Workload) -> Counts {
    run_packed(workload).unwrap()
}

/// Runs a workload through a split queue with the given driver and today's device.
fn driven<'a, D: DriverSide>(
    memory: &'a Memory,
    driver: impl Fn(View<'a>, u32, Features) -> Result<D, RingError>,
    workload: &Workload,
) -> Counts {
    let &Workload { size, features, .. } = workload;
    let mut driver = driver(memory.view(Side::Driver), size, features).unwrap();
    let mut device = split::Device::new(memory.view(Side::Device), size, features).unwrap();
    run(memory, &mut driver, &mut device, workload).unwrap()
}

/// Runs a workload with the driver of 2015 with the shadow. That driver had no in-order feature.
fn plain<const IS_CACHED: bool>(workload: &Workload) -> Counts {
    let memory = Memory::split(workload.size).unwrap();
    driven(&memory, PlainDriver::<_, IS_CACHED>::new, &out_of_order(workload))
}

fn out_of_order(workload: &Workload) -> Workload {
    Workload { features: Features { in_order: false, ..workload.features }, ..*workload }
}

/// Runs a workload with the driver of 2015 without the shadow.
fn plain_read_back<const IS_CACHED: bool>(workload: &Workload) -> Counts {
    let driver = |view, size, features| PlainDriver::<_, IS_CACHED>::new(ReadBack::driver(view, size), size, features);
    driven(&Memory::split(workload.size).unwrap(), driver, &out_of_order(workload))
}

/// Runs a workload with today's driver without the shadow.
fn read_back(workload: &Workload) -> Counts {
    let driver = |view, size, features| split::Driver::new(ReadBack::driver(view, size), size, features);
    driven(&Memory::split(workload.size).unwrap(), driver, workload)
}

/// Checks the claim of 2015, both for the original change and for today's code.
#[test]
fn a_shadowed_producer_loads_nothing_that_it_publishes() {
    for workload in workloads() {
        for counts in [split(&workload), plain::<true>(&workload), plain::<false>(&workload)] {
            let avail = counts.area(Side::Driver, Area::Driver);
            assert_eq!((avail.loads, avail.modifies), (0, 0), "{workload:?}");
            assert!(avail.stores >= workload.items);
            // The device has a shadow too.
            let used = counts.area(Side::Device, Area::Device);
            assert_eq!((used.loads, used.modifies), (0, 0), "{workload:?}");
        }
    }
}

#[test]
fn an_unshadowed_producer_reads_modifies_and_writes_the_index() {
    for workload in workloads() {
        let forms = [
            (read_back(&workload), workload.features.in_order),
            (plain_read_back::<true>(&workload), false),
            (plain_read_back::<false>(&workload), false),
        ];
        for (counts, in_order) in forms {
            let avail = counts.area(Side::Driver, Area::Driver);
            // `avail.idx` is loaded for each entry and each publishing, `avail.flags` for each used element. Counting
            // may start and end within a batch.
            let batches = workload.items / u64::from(workload.batch);
            let elements = if in_order { batches } else { workload.items };
            let loads = workload.items + batches + elements;
            assert!(avail.loads.abs_diff(loads) <= u64::from(workload.batch) + 1, "{workload:?}: {}", avail.loads);
            // The first line is modified after each of these loads, other lines once a batch.
            assert!(avail.modifies >= workload.items / u64::from(workload.batch), "{workload:?}");
        }
    }
}

/// Checks the line of `avail.idx` by name, also while the driver switches notifications off and on, which changes
/// `avail.flags`.
#[test]
fn a_shadowed_producer_does_not_read_its_flags() {
    fn of<B: Bus>(memory: &Memory, bus: B) -> (Tally, Tally) {
        let mut driver = split::Driver::new(bus, 8, Features::default()).unwrap();
        for _ in 0..3 {
            driver.disarm_interrupt();
            driver.arm_interrupt();
        }
        (memory.line(Side::Driver, Area::Driver, 0), memory.line(Side::Device, Area::Driver, 0))
    }
    let memory = Memory::split(8).unwrap();
    let (shadowed, device) = of(&memory, memory.view(Side::Driver));
    assert_eq!((shadowed.loads, shadowed.stores, shadowed.modifies), (0, 6, 0));
    assert_eq!(device, Tally::default());
    let memory = Memory::split(8).unwrap();
    let (unshadowed, _) = of(&memory, ReadBack::driver(memory.view(Side::Driver), 8));
    assert_eq!((unshadowed.loads, unshadowed.stores, unshadowed.modifies), (6, 6, 6));
}

/// Switches notifications while buffers are under way: a driver without shadows loads the flags for it, a driver with
/// them does not.
#[test]
fn a_driver_that_switches_notifications_reads_its_flags_unless_they_are_shadowed() {
    let workload = Workload { schedule: Schedule::Lockstep, features: Features::default(), ..Workload::default() };
    let toggled = Workload { is_notified: true, is_toggled: true, ..workload };
    let avail = |counts: Counts| counts.area(Side::Driver, Area::Driver);
    let (with, without) = (avail(plain::<false>(&toggled)), avail(plain_read_back::<false>(&toggled)));
    assert_eq!((with.loads, with.modifies), (0, 0));
    // Each buffer is alone, so the driver switches off and on for each.
    let more = without.loads - avail(plain_read_back::<false>(&workload)).loads;
    assert!(more.abs_diff(2 * workload.items) <= 2, "{more}");
    assert!((with.stores - avail(plain::<false>(&workload)).stores).abs_diff(2 * workload.items) <= 2);
}

/// A driver reads descriptors only to manage its free list, if that is kept in the descriptors.
#[test]
fn a_private_free_list_avoids_reading_descriptors() {
    for workload in workloads().filter(|workload| !workload.features.in_order) {
        let loads = |counts: Counts| counts.area(Side::Driver, Area::Descriptor).loads;
        assert_eq!(loads(split(&workload)), 0);
        assert!(loads(plain::<true>(&workload)) + 2 * u64::from(workload.batch) >= 2 * workload.items);
    }
}

/// A producer's load of the avail line hits its cache, unless a consumer's load has taken the line over.
#[test]
fn a_shadow_saves_transfers_if_loads_migrate_lines() {
    for workload in workloads() {
        let (with, without) = (split(&workload), read_back(&workload));
        let avail = |counts: &Counts, protocol| counts.area(Side::Driver, Area::Driver).moves(protocol);
        for protocol in [Protocol::Mesi, Protocol::Moesi] {
            assert_eq!(avail(&with, protocol), avail(&without, protocol));
            assert_eq!(with.moves(protocol), without.moves(protocol));
            assert_eq!(avail(&with, protocol).load_misses, 0);
        }
        assert_eq!(avail(&with, Protocol::Migratory).load_misses, 0);
        assert!(avail(&without, Protocol::Migratory).load_misses > 0);
        let transfers = |counts: &Counts| counts.transfers_per_item(Protocol::Migratory);
        assert!(transfers(&with) < transfers(&without), "{workload:?}");
    }
}

/// Counted by hand, for one buffer at a time in 256 entries. Descriptor, entry and index go to the device. Entry and
/// index are in one line, but that is two transfers because the device polls between them. Index and element come back.
/// One element in 8 lies on two lines, and 8 elements start on the line of the index.
#[test]
fn one_buffer_at_a_time_transfers_five_lines() {
    let features = Features { in_order: true, event_idx: true, ..Features::default() };
    let workload = Workload { schedule: Schedule::Lockstep, features, ..Workload::default() };
    let counts = split(&workload);
    let expected = 3.0 + (1.0 + 1.0 / 8.0 + 248.0 / 256.0);
    for protocol in [Protocol::Mesi, Protocol::Moesi] {
        assert_eq!(counts.transfers_per_item(protocol), expected);
        assert_eq!(counts.moves(protocol).upgrades, counts.moves(protocol).transfers());
        assert_eq!(counts.moves(protocol).fills, 0);
    }
    assert_eq!(counts.moves(Protocol::Moesi).write_backs, 0);
    assert_eq!(counts.moves(Protocol::Mesi).write_backs, counts.moves(Protocol::Mesi).load_misses);
}

#[test]
fn batches_and_refinements_never_cost_lines() {
    for schedule in [Schedule::Stream, Schedule::Lockstep] {
        for in_order in [false, true] {
            let features = Features { in_order, event_idx: true, ..Features::default() };
            let mut last = [f64::INFINITY; 3];
            for batch in BATCHES {
                let workload = Workload { batch, schedule, features, ..Workload::default() };
                let of = |counts: Counts| counts.transfers_per_item(Protocol::Moesi);
                let (refined, shadowed, packed) =
                    (of(split(&workload)), of(plain::<false>(&workload)), of(packed(&workload)));
                assert!(refined < last[0] && shadowed < last[1] && packed < last[2], "{workload:?}");
                last = [refined, shadowed, packed];
                assert!(refined <= shadowed, "{workload:?}");
                // Bytes of descriptors and avail entries; out of order, each buffer has a used element as well.
                let element = if in_order { 0.0 } else { 8.0 };
                assert!(refined >= (16.0 + 2.0 + element) / 64.0, "{workload:?}: {refined}");
                if in_order {
                    assert!(packed >= 16.0 / 64.0, "{workload:?}: {packed}");
                }
            }
        }
    }
}

/// A packed ring is meant to move a small batch to and fro in one line.
#[test]
fn packed_rings_in_order_move_fewer_lines() {
    let features = Features { in_order: true, event_idx: true, ..Features::default() };
    for batch in BATCHES {
        let workload = Workload { batch, features, ..Workload::default() };
        let (packed, split) = (packed(&workload), split(&workload));
        for protocol in Protocol::ALL {
            assert!(packed.transfers_per_item(protocol) < split.transfers_per_item(protocol), "{batch} {protocol:?}");
        }
    }
}

#[test]
fn counts_are_reproducible() {
    for workload in workloads() {
        assert_eq!(split(&workload), split(&workload));
        assert_eq!(packed(&workload), packed(&workload));
    }
}

#[test]
fn fences_are_counted_with_notifications() {
    let workload = Workload { items: 1024, batch: 4, ..Workload::default() };
    let quiet = split(&workload);
    assert_eq!((quiet.fences(Side::Driver), quiet.fences(Side::Device)), (0, 0));
    let notified = split(&Workload { is_notified: true, ..workload });
    assert!(notified.fences(Side::Driver) >= 1024 / 4 - 1);
    assert!(notified.fences(Side::Device) >= 1024 / 4 - 1);
    // Before it notifies, each side loads the other's suppression word.
    assert!(notified.area(Side::Driver, Area::Device).loads > quiet.area(Side::Driver, Area::Device).loads);
}

#[test]
fn impossible_sizes_are_refused() {
    for size in [0, 3, 65_536] {
        assert_eq!(Memory::split(size).err(), Some(RingError::Size { size }));
        assert_eq!(run_split(&Workload { size, ..Workload::default() }).err(), Some(RingError::Size { size }));
    }
    assert_eq!(Memory::packed(0).err(), Some(RingError::Size { size: 0 }));
}

#[test]
#[should_panic(expected = "buffers come back, and no more")]
fn a_device_of_another_ring_is_detected() {
    let (memory, other) = (Memory::packed(4).unwrap(), Memory::packed(4).unwrap());
    let mut driver: packed::Driver<_> = packed::Driver::new(memory.view(Side::Driver), 4, Features::default()).unwrap();
    let mut device: packed::Device<_> = packed::Device::new(other.view(Side::Device), 4, Features::default()).unwrap();
    let _ = run(&memory, &mut driver, &mut device, &Workload { size: 4, ..Workload::default() });
}

/// Accesses of one line, and the outcome according to the book: `l` and `s` are the driver's load and store, `L` and
/// `S` the device's.
#[test]
fn protocols_match_the_textbook() {
    use State::{Exclusive, Invalid, Modified, Owned, Shared};
    let moves = |load_misses, store_misses, upgrades, write_backs, fills| Moves {
        load_misses,
        store_misses,
        upgrades,
        write_backs,
        fills,
    };
    let cases = [
        ("", Protocol::Mesi, [Invalid, Invalid], moves(0, 0, 0, 0, 0)),
        ("l", Protocol::Mesi, [Exclusive, Invalid], moves(0, 0, 0, 0, 1)),
        ("lll", Protocol::Mesi, [Exclusive, Invalid], moves(0, 0, 0, 0, 1)),
        ("ls", Protocol::Mesi, [Modified, Invalid], moves(0, 0, 0, 0, 1)),
        ("lL", Protocol::Mesi, [Shared, Shared], moves(1, 0, 0, 0, 1)),
        ("lS", Protocol::Mesi, [Invalid, Modified], moves(0, 1, 0, 0, 1)),
        ("lLs", Protocol::Mesi, [Modified, Invalid], moves(1, 0, 1, 0, 1)),
        ("sL", Protocol::Mesi, [Shared, Shared], moves(1, 0, 0, 1, 1)),
        ("sL", Protocol::Moesi, [Owned, Shared], moves(1, 0, 0, 0, 1)),
        ("sL", Protocol::Migratory, [Invalid, Modified], moves(1, 0, 0, 0, 1)),
        ("sLs", Protocol::Moesi, [Modified, Invalid], moves(1, 0, 1, 0, 1)),
        ("sLS", Protocol::Moesi, [Invalid, Modified], moves(1, 0, 1, 0, 1)),
        ("sLs", Protocol::Migratory, [Modified, Invalid], moves(1, 1, 0, 0, 1)),
        ("sLl", Protocol::Migratory, [Modified, Invalid], moves(2, 0, 0, 0, 1)),
        ("sS", Protocol::Mesi, [Invalid, Modified], moves(0, 1, 0, 0, 1)),
        ("sSs", Protocol::Moesi, [Modified, Invalid], moves(0, 2, 0, 0, 1)),
    ];
    for (accesses, protocol, states, expected) in cases {
        let (caches, found) =
            accesses.chars().fold(Default::default(), |(mut caches, mut moves): (Caches, _), access| {
                let side = if access.is_ascii_lowercase() { Side::Driver } else { Side::Device };
                caches.access(protocol, side, access.eq_ignore_ascii_case(&'s'), &mut moves);
                (caches, moves)
            });
        assert_eq!((caches.0, found), (states, expected), "{accesses} {protocol:?}");
    }
}

proptest! {
    #[test]
    fn a_line_has_one_writer(accesses in vec(any::<(bool, bool)>(), 0..200)) {
        use State::{Exclusive, Invalid, Modified, Owned};
        let mut all = [(Caches::default(), Moves::default()); Protocol::ALL.len()];
        for (is_driver, is_store) in accesses {
            let side = if is_driver { Side::Driver } else { Side::Device };
            for protocol in Protocol::ALL {
                let (caches, moves) = &mut all[protocol as usize];
                let before = (*caches, *moves);
                caches.access(protocol, side, is_store, moves);
                let [here, there] = [side, side.other()].map(|side| caches.0[side as usize]);
                // The side that has accessed the line has it. If it may write, the other side has not.
                prop_assert_ne!(here, Invalid);
                if is_store {
                    prop_assert_eq!((here, there), (Modified, Invalid));
                }
                for (one, other) in [(here, there), (there, here)] {
                    prop_assert!(!matches!(one, Modified | Exclusive) || other == Invalid);
                    prop_assert!(one != Owned || other != Owned);
                }
                // A line comes at most once for an access, and only if it was not there.
                let came = moves.transfers() + moves.fills - before.1.transfers() - before.1.fills;
                prop_assert_eq!(came, u64::from(before.0.0[side as usize] == Invalid));
            }
            // Owning a line saves its write-back and changes nothing else.
            let [(_, mesi), (_, moesi), _] = all;
            prop_assert_eq!(Moves { write_backs: 0, ..mesi }, moesi);
        }
    }

    /// The model must behave as memory, or its counts mean nothing.
    #[test]
    fn a_model_is_a_memory(writes in vec((0..3_usize, 0..64_usize, 0..3_usize, any::<u64>()), 0..100)) {
        let memory = Memory::new([512; 3]);
        let mut plain = [[0_u8; 512]; 3];
        let areas = [Area::Descriptor, Area::Driver, Area::Device];
        for (area, at, width, value) in writes {
            let (at, bytes) = (8 * at, value.to_le_bytes());
            let view = memory.view(if value & 1 == 0 { Side::Driver } else { Side::Device });
            let width = match width {
                0 => { view.store(areas[area], at, value as u16, Ordering::Relaxed); 2 }
                1 => { view.store(areas[area], at, value as u32, Ordering::Relaxed); 4 }
                _ => { view.store(areas[area], at, value, Ordering::Relaxed); 8 }
            };
            plain[area][at..at + width].copy_from_slice(&bytes[..width]);
        }
        for (area, plain) in areas.into_iter().zip(&plain) {
            for (index, word) in plain.chunks(2).enumerate() {
                let found: u16 = memory.view(Side::Device).load(area, 2 * index, Ordering::Relaxed);
                prop_assert_eq!(found.to_le_bytes(), [word[0], word[1]]);
            }
        }
    }
}

/// Returns the times of the paper's two rings, without and with a shadow.
fn timed(pace: Pace) -> [Timed; 2] {
    let workload = Workload { items: 16_384, features: Features::default(), ..Workload::default() };
    let size = workload.size;
    let run_on = |memory: &Memory, driver: View<'_>, device: View<'_>, is_read_back: bool| {
        if is_read_back {
            let mut driver =
                PlainDriver::<_, false>::new(ReadBack::driver(driver, size), size, workload.features).unwrap();
            let mut device = split::Device::new(ReadBack::device(device, size), size, workload.features).unwrap();
            run_timed(memory, &mut driver, &mut device, &workload, pace).unwrap()
        } else {
            let mut driver = PlainDriver::<_, false>::new(driver, size, workload.features).unwrap();
            let mut device = split::Device::new(device, size, workload.features).unwrap();
            run_timed(memory, &mut driver, &mut device, &workload, pace).unwrap()
        }
    };
    [true, false].map(|is_read_back| {
        let memory = Memory::split(size).unwrap();
        let [driver, device] = Side::ALL.map(|side| memory.view(side));
        run_on(&memory, driver, device, is_read_back)
    })
}

#[test]
fn a_side_that_waits_longer_finds_more_buffers_in_a_row() {
    let pace = |transfer_ns| Pace { protocol: Protocol::Mesi, word_ns: 0.5, transfer_ns, stores_wait: false };
    let [near, far] = [timed(pace(28.0)), timed(pace(160.0))];
    for (near, far) in near.iter().zip(&far) {
        let lines = |of: &Timed| of.counts.transfers_per_item(Protocol::Mesi);
        assert!(far.burst > 2.0 * near.burst && lines(far) < lines(near), "{near:?} {far:?}");
        // Fewer lines for each buffer, so it does not take as many times as long as a line does.
        assert!(far.ns > near.ns && far.ns < 160.0 / 28.0 * near.ns, "{near:?} {far:?}");
    }
}

#[test]
fn where_stores_wait_for_lines_a_shadow_saves_little_or_nothing() {
    let pace = Pace { protocol: Protocol::Mesi, word_ns: 0.5, transfer_ns: 160.0, stores_wait: true };
    let [without, with] = timed(pace);
    assert!((0.9..1.1).contains(&(with.ns / without.ns)), "{without:?} {with:?}");
    assert!(without.ns > timed(Pace { stores_wait: false, ..pace })[0].ns);
    // Lines that take no time leave the loads, of which a shadow saves some.
    let [without, with] = timed(Pace { transfer_ns: 0.0, ..pace });
    assert!(with.ns < without.ns, "{without:?} {with:?}");
}
