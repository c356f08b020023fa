//! How tracing starts: a constructor of the object that contains the crate.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering};
use std::path::Path;

use dormouse_abi::environment::{ENV_MEMORY, ENV_NO_RSEQ, ENV_SESSION, parse_memory_name};
use dormouse_locks::call_loader;
use dormouse_transport::Deadline;

use crate::environment::{says, variable};
use crate::{control, fork, inherited, join, membarrier, thread, trigger};

/// Whether a program listens when neither its environment nor itself has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// A linked program: unless it is in a session already, whose owner has said what is armed.
    ByDefault,
    /// A library that stands for no program: no, because that costs a thread.
    OnRequest,
    /// The same of a library that is preloaded and linked never to be unloaded. Its constructor may come before libc's, when `dlopen` must not
    /// be called: in a process with a module of `LD_AUDIT`, glibc would clear the thread-local data of each library whose constructor is
    /// still to come, its own too (`update_tls_slotinfo`, glibc 2.36).
    Preloaded,
}

const BEFORE: u8 = 0;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(BEFORE);

/// Starts tracing in this object, once: registers classes, joins the session that the environment names, registers sites, follows
/// forks and listens. Runs by itself as a constructor; a library that is called before constructors calls it earlier. Who has it listen
/// by default after others have not changes that.
///
/// Returns whether it has been done. Not async-signal-safe.
pub fn start(listen: Listen) -> bool {
    start_by(listen, join::deadline())
}

/// As [`start`]. All that it waits for, whether to join or to listen, ends at the deadline.
fn start_by(listen: Listen, deadline: Deadline<'_>) -> bool {
    // (N) pairs with (N'): who finds it done finds everything registered.
    if STATE.compare_exchange(BEFORE, UNDER_WAY, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        let is_done = STATE.load(Ordering::Acquire) == DONE;
        if is_done {
            start_listening(listen, deadline);
        }
        return is_done;
    }
    let inside = thread::enter_tracer();
    thread::know_process();
    // Before the process has threads, registering costs microseconds.
    membarrier::register();
    if listen != Listen::Preloaded {
        pin();
    }
    // The first time it calls the loader, and this constructor may come before that of `dormouse_percpu`.
    let _ = dormouse_percpu::Rseq::of_libc();
    {
        let mut control = control::lock();
        control.joining.no_rseq = says(ENV_NO_RSEQ) == Some(true);
        let (first, last) = crate::arch::own_records();
        // SAFETY: this object's own section; it is pinned.
        unsafe { control.register(first, last) };
    }
    if let Some(socket) = variable(ENV_SESSION) {
        let memory = variable(ENV_MEMORY).and_then(|name| parse_memory_name(&name));
        // A session that cannot be joined leaves the program as it is without one.
        let _ = control::join(Path::new(&socket), memory, deadline);
    }
    // After joining: sites are born as armed ones are, so what the session wants armed need not be written at all, let alone
    // twice. Refused only within a registration of this very thread; sites that stay unpatched read their key.
    let _ = dormouse_imv::ensure_registered();
    fork::follow_forks();
    // What a trigger does may be what a filter kills for.
    if !dormouse_imv::is_filtered() {
        trigger::from_environment();
    }
    drop(inside);
    // (N') pairs with (N).
    STATE.store(DONE, Ordering::Release);
    start_listening(listen, deadline);
    true
}

