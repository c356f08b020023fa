//! Live updates: under load, by each writer, across fork and from signal handlers.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

mod alone;
mod sites;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;

use dormouse_imv::{
    CodeWriter, Error, StaticKey, disable, enable, ensure_registered, imv, imv_read, key_sites, static_branch,
    static_branch_likely, status, update, visit_key_sites,
};
use dormouse_testing::{Lack, skip};

#[test]
fn a_panic_releases_the_lock() {
    static KEY: StaticKey = StaticKey::new();
    let gate = || static_branch!(KEY);
    let visited = std::panic::catch_unwind(|| visit_key_sites(&KEY, |_, _| panic!("on purpose")));
    assert!(visited.is_err(), "{visited:?}");
    // The thread itself sees the change, and so do others.
    assert_eq!(enable(&KEY), Ok(()));
    assert!(gate());
    assert_eq!(thread::spawn(|| disable(&KEY)).join().expect("it ends"), Ok(()));
    assert!(!gate());
}

/// Toggles a key while two threads execute its gate. Between updates the phase is even: 0 modulo 4 while the key is
/// disabled, 2 while it is enabled. A thread that sees one even phase before and after its gate knows the correct
/// answer. SeqCst throughout: the test orders itself, so that only the gate can be wrong.
fn toggle_under_load(times: u64) {
    static KEY: StaticKey = StaticKey::new();
    static PHASE: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    static WRONG: AtomicU64 = AtomicU64::new(0);
    /// Number of correct answers while disabled and while enabled.
    static RIGHT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

    let run_gate = || {
        while !STOP.load(Ordering::SeqCst) {
            let before = PHASE.load(Ordering::SeqCst);
            let taken = static_branch!(KEY);
            if PHASE.load(Ordering::SeqCst) != before || !before.is_multiple_of(2) {
                continue;
            }
            let count = if taken == (before % 4 == 2) { &RIGHT[usize::from(taken)] } else { &WRONG };
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    // Most updates follow each other immediately; periodically the test waits until a thread has passed the gate.
    let stay = |enabled: bool, round: u64| {
        PHASE.fetch_add(1, Ordering::SeqCst);
        let seen = RIGHT[usize::from(enabled)].load(Ordering::SeqCst);
        while round.is_multiple_of(256)
            && RIGHT[usize::from(enabled)].load(Ordering::SeqCst) == seen
            && WRONG.load(Ordering::SeqCst) == 0
        {
            thread::yield_now();
        }
        PHASE.fetch_add(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        scope.spawn(run_gate);
        scope.spawn(run_gate);
        scope.spawn(|| {
            PHASE.fetch_add(1, Ordering::SeqCst);
            for round in 0..times {
                let enabled = enable(&KEY);
                stay(true, round);
                let disabled = disable(&KEY);
                stay(false, round);
                if enabled.is_err() || disabled.is_err() {
                    WRONG.fetch_add(1, Ordering::SeqCst);
                }
            }
            STOP.store(true, Ordering::SeqCst);
        });
    });
    assert_eq!(WRONG.load(Ordering::SeqCst), 0);
    assert!(RIGHT.iter().all(|count| count.load(Ordering::SeqCst) >= times / 256), "{RIGHT:?}");
    assert!(!static_branch!(KEY));
}

/// Number of times that the gate is toggled, unless the environment variable of this name sets it.
const TOGGLES: (&str, u64) = ("DORMOUSE_TOGGLES", 10_000);

#[test]
fn threads_run_through_a_gate_that_is_toggled() {
    toggle_under_load(std::env::var(TOGGLES.0).ok().and_then(|text| text.parse().ok()).unwrap_or(TOGGLES.1));
}

/// Whether a writer changes gates: on AArch64 only one that stores a whole instruction at once.
fn patches_gates(writer: CodeWriter) -> bool {
    match writer {
        CodeWriter::ProcMem => cfg!(target_arch = "x86_64"),
        writer => writer != CodeWriter::None,
    }
}

fn force(command: &mut Command, writer: CodeWriter) {
    command.env("DORMOUSE_IMV_WRITER", writer.name());
}

#[test]
fn each_writer_can_be_forced() {
    if alone::is_child() {
        return under_the_forced_writer();
    }
    for writer in [CodeWriter::Mprotect, CodeWriter::ProcMem, CodeWriter::None] {
        let output = alone::run("each_writer_can_be_forced", |command| force(command, writer));
        alone::assert_passed(&output);
    }
}

fn under_the_forced_writer() {
    static KEY: StaticKey = StaticKey::new();
    let code = || {
        let mut code = None;
        visit_key_sites(&KEY, |_, bytes| code = Some(bytes.to_vec())).unwrap();
        code.expect("a site")
    };
    let gate = || static_branch!(KEY);
    let wanted = std::env::var("DORMOUSE_IMV_WRITER").unwrap();
    let status = status().unwrap();
    assert_eq!(status.writer.name(), wanted);
    assert!(status.reason.contains("forced"));
    let unpatched = !patches_gates(status.writer);
    let before = code();
    assert_eq!(sites::is_nop(&before), !unpatched);
    assert_eq!(key_sites(&KEY).unwrap().patched == 0, unpatched);
    assert!(!gate());
    enable(&KEY).unwrap();
    let armed = code();
    assert!(sites::is_jump(&armed));
    assert!(gate());
    disable(&KEY).unwrap();
    assert_eq!(code(), before);
    enable(&KEY).unwrap();
    assert_eq!(code(), armed);
    disable(&KEY).unwrap();
    assert!(!gate());
    toggle_under_load(2_000);
    // The memory does not stay writable.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("rwx"), "{maps}");
}

#[test]
fn a_writer_that_fails_after_the_start_is_replaced_by_the_next() {
    if alone::is_child() {
        return with_mprotect_refused();
    }
    alone::assert_passed(&alone::run("a_writer_that_fails_after_the_start_is_replaced_by_the_next", |_| {}));
}

fn with_mprotect_refused() {
    static KEY: StaticKey = StaticKey::new();
    let gate = || static_branch!(KEY);
    assert_eq!(status().unwrap().writer, CodeWriter::Mprotect);
    // SAFETY: prctl(2) PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN takes no pointers.
    let answer = unsafe { libc::prctl(65, 1_u64, 0_u64, 0_u64, 0_u64) };
    if answer != 0 {
        return skip(Lack::machine("no PR_SET_MDWE", "Linux 6.3 or later"));
    }
    if !patches_gates(CodeWriter::ProcMem) {
        // The gate is a nop, and the update says that it stays one.
        assert_eq!(enable(&KEY), Err(Error::Unpatched));
        assert_eq!((gate(), status().unwrap().writer), (false, CodeWriter::ProcMem));
        disable(&KEY).unwrap();
        assert!(!gate());
        return;
    }
    enable(&KEY).unwrap();
    assert!(gate());
    assert_eq!(status().unwrap().writer, CodeWriter::ProcMem);
    disable(&KEY).unwrap();
    assert!(!gate());
    let count = key_sites(&KEY).unwrap();
    assert!(count.sites > 0 && count.patched == count.sites);

    // A value of eight bytes is read by the slow path of its gate from now on. A smaller one is in an instruction that
    // cannot be changed byte by byte: it stays everywhere, and so does every value in its update.
    imv! {
        static SMALL: u32 = 1;
        static LARGE: u64 = 2;
    }
    let values = || (imv_read!(SMALL), imv_read!(LARGE));
    assert_eq!(values(), (1, 2));
    LARGE.set(3).unwrap();
    assert_eq!(values(), (1, 3));
    assert_eq!(SMALL.set(10), Err(Error::Stale));
    assert_eq!(update(&[LARGE.to(30), SMALL.to(10), LARGE.to(31)]), Err(Error::Stale));
    assert_eq!((values(), SMALL.read(), LARGE.read()), ((1, 3), 1, 3));
    SMALL.set(1).unwrap();
    LARGE.set(2).unwrap();
    assert_eq!(LARGE.sites().unwrap().patched, LARGE.sites().unwrap().sites, "the immediate is still there");
}

/// The prohibition is inherited, so the whole program runs without a writer that could change values.
#[test]
fn values_are_loads_if_text_cannot_be_made_writable() {
    if alone::is_child() {
        return without_mprotect();
    }
    fn forbid_writable_text() -> std::io::Result<()> {
        // SAFETY: prctl(2) PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN takes no pointers. If the kernel does not have it,
        // the program reports that.
        unsafe { libc::prctl(65, 1_u64, 0_u64, 0_u64, 0_u64) };
        Ok(())
    }
    let output = alone::run("values_are_loads_if_text_cannot_be_made_writable", |command| {
        // SAFETY: one async-signal-safe system call.
        unsafe { command.pre_exec(forbid_writable_text) };
    });
    alone::assert_passed(&output);
}

fn without_mprotect() {
    imv! {
        static SMALL: u32 = 1;
        static LARGE: u64 = 2;
    }
    static KEY: StaticKey = StaticKey::new();
    let all = || (imv_read!(SMALL), imv_read!(LARGE), static_branch!(KEY));
    let status = status().unwrap();
    if status.writer != CodeWriter::ProcMem {
        let reason = format!("no PR_SET_MDWE that is inherited: {status:?}");
        return skip(Lack::machine(reason, "Linux 6.3 or later"));
    }
    assert!(status.reason.contains("refused"), "{}", status.reason);
    assert_eq!(all(), (1, 2, false));
    for round in 3..10_u32 {
        SMALL.set(round).unwrap();
        LARGE.set(u64::from(round) << 40).unwrap();
        enable(&KEY).unwrap();
        assert_eq!(all(), (round, u64::from(round) << 40, true));
        disable(&KEY).unwrap();
    }
    assert_eq!(SMALL.sites().unwrap().patched, 0);
    let count = key_sites(&KEY).unwrap();
    assert_eq!(count.patched, if patches_gates(CodeWriter::ProcMem) { count.sites } else { 0 });
}

/// A forced writer has no next rung: the process stays correct, and reports what it cannot patch.
#[test]
fn a_failing_write_is_reported() {
    if alone::is_child() {
        return with_every_write_refused();
    }
    alone::assert_passed(&alone::run("a_failing_write_is_reported", |command| force(command, CodeWriter::Mprotect)));
}

fn with_every_write_refused() {
    static ASLEEP: StaticKey = StaticKey::new();
    static AWAKE: StaticKey = StaticKey::new_enabled();
    fn announced() {}
    let gates = || {
        [
            static_branch!(ASLEEP),
            static_branch!(AWAKE),
            static_branch_likely!(AWAKE),
            static_branch!(AWAKE, announce("test_announced", announced)),
        ]
    };
    assert_eq!(gates(), [false, true, true, true]);
    // SAFETY: prctl(2) with numbers only; the child that calls it belongs to this test.
    let answer = unsafe { libc::prctl(65, 1_u64, 0_u64, 0_u64, 0_u64) };
    if answer != 0 {
        return skip(Lack::machine("no PR_SET_MDWE", "Linux 6.3 or later"));
    }
    // A gate that reads no key answers as before, and the update says so. An announced one closes.
    assert_eq!(disable(&AWAKE), Err(Error::Unpatched));
    assert!(!AWAKE.is_enabled());
    assert_eq!(gates(), [false, true, true, false]);
    assert_eq!(key_sites(&AWAKE).unwrap().patched, 0);
    assert_eq!(enable(&ASLEEP), Err(Error::Unpatched));
    assert_eq!(status().unwrap().writer, CodeWriter::None);
    disable(&ASLEEP).unwrap();
    enable(&AWAKE).unwrap();
    assert_eq!(gates(), [false, true, true, true]);
}

static ANSWER: AtomicI32 = AtomicI32::new(-1);
static FROM_HANDLER: StaticKey = StaticKey::new();

extern "C" fn enable_in_handler(_signal: i32) {
    let answer = match enable(&FROM_HANDLER) {
        Ok(()) => 0,
        Err(Error::Reentered) => 1,
        Err(_) => 2,
    };
    ANSWER.store(answer, Ordering::Relaxed);
}

fn raise_with(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: signal(2) with a handler of the right type, which is async-signal-safe.
    unsafe { libc::signal(signal, handler as *const () as usize) };
    // SAFETY: raise(3) runs the handler before it returns.
    unsafe { libc::raise(signal) };
}

#[test]
fn a_signal_handler_is_refused_only_during_an_update() {
    let gate = || static_branch!(FROM_HANDLER);
    visit_key_sites(&FROM_HANDLER, |_, _| raise_with(libc::SIGUSR1, enable_in_handler)).unwrap();
    assert_eq!(ANSWER.load(Ordering::Relaxed), 1);
    assert!(!gate());
    raise_with(libc::SIGUSR1, enable_in_handler);
    assert_eq!(ANSWER.load(Ordering::Relaxed), 0);
    assert!(gate());
}

#[test]
fn registering_again_changes_nothing() {
    let before = status().unwrap();
    ensure_registered().unwrap();
    assert_eq!(status().unwrap().objects, before.objects);
    assert!(before.objects >= 1);
}

/// Runs `child` in a forked process and asserts that it returns `true` within the time that `alarm` allows.
fn in_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child only runs gates, updates and `_exit`, which take no lock that another thread may have held.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: alarm(2) takes no pointers; a deadlock ends in SIGALRM.
        unsafe { libc::alarm(20) };
        let code = if child() { 0 } else { 1 };
        // SAFETY: _exit(2) ends the child without the parent's destructors.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0);
    let mut code = 0;
    // SAFETY: waitpid(2) for the child above, into a live integer.
    unsafe { libc::waitpid(pid, &mut code, 0) };
    let status = std::process::ExitStatus::from_raw(code);
    assert!(status.success(), "{status:?}");
}

#[test]
fn a_child_forked_during_updates_has_its_own_state() {
    static KEY: StaticKey = StaticKey::new();
    static BUSY: StaticKey = StaticKey::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    let gate = || static_branch!(KEY);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                enable(&BUSY).unwrap();
                let _ = static_branch!(BUSY);
                disable(&BUSY).unwrap();
            }
        });
        for _ in 0..50 {
            in_child(|| {
                let off = !gate();
                let set = enable(&KEY).is_ok();
                let on = gate();
                set && on && off && disable(&KEY).is_ok() && !gate()
            });
            assert!(!gate(), "the parent's text is its own");
        }
        STOP.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_fork_by_the_owner_of_the_lock_leaves_both_usable() {
    static KEY: StaticKey = StaticKey::new();
    let gate = || static_branch!(KEY);
    in_child(|| {
        let mut fork_answer = -1;
        let mut refused = false;
        let visited = visit_key_sites(&KEY, |_, _| {
            // SAFETY: the child exits by `_exit`, and calls nothing that needs other threads.
            fork_answer = unsafe { libc::fork() };
            refused = enable(&KEY) == Err(Error::Reentered);
        });
        let well = visited.is_ok() && refused && enable(&KEY).is_ok() && gate();
        if fork_answer == 0 {
            // SAFETY: _exit(2).
            unsafe { libc::_exit(if well { 0 } else { 1 }) };
        }
        let mut code = -1;
        // SAFETY: waitpid(2) into a live integer.
        unsafe { libc::waitpid(fork_answer, &mut code, 0) };
        well && code == 0
    });
}

