//! Errors, as one line each.

use std::error::Error as StdError;

/// An error: one line that names the place and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<String> for Error {
    fn from(line: String) -> Error {
        Error(line)
    }
}

impl From<&str> for Error {
    fn from(line: &str) -> Error {
        Error(line.into())
    }
}

/// Turns any error into an [`Error`]: the failed operation, a colon, and the original error.
pub(crate) trait Failed<T> {
    /// # Errors
    /// The error of the result, with `doing` before it.
    fn failed(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Failed<T> for Result<T, E> {
    fn failed(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error(format!("{}: {}", doing(), one_line(&error.to_string()))))
    }
}

/// Meaning of the error codes in a server's response.
const CODES: [(&str, &str); 10] = [
    ("NoSuchBucket", "there is no such bucket"),
    ("NoSuchKey", "it is not there"),
    ("InvalidAccessKeyId", WRONG_CREDENTIAL),
    ("NotSignedUp", WRONG_CREDENTIAL),
    ("SignatureDoesNotMatch", WRONG_CREDENTIAL),
    ("InvalidToken", WRONG_CREDENTIAL),
    ("ExpiredToken", "the credential has expired: AWS_SESSION_TOKEN"),
    ("AccessDenied", "access is denied: what AWS_ACCESS_KEY_ID names may not do this"),
    ("AuthorizationHeaderMalformed", "the server is of another region: AWS_REGION"),
    ("PermanentRedirect", "the bucket is in another region or at another server: AWS_REGION, AWS_ENDPOINT_URL"),
];

const WRONG_CREDENTIAL: &str = "the credential is refused: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY";

/// Returns in a few words why an object store refused a request. Works for all errors that have an object store's error
/// among their sources, like DataFusion's. `None` for others.
pub fn reason(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut sources = std::iter::successors(Some(error), source_of);
    let error = sources.find_map(|error| {
        // Some sources hold the object store's error in a `Box`.
        let boxed = error.downcast_ref::<Box<object_store::Error>>().map(Box::as_ref);
        error.downcast_ref::<object_store::Error>().or(boxed)
    })?;
    Some(of_store(error))
}

pub(crate) fn of_store(error: &object_store::Error) -> String {
    let text = error.to_string();
    let code = between(&text, "<Code>", "</Code>");
    if let Some(code) = code {
        let known = CODES.iter().find(|(known, _)| *known == code).map(|(_, means)| (*means).to_string());
        let message = between(&text, "<Message>", "</Message>").unwrap_or_default();
        return known.unwrap_or_else(|| one_line(&format!("the server says {code} {message}")));
    }
    let mut sources = std::iter::successors(Some(error as &(dyn StdError + 'static)), source_of);
    if let Some(system) = sources.find_map(|error| error.downcast_ref::<std::io::Error>()) {
        return innermost(system);
    }
    match error {
        object_store::Error::NotFound { .. } => "it is not there".into(),
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            WRONG_CREDENTIAL.into()
        }
        other => innermost(other),
    }
}

fn source_of<'e>(error: &&'e (dyn StdError + 'static)) -> Option<&'e (dyn StdError + 'static)> {
    // Copied out, so that the source has the lifetime of the error and not that of the outer reference.
    let error: &'e (dyn StdError + 'static) = *error;
    error.source()
}

/// Returns the text of the last source: the message of the system or server.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let last = std::iter::successors(Some(error), source_of).last().unwrap_or(error);
    one_line(&last.to_string())
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

/// Returns the text without line breaks, cut to at most 300 characters.
fn one_line(text: &str) -> String {
    const LEN_MAX: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LEN_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