/// In place of [`start`], in a process that has the runtime of a sanitizer: nothing is traced. The session whose memory the process has inherited
/// is told so.
#[doc(hidden)]
pub fn leave_to_sanitizer() {
    if STATE.compare_exchange(BEFORE, DONE, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let _inside = thread::enter_tracer();
    if let Some(memory) = variable(ENV_MEMORY).and_then(|name| parse_memory_name(&name)) {
        let mut control = control::lock();
        control.joining.tell_of_sanitizer(memory);
        if control.joining.has_told {
            inherited::remember(memory.0);
        }
    }
}

/// As the crate's own constructor does it: not where a library has done it before, which knows whether the program is to listen.
pub(crate) fn by_itself() {
    if STATE.load(Ordering::Relaxed) == BEFORE {
        start(Listen::ByDefault);
    }
}

#[cfg(feature = "listen")]
fn start_listening(listen: Listen, deadline: Deadline<'_>) {
    use crate::environment::Way;
    // Each copy of the tracer that is asked twice is asked once too often: it is listening then, or in a session.
    // A filter may kill for starting a thread, or the thread for answering.
    let is_by_default =
        || listen == Listen::ByDefault && crate::session::current().is_none() && !dormouse_imv::is_filtered();
    let way = crate::environment::way_to_listen().unwrap_or_else(|| is_by_default().then_some(Way::Signal));
    // Where the tracepoints are libc's functions, one may be passed within an allocator, or under the loader's lock.
    let is_fit = way != Some(Way::Signal) || listen == Listen::ByDefault;
    if let Some(way) = way.filter(|_| is_fit && !crate::environment::is_secure()) {
        crate::listen::start_by_default(way, deadline);
    }
}

#[cfg(not(feature = "listen"))]
fn start_listening(_: Listen, _: Deadline<'_>) {}

/// Keeps this object mapped although it may have come by `dlopen`: a thread and handlers run its code from now on.
fn pin() {
    if let Some(object) = object_of((crate::arch::own_records as fn() -> _ as *const c_void).addr()) {
        // SAFETY: a name by `dladdr`. The program itself is not found by its name, and stays in any case.
        unsafe { keep_loaded(object.dli_fname) };
    }
}

/// The loaded object that an address lies in.
pub fn object_of(address: usize) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::uninit();
    // SAFETY: dladdr(3) takes any address, and has room for its answer.
    let found = call_loader(|| unsafe { libc::dladdr(core::ptr::without_provenance(address), info.as_mut_ptr()) });
    // SAFETY: an answer other than 0 says that it was filled in.
    (found != 0).then(|| unsafe { info.assume_init() })
}

/// Keeps the loaded object of this name mapped for good.
///
/// `dlopen` is looked up and not named: the linker warns of every static program that names it. Such a program has nothing to keep.
///
/// # Safety
/// `name` ends in NUL.
pub unsafe fn keep_loaded(name: *const c_char) {
    // SAFETY: looks a name up.
    let dlopen = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr()) });
    if dlopen.is_null() {
        return;
    }
    // SAFETY: the type of dlopen(3).
    let dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void = unsafe { core::mem::transmute(dlopen) };
    // SAFETY: a name, by the caller's word; an object that is loaded already is only counted once more.
    call_loader(|| unsafe { dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) });
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

    /// Environment variable: this is a process in which a constructor's work is done once more, by a clock of the test's.
    const ENV_AGAIN: &str = "DORMOUSE_TEST_CONSTRUCTOR";
    const NAME: &str = "start::tests::all_that_a_constructor_waits_for_ends_at_one_deadline";

    /// The owner of the session that the environment names does not answer; then the program listens, and waits for its thread.
    #[test]
    fn all_that_a_constructor_waits_for_ends_at_one_deadline() {
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
        // SAFETY: there is no further thread since.
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
                // It waits for that, or for the listener's thread, as long as it may.
                _ => left,
            }
        });
        assert!(start_by(Listen::ByDefault, Deadline::by(&clock, join::PATIENCE)));
        let elapsed = clock.elapsed();
        drop(clock);
        assert!(crate::session::current().is_none());
        assert!(passed[..2] == [join::PATIENCE; 2] && elapsed <= join::PATIENCE, "{passed:?}");
        // The thread may have been faster than this one's look; and where no time is left, no call is made.
        let rest = passed[2..].iter().try_for_each(|left| (*left + answered_after <= join::PATIENCE).then_some(()));
        assert!(rest.is_some() && (passed.len() == 2 || answered_after < join::PATIENCE), "{passed:?}");
        crate::listen::stop_listening().unwrap();
    }
}
