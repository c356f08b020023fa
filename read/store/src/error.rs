//! What went wrong, one line each.

use std::error::Error as StdError;

/// What went wrong: one line that names the place and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// What this crate's functions give.
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

/// What failed is a text; what it failed with is what follows a colon.
pub(crate) trait Failed<T> {
    /// # Errors
    /// That of the result, behind what was done.
    fn failed(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Failed<T> for Result<T, E> {
    fn failed(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error(format!("{}: {}", doing(), one_line(&error.to_string()))))
    }
}

/// What the code of a server's answer means.
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

/// Why an object store did not do what it was asked, in a few words. Works for errors that have one of an object store among their sources, such as
/// those of DataFusion, and is `None` for others.
pub fn reason(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut sources = std::iter::successors(Some(error), source_of);
    let error = sources.find_map(|error| {
        // What is shared by several is in a box, or counted.
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
    // Of what is referred to, which lives longer than the reference.
    let error: &'e (dyn StdError + 'static) = *error;
    error.source()
}

/// What stands at the bottom, which is what the system or the server has said.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let last = std::iter::successors(Some(error), source_of).last().unwrap_or(error);
    one_line(&last.to_string())
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

/// A text without line breaks, and not longer than a line of an error should be.
fn one_line(text: &str) -> String {
    const LEN_MAX: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LEN_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
