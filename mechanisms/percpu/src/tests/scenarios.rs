//! The scenarios of librseq's `param_test`, under all disturbances at once: threads are moved, signals arrive, the
//! sections wait at every injection point, and fences abort what runs on each CPU. `../../tests/c_programs/scenarios.c`
//! has them in C, and the README a table.

use std::ptr::NonNull;

use super::*;
use crate::{Node, PopOutcome, fence, per_concurrency_id, per_cpu};

const WORKERS: u64 = 4;
const DELAYS_OF_SECTIONS: [u64; 6] = [0, 300, 300, 1_500, 300, 1_500];

static SIGNALS_HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_signal: libc::c_int) {
    SIGNALS_HANDLED.fetch_add(1, Relaxed);
}

/// Whether fences are among the disturbances: not in the test that finds out what one fence does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fences {
    None,
    OfEachCpu,
}

/// Sends the signal to each thread, and makes the sections of one CPU after another start over, until `stop` is set.
fn interrupt(fences: Fences, threads: &Mutex<Vec<Pid>>, stop: &AtomicBool) {
    let cpus = cpus();
    for turn in 0.. {
        for thread in threads.lock().unwrap().iter() {
            let (pid, thread) = (rustix::process::getpid().as_raw_nonzero().get(), thread.as_raw_nonzero().get());
            // SAFETY: tgkill(2) takes three numbers. A thread that has ended is not found.
            unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGRTMIN() + 2) };
        }
        if fences == Fences::OfEachCpu {
            let cpu = (turn % 16 != 0).then_some(cpus[turn % cpus.len()] as u32);
            assert_eq!(fence(cpu), Ok(()));
        }
        if stop.load(Relaxed) {
            return;
        }
        std::thread::sleep(Duration::from_micros(30));
    }
}

/// Runs `work(worker)` in several threads at once, disturbed in every way, until enough sections were aborted and
/// signals handled. Returns how many times it was run.
fn disturbed(fences: Fences, work: impl Fn(u64) + Sync) -> u64 {
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count_signal as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only adds to an atomic word.
    assert_eq!(unsafe { libc::sigaction(libc::SIGRTMIN() + 2, &action, null_mut()) }, 0);
    let (threads, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (before, begin) = ((aborted(), SIGNALS_HANDLED.load(Relaxed)), Instant::now());
    let is_enough = || aborted() - before.0 >= 100 && SIGNALS_HANDLED.load(Relaxed) - before.1 >= 100;
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        scope.spawn(|| interrupt(fences, &threads, &stop));
        let (threads, work, is_enough) = (&threads, &work, &is_enough);
        let work = move |worker| {
            if let Some(rseq) = Rseq::detect() {
                rseq.register_thread();
            }
            threads.lock().unwrap().push(rustix::thread::gettid());
            let mut turns = 0;
            while turns == 0 || !is_enough() {
                work(worker);
                turns += 1;
                assert!(begin.elapsed() < PATIENCE, "only {} aborts", aborted() - before.0);
            }
            turns
        };
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    })
}

/// Returns each CPU's object of zeroes in new memory, which is never unmapped.
fn of_each_cpu<T: Sync>() -> Vec<&'static T> {
    let shared: &'static Shared = Box::leak(Box::new(Shared::new()));
    // SAFETY: the callers' types are valid as zeroes, and nothing else is in the area.
    let object = unsafe { PerCpu::<T>::new(0) };
    (0..shared.area.count()).map(|cpu| shared.area.get(object, cpu).unwrap()).collect()
}

#[test]
fn counters() {
    per_cpu! {
        static WIDE: u64 = 0;
        static NARROW: u32 = 0;
    }
    per_concurrency_id! {
        static BY_ID: u64 = 0;
    }
    const ROUNDS: u64 = 500;
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take(DELAYS_OF_SECTIONS);
    let words = of_each_cpu::<AtomicU64>();
    let turns = disturbed(Fences::OfEachCpu, |_| {
        for round in 0..ROUNDS {
            let n = round % 3;
            loop {
                let cpu = rseq.cpu_id_start();
                // SAFETY: this CPU's word, which only these sections write.
                if unsafe { rseq.add(cpu, words[cpu as usize].as_ptr(), n) } {
                    break;
                }
            }
            WIDE.add(n).unwrap();
            NARROW.add(n as u32).unwrap();
            BY_ID.add(n).unwrap();
        }
    });
    let expected = turns * (0..ROUNDS).map(|round| round % 3).sum::<u64>();
    assert_eq!(words.iter().map(|word| word.load(Relaxed)).sum::<u64>(), expected);
    assert_eq!((WIDE.sum(), u64::from(NARROW.sum()), BY_ID.sum()), (expected, expected, expected));
}

/// A lock of a CPU, and two words that its holder changes one after the other, wherever it runs.
#[repr(C)]
struct Locked {
    is_held: AtomicU64,
    first: AtomicU64,
    second: AtomicU64,
}

