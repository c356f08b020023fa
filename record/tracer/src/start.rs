//! Start of tracing: a constructor of the object that contains the crate.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU8, Ordering};
use std::path::Path;

use dormouse_abi::environment::{ENV_MEMORY, ENV_NO_RSEQ, ENV_SESSION, sessions};
use dormouse_listener::{keep_loaded, object_of};
use dormouse_transport::Deadline;

use crate::environment::{says, variable};
use crate::{control, fork, inherited, join, membarrier, plan, record, thread, trigger};

/// Whether a program listens if neither its environment nor its code has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// For a linked program: it listens unless it is in a session already, whose owner has decided what is armed.
    ByDefault,
    /// For a library that acts for no program: it does not listen, because that costs a thread.
    OnRequest,
    /// For a preloaded library that is linked never to be unloaded: it does not listen. Its constructor may run before
    /// libc's, when `dlopen` must not be called: in a process with a module of `LD_AUDIT`, glibc would clear the
    /// thread-local data of each library whose constructor has not run yet, including its own (`update_tls_slotinfo`,
    /// glibc 2.36).
    Preloaded,
}

const BEFORE: u8 = 0;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(BEFORE);

/// Starts tracing in this object, once: registers classes, joins the session that the environment names, registers
/// sites, follows forks and listens. Runs as a constructor; a library that is called before constructors calls it
/// earlier. A later call may still turn on listening by default.
///
/// Returns whether the start is complete. Not async-signal-safe.
pub fn start(listen: Listen) -> bool {
    start_by(listen, join::deadline())
}

/// Starts tracing like [`start`]. All waiting, whether to join or to listen, ends at the deadline.
fn start_by(listen: Listen, deadline: Deadline<'_>) -> bool {
    // (N) pairs with (N'): a thread that sees `DONE` sees everything registered.
    if STATE.compare_exchange(BEFORE, UNDER_WAY, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        let is_done = STATE.load(Ordering::Acquire) == DONE;
        if is_done {
            start_listening(listen, deadline);
        }
        return is_done;
    }
    let inside = thread::enter_tracer();
    thread::know_process();
    // Registering costs microseconds as long as the process has one thread.
    membarrier::register();
    plan::record_by(record::AGAIN);
    if listen != Listen::Preloaded {
        pin();
    }
    // The first call uses the loader, and this constructor may run before that of `dormouse_percpu`.
    let _ = dormouse_percpu::Rseq::of_libc();
    {
        let mut control = control::lock();
        control.joining.no_rseq = says(ENV_NO_RSEQ) == Some(true);
        let (first, last) = crate::arch::own_records();
        // SAFETY: this object's own section; the object is never unloaded.
        unsafe { control.register(first, last) };
    }
    for (socket, memory) in sessions(&list(ENV_SESSION), &list(ENV_MEMORY)) {
        // If a session cannot be joined, the program runs without it.
        let _ = control::join(Path::new(socket), memory, deadline);
    }
    // After joining: sites are born as armed, so sites that the session wants armed need not be written at all, instead
    // of twice. Refused only within a registration by this very thread; sites that stay unpatched read their key.
    let _ = dormouse_imv::ensure_registered();
    fork::follow_forks();
    // A filter may kill for the system calls of a trigger.
    if !dormouse_imv::is_filtered() {
        trigger::from_environment();
    }
    drop(inside);
    // (N') pairs with (N).
    STATE.store(DONE, Ordering::Release);
    #[cfg(feature = "listen")]
    dormouse_imv_control::set_host(&crate::listen::HOST);
    start_listening(listen, deadline);
    true
}

