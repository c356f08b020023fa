//! The environment variables that the library obeys.
//!
//! A program with privileges that its caller does not have (`AT_SECURE`: set-user-ID, file capabilities) ignores them
//! all, because its caller sets them.

#[cfg(feature = "listen")]
pub(crate) use dormouse_listener::is_secure;
pub(crate) use dormouse_listener::variable;

/// Means by which tools reach a program.
#[cfg(feature = "listen")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenMode {
    /// A thread sleeps on a socket, and answers at once.
    Thread,
    /// A tool sends `SIGURG`, and the next thread that passes a tracepoint outside signal handlers starts the listening
    /// thread. It ends when no tool has connected for two seconds, unless the program is in a session. Costs: a
    /// blocking call may return `EINTR`, the arguments of the event at that tracepoint are evaluated, and the tool
    /// waits for the tracepoint. Not for programs that have their own handler for `SIGURG`, or tracepoints in their
    /// allocator.
    Signal,
}

/// Returns the setting of `DORMOUSE_LISTEN`, if it has a valid one: not to listen, or the mode.
#[cfg(feature = "listen")]
pub(crate) fn listen_mode() -> Option<Option<ListenMode>> {
    match variable(dormouse_abi::environment::ENV_LISTEN)?.as_str() {
        "0" => Some(None),
        "1" | "thread" => Some(Some(ListenMode::Thread)),
        "signal" => Some(Some(ListenMode::Signal)),
        _ => None,
    }
}

/// Returns the value of a yes-or-no variable, or `None` if it is neither `0` nor `1`.
pub(crate) fn says(name: &str) -> Option<bool> {
    match variable(name)?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
