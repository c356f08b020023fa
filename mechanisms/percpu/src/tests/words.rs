//! Words and lists of pools, by sections and by locks, compared with an oracle, and while the threads' affinity
//! changes.

use std::ptr::NonNull;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::alloc::os_page_size_bytes;
use crate::{
    Copying, FenceError, List, ListSlot, Node, Object, Pool, PoolOptions, Update, Width, WordError, Words, fence,
    possible_cpus,
};

/// Layout of a copy: six words, eight bytes for each of a ring's records, and a list.
const ADDED: usize = 0;
const COMPARED: usize = 8;
const COUNT: usize = 16;
/// Two words of four bytes, and then two that are stored last in alternate epochs.
const HALVES: usize = 24;
const EPOCHS: usize = 32;
const RECORDS: usize = 48;
const RECORD_COUNT: u64 = 8;
const LIST: usize = RECORDS + 8 * RECORD_COUNT as usize;
const SIZE: usize = LIST + size_of::<ListSlot>();

/// More CPUs than this machine can have; no thread ever runs on most of them.
fn options() -> PoolOptions {
    PoolOptions {
        cpu_count: possible_cpus() + 61,
        stride_bytes: os_page_size_bytes(),
        is_lazy: true,
        ..PoolOptions::default()
    }
}

fn layout() -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(SIZE, 8).unwrap()
}

/// Returns the words by sections, if there is rseq, and by locks.
fn ways(pool: &Pool) -> Vec<Words> {
    let by_sections = rseq_too().map(|_| Words::new(pool));
    by_sections.into_iter().chain([Words::by_locks(pool.view())]).collect()
}

fn word(pool: &Pool, object: Object, cpu: u32, offset: usize) -> u64 {
    // SAFETY: the tests pass live objects and CPUs that the pool has.
    let copy = unsafe { pool.view().address(object, cpu) };
    // SAFETY: a word of the object, written by atomic stores and sections.
    unsafe { AtomicU64::from_ptr(copy.wrapping_add(offset).cast()) }.load(Acquire) // (A) pairs with the operations' stores
}

fn sum(pool: &Pool, object: Object, offset: usize) -> u64 {
    (0..pool.view().cpu_count()).map(|cpu| word(pool, object, cpu, offset)).sum()
}

#[derive(Debug, Clone)]
enum Operation {
    Load {
        index: usize,
    },
    Add {
        index: usize,
        n: u64,
    },
    Store {
        index: usize,
        value: u64,
    },
    CompareAndStore {
        index: usize,
        expected: u64,
        value: u64,
    },
    /// Changes a whole word, or one half of it.
    Update {
        index: usize,
        half: Option<usize>,
        update: Update,
    },
    CopyAndStore {
        guard: usize,
        expected: u64,
        to: usize,
        bytes: Vec<u8>,
        last: usize,
        value: u64,
    },
}

const WORDS: usize = 6;

fn operation() -> impl Strategy<Value = Operation> {
    let index = || 0..WORDS;
    // Few values, so that comparisons often succeed and often fail.
    let value = || prop_oneof![0..3_u64, Just(u64::MAX)];
    prop_oneof![
        index().prop_map(|index| Operation::Load { index }),
        (index(), value()).prop_map(|(index, n)| Operation::Add { index, n }),
        (index(), value()).prop_map(|(index, value)| Operation::Store { index, value }),
        (index(), value(), value()).prop_map(|(index, expected, value)| Operation::CompareAndStore {
            index,
            expected,
            value
        }),
        (index(), prop::option::of(0..2_usize), update()).prop_map(|(index, half, update)| Operation::Update {
            index,
            half,
            update
        }),
        (index(), value(), 0..32_usize, prop::collection::vec(any::<u8>(), 0..32), index(), value()).prop_map(
            |(guard, expected, to, bytes, last, value)| Operation::CopyAndStore {
                guard,
                expected,
                to,
                bytes,
                last,
                value
            }
        ),
    ]
}

fn update() -> impl Strategy<Value = Update> {
    // A value above 32 bits: its high half counts only in a whole word.
    let value = || prop_oneof![0..3_u64, Just(u64::MAX), Just(1 << 32)];
    prop_oneof![
        value().prop_map(Update::Add),
        value().prop_map(Update::Exchange),
        (value(), value()).prop_map(|(expected, value)| Update::CompareExchange { expected, value }),
    ]
}

/// Returns what a word of `T` holds after an update, computed with the operations of that type.
macro_rules! updated {
    ($type:ty, $old:expr, $update:expr) => {
        match $update {
            Update::Add(n) => <$type>::wrapping_add($old, n as $type),
            Update::Exchange(value) => value as $type,
            Update::CompareExchange { expected, value } if $old == expected as $type => value as $type,
            Update::CompareExchange { .. } => $old,
        }
    };
}

