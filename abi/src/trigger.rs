//! What has a program ask for a snapshot of its session: shared by the command that is told and the program that does it.

/// Environment variable: triggers separated by commas, such as `crash,exit,USR2`.
pub const ENV_SNAPSHOT_ON: &str = "DORMOUSE_SNAPSHOT_ON";

/// When a program asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A signal that tells of a fault in the program is about to end it: SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGABRT.
    Crash,
    /// A Rust thread panics, whether or not somebody catches it.
    Panic,
    /// The program ends by `exit` or by returning from `main`.
    Exit,
    /// A signal with this number comes.
    Signal(i32),
}

/// Signals by name, without `SIG`. Their numbers are those of Linux on every architecture that this project is for.
const SIGNALS: [(&str, i32); 7] =
    [("HUP", 1), ("INT", 2), ("QUIT", 3), ("USR1", 10), ("USR2", 12), ("ALRM", 14), ("TERM", 15)];

/// The greatest number of a signal.
pub const SIGNAL_MAX: i32 = 64;
/// Signals that nobody can handle.
const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

impl Trigger {
    /// `crash`, `panic`, `exit`, or a signal: `USR2`, `SIGUSR2`, `12`.
    pub fn parse(text: &str) -> Option<Trigger> {
        match text {
            "crash" => return Some(Trigger::Crash),
            "panic" => return Some(Trigger::Panic),
            "exit" => return Some(Trigger::Exit),
            _ => {}
        }
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let named = SIGNALS.into_iter().find(|(known, _)| *known == name).map(|(_, number)| number);
        let number = named.or_else(|| text.parse().ok())?;
        let is_possible = (1..=SIGNAL_MAX).contains(&number) && number != SIGKILL && number != SIGSTOP;
        is_possible.then_some(Trigger::Signal(number))
    }

    /// The triggers of a list; those that are none are left out.
    pub fn parse_list(text: &str) -> impl Iterator<Item = Trigger> {
        text.split(',').filter_map(|part| Trigger::parse(part.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn triggers_have_names() {
        for (text, trigger) in [
            ("crash", Some(Trigger::Crash)),
            ("panic", Some(Trigger::Panic)),
            ("exit", Some(Trigger::Exit)),
            ("USR2", Some(Trigger::Signal(12))),
            ("SIGUSR1", Some(Trigger::Signal(10))),
            ("64", Some(Trigger::Signal(64))),
            ("KILL", None),
            ("9", None),
            ("0", None),
            ("65", None),
            ("", None),
        ] {
            assert_eq!(Trigger::parse(text), trigger, "{text}");
        }
        let list: Vec<_> = Trigger::parse_list("crash, USR2,nonsense,").collect();
        assert_eq!(list, [Trigger::Crash, Trigger::Signal(12)]);
    }
}
