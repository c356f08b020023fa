//! Variables of each CPU and of each concurrency id: compared with numbers, and counted while delays make sections
//! long, threads are moved and signals arrive.

use std::os::unix::thread::JoinHandleExt;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::{Variable, Word, WordError, per_concurrency_id, per_cpu, possible_cpus};

per_cpu! {
    static WIDE: u64 = 7;
    static NARROW: i32 = -3;
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Add(u64),
    Sub(u64),
    AddReturn(u64),
    Exchange(u64),
    CompareExchange(u64, u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    // Few values, so that comparisons often succeed and often fail; some are above 31 and 32 bits.
    let value = || prop_oneof![0..3_u64, Just(u64::MAX), Just(1 << 31), Just(1 << 32)];
    prop_oneof![
        value().prop_map(Operation::Add),
        value().prop_map(Operation::Sub),
        value().prop_map(Operation::AddReturn),
        value().prop_map(Operation::Exchange),
        (value(), value()).prop_map(|(expected, value)| Operation::CompareExchange(expected, value)),
    ]
}

/// Applies operations to a variable, and to a number of the same type by that type's own operations.
macro_rules! compare {
    ($variable:ident: $type:ty, $operations:expr) => {
        let mut oracle = $variable.read().unwrap();
        for operation in $operations {
            let before = oracle;
            let (result, expected) = match *operation {
                Operation::Add(n) => {
                    oracle = before.wrapping_add(n as $type);
                    ($variable.add(n as $type).map(|()| before), before)
                }
                Operation::Sub(n) => {
                    oracle = before.wrapping_sub(n as $type);
                    ($variable.sub(n as $type).map(|()| before), before)
                }
                Operation::AddReturn(n) => {
                    oracle = before.wrapping_add(n as $type);
                    ($variable.add_return(n as $type), oracle)
                }
                Operation::Exchange(new) => {
                    oracle = new as $type;
                    ($variable.exchange(new as $type), before)
                }
                Operation::CompareExchange(expected, new) => {
                    oracle = if before == expected as $type { new as $type } else { before };
                    ($variable.compare_exchange(expected as $type, new as $type), before)
                }
            };
            prop_assert_eq!(result, Ok(expected));
            prop_assert_eq!($variable.read(), Ok(oracle));
        }
    };
}

/// Compares, for one thread on one CPU, the result of each operation and the copy after it.
#[test]
fn variables_match_numbers() {
    let _lock = TestLock::take([0; 6]);
    let cpu = *cpus().last().unwrap() as u32;
    run_on(None, cpu as usize);
    assert_eq!((WIDE.read(), NARROW.read()), (Ok(7), Ok(-3)));
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases: 200, ..Config::default() });
    let tried = runner.run(&prop::collection::vec(operation(), 1..40), |operations| {
        compare!(WIDE: u64, &operations);
        compare!(NARROW: i32, &operations);
        Ok(())
    });
    tried.unwrap();
    for other in (0..possible_cpus()).filter(|other| *other != cpu) {
        assert_eq!((WIDE.read_on(other), NARROW.read_on(other)), (Some(7), Some(-3)), "CPU {other}");
    }
}

#[test]
fn copies_begin_with_the_initial_value_and_do_not_overlap() {
    per_cpu! {
        static UNUSED: u32 = 5;
        static FIRST: i32 = -2;
        static SECOND: u64 = u64::MAX;
    }
    let count = possible_cpus();
    assert_eq!((UNUSED.sum(), UNUSED.read_on(count - 1), UNUSED.read_on(count)), (5 * count, Some(5), None));
    assert_eq!((FIRST.ptr(count), FIRST.read_on(count), FIRST.sum()), (None, None, -2 * count.cast_signed()));
    let mut places = Vec::new();
    for cpu in 0..count {
        let [first, second] = [FIRST.ptr(cpu).unwrap().addr(), SECOND.ptr(cpu).unwrap().addr()];
        places.extend([first..first + 4, second..second + 8]);
        assert!(first.is_multiple_of(8) && second.is_multiple_of(8));
        assert_eq!((FIRST.read_on(cpu), SECOND.read_on(cpu)), (Some(-2), Some(u64::MAX)));
    }
    places.sort_by_key(|place| place.start);
    assert!(places.is_sorted_by(|one, next| one.end <= next.start), "{places:?}");
    let here = FIRST.this_ptr().unwrap();
    assert!((0..count).any(|cpu| FIRST.ptr(cpu) == Some(here)));
}

