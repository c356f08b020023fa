//! Every operation, with delays at every injection point, under migrations and signals, and with killed processes.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::{List, ListSlot, Node, PopOutcome};

/// The words of one CPU that all workers and handlers change: the CPU's stride.
#[repr(C)]
struct Words {
    list: ListSlot,
    added: AtomicU64,
    compared: AtomicU64,
    stored: AtomicU64,
    copies: AtomicU64,
    copied: [Copied; COPIES_MAX as usize],
}

const COPIES_MAX: u64 = 1 << 12;

/// A record of up to 29 bytes: its length, and then one repeated byte.
#[repr(C)]
struct Copied {
    bytes: [AtomicU64; 4],
}

const _: () = assert!(size_of::<Words>() <= 1 << STRIDE_SHIFT);

/// A node and a flag that is set while a thread holds it. A set flag on a node that is popped is an error.
#[repr(C)]
struct Item {
    node: Node,
    is_out: AtomicU32,
}

const ITEMS: usize = 64;

/// Counts of the operations that threads and handlers have done.
#[derive(Default)]
struct Done {
    added: AtomicU64,
    compared: AtomicU64,
    copied: AtomicU64,
    doubles: AtomicU64,
    torn: AtomicU64,
}

struct Fire {
    rseq: Option<Rseq>,
    shared: Shared,
    words: PerCpu<Words>,
    list: List,
    done: Done,
}

impl Fire {
    /// Makes the state with all items on lists.
    fn new(rseq: Option<Rseq>, items: &'static [Item]) -> Fire {
        let shared = Shared::new();
        // SAFETY: zeroes are valid words, and nothing else is stored there.
        let words = unsafe { PerCpu::<Words>::new(0) };
        // SAFETY: the bytes with which `words` begins.
        let slot = unsafe { PerCpu::<ListSlot>::new(0) };
        let list = List::new(shared.area, slot).unwrap();
        for item in items {
            // SAFETY: the node is on no list, and never unmapped.
            unsafe { list.push(rseq, NonNull::from(&item.node)) };
        }
        Fire { rseq, shared, words, list, done: Done::default() }
    }

    fn on(&self, cpu: u32) -> &Words {
        self.shared.area.get(self.words, cpu).unwrap()
    }

    fn each(&self) -> impl Iterator<Item = &Words> {
        (0..self.shared.area.count()).map(|cpu| self.on(cpu))
    }

    fn sum(&self, word: impl Fn(&Words) -> &AtomicU64) -> u64 {
        self.each().map(|words| word(words).load(Acquire)).sum()
    }

    /// Attempts each operation once by rseq, whether or not it succeeds. Async-signal-safe. `unique` is used by no
    /// other step, and is not 0.
    fn step(&self, rseq: Rseq, unique: u64) {
        let cpu = rseq.cpu_id_start();
        let words = self.on(cpu);
        // SAFETY: this CPU's word, in memory that is never unmapped; only these sections write it.
        if unsafe { rseq.add(cpu, words.added.as_ptr(), 1) } {
            self.done.added.fetch_add(1, Relaxed);
        }
        self.add_here(rseq);
        // SAFETY: this CPU's word, in memory that is never unmapped; only these sections write it.
        if let Some(before) = unsafe { rseq.load(cpu, words.compared.as_ptr()) } {
            // SAFETY: this CPU's word, in memory that is never unmapped; only these sections write it.
            if unsafe { rseq.compare_and_store(cpu, words.compared.as_ptr(), before, before + 1) } == Commit::Done {
                self.done.compared.fetch_add(1, Relaxed);
            }
        }
        // SAFETY: this CPU's word, in memory that is never unmapped; only these sections write it.
        let is_stored = unsafe { rseq.store(cpu, words.stored.as_ptr(), unique) };
        if !is_stored && words.stored.load(Relaxed) == unique {
            self.done.torn.fetch_add(1, Relaxed);
        }
        self.copy(rseq, cpu, unique);
        self.pop_and_push(rseq);
    }