#[test]
fn concurrent_setters_leave_one_value_at_all_sites() {
    imv! {
        static SMALL: u16 = 0;
        static LARGE: u64 = 0;
    }
    let read = || ([imv_read!(SMALL), imv_read!(SMALL)], [imv_read!(LARGE), imv_read!(LARGE)]);
    for round in 0..200_u16 {
        thread::scope(|scope| {
            for setter in [2 * round + 1, 2 * round + 2] {
                scope.spawn(move || update(&[SMALL.to(setter), LARGE.to(u64::from(setter) << 32)]).unwrap());
            }
        });
        let (small, large) = read();
        assert!(small[0] == 2 * round + 1 || small[0] == 2 * round + 2, "{small:?}");
        assert_eq!((small[1], small[0]), (small[0], SMALL.read()));
        assert_eq!(large, [u64::from(small[0]) << 32; 2], "one update is one");
    }
}

#[test]
fn a_forked_child_has_its_own_values() {
    imv! { static VALUE: i32 = 1; }
    let read = || imv_read!(VALUE);
    VALUE.set(2).unwrap();
    // SAFETY: the child only patches, reads and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let right = read() == 2 && VALUE.set(3).is_ok() && read() == 3;
        // SAFETY: _exit(2).
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: waitpid(2) for the child above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(std::process::ExitStatus::from_raw(status).success());
    assert_eq!(read(), 2);
}
