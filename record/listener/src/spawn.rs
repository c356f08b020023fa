//! Threads of Dormouse in a program.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;

const STACK_SIZE_BYTES: usize = 256 << 10;

/// Starts a thread. Signals belong to the program's threads, so this one starts with all signals blocked.
///
/// Does not use the standard library. Its threads begin with values that have destructors, and wait for the loader
/// because of them: a program that is in a long `dlopen` could not be reached.
pub fn spawn(name: &'static CStr, run: impl FnOnce() + Send + 'static) -> bool {
    type Start = Box<dyn FnOnce() + Send>;
    extern "C" fn begin(start: *mut c_void) -> *mut c_void {
        // SAFETY: made by `Box::into_raw` below, for this thread alone.
        let start = unsafe { Box::from_raw(start.cast::<Start>()) };
        // A panic ends this thread, not the program.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(*start));
        core::ptr::null_mut()
    }

    let start: Box<Start> = Box::new(Box::new(move || {
        // Only for people; it does not matter if the kernel refuses the name.
        let _ = rustix::thread::set_name(name);
        run();
    }));
    let start = Box::into_raw(start);
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: initialises the attributes.
    unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) };
    // SAFETY: initialised above; the size is more than PTHREAD_STACK_MIN.
    unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_SIZE_BYTES) };
    // SAFETY: initialised above; a valid state.
    unsafe { libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED) };
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: reads an initialised set, and fills the other.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
    let mut thread = MaybeUninit::uninit();
    let create = || {
        // SAFETY: initialised attributes; `begin` takes the box that `start` points to, and belongs to this object,
        // which is never unloaded.
        unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, start.cast()) }
    };
    let is_started = dormouse_locks::call_loader(create) == 0;
    // SAFETY: restores the mask that the call above has stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    // SAFETY: initialised, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    if !is_started {
        // SAFETY: made by `Box::into_raw` above, and no thread was started that owns it.
        drop(unsafe { Box::from_raw(start) });
    }
    is_started
}

/// Prefix of the names of Dormouse's threads.
const NAME: &str = "dormouse";

/// Whether all threads of the process except Dormouse's have ended. This happens if the first thread has ended by
/// `pthread_exit`: the process lives until its last thread ends, and must not wait for one of Dormouse's.
pub fn is_last() -> bool {
    // The state follows the name (proc_pid_stat(5)).
    let has_ended = |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    let is_over = |stat: &str| has_ended(stat) || stat.split_once('(').is_some_and(|(_, name)| name.starts_with(NAME));
    if !std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| has_ended(&stat)) {
        return false;
    }
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    // The file of a thread that ends meanwhile is gone.
    tasks.flatten().all(|task| std::fs::read_to_string(task.path().join("stat")).map_or(true, |stat| is_over(&stat)))
}
