//! Why something cannot be done. Only people tell the reasons apart, so a reason is a text.

/// One line that says what cannot be done and why, and what to do about it where there is something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(text)
    }
}

impl From<Error> for String {
    fn from(error: Error) -> String {
        error.0
    }
}
