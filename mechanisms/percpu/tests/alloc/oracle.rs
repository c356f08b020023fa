//! Operations on a pool, compared with a list of live objects and, if memory is fixed, a list of taken granules.

use std::collections::BTreeMap;
use std::ops::Range;

use dormouse_percpu::{AllocError, Corruption, MemoryKind, Object, Pool, PoolOptions, Shortage};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::{Backing, addresses, bytes, flip, free, layout, os_page_bytes};

const CPUS: usize = 3;
const RED_ZONE: usize = 16;
const GRANULE: usize = 8;

/// Returns the size of each CPU's memory: at least a page, which pools require.
fn stride_bytes() -> usize {
    os_page_bytes().max(8192)
}

#[derive(Debug, Clone)]
enum Operation {
    Alloc {
        size: usize,
        align: usize,
    },
    Free {
        which: usize,
    },
    /// Frees an object that was freed before, unless another object has been allocated there since.
    FreeAgain {
        which: usize,
    },
    /// Frees another pool's object.
    FreeForeign,
    /// Writes past the end of an object, which is then freed (robust).
    Overrun {
        which: usize,
        cpu: usize,
        by: usize,
    },
    /// Writes to a freed object, and undoes the write (robust).
    UseAfterFree {
        which: usize,
        cpu: usize,
        at: usize,
    },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let which = any::<usize>;
    let size = prop_oneof![4 => 0..100usize, 2 => 0..1000usize, 1 => 0..=4096usize];
    let align = prop_oneof![6 => 0..4u32, 2 => 0..8u32, 1 => 0..=12u32].prop_map(|shift| 1 << shift);
    let operation = prop_oneof![
        10 => (size, align).prop_map(|(size, align)| Operation::Alloc { size, align }),
        7 => which().prop_map(|which| Operation::Free { which }),
        2 => which().prop_map(|which| Operation::FreeAgain { which }),
        1 => Just(Operation::FreeForeign),
        1 => (which(), 0..CPUS, 0..RED_ZONE).prop_map(|(which, cpu, by)| Operation::Overrun { which, cpu, by }),
        1 => (which(), 0..CPUS, which()).prop_map(|(which, cpu, at)| Operation::UseAfterFree { which, cpu, at }),
    ];
    prop::collection::vec(operation, 1..150)
}

/// An object, and the properties that it should have.
#[derive(Clone)]
struct Known {
    object: Object,
    size: usize,
    at: Vec<*mut u8>,
    fill: u8,
    /// Granules that the object takes in a fixed pool.
    taken: Range<usize>,
}

/// A first-fit allocator that is simple enough to be evidently correct.
struct FirstFit {
    taken: Vec<bool>,
}

impl FirstFit {
    fn new() -> FirstFit {
        FirstFit { taken: vec![false; stride_bytes() / GRANULE] }
    }

    fn alloc(&mut self, size: usize, align: usize) -> Option<Range<usize>> {
        let count = size.div_ceil(GRANULE);
        let fits = |from: &usize| {
            (from * GRANULE).is_multiple_of(align)
                && self.taken.get(*from..from + count).is_some_and(|run| !run.contains(&true))
        };
        let from = (0..self.taken.len()).find(fits)?;
        self.taken[from..from + count].fill(true);
        Some(from..from + count)
    }

    fn free(&mut self, taken: Range<usize>) {
        self.taken[taken].fill(false);
    }
}

struct Bench {
    pool: Pool,
    foreign: Object,
    is_fixed: bool,
    is_robust: bool,
    live: Vec<Known>,
    freed: Vec<Known>,
    /// Ranges of live objects on all CPUs: start → end.
    ranges: BTreeMap<usize, usize>,
    first_fit: FirstFit,
    count: u8,
    size_bytes_max: usize,
}

