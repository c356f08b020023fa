//! Samples of a build: a library in each of its processes interrupts them, and counts in memory that all of them share where they were.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::LabError;
use crate::engine::find_part;

const LIBRARY: &str = "libdormouse_lab_account.so";

/// Words with which the memory begins: samples, those within, blocks, processes, processes that could not be sampled, their last errno, how
/// often more memory was in use than the machine has.
const WORDS: usize = 7;

/// What a build's processes wrote down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) ticks: u64,
    ticks_within: u64,
    pub(crate) crossings: u64,
    pub(crate) refusals: u64,
}

impl Ledger {
    /// Of samples, those within.
    pub(crate) fn share(self) -> f64 {
        self.ticks_within as f64 / self.ticks.max(1) as f64
    }
}

/// The library, and the memory of a build.
pub(crate) struct Sampler {
    path: PathBuf,
    memory: File,
}

fn failed(error: std::io::Error) -> LabError {
    LabError::System { what: "memory for all processes of a build", error }
}

/// Memory that no process has written.
fn memory() -> Result<File, LabError> {
    let memory = memfd_create("dormouse-account", MemfdFlags::CLOEXEC);
    memory.map(File::from).map_err(|error| failed(error.into()))
}

impl Sampler {
    /// None where the library is not built.
    ///
    /// # Errors
    /// There is no memory to be had.
    pub(crate) fn find() -> Result<Option<Sampler>, LabError> {
        let with_memory = |path| memory().map(|memory| Sampler { path, memory });
        find_part(LIBRARY).map(with_memory).transpose()
    }

    /// The environment of a build that is sampled `way`, with another library in front or not. What was counted before is forgotten.
    ///
    /// # Errors
    /// There is no memory to be had.
    pub(crate) fn environment(
        &mut self,
        way: &str,
        first: Option<&Path>,
    ) -> Result<[(&'static str, OsString); 3], LabError> {
        self.memory = memory()?;
        let mut libraries = first.map(OsString::from).unwrap_or_default();
        if first.is_some() {
            libraries.push(":");
        }
        libraries.push(&self.path);
        let shared = format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd());
        Ok([("LD_PRELOAD", libraries), ("DORMOUSE_ACCOUNT", way.into()), ("DORMOUSE_ACCOUNT_FILE", shared.into())])
    }

    /// What the build came to, or why its processes could not be sampled.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub(crate) fn read(&self) -> Result<Result<Ledger, String>, LabError> {
        let mut words = [[0; 8]; WORDS];
        // What is not there is zero: no process has mapped it.
        self.memory.read_at(words.as_flattened_mut(), 0).map_err(failed)?;
        Ok(ledger(words.map(u64::from_ne_bytes)))
    }
}

fn ledger(words: [u64; WORDS]) -> Result<Ledger, String> {
    let [ticks, ticks_within, crossings, _processes, refused, errno, refusals] = words;
    match (refused, ticks) {
        (1.., _) => Err(std::io::Error::from_raw_os_error(errno as i32).to_string()),
        (0, 0) => Err("no process was sampled".into()),
        _ => Ok(Ledger { ticks, ticks_within, crossings, refusals }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_whole_or_says_why_not() {
        let whole = ledger([8, 2, 5, 1, 0, 0, 7]).unwrap();
        assert_eq!((whole.ticks, whole.crossings, whole.refusals, whole.share()), (8, 5, 7, 0.25));
        assert!(ledger([8, 2, 5, 1, 1, libc::EACCES as u64, 0]).is_err_and(|why| why.contains("denied")));
        let sampler = Sampler { path: PathBuf::new(), memory: memory().unwrap() };
        assert_eq!(sampler.read().unwrap(), Err("no process was sampled".into()), "nobody has written it");
    }
}
