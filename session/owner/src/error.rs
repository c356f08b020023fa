//! Why something cannot be done: one line, as in `dormouse-tools`.

pub use dormouse_tools::Error;

/// Returns the error for a thread that could not be started.
pub(crate) fn no_thread(error: std::io::Error) -> Error {
    dormouse_control::Error::Thread(error).into()
}
