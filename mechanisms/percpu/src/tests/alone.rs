//! Tests in a process of their own: this program again, without libc's registration, and under valgrind.

use std::ffi::OsString;
use std::process::{Command, Output};
use std::ptr::NonNull;

use super::*;
use crate::{List, ListSlot, Node};

/// Variable that names the command which runs programs of this architecture, if the machine has another one.
const ENV_RUNNER: &str = "DORMOUSE_TEST_RUNNER";
const ENV_ALONE: &str = "DORMOUSE_TEST_ALONE";
const VALGRIND: &str = "valgrind";

pub(super) fn is_child() -> bool {
    std::env::var_os(ENV_ALONE).is_some()
}

/// Runs the tests of these names in a process of their own, under `runner`; `prepare` may change the command.
fn run(runner: &[&str], names: &[&str], prepare: impl FnOnce(&mut Command)) -> Output {
    let program = std::env::current_exe().unwrap().into_os_string();
    let outer = std::env::var(ENV_RUNNER).unwrap_or_default();
    let words = outer.split_whitespace().chain(runner.iter().copied()).map(OsString::from);
    let mut words = words.chain([program]);
    let mut command = Command::new(words.next().expect("at least the program"));
    command.args(words).args(["--test-threads=1", "--nocapture", "--exact"]).args(names).env(ENV_ALONE, "1");
    // This process has already reported what is missing.
    command.env_remove(dormouse_testing::ENV_SKIPS);
    prepare(&mut command);
    command.output().unwrap()
}

#[track_caller]
fn assert_passed(output: &Output, count: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = format!("{count} passed");
    assert!(output.status.success() && text.contains(&passed), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a test in a process of its own.
#[track_caller]
pub(super) fn run_alone(name: &str) {
    assert_passed(&run(&[], &[name], |_| ()), 1);
}

/// Runs a test in a process of its own, without libc's registration, if there is rseq.
#[track_caller]
pub(super) fn run_without_libc(name: &str) {
    if rseq().is_some() {
        assert_passed(&run(&[], &[name], without_libc), 1);
    }
}

fn without_libc(command: &mut Command) {
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
}

/// Returns rseq by this crate's registration, in a process where libc has none; `None` if it is not available.
fn own() -> Option<Rseq> {
    assert!(Rseq::of_libc().is_none(), "the tunable has no effect");
    rseq()
}

#[test]
fn sections_are_correct_with_our_own_registration() {
    if is_child() || rseq().is_none() {
        return;
    }
    let names = [
        "tests::sums_are_exact_under_forced_migration",
        "tests::operations::operations_are_exact_with_a_delay_at_every_point",
        "tests::operations::lists_are_whole_by_both_ladders_at_once",
        "tests::operations::each_operation_returns_the_documented_outcome",
        "tests::operations::a_killed_process_leaves_whole_lists",
        "tests::operations::a_killed_process_leaves_exact_sums",
        "tests::operations::each_thread_has_one_rseq_area_for_every_registrar",
        "tests::words::words_are_exact_while_affinity_changes",
        "tests::variables::variables_are_exact_while_affinity_changes",
        "tests::variables::variables_by_concurrency_id_are_exact_while_affinity_changes",
        "tests::variables::variables_are_exact_in_handlers_that_interrupt_their_sections",
    ];
    // The child uses the CPUs as much as the other tests do, so it runs alone.
    let _lock = TestLock::take([0; 6]);
    assert_passed(&run(&[], &names, without_libc), names.len());
}

/// Findings of `thread_ends_late` in the last thread: whether there is rseq, and whether the thread is registered.
static LATE: Mutex<Option<(bool, bool)>> = Mutex::new(None);

/// A destructor that runs after the one that unregisters the thread: destructors run in the order of their keys'
/// creation.
extern "C" fn thread_ends_late(_: *mut libc::c_void) {
    let rseq = Rseq::detect();
    let is_registered = rseq.is_some_and(|rseq| rseq.cpu_id().is_some());
    *LATE.lock().unwrap() = Some((rseq.is_some(), is_registered));
}

#[test]
fn threads_register_and_unregister() {
    if !is_child() {
        if rseq().is_some() {
            assert_passed(&run(&[], &["tests::alone::threads_register_and_unregister"], without_libc), 1);
        }
        return;
    }
    let Some(rseq) = own() else { return };
    let shared = Shared::new();
    let counter = shared.counter();
    let mut key = 0;
    // SAFETY: a place for the key, and a function that stays loaded.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(thread_ends_late)) }, 0);
    for turn in 0..200 {
        let thread = std::thread::spawn(move || {
            // SAFETY: a valid key; the value is never dereferenced.
            unsafe { libc::pthread_setspecific(key, NonNull::<u8>::dangling().as_ptr().cast()) };
            assert_eq!(rseq.cpu_id(), None, "the memory of a thread that has ended is no registration");
            let word = AtomicU64::new(0);
            // SAFETY: an aligned word of this closure.
            assert!(!unsafe { rseq.add(rseq.cpu_id_start(), word.as_ptr(), 1) });
            if turn % 2 == 0 {
                if turn % 4 == 0 {
                    counter.add(Some(rseq), 1);
                    assert!(rseq.cpu_id().is_some(), "who takes the fallback is registered for the next time");
                }
                // SAFETY: the call has no arguments; the address is valid as long as the thread lives.
                let errno = unsafe { libc::__errno_location() };
                // SAFETY: the thread's own `errno`, valid as long as the thread lives.
                unsafe { errno.write(77) };
                assert!(rseq.register_thread() && rseq.register_thread());
                // SAFETY: the thread's own `errno`, valid as long as the thread lives.
                assert_eq!(unsafe { errno.read() }, 77);
                assert!(rseq.cpu_id().is_some());
                // SAFETY: a word of this test, aligned; the thread is registered, so some attempt succeeds.
                while !unsafe { rseq.add(rseq.cpu_id_start(), word.as_ptr(), 1) } {}
                assert_eq!(word.load(Relaxed), 1);
                counter.add(Some(rseq), 1);
            }
        });
        thread.join().unwrap();
        // In the destructor, `detect` registers a thread that was not registered, and refuses one that was
        // unregistered.
        let late = LATE.lock().unwrap().take();
        assert_eq!(late, Some(if turn % 2 == 0 { (false, false) } else { (true, true) }));
    }
    assert_eq!(counter.sum(), 150);
}

#[test]
fn a_forked_child_keeps_its_registration() {
    if !is_child() {
        if rseq().is_some() {
            assert_passed(&run(&[], &["tests::alone::a_forked_child_keeps_its_registration"], without_libc), 1);
        }
        return;
    }
    let Some(rseq) = own() else { return };
    let shared = Shared::new();
    // SAFETY: zeroes are a valid word; nothing else is in the area.
    let word = unsafe { PerCpu::<u64>::new(0) };
    let (cpus, before) = (cpus(), aborted());
    set_delays([0, 0, 0, 2_000, 0, 2_000]);
    let work = || {
        for n in 0..20_000 {
            // At first both processes run on one CPU, so that each interrupts the other's sections.
            if n % 64 == 0 {
                run_on(None, cpus[usize::saturating_sub(n / 64, 200) % cpus.len()]);
            }
            loop {
                let cpu = rseq.cpu_id_start();
                let Some(target) = shared.area.ptr(word, cpu) else { return };
                // SAFETY: `cpu`'s word, which only these sections of both processes write.
                if unsafe { rseq.add(cpu, target, 1) } {
                    break;
                }
            }
        }
    };
    let child = fork(|| {
        if rseq.cpu_id().is_some() && rseq.register_thread() {
            work();
        }
    });
    work();
    let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
    assert!(aborted() > before, "two on one CPU, and no section was ever aborted");
    let words = (0..shared.area.count()).map(|cpu| shared.area.ptr(word, cpu).unwrap());
    // SAFETY: inside the area; both writers have ended.
    assert_eq!(words.map(|word| unsafe { word.read() }).sum::<u64>(), 40_000);
}

/// Tests the fallbacks without rseq: counters and lists by atomic instructions.
#[test]
fn the_fallback_is_exact() {
    let rseq = Rseq::detect();
    let _lock = TestLock::take([0; 6]);
    let shared = Shared::new();
    let counter = shared.counter();
    // SAFETY: zeroes are empty slots, and the counter is at other offsets.
    let list = List::new(shared.area, unsafe { PerCpu::<ListSlot>::new(64) }).unwrap();
    let nodes: &'static [Node] = (0..32).map(|_| Node::new()).collect::<Vec<_>>().leak();
    for node in nodes {
        // SAFETY: the node is on no list, and never unmapped.
        unsafe { list.push(None, NonNull::from(node)) };
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    counter.add(None, 2);
                    counter.add(rseq, 1);
                    if let Some(node) = list.pop(None) {
                        // SAFETY: the node was popped just now.
                        unsafe { list.push(None, node) };
                    }
                }
            });
        }
    });
    assert_eq!(counter.sum(), 2 * 2_000 * 3);
    let mut popped = Vec::new();
    // SAFETY: all users have been joined.
    unsafe { list.drain(|node| popped.push(node)) };
    popped.sort_unstable();
    popped.dedup();
    assert_eq!(popped.len(), nodes.len());
}

