//! Samples of a build: a library in each of its processes interrupts them, and counts in a file where they were.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::LabError;
use crate::engine::find_part;

const LIBRARY: &str = "libdormouse_lab_account.so";

/// Words of the file: samples, those within, blocks, processes, processes that could not be sampled, their last errno.
const WORDS: usize = 6;

/// What a build's processes wrote down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) ticks: u64,
    ticks_within: u64,
    pub(crate) crossings: u64,
}

impl Ledger {
    /// Of samples, those within.
    pub(crate) fn share(self) -> f64 {
        self.ticks_within as f64 / self.ticks.max(1) as f64
    }
}

/// The library, and the file.
pub(crate) struct Sampler {
    library: PathBuf,
    file: tempfile::NamedTempFile,
}

fn failed(error: std::io::Error) -> LabError {
    LabError::System { what: "temporary file", error }
}

impl Sampler {
    /// None where the library is not built.
    ///
    /// # Errors
    /// There is no file to be had.
    pub(crate) fn find() -> Result<Option<Sampler>, LabError> {
        let with_file = |library| tempfile::NamedTempFile::new().map(|file| Sampler { library, file });
        find_part(LIBRARY).map(with_file).transpose().map_err(failed)
    }

    /// The environment of a build that is sampled `way`, with another library in front or not. What was counted before is forgotten.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn environment(
        &self,
        way: &str,
        first: Option<&Path>,
    ) -> Result<[(&'static str, OsString); 3], LabError> {
        fs::write(self.file.path(), [0; 8 * WORDS]).map_err(failed)?;
        let mut libraries = first.map(OsString::from).unwrap_or_default();
        if first.is_some() {
            libraries.push(":");
        }
        libraries.push(&self.library);
        Ok([
            ("LD_PRELOAD", libraries),
            ("DORMOUSE_ACCOUNT", way.into()),
            ("DORMOUSE_ACCOUNT_FILE", self.file.path().into()),
        ])
    }

    /// What the build came to, or why its processes could not be sampled.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(&self) -> Result<Result<Ledger, String>, LabError> {
        fs::read(self.file.path()).map(|bytes| ledger(&bytes)).map_err(failed)
    }
}

fn ledger(bytes: &[u8]) -> Result<Ledger, String> {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>();
    match words[..] {
        [_, _, _, _, refused, errno] if refused > 0 => Err(std::io::Error::from_raw_os_error(errno as i32).to_string()),
        [ticks, ticks_within, crossings, ..] if ticks > 0 => Ok(Ledger { ticks, ticks_within, crossings }),
        _ => Err("no process was sampled".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[u64]) -> Result<Ledger, String> {
        ledger(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn a_ledger_is_whole_or_says_why_not() {
        let whole = of(&[8, 2, 5, 1, 0, 0]).unwrap();
        assert_eq!((whole.ticks, whole.crossings, whole.share()), (8, 5, 0.25));
        assert_eq!(of(&[0; 6]), Err("no process was sampled".into()));
        assert_eq!(of(&[8]), Err("no process was sampled".into()), "it is cut off");
        assert!(of(&[8, 2, 5, 1, 1, libc::EACCES as u64]).is_err_and(|why| why.contains("denied")));
    }
}