/// Compares, for one thread on one CPU, the result of each operation and the words and bytes after it.
#[test]
fn words_match_an_array() {
    let _lock = TestLock::take([0; 6]);
    let cpu = *cpus().last().unwrap();
    run_on(None, cpu);
    let pool = Pool::new(&options()).unwrap();
    let ways = ways(&pool);
    let strategy = (0..ways.len(), prop::collection::vec(operation(), 1..60));
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases: 200, ..Config::default() });
    let tried = runner.run(&strategy, |(way, operations)| {
        let words = ways[way];
        let object = pool.alloc(layout()).unwrap();
        let mut oracle = [0_u64; WORDS];
        let mut bytes = [0_u8; 64];
        for operation in operations {
            // SAFETY: the object lives; all words and bytes are inside it.
            unsafe { apply(words, object, &mut oracle, &mut bytes, operation) }?;
            for (index, expected) in oracle.iter().enumerate() {
                prop_assert_eq!(word(&pool, object, cpu as u32, 8 * index), *expected);
            }
            let copied = (0..8).flat_map(|index| word(&pool, object, cpu as u32, RECORDS + 8 * index).to_ne_bytes());
            prop_assert!(copied.eq(bytes));
        }
        // SAFETY: the object is not used any more.
        prop_assert_eq!(unsafe { pool.free(object) }, Ok(()));
        Ok(())
    });
    tried.unwrap();
}

/// # Safety
/// `object` lives, and is `SIZE` bytes large.
unsafe fn apply(
    words: Words,
    object: Object,
    oracle: &mut [u64; WORDS],
    bytes: &mut [u8; 64],
    operation: Operation,
) -> Result<(), TestCaseError> {
    match operation {
        Operation::Load { index } => {
            // SAFETY: the caller guarantees that the object lives; the word is inside it.
            prop_assert_eq!(unsafe { words.load(object, 8 * index) }, Ok(oracle[index]));
        }
        Operation::Add { index, n } => {
            // SAFETY: the caller guarantees that the object lives; the word is inside it.
            prop_assert_eq!(unsafe { words.add(object, 8 * index, n) }, Ok(()));
            oracle[index] = oracle[index].wrapping_add(n);
        }
        Operation::Store { index, value } => {
            // SAFETY: the caller guarantees that the object lives; the word is inside it.
            prop_assert_eq!(unsafe { words.store(object, 8 * index, value) }, Ok(()));
            oracle[index] = value;
        }
        Operation::CompareAndStore { index, expected, value } => {
            let is_expected = oracle[index] == expected;
            // SAFETY: the caller guarantees that the object lives; the word is inside it.
            let stored = unsafe { words.compare_and_store(object, 8 * index, expected, value) };
            prop_assert_eq!(stored, Ok(is_expected));
            if is_expected {
                oracle[index] = value;
            }
        }
        Operation::Update { index, half: None, update } => {
            // SAFETY: the caller guarantees that the object lives; the word is inside it.
            prop_assert_eq!(unsafe { words.update(object, 8 * index, Width::Eight, update) }, Ok(oracle[index]));
            oracle[index] = updated!(u64, oracle[index], update);
        }
        Operation::Update { index, half: Some(half), update } => {
            let mut halves =
                [0, 4].map(|at| u32::from_ne_bytes(oracle[index].to_ne_bytes()[at..at + 4].try_into().unwrap()));
            let offset = 8 * index + 4 * half;
            // SAFETY: the caller guarantees that the object lives; the word is inside it.
            let old = unsafe { words.update(object, offset, Width::Four, update) };
            prop_assert_eq!(old, Ok(u64::from(halves[half])));
            halves[half] = updated!(u32, halves[half], update);
            let [first, second] = halves.map(u32::to_ne_bytes);
            oracle[index] = u64::from_ne_bytes([first, second].concat().try_into().unwrap());
        }
        Operation::CopyAndStore { guard, expected, to, bytes: from, last, value } => {
            let is_expected = oracle[guard] == expected;
            let (size_bytes, from) = (from.len(), from.as_slice());
            let copying = Copying {
                guard: 8 * guard,
                expected,
                to: RECORDS + to,
                from: from.as_ptr(),
                size_bytes,
                last: 8 * last,
                value,
            };
            // SAFETY: the caller guarantees that the object lives; the words and the destination are inside it, and
            // `from` is a buffer of this call.
            prop_assert_eq!(unsafe { words.copy_and_store(object, &copying) }, Ok(is_expected));
            if is_expected {
                bytes[to..to + size_bytes].copy_from_slice(from);
                oracle[last] = value;
            }
        }
    }
    Ok(())
}