impl Bench {
    fn alloc(&mut self, size: usize, align: usize) {
        let red = if self.is_robust { RED_ZONE } else { 0 };
        let chunk_count = self.pool.usage().chunk_count;
        let result = self.pool.alloc(layout(size, align));
        if size > self.size_bytes_max {
            assert_eq!(result, Err(AllocError::TooBig { size_bytes: size, size_bytes_max: self.size_bytes_max }));
            return;
        }
        let expected = if self.is_fixed { self.first_fit.alloc(size.max(1) + red, align) } else { Some(0..0) };
        let object = match result {
            Ok(object) => object,
            Err(AllocError::Exhausted { size_bytes, align_bytes, shortage }) => {
                assert_eq!((size_bytes, align_bytes), (size, align));
                assert!(expected.is_none(), "refused, but there is room");
                assert_eq!(shortage, Shortage::Fixed { size_bytes: stride_bytes() * CPUS });
                assert_eq!(self.pool.usage().chunk_count, chunk_count, "grown for nothing");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let taken = expected.expect("handed out what is taken");
        let at = addresses(&self.pool, object);
        if self.is_fixed {
            let offset = self.pool.offset_of(object).unwrap();
            assert_eq!(offset, taken.start * GRANULE, "not the first fit");
            assert_eq!(self.pool.object_at(offset), Some(object));
        }
        self.count = self.count % 0x40 + 1;
        for (cpu, start) in at.iter().enumerate() {
            assert!(start.addr().is_multiple_of(align));
            assert!(bytes(*start, size).iter().all(|byte| *byte == 0), "not zeroed on CPU {cpu}");
            let (from, to) = (start.addr(), start.addr() + size.max(1));
            let before = self.ranges.range(..to).next_back();
            assert!(before.is_none_or(|(_, end)| *end <= from), "overlaps another live object");
            self.ranges.insert(from, to);
            bytes(*start, size).fill(self.count + cpu as u8);
        }
        assert_eq!(self.pool.size_of(object), Some(size));
        // A freed object whose place is given to another is no longer recognised as freed.
        let footprint = |known: &Known| -> Vec<(usize, usize)> {
            known.at.iter().map(|at| (at.addr(), at.addr() + known.size.max(1))).collect()
        };
        let known = Known { object, size, at, fill: self.count, taken };
        let new = footprint(&known);
        self.freed.retain(|old| {
            let overlaps = |old: (usize, usize)| new.iter().any(|new| old.0 < new.1 + 4096 && new.0 < old.1 + 4096);
            !footprint(old).into_iter().any(overlaps) && old.object != object
        });
        self.live.push(known);
    }

    fn take(&mut self, which: usize) -> Option<Known> {
        if self.live.is_empty() {
            return None;
        }
        let known = self.live.swap_remove(which % self.live.len());
        for (cpu, at) in known.at.iter().enumerate() {
            let whole = bytes(*at, known.size).iter().all(|byte| *byte == known.fill + cpu as u8);
            assert!(whole, "somebody has written to another's copy for CPU {cpu}");
            self.ranges.remove(&at.addr());
        }
        Some(known)
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Alloc { size, align } => self.alloc(size, align),
            Operation::Free { which } => {
                let Some(known) = self.take(which) else { return };
                assert_eq!(free(&self.pool, known.object), Ok(()));
                assert_eq!(self.pool.size_of(known.object), None);
                self.first_fit.free(known.taken.clone());
                self.freed.push(known);
            }
            Operation::FreeAgain { which } => {
                if let Some(known) = self.freed.get(which % self.freed.len().max(1)) {
                    assert!(matches!(free(&self.pool, known.object), Err(AllocError::DoubleFree { .. })));
                }
            }
            Operation::FreeForeign => {
                assert!(matches!(free(&self.pool, self.foreign), Err(AllocError::Foreign { .. })));
            }
            Operation::Overrun { which, cpu, by } if self.is_robust => {
                let Some(known) = self.take(which) else { return };
                let at = known.at[cpu].wrapping_add(known.size + by);
                let found = flip(at);
                let corruption = Corruption {
                    kind: MemoryKind::RedZone,
                    cpu: cpu as u32,
                    address: at.addr(),
                    found,
                    expected: !found,
                };
                assert_eq!(self.pool.audit(), Err(AllocError::Corrupted(corruption)));
                assert_eq!(free(&self.pool, known.object), Err(AllocError::Corrupted(corruption)));
                assert!(matches!(free(&self.pool, known.object), Err(AllocError::DoubleFree { .. })));
                assert_eq!(self.pool.audit(), Ok(()), "withdrawn, but still looked at");
            }
            Operation::UseAfterFree { which, cpu, at } if self.is_robust => {
                let Some(known) = self.freed.get(which % self.freed.len().max(1)) else { return };
                let at = known.at[cpu].wrapping_add(at % known.size.max(1));
                let found = flip(at);
                match self.pool.audit() {
                    Err(AllocError::Corrupted(corruption)) => {
                        assert_eq!((corruption.kind, corruption.address), (MemoryKind::Free, at.addr()));
                        assert_eq!((corruption.found, corruption.expected), (found, 0x5a));
                    }
                    other => panic!("not noticed: {other:?}"),
                }
                flip(at);
                assert_eq!(self.pool.audit(), Ok(()));
            }
            Operation::Overrun { .. } | Operation::UseAfterFree { .. } => {}
        }
        let usage = self.pool.usage();
        assert_eq!(usage.object_count, self.live.len());
        assert_eq!(usage.object_bytes, self.live.iter().map(|known| known.size).sum::<usize>());
    }

    fn finish(mut self) {
        let mut sizes = BTreeMap::<usize, usize>::new();
        self.live.iter().for_each(|known| *sizes.entry(known.size).or_default() += 1);
        let leaks: Vec<_> = self.pool.leaks().map(|leak| (leak.size_bytes, leak.count)).collect();
        assert_eq!(leaks, sizes.into_iter().collect::<Vec<_>>());
        while let Some(known) = self.take(0) {
            assert_eq!(free(&self.pool, known.object), Ok(()));
        }
        assert_eq!(self.pool.audit(), Ok(()));
        let usage = self.pool.usage();
        if usage.withdrawn_bytes == 0 {
            // All memory can be allocated again, without growth.
            let objects: Vec<_> = (0..usage.chunk_count)
                .map(|_| self.pool.alloc(layout(self.size_bytes_max.min(2000), 1)).unwrap())
                .collect();
            assert_eq!(self.pool.usage().chunk_count, usage.chunk_count);
            objects.into_iter().for_each(|object| assert_eq!(free(&self.pool, object), Ok(())));
        }
        assert_eq!(self.pool.leaks().next(), None);
    }
}

fn run(is_fixed: bool, is_robust: bool, is_lazy: bool) {
    let options = PoolOptions {
        cpu_count: CPUS as u32,
        stride_bytes: stride_bytes(),
        is_robust,
        is_lazy,
        ..PoolOptions::default()
    };
    let other = Pool::new(&options).unwrap();
    let foreign = other.alloc(layout(8, 8)).unwrap();
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    let property = |operations: Vec<Operation>| {
        let backing = Backing::new(stride_bytes() * CPUS);
        let pool = if is_fixed { Pool::in_region(backing.region(0), &options) } else { Pool::new(&options) }.unwrap();
        let mut bench = Bench {
            size_bytes_max: pool.usage().size_bytes_max,
            pool,
            foreign,
            is_fixed,
            is_robust,
            live: Vec::new(),
            freed: Vec::new(),
            ranges: BTreeMap::new(),
            first_fit: FirstFit::new(),
            count: 0,
        };
        operations.iter().for_each(|operation| bench.apply(operation));
        bench.finish();
        Ok(())
    };
    TestRunner::new(config).run(&operations(), property).unwrap();
}

#[test]
fn fixed_pools_are_first_fit() {
    run(true, false, false);
}

#[test]
fn growing_pools_hand_out_only_free_memory() {
    run(false, false, false);
    run(false, false, true);
}

#[test]
fn robust_pools_detect_forbidden_writes() {
    run(true, true, false);
    run(false, true, true);
}
