//! Each scheme against its formula, against an array of numbers, and while threads move from CPU to CPU.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dormouse_percpu::possible_cpus;

use super::*;

fn word<'a, V: View>(view: V, object: V::Object, cpu: u32) -> &'a AtomicU64 {
    // SAFETY: the tests pass objects of memory that is alive, and CPUs that it has.
    let at = unsafe { view.address(view.handle(object), cpu) };
    // SAFETY: an aligned word, which only critical sections or atomic stores write.
    unsafe { AtomicU64::from_ptr(at) }
}

/// Returns memory for a scheme, which is never freed.
fn given() -> Room {
    const SIZE_BYTES: usize = 4 << 20;
    let layout = std::alloc::Layout::from_size_align(SIZE_BYTES, 4096).unwrap();
    // SAFETY: the size is not zero.
    let base = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!base.is_null());
    // SAFETY: zeroes from the start of a page, which nothing else refers to and which are never freed.
    Room::Given(unsafe { Given::new(base, SIZE_BYTES) })
}

/// Checks that every copy is a word of its own: a value that is written to one copy is read from that copy.
fn copies_are_words_of_their_own<S: Scheme>(lines_of_eight: usize) {
    let rooms = [Room::Own { is_lazy: false }, Room::Own { is_lazy: true }, given(), given()];
    for (cpu_count, room) in [1, 32, 2, 32].into_iter().zip(rooms) {
        let mut memory = S::new(cpu_count, room).unwrap();
        let objects: Vec<_> = (0..200).map(|_| memory.alloc(8).unwrap()).collect();
        let view = memory.view();
        let mut oracle = BTreeMap::new();
        for (index, object) in objects.iter().enumerate() {
            for cpu in 0..cpu_count {
                let copy = word(view, *object, cpu);
                assert_eq!(copy.load(Relaxed), 0);
                let value = (index as u64) << 32 | u64::from(cpu) | 1 << 63;
                copy.store(value, Relaxed);
                assert!(oracle.insert(copy.as_ptr().addr(), value).is_none(), "two copies at one place");
            }
        }
        let lines = |cpu: u32| -> std::collections::BTreeSet<usize> {
            objects[8..16].iter().map(|object| word(view, *object, cpu).as_ptr().addr() / CACHE_LINE).collect()
        };
        assert!((lines_of_eight..=lines_of_eight + 1).contains(&lines(0).len()));
        assert!((1..cpu_count).all(|cpu| lines(0).is_disjoint(&lines(cpu))), "a line of two CPUs");
        for (index, object) in objects.iter().enumerate() {
            for cpu in 0..cpu_count {
                let copy = word(view, *object, cpu);
                assert_eq!(copy.load(Relaxed), oracle[&copy.as_ptr().addr()]);
                assert_eq!(copy.load(Relaxed), (index as u64) << 32 | u64::from(cpu) | 1 << 63);
            }
        }
    }
}

/// Returns the lines that objects of 8 and of 24 bytes, allocated in turn, have on a CPU.
fn lines_by_size<S: Scheme>() -> [std::collections::BTreeSet<usize>; 2] {
    let mut memory = S::new(2, Room::Own { is_lazy: true }).unwrap();
    let mut lines = [const { std::collections::BTreeSet::new() }; 2];
    for _ in 0..64 {
        for (lines, size_bytes) in lines.iter_mut().zip([8, 24]) {
            let object = memory.alloc(size_bytes).unwrap();
            let first = word(memory.view(), object, 1).as_ptr().addr();
            lines.extend([first / CACHE_LINE, (first + size_bytes - 1) / CACHE_LINE]);
        }
    }
    lines
}

#[test]
fn objects_of_different_sizes_share_lines_unless_they_are_segregated() {
    let [small, large] = lines_by_size::<Segregated>();
    assert!(small.is_disjoint(&large) && small.len() == 8 && large.len() == 24, "{small:?} {large:?}");
    let [small, large] = lines_by_size::<Interlaced>();
    assert!(small.intersection(&large).count() >= 31, "{small:?} {large:?}");
}

/// Returns the huge pages, the lines, and the sets of a cache that the words of a CPU have.
fn places<S: Scheme>(cpu: u32) -> [std::collections::BTreeSet<usize>; 3] {
    const SETS: usize = 1_024;
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let layout = std::alloc::Layout::from_size_align(8 * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES).unwrap();
    // SAFETY: the size is not zero.
    let base = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!base.is_null());
    // SAFETY: zeroes from the start of a page, which nothing else refers to and which are never freed.
    let given = unsafe { Given::new(base, layout.size()) };
    let mut memory = S::new(32, Room::Given(given)).unwrap();
    let mut places = [const { std::collections::BTreeSet::new() }; 3];
    for _ in 0..4_096 {
        let object = memory.alloc(8).unwrap();
        let at = word(memory.view(), object, cpu).as_ptr().addr() - base.addr();
        let line = at / CACHE_LINE;
        [at / HUGE_PAGE_BYTES, line, line % SETS].into_iter().zip(&mut places).for_each(|(place, of)| {
            of.insert(place);
        });
    }
    places
}

