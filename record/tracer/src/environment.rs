//! The environment variables that the library obeys.
//!
//! A program with privileges that its caller has not (`AT_SECURE`: set-user-ID, file capabilities) obeys none: they are the caller's.

/// Whether the program has privileges that its caller has not.
pub(crate) fn is_secure() -> bool {
    // SAFETY: getauxval(3) has no conditions.
    (unsafe { libc::getauxval(libc::AT_SECURE) }) != 0
}

/// A variable that is set, and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    if is_secure() {
        return None;
    }
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// How a program comes to know of tools.
#[cfg(feature = "listen")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A thread sleeps on a socket, and answers at once.
    Thread,
    /// A tool sends `SIGURG`, and the next thread that passes a tracepoint outside of signal handlers starts the listening thread, which ends again
    /// when no tool has come for two seconds, unless the program is in a session. The price: a call that sleeps may return `EINTR`, the arguments of the
    /// event at that tracepoint are evaluated, and the tool waits for it. Not for programs that have a handler of their own for `SIGURG`, or tracepoints in their allocator.
    Signal,
}

/// What `DORMOUSE_LISTEN` says, if anything: not to listen, or how.
#[cfg(feature = "listen")]
pub(crate) fn way_to_listen() -> Option<Option<Way>> {
    match variable(dormouse_abi::environment::ENV_LISTEN)?.as_str() {
        "0" => Some(None),
        "1" | "thread" => Some(Some(Way::Thread)),
        "signal" => Some(Some(Way::Signal)),
        _ => None,
    }
}

/// A variable that says yes or no; anything else is as good as nothing.
pub(crate) fn says(name: &str) -> Option<bool> {
    match variable(name)?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