#[test]
fn the_fallback_is_clean_under_valgrind() {
    if is_child() {
        return;
    }
    if std::env::var_os(ENV_RUNNER).is_some() {
        return skip(Lack::machine("valgrind is of another architecture", "run the tests on a machine of this one"));
    }
    if !dormouse_testing::has(VALGRIND) {
        return;
    }
    let names = [
        "tests::alone::valgrind_and_qemu_report_no_rseq",
        "tests::alone::the_fallback_is_exact",
        "tests::operations::lists_without_rseq_are_first_in_last_out",
        "tests::operations::each_thread_has_one_rseq_area_for_every_registrar",
        "tests::words::words_are_exact_while_affinity_changes",
        "tests::words::a_pool_with_too_few_cpus_is_an_error",
        "tests::variables::variables_match_numbers",
        "tests::variables::variables_are_exact_while_affinity_changes",
        "tests::variables::variables_are_exact_in_handlers_that_interrupt_their_sections",
    ];
    let output = run(&[VALGRIND, "-q", "--error-exitcode=99", "--fair-sched=yes"], &names, |_| ());
    assert_passed(&output, names.len());
}

/// valgrind and qemu-user have no rseq(2), so none may be reported there.
#[test]
fn valgrind_and_qemu_report_no_rseq() {
    if is_child() || std::env::var_os(ENV_RUNNER).is_some() {
        assert!(Rseq::detect().is_none());
        assert!(Rseq::of_libc().is_none());
        assert!(Rseq::detect().is_none(), "refused once, refused for good");
    }
}