const ROUNDS: u64 = 600;

/// Threads are moved between CPUs all the time, and sections are slow enough to be aborted.
#[test]
fn words_are_exact_while_affinity_changes() {
    let _lock = TestLock::take([0; 6]);
    set_delays([0, 200, 200, 1_000, 200, 1_000]);
    let pool = Pool::new(&options()).unwrap();
    for words in ways(&pool) {
        let object = pool.alloc(layout()).unwrap();
        // SAFETY: a slot of zeroes is there, at a multiple of 8, and nothing else.
        let list = unsafe { List::of_object(pool.view(), object, LIST) };
        let nodes: &'static [Node] = (0..32).map(|_| Node::new()).collect::<Vec<_>>().leak();
        let rseq = Rseq::detect();
        for (index, node) in nodes.iter().enumerate() {
            // SAFETY: the node is on no list, and never unmapped.
            unsafe { list.push(rseq.filter(|_| index % 2 == 0), NonNull::from(node)) };
        }
        let [compared, copied] = [const { AtomicU64::new(0) }; 2];
        let (threads, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| flip(&threads, &stop));
            let work = || {
                threads.lock().unwrap().push(rustix::thread::gettid());
                for turn in 0..ROUNDS {
                    // SAFETY: the object lives, and the word is inside it.
                    assert_eq!(unsafe { words.add(object, ADDED, 3) }, Ok(()));
                    for (half, n) in [(0, 1), (4, u64::from(u32::MAX))] {
                        // SAFETY: the object lives, and the word is inside it.
                        assert!(unsafe { words.update(object, HALVES + half, Width::Four, Update::Add(n)) }.is_ok());
                    }
                    // SAFETY: the object lives, and the word is inside it.
                    let before = unsafe { words.load(object, COMPARED) }.unwrap();
                    // SAFETY: the object lives, and the word is inside it.
                    let stored = unsafe { words.compare_and_store(object, COMPARED, before, before + 1) };
                    compared.fetch_add(u64::from(stored.unwrap()), Relaxed);
                    // SAFETY: the object lives, and the word is inside it.
                    let count = unsafe { words.load(object, COUNT) }.unwrap();
                    let record = count.to_ne_bytes();
                    let copying = Copying {
                        guard: COUNT,
                        expected: count,
                        to: RECORDS + 8 * (count % RECORD_COUNT) as usize,
                        from: record.as_ptr(),
                        size_bytes: record.len(),
                        last: COUNT,
                        value: count + 1,
                    };
                    // SAFETY: the object lives, and the words are inside it; the record has the stated length.
                    let stored = unsafe { words.copy_and_store(object, &copying) };
                    copied.fetch_add(u64::from(stored.unwrap()), Relaxed);
                    if let Some(node) = list.pop(rseq) {
                        // SAFETY: the node was popped just now.
                        unsafe { list.push(rseq.filter(|_| turn % 3 == 0), node) };
                    }
                }
            };
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                worker.join().unwrap();
            }
        });
        assert_eq!(sum(&pool, object, ADDED), 4 * 3 * ROUNDS);
        let halves = (0..pool.view().cpu_count()).map(|cpu| word(&pool, object, cpu, HALVES).to_ne_bytes());
        let halves = halves.map(|bytes| [0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())));
        let halves = halves.fold([0_u32; 2], |sums, halves| [0, 1].map(|half| sums[half].wrapping_add(halves[half])));
        assert_eq!(halves, [4 * ROUNDS as u32, 0_u32.wrapping_sub(4 * ROUNDS as u32)]);
        assert_eq!(sum(&pool, object, COMPARED), compared.load(Relaxed));
        assert_eq!(sum(&pool, object, COUNT), copied.load(Relaxed));
        assert!(compared.load(Relaxed) > 0 && copied.load(Relaxed) > 0);
        for cpu in 0..pool.view().cpu_count() {
            let count = word(&pool, object, cpu, COUNT);
            // An aborted section may have left bytes at the place of the next record.
            for k in count.saturating_sub(RECORD_COUNT - 1)..count {
                assert_eq!(word(&pool, object, cpu, RECORDS + 8 * (k % RECORD_COUNT) as usize), k);
            }
        }
        let mut drained = Vec::new();
        // SAFETY: all users have been joined.
        unsafe { list.drain(|node| drained.push(node)) };
        drained.sort_unstable();
        drained.dedup();
        assert_eq!(drained.len(), nodes.len());
        // SAFETY: the object is not used any more.
        unsafe { pool.free(object) }.unwrap();
    }
}