/// More variables than fit into one block, whose copies are made by several threads at once.
#[test]
fn blocks_follow_one_another() {
    const COUNT: usize = 10_000;
    let variables: &'static [Variable<u32>] = (0..COUNT as u32).map(Variable::new).collect::<Vec<_>>().leak();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| variables.iter().for_each(|variable| variable.add(1).unwrap()));
        }
    });
    let count = possible_cpus();
    let mut places: Vec<_> = variables.iter().map(|variable| variable.ptr(0).unwrap()).collect();
    for (index, variable) in variables.iter().enumerate() {
        assert_eq!(variable.sum(), count * index as u32 + 3, "variable {index}");
    }
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), COUNT);
}

/// Counts in every way, in threads that are moved all the time.
#[track_caller]
fn count_while_affinity_changes<const BY_ID: bool>(
    wide: &'static Variable<u64, BY_ID>,
    narrow: &'static Variable<u32, BY_ID>,
    compared: &'static Variable<u64, BY_ID>,
) {
    const ROUNDS: u64 = 1_000;
    let (threads, stop, exchanged) = (Mutex::new(Vec::new()), AtomicBool::new(false), AtomicU64::new(0));
    let before = (wide.sum(), narrow.sum(), compared.sum());
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let work = || {
            threads.lock().unwrap().push(rustix::thread::gettid());
            for _ in 0..ROUNDS {
                wide.add(3).unwrap();
                wide.sub(1).unwrap();
                narrow.add(1).unwrap();
                narrow.add_return(u32::MAX).unwrap();
                narrow.sub(2).unwrap();
                let seen = compared.read().unwrap();
                let old = compared.compare_exchange(seen, seen + 1).unwrap();
                exchanged.fetch_add(u64::from(old == seen), Relaxed);
            }
        };
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let after = (wide.sum(), narrow.sum(), compared.sum());
    assert_eq!(after.0 - before.0, 4 * 2 * ROUNDS);
    assert_eq!(after.1.wrapping_sub(before.1), 0_u32.wrapping_sub(4 * 2 * ROUNDS as u32));
    assert_eq!(after.2 - before.2, exchanged.load(Relaxed));
    assert!(exchanged.load(Relaxed) > 0);
}

#[test]
fn variables_are_exact_while_affinity_changes() {
    per_cpu! {
        static WIDE: u64 = 1;
        static NARROW: u32 = 10;
        static COMPARED: u64 = 0;
    }
    let _lock = TestLock::take([0, 200, 200, 2_000, 200, 2_000]);
    let before = aborted();
    count_while_affinity_changes(&WIDE, &NARROW, &COMPARED);
    assert!(Rseq::detect().is_none() || aborted() > before, "no section was ever aborted");
}

#[test]
fn variables_by_concurrency_id_are_exact_while_affinity_changes() {
    per_concurrency_id! {
        static WIDE: u64 = 1;
        static NARROW: u32 = 10;
        static COMPARED: u64 = 0;
    }
    let _lock = TestLock::take([0, 200, 200, 2_000, 200, 2_000]);
    let before = aborted();
    count_while_affinity_changes(&WIDE, &NARROW, &COMPARED);
    assert!(Rseq::detect().is_none() || aborted() > before, "no section was ever aborted");
}

/// Copies of concurrency ids are those of the smallest ids, though the only thread runs on the last CPU.
#[test]
fn a_thread_alone_uses_the_first_concurrency_id() {
    if !alone::is_child() {
        return alone::run_alone("tests::variables::a_thread_alone_uses_the_first_concurrency_id");
    }
    per_concurrency_id! {
        static COUNT: u64 = 0;
    }
    let Some(last) = cpus().pop().filter(|last| *last > 0) else {
        return skip(Lack::machine("this process may use one CPU only", "a machine with more CPUs"));
    };
    if rseq().and_then(Rseq::concurrency_id_offset).is_none() {
        return skip(Lack::machine("the kernel gives no concurrency ids", "Linux 6.3 or later"));
    }
    run_on(None, last);
    for _ in 0..1_000 {
        COUNT.add(1).unwrap();
    }
    // The harness has two threads, of which one waits.
    assert_eq!([0, 1].map(|id| COUNT.read_on(id).unwrap_or(0)).iter().sum::<u64>(), 1_000);
    assert!((0..possible_cpus()).skip(2).all(|id| COUNT.read_on(id) == Some(0)));
}