/// A thread takes the lock of its CPU by a section, and keeps it while it is moved. It releases the lock by a store:
/// sections of other threads store nothing while the lock is held.
#[test]
fn locks() {
    const ROUNDS: u64 = 500;
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take(DELAYS_OF_SECTIONS);
    let locked = of_each_cpu::<Locked>();
    let turns = disturbed(Fences::OfEachCpu, |_| {
        for _ in 0..ROUNDS {
            let held = loop {
                let cpu = rseq.cpu_id_start();
                let object = locked[cpu as usize];
                // SAFETY: this CPU's lock, which only its holder and these sections write.
                if unsafe { rseq.compare_and_store(cpu, object.is_held.as_ptr(), 0, 1) } == Commit::Done {
                    break object;
                }
                // The holder may be on another CPU.
                std::thread::yield_now();
            };
            // (W) pairs with (X): what the last holder wrote is visible.
            assert_eq!(held.is_held.load(Acquire), 1);
            let (first, second) = (held.first.load(Relaxed), held.second.load(Relaxed));
            assert_eq!(first, second, "two threads hold one lock");
            held.first.store(first + 1, Relaxed);
            held.second.store(second + 1, Relaxed);
            held.is_held.store(0, std::sync::atomic::Ordering::Release); // (X) pairs with (W)
        }
    });
    assert_eq!(locked.iter().map(|object| object.second.load(Relaxed)).sum::<u64>(), turns * ROUNDS);
}

#[repr(C)]
struct Item {
    node: Node,
    /// Number of threads that have it.
    owners: AtomicU64,
    turns: AtomicU64,
}

/// Every item is on one list or belongs to one thread.
#[test]
fn lists() {
    const ROUNDS: u64 = 500;
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take(DELAYS_OF_SECTIONS);
    let heads = of_each_cpu::<std::sync::atomic::AtomicPtr<Node>>();
    let item = || Item { node: Node::new(), owners: AtomicU64::new(1), turns: AtomicU64::new(0) };
    let items: &'static [Item] = (0..16).map(|_| item()).collect::<Vec<_>>().leak();
    let push = |item: &Item| {
        assert_eq!(item.owners.fetch_sub(1, Relaxed), 1);
        loop {
            let cpu = rseq.cpu_id_start();
            // SAFETY: the CPU's head, which only these sections write; the node is this thread's, and never unmapped.
            if unsafe { rseq.push(cpu, heads[cpu as usize].as_ptr(), NonNull::from(&item.node)) } {
                return;
            }
        }
    };
    let turns = AtomicU64::new(0);
    items.iter().for_each(push);
    disturbed(Fences::OfEachCpu, |_| {
        for _ in 0..ROUNDS {
            let cpu = rseq.cpu_id_start();
            // SAFETY: the CPU's head, which only these sections write.
            if let PopOutcome::Node(node) = unsafe { rseq.pop(cpu, heads[cpu as usize].as_ptr()) } {
                // SAFETY: the node is the first field of an item, which is never unmapped.
                let item = unsafe { node.cast::<Item>().as_ref() };
                assert_eq!(item.owners.fetch_add(1, Relaxed), 0, "two threads have popped one item");
                item.turns.fetch_add(1, Relaxed);
                turns.fetch_add(1, Relaxed);
                push(item);
            }
        }
    });
    let mut left = 0;
    for head in heads {
        let mut next = head.load(Acquire); // (A) pairs with the sections' final stores
        while let Some(node) = NonNull::new(next) {
            left += 1;
            // SAFETY: a node of the items above, which no other thread uses any more.
            next = unsafe { node.as_ref() }.next.load(Relaxed);
        }
    }
    assert_eq!(left, items.len());
    assert_eq!(items.iter().map(|item| item.turns.load(Relaxed)).sum::<u64>(), turns.load(Relaxed));
    assert!(turns.load(Relaxed) > 0);
}

/// Number of records of a buffer.
const PLACES: usize = 8;

/// A stack of records on each CPU. `state` is the number of records in the low half, and above it the number of pushes,
/// so that a pop does not take a record that has changed since it was read.
#[repr(C)]
struct Buffer<const WORDS: usize> {
    state: AtomicU64,
    records: [[AtomicU64; WORDS]; PLACES],
}

fn len(state: u64) -> usize {
    state as u32 as usize
}