/// Replaces [`start`] in a process that has a sanitizer's runtime: nothing is traced. Tells this to the session whose
/// memory the process has inherited.
#[doc(hidden)]
pub fn leave_to_sanitizer() {
    if STATE.compare_exchange(BEFORE, DONE, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let _inside = thread::enter_tracer();
    for memory in sessions(&list(ENV_SESSION), &list(ENV_MEMORY)).filter_map(|(_, memory)| memory) {
        let mut control = control::lock();
        control.joining.tell_of_sanitizer(memory);
        if core::mem::take(&mut control.joining.has_told) {
            inherited::remember(memory.0);
        }
    }
}

/// Returns the value of a variable, or nothing.
fn list(name: &str) -> String {
    variable(name).unwrap_or_default()
}

/// Starts tracing from the crate's own constructor, unless a library has started it, which knows whether the program
/// should listen.
pub(crate) fn by_itself() {
    if STATE.load(Ordering::Relaxed) == BEFORE {
        start(Listen::ByDefault);
    }
}

#[cfg(feature = "listen")]
fn start_listening(listen: Listen, deadline: Deadline<'_>) {
    use crate::environment::ListenMode;
    // If several copies of the tracer call this, the later calls have no effect: the program listens then, or is in a
    // session. A filter may kill for starting a thread, or kill the thread for answering.
    let is_by_default =
        || listen == Listen::ByDefault && crate::session::sessions().next().is_none() && !dormouse_imv::is_filtered();
    let mode = crate::environment::listen_mode().unwrap_or_else(|| is_by_default().then_some(ListenMode::Signal));
    // If the tracepoints are libc's functions, one may be passed in an allocator, or under the loader's lock.
    let is_fit = mode != Some(ListenMode::Signal) || listen == Listen::ByDefault;
    if let Some(mode) = mode.filter(|_| is_fit && !crate::environment::is_secure()) {
        crate::listen::start_by_default(mode, deadline);
    }
}

#[cfg(not(feature = "listen"))]
fn start_listening(_: Listen, _: Deadline<'_>) {}

/// Keeps this object mapped even if it was loaded by `dlopen`: a thread and handlers run its code from now on.
fn pin() {
    if let Some(object) = object_of((crate::arch::own_records as fn() -> _ as *const c_void).addr()) {
        // SAFETY: `dladdr` returned the name, which ends in NUL. The program itself is not found by its name, and is
        // never unloaded.
        unsafe { keep_loaded(object.dli_fname) };
    }
}

#[cfg(all(test, target_os = "linux", feature = "listen"))]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Duration;

    use dormouse_abi::environment::ENV_LISTEN;

    use super::*;
    use crate::tests::Simulated;

    /// Environment variable that marks a process in which the constructor's work is repeated, by a clock of the test.
    const ENV_AGAIN: &str = "DORMOUSE_TEST_CONSTRUCTOR";
    const NAME: &str = "start::tests::the_constructor_has_one_deadline_for_all_waits";

    /// The owner of the session that the environment names does not answer; the program then listens, and waits for its
    /// thread.
    #[test]
    fn the_constructor_has_one_deadline_for_all_waits() {
        if let Ok(text) = std::env::var(ENV_AGAIN) {
            return again(Duration::from_millis(text.parse().unwrap()));
        }
        // The owner never answers, or closes the connection after some time.
        for answered_after_ms in [50, 10] {
            let place = tempfile::tempdir().unwrap();
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", NAME]).env(ENV_AGAIN, answered_after_ms.to_string()).env(ENV_LISTEN, "0");
            again.env_remove(ENV_SESSION).env_remove(ENV_MEMORY).env("XDG_RUNTIME_DIR", place.path());
            let output = again.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{answered_after_ms} ms: {text}");
        }
    }

    fn again(answered_after: Duration) {
        let session = PathBuf::from(variable("XDG_RUNTIME_DIR").unwrap()).join("session");
        let owner = UnixListener::bind(&session).unwrap();
        // SAFETY: the only other thread of this process is the test harness's, which waits for this one.
        unsafe { std::env::set_var(ENV_LISTEN, "1") };
        // SAFETY: no further thread was started since.
        unsafe { std::env::set_var(ENV_SESSION, &session) };
        STATE.store(BEFORE, Ordering::Relaxed);
        let mut passed = Vec::new();
        let clock = Simulated::new(|left| {
            passed.push(left);
            match passed.len() {
                // It connects.
                1 => Duration::ZERO,
                // It waits for an answer.
                2 if answered_after < left => {
                    drop(owner.accept().unwrap());
                    answered_after
                }
                // It waits for the answer or for the listener's thread, as long as it may.
                _ => left,
            }
        });
        assert!(start_by(Listen::ByDefault, Deadline::by(&clock, join::PATIENCE)));
        let elapsed = clock.elapsed();
        drop(clock);
        assert!(crate::session::sessions().next().is_none());
        assert!(passed[..2] == [join::PATIENCE; 2] && elapsed <= join::PATIENCE, "{passed:?}");
        // The thread may have started before this one checks; and if no time is left, no call is made.
        let rest = passed[2..].iter().try_for_each(|left| (*left + answered_after <= join::PATIENCE).then_some(()));
        assert!(rest.is_some() && (passed.len() == 2 || answered_after < join::PATIENCE), "{passed:?}");
        crate::listen::stop_listening().unwrap();
    }
}