#[test]
fn few_and_all_sets_differ_by_their_sets_alone() {
    for cpu in [0, 1, 31] {
        let ([pages, lines, sets], [few_pages, few_lines, few_sets]) = (places::<AllSets>(cpu), places::<FewSets>(cpu));
        assert_eq!((&pages, lines.len()), (&few_pages, few_lines.len()));
        assert_eq!((pages.len(), lines.len(), sets.len(), few_sets.len()), (5, 4_096, 1_024, 32));
    }
}

/// Moves the calling thread to the next CPU that the process may use.
fn move_on(allowed: &libc::cpu_set_t, cpu: &mut usize) {
    loop {
        *cpu = (*cpu + 1) % libc::CPU_SETSIZE as usize;
        // SAFETY: below the size of the mask.
        if unsafe { libc::CPU_ISSET(*cpu, allowed) } {
            break;
        }
    }
    // SAFETY: a mask of zeroes is valid.
    let mut one: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: below the size of the mask.
    unsafe { libc::CPU_SET(*cpu, &mut one) };
    // SAFETY: the calling thread, and a mask as long as stated.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) }, 0);
}

/// Checks that additions of threads on every CPU are counted exactly once.
fn additions_are_exact<S: Scheme>() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 100_000;
    let Some(rseq) = Rseq::of_libc() else { return };
    let mut memory = S::new(possible_cpus(), Room::Own { is_lazy: true }).unwrap();
    let objects: Vec<_> = (0..8).map(|_| memory.alloc(8).unwrap()).collect();
    let view = memory.view();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let objects = &objects;
                scope.spawn(move || {
                    // SAFETY: a mask of zeroes is valid.
                    let mut allowed: libc::cpu_set_t = unsafe { core::mem::zeroed() };
                    // SAFETY: the calling thread, and a mask as long as stated.
                    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) }, 0);
                    let mut cpu = thread as usize;
                    for round in 0..ROUNDS {
                        if round % 100 == thread {
                            move_on(&allowed, &mut cpu);
                        }
                        // SAFETY: an object of this memory, which is alive and which only critical sections write.
                        while !unsafe { view.add(rseq, view.handle(objects[round as usize % 8]), thread + 1) } {}
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    for object in &objects {
        let sum: u64 = (0..possible_cpus()).map(|cpu| word(view, *object, cpu).load(Relaxed)).sum();
        assert_eq!(sum, (1 + 2 + 3) * ROUNDS / 8);
    }
}

/// Checks that copies are adjacent and that the table has their distances from the variables' link-time addresses.
#[test]
fn static_areas_are_found_by_a_link_time_address_and_the_distance_of_a_copy() {
    let mut memory = StaticAreas::<2>::new(3, Room::Own { is_lazy: true }).unwrap();
    assert!(StaticAreas::<2>::new(3, Room::Own { is_lazy: true }).is_none(), "the area is in use");
    let (first, second) = (memory.alloc(24).unwrap(), memory.alloc(8).unwrap());
    assert_eq!([first, second], [0, 24]);
    let view = memory.view();
    let at = |offset, cpu| word(view, offset, cpu).as_ptr().addr();
    for cpu in 0..3 {
        let distance = PER_CPU_OFFSETS[2][cpu as usize].load(Relaxed);
        let Place(variable) = view.handle(second);
        assert_eq!(variable.as_ptr(), section(2).wrapping_add(24));
        assert_eq!(variable.addr().get().wrapping_add(distance), at(second, cpu));
        assert_eq!(at(first, cpu) - at(first, 0), cpu as usize * AREA_BYTES);
        assert_eq!(at(second, cpu) - at(first, cpu), 24);
    }
    assert!(AREA_BYTES.is_multiple_of(CACHE_LINE) && !AREA_BYTES.is_power_of_two());
    // Another process, in which the section is elsewhere, has distances of its own.
    let moved = PER_CPU_OFFSETS[2][1].swap(0, Relaxed);
    view.attach();
    assert_eq!(PER_CPU_OFFSETS[2][1].load(Relaxed), moved);
    drop(memory);
    assert!(StaticAreas::<2>::new(1, Room::Own { is_lazy: true }).is_some(), "the area is free again");
}

/// Types of the static areas of the tests below, which run at once.
type StaticAreasOfCopies = StaticAreas<0>;
type StaticAreasOfAdditions = StaticAreas<1>;

macro_rules! for_every_scheme {
    ($($module:ident $scheme:ident $other:ident $lines:literal),+) => {$(
        mod $module {
            use super::*;

            #[test]
            fn copies_are_words_of_their_own() {
                super::copies_are_words_of_their_own::<$scheme>($lines);
            }

            #[test]
            fn additions_are_exact() {
                super::additions_are_exact::<$other>();
            }
        }
    )+};
}

for_every_scheme!(
    static_areas StaticAreasOfCopies StaticAreasOfAdditions 1,
    pointer_array PointerArray PointerArray 8,
    contiguous Contiguous Contiguous 8,
    few_sets FewSets FewSets 8,
    all_sets AllSets AllSets 8,
    offset_table OffsetTable OffsetTable 1,
    interlaced Interlaced Interlaced 1,
    segregated Segregated Segregated 1
);
