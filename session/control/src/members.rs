//! Which processes are in a session, as the kernel shows it: those that have its memory mapped. A forked child that has
//! not run yet counts too.

use std::os::unix::fs::MetadataExt;

use rustix::fs::{major, minor};

use crate::process::start_of;

/// A session's memory file, as it appears in proc_pid_maps(5).
#[derive(Debug, Clone)]
pub struct MappedFile(String);

impl MappedFile {
    /// Identifies a file by its metadata.
    pub fn of(file: &std::fs::Metadata) -> MappedFile {
        let (dev, inode) = (file.dev(), file.ino());
        MappedFile(format!(" {:02x}:{:02x} {inode} ", major(dev), minor(dev)))
    }

    /// Whether a process has it mapped. `None` if the process may not be inspected.
    pub fn is_mapped_by(&self, pid: u32) -> Option<bool> {
        let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
        // An exiting process or a zombie no longer has mappings.
        Some(String::from_utf8_lossy(&maps).lines().any(|line| line.contains(&self.0)))
    }

    /// Returns the processes that have it mapped and that started at `since` ticks after the boot or later, without the
    /// calling process.
    pub fn mapped_by(&self, since: u64) -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_young = |pid: &u32| start_of(*pid).parse::<u64>().is_ok_and(|start| start >= since);
        let others = pids.filter(|pid| *pid != std::process::id());
        others.filter(is_young).filter(|pid| self.is_mapped_by(*pid) == Some(true)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::process_name;

    #[test]
    fn a_process_has_its_executable_mapped_as_long_as_it_runs() {
        let mut child = Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        // In an emulator of programs, `spawn` does not wait until the child executes its program.
        dormouse_testing::wait_until("the child's program", || process_name(pid).as_deref() == Some("sleep"));
        let file = MappedFile::of(&std::fs::metadata(format!("/proc/{pid}/exe")).unwrap());
        let start = start_of(pid).parse::<u64>().unwrap();
        // `spawn` may return while the kernel still maps the executable.
        dormouse_testing::wait_until("the child's executable", || file.is_mapped_by(pid) == Some(true));
        assert!(file.mapped_by(start).contains(&pid) && !file.mapped_by(start + 1).contains(&pid));
        assert_eq!(file.is_mapped_by(std::process::id()), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!file.mapped_by(0).contains(&pid));
    }
}