/// The pool is sized by an affinity that has changed since.
#[test]
fn a_pool_with_too_few_cpus_is_an_error() {
    let _lock = TestLock::take([0; 6]);
    let Some(cpu) = cpus().last().copied().filter(|cpu| *cpu > 0) else {
        return skip(Lack::machine("there is only one CPU", "a machine with two"));
    };
    let pool = Pool::new(&PoolOptions { cpu_count: cpu as u32, ..options() }).unwrap();
    let object = pool.alloc(layout()).unwrap();
    run_on(None, cpu);
    for words in ways(&pool) {
        let expected = WordError::NoCopy { cpu: cpu as u32 };
        // SAFETY: the object lives, and the word is inside it.
        assert_eq!(unsafe { words.add(object, ADDED, 1) }, Err(expected));
        // SAFETY: the object lives, and the word is inside it.
        assert_eq!(unsafe { words.load(object, COMPARED) }, Err(expected));
        assert!(expected.to_string().contains(&format!("CPU {cpu}")));
    }
    assert_eq!(sum(&pool, object, ADDED), 0);
    // SAFETY: a slot of zeroes is there, at a multiple of 8, and nothing else.
    let list = unsafe { List::of_object(pool.view(), object, LIST) };
    let node: &'static Node = Box::leak(Box::default());
    // SAFETY: the node is on no list, and never unmapped.
    unsafe { list.push(Rseq::detect(), NonNull::from(node)) };
    assert_eq!(list.pop(Rseq::detect()), Some(NonNull::from(node)));
}

/// Sections write one of two words, by the epoch that they read. Once the epoch has changed, and after a fence, none
/// writes the other word any more, though sections are slow enough to be in the middle.
#[test]
fn no_section_is_left_behind_by_a_fence() {
    let _lock = TestLock::take([0; 6]);
    if rseq_too().is_none() {
        return;
    }
    assert_eq!(fence(Some(possible_cpus())), Err(FenceError::NoSuchCpu { cpu: possible_cpus() }));
    if fence(None) == Err(FenceError::Unsupported) {
        return skip(Lack::machine("the kernel has no barrier for restartable sequences", "Linux 5.10"));
    }
    let (here, there) = (cpus()[0], *cpus().last().unwrap());
    if here == there {
        return skip(Lack::machine("there is only one CPU", "a machine with two"));
    }
    // This thread interrupts no section by running.
    run_on(None, here);
    set_delays([0, 0, 0, 0, 0, 60_000]);
    let pool = Pool::new(&options()).unwrap();
    let object = pool.alloc(layout()).unwrap();
    let (words, stop) = (Words::new(&pool), AtomicBool::new(false));
    let last = |epoch: u64| EPOCHS + 8 * (epoch % 2) as usize;
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let work = || {
            run_on(None, there);
            while !stop.load(Relaxed) {
                // SAFETY: the object lives, and the word is inside it.
                let epoch = unsafe { words.load(object, COUNT) }.unwrap();
                let copying = Copying {
                    guard: COUNT,
                    expected: epoch,
                    to: RECORDS,
                    from: [0; 8].as_ptr(),
                    size_bytes: 8,
                    last: last(epoch),
                    value: written.fetch_add(1, Relaxed) + 1,
                };
                // SAFETY: the object lives, and the words are inside it; the source has the stated length.
                let stored = unsafe { words.copy_and_store(object, &copying) };
                assert!(stored.is_ok());
            }
        };
        for _ in 0..3 {
            scope.spawn(work);
        }
        for epoch in 0..300 {
            for cpu in 0..possible_cpus() {
                // SAFETY: the object lives, and the pool has the CPU.
                let copy = unsafe { pool.view().address(object, cpu) };
                // SAFETY: a word of the object, which sections only compare.
                unsafe { AtomicU64::from_ptr(copy.wrapping_add(COUNT).cast()) }.store(epoch + 1, Relaxed);
                // Each CPU by itself, and sometimes all.
                if epoch % 3 != 0 {
                    assert_eq!(fence(Some(cpu)), Ok(()));
                }
            }
            if epoch % 3 == 0 {
                assert_eq!(fence(None), Ok(()));
            }
            let seen = || (0..possible_cpus()).map(|cpu| word(&pool, object, cpu, last(epoch))).collect::<Vec<_>>();
            let before = seen();
            // A section that was left behind would store in this time: it is ten times as long as the delay.
            std::thread::sleep(std::time::Duration::from_micros(200));
            assert_eq!(seen(), before, "epoch {epoch}");
        }
    });
    assert!(written.load(Relaxed) > 0);
}
