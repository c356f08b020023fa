//! The directory of a trace: opens its files safely and reads its metadata.
//!
//! Both sides that open traces use it: `dormouse-reader`, and the session owner, which links no reader of archives.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

mod dir;

pub use dir::{DIR_FLAGS, Dir, no_file};

/// Maximum size of metadata: all classes that a trace may have, with long names and many fields.
pub const METADATA_BYTES_MAX: u64 = 64 << 20;

/// Error of a trace that cannot be read: one line. For invalid metadata it includes the position in their text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(text)
    }
}

/// Returns the error of a file that cannot be read.
pub fn not_read(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| {
        // Permissions do not explain invalid contents.
        let hint = if error.kind() == ErrorKind::InvalidData { "" } else { "; check its owner and permissions" };
        format!("cannot read {}: {error}{hint}", path.display()).into()
    }
}

/// Opens the directory of a trace that a user has named.
///
/// # Errors
/// It cannot be opened, or it is not a directory; the text then says where the trace is.
pub fn open_dir(path: &Path) -> Result<Dir, Error> {
    Dir::open(path).map_err(|error| no_trace(path, error))
}

/// Why there is no trace at a path. If the path is inside a trace, the text says where the trace is.
pub fn no_trace(dir: &Path, error: std::io::Error) -> Error {
    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
        return not_read(dir)(error);
    }
    let shown = dir.display();
    if let Some(trace) = dir.ancestors().skip(1).find(|above| above.join("metadata").is_file()) {
        return format!("{shown} lies in the trace {0}: give its directory, {0}", trace.display()).into();
    }
    format!("there is no trace in {shown}: neither it nor a directory below has a file `metadata`; `dormouse record -o DIR -- CMD` makes one").into()
}

/// Returns the path and the contents of a trace's metadata.
///
/// # Errors
/// They do not exist or cannot be read.
pub fn read_metadata(dir: &Dir) -> Result<(PathBuf, Vec<u8>), Error> {
    let path = dir.path_of("metadata");
    match dir.read_all("metadata", METADATA_BYTES_MAX) {
        Ok(bytes) => Ok((path, bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(no_trace(&dir.path, error)),
        Err(error) => Err(not_read(&path)(error)),
    }
}

/// Whether this is the name of a data stream: `cpu_3`, `claimed_0`.
pub fn is_stream_name(name: &str) -> bool {
    let number = name.strip_prefix("cpu_").or_else(|| name.strip_prefix("claimed_"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}
