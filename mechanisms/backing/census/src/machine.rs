//! The zero page in all processes of the machine, or of a control group.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::buffers::largest_on_zero_page;
use crate::census::{Names, Surveyor, unseen_by};
use crate::{BufferName, KernelInterface, PagesError};

/// Directories below which the control groups of version 2, and of the memory controller of version 1, are.
const GROUP_ROOTS: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"];

/// A set of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All processes of the machine.
    All,
    /// Processes of a control group and of the groups in it.
    Group(PathBuf),
}

/// A process that maps the zero page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZeroProcess {
    /// Id of the process.
    pub pid: u32,
    /// Name of the process.
    pub command: String,
    /// Number of its bytes that are the zero page.
    pub zero: u64,
    /// Number of entries of its page table that lead to the zero page.
    pub zero_entries: u64,
    /// Number of bytes that it has touched: on the zero page and in memory of its own.
    pub touched: u64,
    /// Variable or mapping with most of these bytes.
    pub largest: Option<BufferName>,
}

/// The zero page in several processes, at about one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineCensus {
    /// Number of processes that were examined.
    pub process_count: usize,
    /// Number of processes that this one may not examine: those of other users, and those with raised privileges.
    pub refused_count: usize,
    /// Processes that map the zero page, those with most of it first.
    pub processes: Vec<ZeroProcess>,
    /// Sum of their bytes that are the zero page.
    pub zero: u64,
    /// Sum of their entries that lead to the zero page.
    pub zero_entries: u64,
    /// Sum of the bytes that all examined processes have touched.
    pub touched: u64,
    /// Limits of this census, one line each.
    pub unseen: Vec<String>,
}

impl MachineCensus {
    /// Returns `zero` in percent of `touched`.
    pub fn share_percent(&self) -> f64 {
        100.0 * self.zero as f64 / self.touched.max(1) as f64
    }
}

/// Takes censuses of several processes, and reads each object file only once.
#[derive(Debug)]
pub struct MachineSurveyor {
    surveyor: Surveyor,
    scope: Scope,
}

impl MachineSurveyor {
    /// Returns a surveyor of these processes. Page tables are read by the first of these interfaces that the kernel supports.
    ///
    /// # Errors
    /// [`PagesError::NoGroup`].
    pub fn new(scope: Scope, interfaces: &[KernelInterface]) -> Result<MachineSurveyor, PagesError> {
        let scope = match scope {
            Scope::All => Scope::All,
            Scope::Group(path) => Scope::Group(group_directory(&path).ok_or(PagesError::NoGroup(path))?),
        };
        Ok(MachineSurveyor { surveyor: Surveyor::new(interfaces), scope })
    }

    /// Takes a census. The processes continue to run: each is examined at a different moment, and one that begins or ends
    /// meanwhile may be included or not.
    ///
    /// # Errors
    /// [`PagesError::NoGroup`]: the control group was removed. [`PagesError::System`]: `/proc` cannot be read.
    pub fn census(&mut self) -> Result<MachineCensus, PagesError> {
        let pids = match &self.scope {
            Scope::All => all_processes().map_err(|error| PagesError::of_io(std::process::id(), error))?,
            Scope::Group(path) => processes_in(path).ok_or_else(|| PagesError::NoGroup(path.clone()))?,
        };
        let mut found = MachineCensus {
            process_count: 0,
            refused_count: 0,
            processes: Vec::new(),
            zero: 0,
            zero_entries: 0,
            touched: 0,
            unseen: Vec::new(),
        };
        for pid in pids {
            let census = match self.surveyor.census(pid, pid, Names::ButStacks) {
                Ok(census) => census,
                Err(PagesError::NotAllowed(_)) => {
                    found.refused_count += 1;
                    continue;
                }
                // It has ended, or is a kernel thread.
                Err(_) => continue,
            };
            let (zero, zero_entries, touched) =
                (census.total.zero, census.total.zero_entries(), census.total.touched());
            found.process_count += 1;
            found.zero += zero;
            found.zero_entries += zero_entries;
            found.touched += touched;
            if zero > 0 {
                let largest = largest_on_zero_page(&census);
                found.processes.push(ZeroProcess {
                    pid,
                    command: census.command,
                    zero,
                    zero_entries,
                    touched,
                    largest,
                });
            }
        }
        found.processes.sort_by_key(|process| (std::cmp::Reverse(process.zero), process.pid));
        if found.refused_count > 0 {
            found.unseen.push(format!(
                "processes that this user may not read: {} (of other users, or with raised privileges); root may read most",
                found.refused_count
            ));
        }
        found.unseen.extend(self.surveyor.interface.and_then(unseen_by));
        Ok(found)
    }
}

fn all_processes() -> std::io::Result<BTreeSet<u32>> {
    let names = fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Returns the directory of a control group, whose name is its path in the file system or below the root of all groups, as in
/// `/proc/PID/cgroup`.
fn group_directory(name: &Path) -> Option<PathBuf> {
    let below = GROUP_ROOTS.iter().map(|root| Path::new(root).join(name.strip_prefix("/").unwrap_or(name)));
    std::iter::once(name.into()).chain(below).find(|path| path.join("cgroup.procs").is_file())
}

/// Returns the processes of a control group and of the groups in it; `None` if it does not exist.
fn processes_in(directory: &Path) -> Option<BTreeSet<u32>> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).ok()?;
    let mut pids: BTreeSet<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let inner = fs::read_dir(directory).into_iter().flatten().flatten();
    let inner = inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    // A group may be removed meanwhile.
    inner.filter_map(|entry| processes_in(&entry.path())).for_each(|more| pids.extend(more));
    // Processes of another PID namespace are listed as 0.
    pids.remove(&0);
    Some(pids)
}