per_cpu! {
    static INTERRUPTED: u64 = 0;
    static INTERRUPTED_NARROW: u32 = 0;
}
per_concurrency_id! {
    static INTERRUPTED_BY_ID: u64 = 0;
}
static HANDLER_RUNS: AtomicU64 = AtomicU64::new(0);

/// Adds one to each variable, and another one to the narrow one.
fn add_to_interrupted() {
    INTERRUPTED.add(1).unwrap();
    INTERRUPTED_NARROW.add(1).unwrap();
    INTERRUPTED_NARROW.add_return(1).unwrap();
    INTERRUPTED_BY_ID.add(1).unwrap();
}

extern "C" fn add_in_handler(_signal: libc::c_int) {
    add_to_interrupted();
    HANDLER_RUNS.fetch_add(1, Relaxed);
}

/// Other threads send signals as fast as they can to threads whose sections are long; handlers use the same variables.
#[test]
fn variables_are_exact_in_handlers_that_interrupt_their_sections() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let _lock = TestLock::take([0, 200, 500, 2_000, 200, 2_000]);
    // The first use is outside handlers.
    add_to_interrupted();
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = add_in_handler as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler calls only async-signal-safe functions: atomics and operations of variables in use.
    assert_eq!(unsafe { libc::sigaction(libc::SIGRTMIN() + 1, &action, null_mut()) }, 0);
    let (before, begin) = (aborted(), Instant::now());
    let is_enough = || match Rseq::detect() {
        Some(_) => aborted() - before >= 500,
        None => HANDLER_RUNS.load(Relaxed) >= 500,
    };
    let work = || {
        let mut rounds = 0;
        while !STOP.load(Relaxed) {
            add_to_interrupted();
            rounds += 1;
        }
        rounds
    };
    let workers: Vec<_> = (0..2).map(|_| std::thread::spawn(work)).collect();
    while !is_enough() {
        assert!(begin.elapsed() < PATIENCE, "only {} aborts", aborted() - before);
        for worker in &workers {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(worker.as_pthread_t(), libc::SIGRTMIN() + 1) };
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    STOP.store(true, Relaxed);
    let rounds: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    let total = 1 + rounds + HANDLER_RUNS.load(Relaxed);
    assert_eq!(INTERRUPTED.sum(), total);
    assert_eq!(u64::from(INTERRUPTED_NARROW.sum()), 2 * total);
    assert_eq!(INTERRUPTED_BY_ID.sum(), total);
}

/// An addition in a destructor that runs after the one that ends the thread's registration.
#[test]
fn a_thread_without_rseq_gets_an_error() {
    per_cpu! {
        static COUNT: u64 = 0;
    }
    static LATE: Mutex<Option<Result<(), WordError>>> = Mutex::new(None);
    extern "C" fn add_late(_: *mut libc::c_void) {
        *LATE.lock().unwrap() = Some(COUNT.add(1));
    }
    if !alone::is_child() {
        return alone::run_without_libc("tests::variables::a_thread_without_rseq_gets_an_error");
    }
    if rseq().is_none() {
        return;
    }
    COUNT.add(1).unwrap();
    let mut key = 0;
    // SAFETY: a place for the key, and a function that stays loaded.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(add_late)) }, 0);
    let thread = std::thread::spawn(move || {
        // SAFETY: a valid key; the value is never dereferenced.
        unsafe { libc::pthread_setspecific(key, std::ptr::dangling::<u8>().cast()) };
        // This registers the thread.
        COUNT.add(1).unwrap();
    });
    thread.join().unwrap();
    assert_eq!((LATE.lock().unwrap().take(), COUNT.sum()), (Some(Err(WordError::Unregistered)), 2));
}

/// The widths are those of the types.
#[test]
fn words_have_the_widths_of_their_types() {
    fn max<T: Word>() -> u64 {
        let variable: &'static Variable<T> = Box::leak(Box::new(Variable::new(T::from_bits(u64::MAX))));
        variable.read_on(0).unwrap().to_bits()
    }
    assert_eq!([max::<u32>(), max::<u64>(), max::<usize>()], [u64::from(u32::MAX), u64::MAX, usize::MAX as u64]);
    assert_eq!([max::<i32>(), max::<i64>(), max::<isize>()], [u64::MAX; 3]);
}
