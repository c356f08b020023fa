//! Samples of a build: a library in each of its processes interrupts it and counts, in memory that all processes share,
//! where it was.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use super::project::Environment;
use crate::LabError;
use crate::engine::find_part;

/// Counts of a build's processes.
#[derive(Debug, PartialEq)]
pub(crate) struct Ledger {
    pub(crate) ticks: u64,
    /// Share of the samples that are in the watched code.
    pub(crate) share: f64,
    pub(crate) crossings: u64,
    pub(crate) refusals: u64,
}

/// The library, and the shared memory of a build.
pub(crate) struct Sampler {
    path: PathBuf,
    memory: File,
    ticks_per_s: u32,
}

fn failed(error: std::io::Error) -> LabError {
    LabError::System { what: "memory for all processes of a build", error }
}

/// Returns memory that no process has written.
fn memory() -> Result<File, LabError> {
    memfd_create("dormouse-account", MemfdFlags::CLOEXEC).map(File::from).map_err(|error| failed(error.into()))
}

impl Sampler {
    /// Finds the library, which samples so many times for each second of CPU time. Returns none if it is not built.
    pub(crate) fn find(ticks_per_s: u32) -> Result<Option<Sampler>, LabError> {
        let path = find_part("libdormouse_lab_account.so");
        path.map(|path| Ok(Sampler { path, memory: memory()?, ticks_per_s })).transpose()
    }

    /// Returns the environment of a build that is sampled by a way, optionally with another library in front. Earlier
    /// counts are dropped.
    pub(crate) fn environment(&mut self, way: &str, first: Option<&Path>) -> Result<Environment, LabError> {
        self.memory = memory()?;
        let libraries: Vec<&OsStr> = first.into_iter().chain([self.path.as_path()]).map(Path::as_os_str).collect();
        let shared = format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd());
        Ok(vec![
            ("LD_PRELOAD", libraries.join(OsStr::new(":"))),
            ("DORMOUSE_ACCOUNT", way.into()),
            ("DORMOUSE_ACCOUNT_FILE", shared.into()),
            ("DORMOUSE_ACCOUNT_TICKS", self.ticks_per_s.to_string().into()),
        ])
    }

    /// Returns the counts of a build, or the reason why its processes could not be sampled.
    pub(crate) fn read(&self) -> Result<Result<Ledger, String>, LabError> {
        // The start of the library's `Ledger`. If no process has mapped it, the words are zero.
        let mut words = [[0; 8]; 7];
        self.memory.read_at(words.as_flattened_mut(), 0).map_err(failed)?;
        Ok(ledger(words.map(u64::from_ne_bytes)))
    }
}

fn ledger(words: [u64; 7]) -> Result<Ledger, String> {
    let [ticks, ticks_within, crossings, _processes, refused, errno, refusals] = words;
    match (refused, ticks) {
        (1.., _) => Err(std::io::Error::from_raw_os_error(errno as i32).to_string()),
        (0, 0) => Err("no process was sampled".into()),
        _ => Ok(Ledger { ticks, share: ticks_within as f64 / ticks as f64, crossings, refusals }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_complete_or_gives_the_reason() {
        let whole = Ledger { ticks: 8, share: 0.25, crossings: 5, refusals: 7 };
        assert_eq!(ledger([8, 2, 5, 1, 0, 0, 7]), Ok(whole));
        assert!(ledger([8, 2, 5, 1, 1, libc::EACCES as u64, 0]).is_err_and(|why| why.contains("denied")));
        let sampler = Sampler { path: PathBuf::new(), memory: memory().unwrap(), ticks_per_s: 1 };
        assert_eq!(sampler.read().unwrap(), Err("no process was sampled".into()), "nobody has written it");
    }
}