    /// Adds to the current CPU's `added`, which the section finds by itself.
    fn add_here(&self, rseq: Rseq) {
        let (first, count) = (self.on(0).added.as_ptr(), self.shared.area.count());
        // SAFETY: each CPU's word, in memory that is never unmapped; only sections on that CPU write it.
        if unsafe { rseq.add_by_stride(first, STRIDE_SHIFT, count, 1) } {
            self.done.added.fetch_add(1, Relaxed);
        }
    }

    /// Appends a record of `unique % 29 + 1` bytes; a full ring is overwritten from its start.
    fn copy(&self, rseq: Rseq, cpu: u32, unique: u64) {
        let words = self.on(cpu);
        let count = words.copies.load(Relaxed);
        let to: *mut u8 = words.copied[(count % COPIES_MAX) as usize].bytes[0].as_ptr().cast();
        let len = (unique % 29 + 1) as usize;
        let mut whole = [unique as u8; 29];
        whole[0] = len as u8;
        // SAFETY: guard, record and final word are this CPU's, and 29 bytes are less than a record's 32.
        let outcome = unsafe {
            let copies = words.copies.as_ptr();
            rseq.copy_and_store(cpu, copies, count, to, whole.as_ptr(), len, copies, count + 1)
        };
        if outcome == Commit::Done {
            self.done.copied.fetch_add(1, Relaxed);
        }
    }

    /// Pops a node, overwrites it while no other thread may access it, and pushes it.
    fn pop_and_push(&self, rseq: Rseq) {
        let Some(node) = self.list.pop(Some(rseq)) else { return };
        self.hold(node);
        // SAFETY: the node was popped just now.
        unsafe { self.list.push(Some(rseq), node) };
    }

    fn hold(&self, node: NonNull<Node>) {
        // SAFETY: all nodes are in items, as their first field, and never unmapped.
        let item = unsafe { node.cast::<Item>().as_ref() };
        if item.is_out.swap(1, Relaxed) != 0 {
            self.done.doubles.fetch_add(1, Relaxed);
        }
        // Overwrites the link as if the node had been freed and reused: a thread that still followed it would crash.
        // SAFETY: the node belongs only to this thread; its link is one aligned word.
        unsafe { node.cast::<u64>().write_volatile(0xDEAD_BEEF) };
        item.is_out.store(0, Relaxed);
    }

    /// Asserts that no operation was lost or done twice.
    fn assert_whole(&self, items: usize) {
        let done = &self.done;
        assert_eq!(self.sum(|words| &words.added), done.added.load(Relaxed));
        assert_eq!(self.sum(|words| &words.compared), done.compared.load(Relaxed));
        assert_eq!(self.sum(|words| &words.copies), done.copied.load(Relaxed));
        assert_eq!(done.doubles.load(Relaxed), 0, "nodes that two had at once");
        assert_eq!(done.torn.load(Relaxed), 0, "stores of aborted sections");
        assert_eq!(self.drained().len(), items);
        for words in self.each() {
            let count = words.copies.load(Acquire); // (A) pairs with the sections' final stores
            // An aborted section may have left bytes at the place of the next record.
            for k in count.saturating_sub(COPIES_MAX - 1)..count {
                let record = words.copied[(k % COPIES_MAX) as usize].bytes.each_ref();
                let bytes: Vec<u8> = record.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
                let fields = &bytes[1..bytes[0].into()];
                assert!(fields.iter().all(|byte| *byte == fields[0]), "record {k}: {bytes:?}");
            }
        }
    }

    /// Takes all nodes, and asserts that each is there once.
    fn drained(&self) -> Vec<usize> {
        let mut nodes = Vec::new();
        // SAFETY: all users have been joined.
        unsafe { self.list.drain(|node| nodes.push(node.addr().get())) };
        let count = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), count, "a node was on lists twice");
        nodes
    }
}

fn items() -> &'static [Item] {
    (0..ITEMS).map(|_| Item { node: Node::new(), is_out: AtomicU32::new(0) }).collect::<Vec<_>>().leak()
}

