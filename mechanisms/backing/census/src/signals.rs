//! Forwards signals to the command.

use std::io;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

const PASSED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];

/// Caught signals, so that this process survives to report. They are caught before the command is started, so that none
/// is lost.
pub(crate) struct CaughtSignals(SignalsInfo<WithOrigin>);

/// Passes the signals on to the command until it is dropped.
pub(crate) struct Forwarder {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl CaughtSignals {
    pub(crate) fn new() -> io::Result<CaughtSignals> {
        // Signals that `nohup` or a shell made this process ignore are also ignored in the command.
        let ignored = crate::process::ignored_signals();
        let caught = PASSED_ON.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        SignalsInfo::new(caught).map(CaughtSignals)
    }

    pub(crate) fn pass_on_to(self, pid: u32) -> Forwarder {
        let CaughtSignals(mut signals) = self;
        let handle = signals.handle();
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let thread = std::thread::spawn(move || {
            for origin in signals.forever().filter(is_sent) {
                if let Some((pid, signal)) = pid.zip(Signal::from_named_raw(origin.signal)) {
                    let _ = kill_process(pid, signal);
                }
            }
        });
        Forwarder { handle, thread: Some(thread) }
    }
}

/// Whether a process has sent the signal. Signals of a terminal reach the command anyway, because it is in the same
/// process group.
fn is_sent(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue))
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.handle.close();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
