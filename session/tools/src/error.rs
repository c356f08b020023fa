//! Why something cannot be done. Only people distinguish the reasons, so a reason is a text.

/// One line that says what cannot be done, why, and the remedy if there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(text)
    }
}

impl From<dormouse_control::Error> for Error {
    fn from(error: dormouse_control::Error) -> Error {
        Error(error.to_string())
    }
}

impl From<Error> for String {
    fn from(error: Error) -> String {
        error.0
    }
}
