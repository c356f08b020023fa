//! What has a snapshot asked for without a call: crashes, signals, panics, the program's exit, events.

use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

pub use dormouse_abi::trigger::Trigger;

use crate::snapshot::{Prepared, Snapshot};
use crate::{crash, watch};

static AT_EXIT: AtomicPtr<Prepared> = AtomicPtr::new(core::ptr::null_mut());
static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

impl Snapshot {
    /// Sends such a request whenever something happens, from now on and in forked children too. A later call for the same
    /// trigger takes the place of an earlier one.
    ///
    /// [`Trigger::Crash`] and [`Trigger::Signal`] install signal handlers. For an overflow of its stack a thread needs an
    /// alternate one: the calling thread, and threads that trace an event from now on, get one if they have none. A crash is what
    /// ends the process, not a fault that a handler of the program's own deals with; the program ends as it would have. A handler
    /// that the program installs later, and that gives the signal back to the system, is noticed in programs with libdormouse only.
    /// After another signal a former handler runs.
    /// [`Trigger::Panic`] sends before the former hook runs.
    ///
    /// [`Trigger::Event`] and [`Trigger::Duration`] wait for events that are armed in the session; such an event's record is
    /// written first, so that it is in the snapshot, by a path that is slower than that of other events. A thread of the
    /// tracer, which is started where there are such classes, sends the request and waits for the snapshot; what fires
    /// meanwhile is counted, and the next snapshot says how often it was. A trigger asks at most once a second, and each time
    /// that it fires again within as long as it had to wait, it waits for twice as long, up to an hour. What has fired is asked
    /// for at the latest when the program ends by `exit`; a program that is killed, or crashes without [`Trigger::Crash`], may
    /// take it along.
    ///
    /// # Errors
    /// What sigaction(2) says; more triggers by event than there is room for (16, of which one by duration takes two).
    pub fn on(&self, trigger: Trigger) -> std::io::Result<()> {
        match trigger {
            Trigger::Crash => crash::on_crash(self),
            Trigger::Signal(signal) => crash::on_other_signal(signal, self),
            Trigger::Exit => {
                // (V') pairs with (V). The one before is left where it is: an exit may be under way.
                AT_EXIT.store(Box::into_raw(Box::new(self.prepare("exit"))), Ordering::Release);
                if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
                    // SAFETY: the handler is a function of this object, which is pinned.
                    unsafe { libc::atexit(at_exit) };
                }
                Ok(())
            }
            Trigger::Panic => {
                let prepared = self.prepare("panic");
                let former = std::panic::take_hook();
                std::panic::set_hook(Box::new(move |info| {
                    prepared.request();
                    former(info);
                }));
                Ok(())
            }
            Trigger::Event(_) | Trigger::Duration { .. } => watch::add(trigger, self),
        }
    }
}

extern "C" fn at_exit() {
    // (V) pairs with (V'). SAFETY: never freed.
    if let Some(prepared) = unsafe { AT_EXIT.load(Ordering::Acquire).as_ref() } {
        prepared.request();
    }
}

/// Installs what the environment asks for; handlers of crashes when the first event is written.
pub(crate) fn from_environment() {
    let Some(text) = crate::environment::variable(dormouse_abi::trigger::ENV_SNAPSHOT_ON) else { return };
    for trigger in Trigger::parse_list(&text) {
        if trigger == Trigger::Crash {
            crash::on_crash_after_first_event(&Snapshot::new());
        } else {
            // One that the system refuses is none.
            let _ = Snapshot::new().on(trigger);
        }
    }
}