static BURNING: std::sync::OnceLock<Fire> = std::sync::OnceLock::new();
/// Next number that no step has used.
static UNIQUE: AtomicU64 = AtomicU64::new(1);

fn unique() -> u64 {
    UNIQUE.fetch_add(1, Relaxed)
}

extern "C" fn burn(_signal: libc::c_int) {
    if let Some(fire) = BURNING.get()
        && let Some(rseq) = fire.rseq
    {
        fire.step(rseq, unique());
    }
}

/// Interrupts the calling thread every `every_ns` until it is dropped.
struct Interruptions(libc::timer_t);

impl Interruptions {
    fn new(handler: extern "C" fn(libc::c_int), every_ns: i64) -> Interruptions {
        // SAFETY: all zeroes is a valid `sigaction` and a valid `sigevent`, both plain data.
        let (mut action, mut event): (libc::sigaction, libc::sigevent) = unsafe { std::mem::zeroed() };
        let signal = libc::SIGRTMIN() + 1;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: the handlers passed here call only async-signal-safe functions.
        assert_eq!(unsafe { libc::sigaction(signal, &action, null_mut()) }, 0);
        let mut timer: libc::timer_t = null_mut();
        // SAFETY: valid pointers to an event and to a place for the timer (timer_create(2)).
        assert_eq!(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) }, 0);
        let every = libc::timespec { tv_sec: 0, tv_nsec: every_ns as libc::c_long };
        let spec = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer was just made.
        assert_eq!(unsafe { libc::timer_settime(timer, 0, &spec, null_mut()) }, 0);
        Interruptions(timer)
    }
}

impl Drop for Interruptions {
    fn drop(&mut self) {
        // SAFETY: created in `new` and not used any more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Runs every operation, with a delay at each point in turn that is long enough for hundreds of aborts, by four threads
/// that are moved between CPUs and interrupted by handlers that use the same words: at least 10,000 aborts in total.
#[test]
fn operations_are_exact_with_a_delay_at_every_point() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0; 6]);
    let items = items();
    let fire = BURNING.get_or_init(|| Fire::new(Some(rseq), items));
    let (threads, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (first, begin) = (aborted(), Instant::now());
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    rseq.register_thread();
                    let _interruptions = Interruptions::new(burn, 50_000);
                    threads.lock().unwrap().push(rustix::thread::gettid());
                    while !stop.load(Relaxed) {
                        fire.step(rseq, unique());
                        assert_eq!(rseq.descriptor(), 0);
                    }
                })
            })
            .collect();
        for point in 1..=5 {
            let mut delays = [0; 6];
            delays[point] = 5_000;
            set_delays(delays);
            let before = aborted();
            while aborted() - before < 2_100 {
                assert!(workers.iter().all(|worker| !worker.is_finished()), "a worker has failed");
                assert!(begin.elapsed() < PATIENCE, "only {} aborts at point {point}", aborted() - before);
                std::thread::yield_now();
            }
        }
        stop.store(true, Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let done = &fire.done;
    for (name, count) in [("add", &done.added), ("compare", &done.compared), ("copy", &done.copied)] {
        assert!(count.load(Relaxed) > 0, "{name}");
    }
    fire.assert_whole(ITEMS);
    assert!(aborted() - first >= 10_000);
}

