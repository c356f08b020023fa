//! Triggers of snapshots: crashes, signals, panics, the program's exit, events.

use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

pub use dormouse_abi::trigger::Trigger;

use crate::snapshot::{PreparedRequest, Snapshot};
use crate::{crash, watch};

static AT_EXIT: AtomicPtr<PreparedRequest> = AtomicPtr::new(core::ptr::null_mut());
static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

impl Snapshot {
    /// Sends this request whenever the trigger's condition is met, from now on, in forked children too. A later call
    /// for the same trigger replaces an earlier one.
    ///
    /// [`Trigger::Crash`] and [`Trigger::Signal`] install signal handlers. To report a stack overflow a thread needs an
    /// alternate stack: the calling thread, and threads that trace an event from now on, get one if they have none. A
    /// crash is a signal that ends the process, not a fault that the program's own handler resolves; the program ends
    /// as it would have otherwise. A handler that the program installs later, and that resets the signal to the
    /// default, is noticed only in programs with libdormouse. For a signal that is not a crash, the former handler runs
    /// afterwards. [`Trigger::Panic`] sends before the former hook runs.
    ///
    /// [`Trigger::Event`] and [`Trigger::Duration`] wait for events that are armed in the session. The event's record
    /// is written first, so that the snapshot contains it, by a slower path than that of other events. A thread of the
    /// tracer, which is started if there are such classes, sends the request and waits for the snapshot. Firings
    /// meanwhile are counted, and the next snapshot reports the count. A trigger requests at most one snapshot per
    /// second; each time it fires again within its last waiting time, that time doubles, up to an hour. Pending firings
    /// are reported at the latest when the program ends by `exit`; if it is killed, or crashes without
    /// [`Trigger::Crash`], they may be lost.
    ///
    /// # Errors
    /// The error of sigaction(2); too many triggers by event (16, of which one by duration takes two).
    pub fn on(&self, trigger: Trigger) -> std::io::Result<()> {
        match trigger {
            Trigger::Crash => crash::on_crash(self),
            Trigger::Signal(signal) => crash::on_other_signal(signal, self),
            Trigger::Exit => {
                // (V') pairs with (V). The former request is not freed: an exit may be in progress.
                AT_EXIT.store(Box::into_raw(Box::new(self.prepare("exit"))), Ordering::Release);
                if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
                    // SAFETY: the handler is a function of this object, which is never unloaded.
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
    // (V) pairs with (V'). SAFETY: null, or never freed.
    if let Some(prepared) = unsafe { AT_EXIT.load(Ordering::Acquire).as_ref() } {
        prepared.request();
    }
}

/// Installs the triggers that the environment requests. Crash handlers are installed when the first event is written.
pub(crate) fn from_environment() {
    let Some(text) = crate::environment::variable(dormouse_abi::trigger::ENV_SNAPSHOT_ON) else { return };
    for trigger in Trigger::parse_list(&text) {
        if trigger == Trigger::Crash {
            crash::on_crash_after_first_event(&Snapshot::new());
        } else {
            // A trigger that the system refuses is left out.
            let _ = Snapshot::new().on(trigger);
        }
    }
}