/// Pushes records on buffers and pops them again. What was pushed and not popped has to be there at the end.
fn use_buffers<const WORDS: usize>(
    rounds: u64,
    rseq: Rseq,
    buffers: &[&'static Buffer<WORDS>],
    push: impl Fn(u32, &Buffer<WORDS>, u64, &[u64; WORDS]) -> Commit + Sync,
) {
    let (pushed, popped) = ([const { AtomicU64::new(0) }; 2], [const { AtomicU64::new(0) }; 2]);
    let check = |record: &[u64; WORDS]| {
        assert!((1..WORDS).all(|word| record[word] == record[0].wrapping_mul(KEY ^ word as u64)), "a torn record");
    };
    disturbed(Fences::OfEachCpu, |worker| {
        for round in 0..rounds {
            let first = worker << 32 | round;
            let record =
                std::array::from_fn(|word| if word == 0 { first } else { first.wrapping_mul(KEY ^ word as u64) });
            let cpu = rseq.cpu_id_start();
            let state = buffers[cpu as usize].state.load(Relaxed);
            if len(state) < PLACES && push(cpu, buffers[cpu as usize], state, &record) == Commit::Done {
                pushed[0].fetch_add(1, Relaxed);
                pushed[1].fetch_add(first, Relaxed);
            }
            if round % 3 == 0 {
                continue;
            }
            let cpu = rseq.cpu_id_start();
            let buffer = buffers[cpu as usize];
            let state = buffer.state.load(Acquire); // (A) pairs with the pushes' final stores
            let Some(last) = len(state).checked_sub(1) else { continue };
            let record = buffer.records[last].each_ref().map(|word| word.load(Relaxed));
            // SAFETY: this CPU's word, which only these sections write.
            if unsafe { rseq.compare_and_store(cpu, buffer.state.as_ptr(), state, state - 1) } == Commit::Done {
                check(&record);
                popped[0].fetch_add(1, Relaxed);
                popped[1].fetch_add(record[0], Relaxed);
            }
        }
    });
    let mut left = [0; 2];
    for buffer in buffers {
        let state = buffer.state.load(Acquire); // (A), as above
        for record in &buffer.records[..len(state)] {
            let record = record.each_ref().map(|word| word.load(Relaxed));
            check(&record);
            left = [left[0] + 1, left[1] + record[0]];
        }
    }
    let [pushed, popped] = [pushed, popped].map(|sums| sums.map(AtomicU64::into_inner));
    assert_eq!(pushed, [popped[0] + left[0], popped[1] + left[1]]);
    assert!(popped[0] > 0 && pushed[0] > 0);
}

/// The state of a buffer after a push.
fn pushed(state: u64) -> u64 {
    state + 1 + (1 << 32)
}

/// Single words, each stored in its place before the final store of the state.
#[test]
fn buffers_of_words() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take(DELAYS_OF_SECTIONS);
    let buffers = of_each_cpu::<Buffer<1>>();
    use_buffers(1_000, rseq, &buffers, |cpu, buffer, state, record| {
        let word = buffer.state.as_ptr();
        let last = Store { target: word.cast(), value: pushed(state), width: 8 };
        let mut txn = Txn::new(word, state, last);
        txn.store(buffer.records[len(state)][0].as_ptr().cast(), record[0], 8);
        // SAFETY: guard and targets are words of this CPU's buffer, which only these sections write.
        unsafe { rseq.commit(cpu, &txn) }
    });
}

/// Records of several words, copied inside the section.
#[test]
fn buffers_by_memcpy() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take(DELAYS_OF_SECTIONS);
    let buffers = of_each_cpu::<Buffer<5>>();
    use_buffers(1_000, rseq, &buffers, |cpu, buffer, state, record| {
        let word = buffer.state.as_ptr();
        let to = buffer.records[len(state)].as_ptr().cast_mut().cast();
        // SAFETY: guard, destination and last word are in this CPU's buffer, which only these sections write; the
        // record is this thread's.
        unsafe { rseq.copy_and_store(cpu, word, state, to, record.as_ptr().cast(), 40, word, pushed(state)) }
    });
}

/// Two sets of counters. A manager tells workers by a pointer which one to use, and knows after a fence that no section
/// changes the other one.
#[test]
fn fences() {
    #[repr(C)]
    struct Counters {
        /// Which of the two is in use.
        active: AtomicU64,
        counts: [AtomicU64; 2],
    }
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take(DELAYS_OF_SECTIONS);
    let counters = of_each_cpu::<Counters>();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            for turn in 1..400_u64 {
                for counter in &counters {
                    counter.active.store(turn % 2, Relaxed);
                }
                assert_eq!(fence(None), Ok(()));
                let read = || counters.iter().map(|one| one.counts[1 - turn as usize % 2].load(Relaxed)).sum::<u64>();
                let before = read();
                std::thread::sleep(Duration::from_micros(100));
                assert_eq!(read(), before, "turn {turn}: a section has used what was replaced");
            }
            stop.store(true, Relaxed);
        });
        disturbed(Fences::None, |_| {
            while !stop.load(Relaxed) {
                let cpu = rseq.cpu_id_start();
                let counter = counters[cpu as usize];
                let active = counter.active.load(Relaxed);
                let word = &counter.counts[active as usize];
                let next = word.load(Relaxed) + 1;
                let last = Store { target: word.as_ptr().cast(), value: next, width: 8 };
                let txn = Txn::new(counter.active.as_ptr(), active, last);
                // SAFETY: guard and target are this CPU's words. Only sections write the count; one that another
                // section has changed since it was read loses that addition, which this test does not count.
                done.fetch_add(u64::from(unsafe { rseq.commit(cpu, &txn) } == Commit::Done), Relaxed);
            }
        });
    });
    assert!(done.load(Relaxed) > 0);
}