/// One list is used by threads with rseq and without, which must not mix on one word.
#[test]
fn lists_are_whole_by_both_ladders_at_once() {
    let _lock = TestLock::take([0, 100, 100, 500, 100, 500]);
    let rseq = rseq_too();
    let fire = Fire::new(rseq, items());
    let (threads, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (popped, begin) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let workers: Vec<_> = (0..6)
            .map(|index| {
                let (threads, fire, popped) = (&threads, &fire, &popped);
                scope.spawn(move || {
                    threads.lock().unwrap().push(rustix::thread::gettid());
                    // On a CPU whose list is empty there is nothing to pop until the thread is moved.
                    for turn in 0_u64.. {
                        if popped.load(Relaxed) >= 100_000 {
                            break;
                        }
                        assert!(turn % 1024 != 0 || begin.elapsed() < PATIENCE, "only {popped:?} nodes were popped");
                        let Some(node) = fire.list.pop(rseq.filter(|_| index % 2 == 0)) else { continue };
                        popped.fetch_add(1, Relaxed);
                        fire.hold(node);
                        // Every other push uses the other way, so that nodes move between the two lists. SAFETY: the
                        // node was popped just now.
                        unsafe { fire.list.push(rseq.filter(|_| turn % 2 == 0), node) };
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    fire.assert_whole(ITEMS);
}

/// Uses the fallback alone, also where there is no rseq.
#[test]
fn lists_without_rseq_are_first_in_last_out() {
    let _lock = TestLock::take([0; 6]);
    run_on(None, cpus()[0]);
    let fire = Fire::new(None, &[]);
    let items = items();
    for item in items {
        // SAFETY: the node is on no list, and never unmapped.
        unsafe { fire.list.push(None, NonNull::from(&item.node)) };
    }
    let (mut popped, mut expected) = (Vec::new(), items.iter().rev().map(|item| NonNull::from(&item.node)));
    while let Some(node) = fire.list.pop(None) {
        assert_eq!(Some(node), expected.next());
        popped.push(node);
    }
    assert_eq!(popped.len(), ITEMS);
    assert_eq!(fire.drained(), Vec::<usize>::new());
}

#[test]
fn each_operation_returns_the_documented_outcome() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0; 6]);
    assert_ends(rseq);
}

/// Tries each operation on words that only this thread knows.
pub(super) fn assert_ends(rseq: Rseq) {
    let elsewhere = u32::MAX >> 1;
    let (word, last) = (AtomicU64::new(7), AtomicU64::new(1));
    let target = word.as_ptr();
    // Repeats an attempt until it is not aborted, which happens because the thread can run on the CPU.
    fn again<T: PartialEq>(aborted: T, mut attempt: impl FnMut() -> T) -> T {
        loop {
            let outcome = attempt();
            if outcome != aborted {
                return outcome;
            }
        }
    }
    let here = || rseq.cpu_id_start();

    // SAFETY: a word of this function, aligned, which no other thread knows.
    assert_eq!(again(None, || unsafe { rseq.load(here(), target) }), Some(7));
    // SAFETY: a word of this function, aligned, which no other thread knows.
    assert_eq!(unsafe { rseq.load(elsewhere, target) }, None);
    // SAFETY: a word of this function, aligned, which no other thread knows.
    assert!(!unsafe { rseq.store(elsewhere, target, 8) });
    assert_eq!(word.load(Relaxed), 7);
    // SAFETY: a word of this function, aligned, which no other thread knows.
    assert!(again(false, || unsafe { rseq.store(here(), target, u64::MAX) }));
    // SAFETY: a word of this function, aligned, which no other thread knows.
    assert!(again(false, || unsafe { rseq.add(here(), target, 3) }));
    assert_eq!(word.load(Relaxed), 2, "additions wrap");
    // SAFETY: a word of this function, aligned, which no other thread knows.
    let compare = |cpu: u32, expected| unsafe { rseq.compare_and_store(cpu, target, expected, 9) };
    assert_eq!(compare(elsewhere, 2), Commit::Aborted);
    assert_eq!(again(Commit::Aborted, || compare(here(), 3)), Commit::GuardChanged);
    assert_eq!(word.load(Relaxed), 2);
    assert_eq!(again(Commit::Aborted, || compare(here(), 2)), Commit::Done);
    assert_eq!(word.load(Relaxed), 9);

    for len in 0..40 {
        let (from, mut to): (Vec<u8>, _) = ((1..=40).collect(), [0_u8; 41]);
        let room = to.as_mut_ptr();
        let copy = |cpu: u32, expected, value| {
            // SAFETY: words of this function, which no other thread knows; both buffers are longer than `len`.
            unsafe { rseq.copy_and_store(cpu, target, expected, room, from.as_ptr(), len, last.as_ptr(), value) }
        };
        assert_eq!(copy(elsewhere, 9, 1), Commit::Aborted);
        assert_eq!(again(Commit::Aborted, || copy(here(), 8, 1)), Commit::GuardChanged);
        assert_eq!((to, last.load(Relaxed)), ([0; 41], if len == 0 { 1 } else { len as u64 + 9 }));
        let room = to.as_mut_ptr();
        let copy = || {
            // SAFETY: words of this function, which no other thread knows; both buffers are longer than `len`.
            unsafe { rseq.copy_and_store(here(), target, 9, room, from.as_ptr(), len, last.as_ptr(), len as u64 + 10) }
        };
        assert_eq!(again(Commit::Aborted, copy), Commit::Done);
        assert_eq!((&to[..len], last.load(Relaxed)), (&from[..len], len as u64 + 10));
        assert!(to[len..].iter().all(|&byte| byte == 0), "not a byte more than {len}");
    }

    let nodes = [const { Node::new() }; 3];
    let head = Cell::new(null_mut::<Node>());
    // SAFETY: node and head belong to this function, and no other thread knows them.
    assert!(!unsafe { rseq.push(elsewhere, head.as_ptr(), NonNull::from(&nodes[0])) });
    assert_eq!(head.get(), null_mut());
    for node in &nodes {
        // SAFETY: node and head belong to this function, and no other thread knows them.
        assert!(again(false, || unsafe { rseq.push(here(), head.as_ptr(), NonNull::from(node)) }));
    }
    // SAFETY: node and head belong to this function, and no other thread knows them.
    assert_eq!(unsafe { rseq.pop(elsewhere, head.as_ptr()) }, PopOutcome::Aborted);
    for node in nodes.iter().rev() {
        // SAFETY: node and head belong to this function, and no other thread knows them.
        let popped = again(PopOutcome::Aborted, || unsafe { rseq.pop(here(), head.as_ptr()) });
        assert_eq!(popped, PopOutcome::Node(NonNull::from(node)));
    }
    // SAFETY: node and head belong to this function, and no other thread knows them.
    assert_eq!(again(PopOutcome::Aborted, || unsafe { rseq.pop(here(), head.as_ptr()) }), PopOutcome::Empty);
    assert_eq!(rseq.descriptor(), 0);
}

#[test]
fn a_killed_process_leaves_whole_lists() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 0, 20_000, 20_000, 20_000, 20_000]);
    let shared = Shared::new();
    // SAFETY: zeroes are empty slots, and nothing else is stored there.
    let slot = unsafe { PerCpu::<ListSlot>::new(0) };
    // SAFETY: zeroes are valid items; they are after the slot, and nothing else is stored there.
    let place = unsafe { PerCpu::<[Item; ITEMS]>::new(64) };
    // SAFETY: zeroes are a valid word; it is after the items, and nothing else is stored there.
    let popped = unsafe { PerCpu::<AtomicU64>::new(64 + size_of::<[Item; ITEMS]>()) };
    let list = List::new(shared.area, slot).unwrap();
    let (items, popped) = (shared.area.get(place, 0).unwrap(), shared.area.get(popped, 0).unwrap());
    let (cpus, rounds) = (cpus(), 16);
    for round in 0..rounds {
        // The nodes are pushed on the CPU where the first child runs.
        run_on(None, cpus[round as usize % cpus.len()]);
        for item in items {
            // SAFETY: the node is on no list; the memory is never unmapped, and forked children have it at the same
            // address.
            unsafe { list.push(Some(rseq), NonNull::from(&item.node)) };
        }
        let children: Vec<Pid> = (0..3)
            .map(|index| {
                let cpu = cpus[(round as usize + index) % cpus.len()];
                fork(|| {
                    // The children must not outlive a test that has failed.
                    _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                    run_on(None, cpu);
                    loop {
                        let Some(node) = list.pop(Some(rseq)) else { continue };
                        popped.fetch_add(1, Relaxed);
                        // SAFETY: the node was popped just now.
                        unsafe { list.push(Some(rseq), node) };
                    }
                })
            })
            .collect();
        wait_for("pops", popped, popped.load(Relaxed) + 20 + 3 * round);
        // The first child is killed at a random point; the others continue.
        for child in children {
            rustix::process::kill_process(child, Signal::KILL).unwrap();
            let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
        }
        let mut nodes = Vec::new();
        // SAFETY: all other users have been killed and waited for.
        unsafe { list.drain(|node| nodes.push(node)) };
        let count = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), count, "a node was on lists twice");
        assert!(nodes.iter().all(|node| items.iter().any(|item| NonNull::from(&item.node) == *node)));
        // Each killed child held one node at most.
        assert!(count + 3 >= ITEMS, "{count} nodes in round {round}");
    }
}

