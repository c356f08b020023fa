//! A trace's files, for those who read it.

use std::fs::File;
use std::path::{Path, PathBuf};

use dormouse_ctf::{Metadata, MetadataError};
use memmap2::Mmap;

/// Why a trace cannot be read. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such directory, or no trace in it.
    #[error("there is no trace in {0}: it has no file `metadata`; `dormouse record -o DIR -- CMD` makes one")]
    NoTrace(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {path}: {error}; check its owner and permissions")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The metadata are not Dormouse's.
    #[error("{path}: {error}")]
    Metadata {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        error: MetadataError,
    },
}

/// A trace on disk, opened.
#[derive(Debug)]
pub struct TraceFiles {
    /// The metadata.
    pub metadata: Metadata,
    streams: Vec<(String, Option<Mmap>)>,
}

impl TraceFiles {
    /// Opens all files of a trace.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(dir: &Path) -> Result<TraceFiles, OpenError> {
        let path = dir.join("metadata");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Err(OpenError::NoTrace(dir.into()));
            }
            Err(error) => return Err(OpenError::Read { path, error }),
        };
        let metadata = Metadata::parse(&text).map_err(|error| OpenError::Metadata { path, error })?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| OpenError::Read { path, error }
        };
        let mut streams = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed(dir))? {
            let entry = entry.map_err(failed(dir))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if name == "metadata" || name.starts_with('.') || !path.is_file() {
                continue;
            }
            let file = File::open(&path).map_err(failed(&path))?;
            let is_empty = file.metadata().map_err(failed(&path))?.len() == 0;
            // SAFETY: stream files only grow while a session writes them, and are never written in place; who cuts one
            // under a reader gets the reader killed, not a wrong answer.
            let map = if is_empty { None } else { Some(unsafe { Mmap::map(&file) }.map_err(failed(&path))?) };
            streams.push((name, map));
        }
        // The state stream first: a process has its name before its events of the same tick.
        streams.sort_by_key(|(name, _)| (name != "state", number_in(name), name.clone()));
        Ok(TraceFiles { metadata, streams })
    }

    /// Names and bytes of the streams, the state stream first.
    pub fn streams(&self) -> Vec<(&str, &[u8])> {
        self.streams.iter().map(|(name, map)| (name.as_str(), map.as_deref().unwrap_or_default())).collect()
    }
}

/// `cpu_10` comes after `cpu_9`.
fn number_in(name: &str) -> u32 {
    name.rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