#[test]
fn each_thread_has_one_rseq_area_for_every_registrar() {
    let Some(rseq) = rseq() else { return };
    let is_of_libc = Rseq::of_libc().is_some();
    assert!(rseq.register_thread());
    assert_eq!(Rseq::detect().map(Rseq::offset), Some(rseq.offset()));
    let other = std::thread::spawn(move || {
        let is_registered = rseq.cpu_id().is_some();
        (is_registered, rseq.register_thread(), rseq.cpu_id().is_some())
    });
    assert_eq!(other.join().unwrap(), (is_of_libc, true, true));
}

/// Three processes add to shared words; each records the additions that it has begun and completed. One is killed.
#[test]
fn a_killed_process_leaves_exact_sums() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 100, 100, 10_000, 0, 10_000]);
    const ADDITIONS: u64 = 3_000;
    let shared = Shared::new();
    // SAFETY: zeroes are valid words, and nothing else overlaps them.
    let sum = unsafe { PerCpu::<AtomicU64>::new(0) };
    // SAFETY: zeroes are valid words; they are after the sum.
    let accounts = unsafe { PerCpu::<[[AtomicU64; 2]; 3]>::new(64) };
    let accounts = shared.area.get(accounts, 0).unwrap();
    let (cpus, mut lower, mut upper) = (cpus(), 0, 0);
    for round in 0..8_u64 {
        let children: Vec<Pid> = accounts
            .iter()
            .enumerate()
            .map(|(index, [begun, done])| {
                begun.store(0, Relaxed);
                done.store(0, Relaxed);
                let cpus = &cpus;
                fork(|| {
                    _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                    // The first one continues until it is killed.
                    for n in (0..).take_while(|&n| index == 0 || n < ADDITIONS) {
                        if n % 64 == 0 {
                            run_on(None, cpus[(n / 64) as usize % cpus.len()]);
                        }
                        begun.store(n + 1, Relaxed);
                        loop {
                            let cpu = rseq.cpu_id_start();
                            let Some(word) = shared.area.get(sum, cpu) else { return };
                            // SAFETY: `cpu`'s word, which only these sections of all three processes write.
                            if unsafe { rseq.add(cpu, word.as_ptr(), 1) } {
                                break;
                            }
                        }
                        done.store(n + 1, Relaxed);
                    }
                })
            })
            .collect();
        wait_for("additions", &accounts[0][0], 50 + 13 * round);
        for (index, child) in children.into_iter().enumerate() {
            if index == 0 {
                rustix::process::kill_process(child, Signal::KILL).unwrap();
            }
            let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(status.exit_status(), (index != 0).then_some(0));
        }
        lower += accounts.iter().map(|[_, done]| done.load(Relaxed)).sum::<u64>();
        upper += accounts.iter().map(|[begun, _]| begun.load(Relaxed)).sum::<u64>();
        let words = (0..shared.area.count()).map(|cpu| shared.area.get(sum, cpu).unwrap().load(Relaxed));
        let sum = words.sum::<u64>();
        assert!(lower <= sum && sum <= upper, "{lower} <= {sum} <= {upper}");
        assert!(upper - lower <= round + 1, "at most one addition of each killed process is in doubt");
    }
}
