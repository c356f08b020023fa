//! What the faults of a build do to the zero page, by the kernel's tracepoints.
//!
//! ```text
//!   perf record ── make -j4 ──▶ perf script ──▶ per process, by page:
//!     read, nothing there, no file behind it ───▶ mapped
//!     written, something there, and that was mapped ───▶ written (copy-on-write)
//!     exit, exec, or nothing there again ───▶ torn down without having been written
//! ```
//! Every fault is counted, none is sampled. Which addresses are those of files is known from the mappings that perf records.
//!
//! # Limits
//! * `munmap` is not recorded. Pages that it tore down are found at exit, or when their addresses are touched again.
//! * What a child writes between `vfork` and `exec` is its parent's, and counts there as torn down. So this number is an upper bound.
//! * A huge zero page is counted as the small one of the address that faulted.
//! * perf mounts tracefs if nobody has, and leaves it mounted.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::LabError;
use crate::experiments::compile_job::project::Project;

const EVENTS: &str = "exceptions:page_fault_user,exceptions:page_fault_kernel";
/// Bits of an error code.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const PAGE_SHIFT: u32 = 12;

/// Counts of a build.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) lasting_s: f64,
    pub(super) faults: u64,
    pub(super) mapped: u64,
    pub(super) written: u64,
    pub(super) torn_down: u64,
}

/// A process's memory.
#[derive(Debug, Clone, Default)]
struct Space {
    /// Mappings, the latest last, and whether reads there get the zero page.
    maps: Vec<(Range<u64>, bool)>,
    /// Pages that are the zero page, and whether this process mapped them, rather than the one that it was forked from.
    zero: HashMap<u64, bool>,
}

impl Space {
    fn is_anonymous(&self, address: u64) -> bool {
        // A stack that grows is in no mapping that was recorded.
        self.maps.iter().rev().find(|(range, _)| range.contains(&address)).is_none_or(|(_, is)| *is)
    }

    /// How many of its own are left, and none of them after this.
    fn tear_down(&mut self) -> u64 {
        self.zero.drain().filter(|(_, is_own)| *is_own).count() as u64
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The number before `:` or `/`.
fn pid(text: &str) -> Option<u32> {
    text.split([':', '/', ')']).next()?.parse().ok()
}

#[derive(Debug, Default)]
struct Faults {
    spaces: BTreeMap<u32, Space>,
    counts: Counts,
    begun_s: Option<f64>,
    is_incomplete: bool,
}

impl Faults {
    /// Takes a line of `perf script -F pid,tid,time,event,trace`; one that says nothing of this is left out.
    fn take(&mut self, line: &str) -> Option<()> {
        let (head, rest) = line.trim_start().split_once(": ")?;
        let (task, time) = head.split_once(char::is_whitespace)?;
        let (task, now_s) = (pid(task)?, time.trim().parse::<f64>().ok()?);
        let rest = rest.trim_start();
        self.is_incomplete |= rest.starts_with("PERF_RECORD_LOST");
        if let Some(fork) = rest.strip_prefix("PERF_RECORD_FORK(") {
            let (child, parent) = fork.split_once("):(")?;
            let (child, parent) = (pid(child)?, pid(parent)?);
            if child != parent {
                let mut space = self.spaces.entry(parent).or_default().clone();
                space.zero.values_mut().for_each(|is_own| *is_own = false);
                self.spaces.insert(child, space);
            }
        } else if let Some(exit) = rest.strip_prefix("PERF_RECORD_EXIT(") {
            // A thread's exit leaves the memory.
            let (process, thread) = exit.split_once(')')?.0.split_once(':')?;
            if process == thread {
                self.counts.torn_down += self.spaces.remove(&pid(process)?).map_or(0, |mut space| space.tear_down());
            }
        } else if rest.starts_with("PERF_RECORD_COMM exec") {
            self.counts.torn_down +=
                self.spaces.insert(task, Space::default()).map_or(0, |mut space| space.tear_down());
        } else if rest.starts_with("PERF_RECORD_MMAP") {
            let (_, map) = rest.split_once(": [")?;
            let (start, map) = map.split_once('(')?;
            let (start, size) = (hexadecimal(start)?, hexadecimal(map.split_once(')')?.0)?);
            let name = map.split_once("]: ")?.1.split_once(' ')?.1.trim();
            let is_anonymous = ["//anon", "[heap]", "[stack]"].contains(&name) || name.starts_with("[anon");
            self.spaces.entry(task).or_default().maps.push((start..start.checked_add(size)?, is_anonymous));
        } else if let Some((_, fault)) = rest.split_once("address=") {
            let address = hexadecimal(fault.split_whitespace().next()?)?;
            let code = hexadecimal(fault.split_once("error_code=")?.1.trim())?;
            // The kernel's own addresses are the upper half.
            if (address as i64) < 0 {
                return None;
            }
            self.counts.lasting_s = now_s - *self.begun_s.get_or_insert(now_s);
            self.counts.faults += 1;
            let space = self.spaces.entry(task).or_default();
            let page = address >> PAGE_SHIFT;
            if code & PRESENT == 0 {
                // Nothing is there: what was has been torn down.
                self.counts.torn_down += u64::from(space.zero.remove(&page) == Some(true));
                if code & WRITE == 0 && space.is_anonymous(address) {
                    space.zero.insert(page, true);
                    self.counts.mapped += 1;
                }
            } else if code & WRITE != 0 && space.zero.remove(&page).is_some() {
                self.counts.written += 1;
            }
        }
        Some(())
    }

    fn end(mut self) -> Result<Counts, String> {
        if self.is_incomplete {
            return Err("perf has lost records".into());
        }
        self.counts.torn_down += self.spaces.values_mut().map(Space::tear_down).sum::<u64>();
        Ok(self.counts)
    }
}

fn record(data: &Path) -> Vec<OsString> {
    let words = ["perf", "record", "--quiet", "--no-buildid", "--data", "--event", EVENTS, "--output"];
    words.into_iter().map(OsString::from).chain([data.into(), "--".into()]).collect()
}

/// Why perf cannot count such faults here, if it cannot.
pub(super) fn refused() -> Option<String> {
    let dir = tempfile::tempdir().ok()?;
    let words = record(&dir.path().join("perf.data"));
    let output = Command::new(&words[0]).args(&words[1..]).arg("true").output();
    match output {
        Err(error) => Some(format!("perf: {error}; install it (apt-get install linux-perf)")),
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("perf record fails").trim();
            Some(format!(
                "{first}; tracepoints of page faults need x86-64, and root or kernel.perf_event_paranoid = -1"
            ))
        }
        Ok(_) => None,
    }
}

/// Builds a project once, and counts.
///
/// # Errors
/// See [`LabError`].
pub(super) fn count(project: &mut Project) -> Result<Counts, LabError> {
    let system = |what| move |error| LabError::System { what, error };
    let dir = tempfile::tempdir().map_err(system("cannot make a directory for perf's records"))?;
    let data = dir.path().join("perf.data");
    project.under = record(&data);
    let built = project.build::<OsString>(&[]);
    project.under.clear();
    built?;
    let mut script = Command::new("perf");
    script.args(["script", "--show-mmap-events", "--show-task-events", "--show-lost-events"]);
    script.args(["--fields", "pid,tid,time,event,trace", "--input"]).arg(&data);
    let mut script =
        script.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(system("cannot run perf script"))?;
    let mut faults = Faults::default();
    for line in script.stdout.take().into_iter().flat_map(|text| BufReader::new(text).lines()) {
        faults.take(&line.map_err(system("cannot read what perf script prints"))?);
    }
    let status = script.wait().map_err(system("wait for perf script"))?;
    let failed = |what: String| LabError::Project(format!("the faults of the build: {what}"));
    if !status.success() {
        return Err(failed(format!("perf script: {status}")));
    }
    faults.end().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Result<Counts, String> {
        let mut faults = Faults::default();
        text.lines().for_each(|line| _ = faults.take(line));
        faults.end()
    }

    fn fault(pid: u32, address: u64, code: u64) -> String {
        format!(" {pid}/{pid} 10.5:   exceptions:page_fault_user: address={address:#x} ip=0x1 error_code={code:#x}\n")
    }

    const MAPS: &str = "\
         7/7 10.0: PERF_RECORD_MMAP2 7/7: [0x10000(0x4000) @ 0 00:00 0 0]: rw-p //anon\n\
         7/7 10.0: PERF_RECORD_MMAP2 7/7: [0x20000(0x4000) @ 0 fe:00 9 0]: rw-p /usr/lib/a file.so\n";

    #[test]
    fn what_is_read_is_mapped_and_what_is_written_then_is_copied() {
        let text = [
            MAPS.to_string(),
            fault(7, 0x10_008, 4),
            fault(7, 0x10_010, 7),
            // Again: it is memory now.
            fault(7, 0x10_010, 7),
            // Written first; read in a file's mapping, and copied there; of the kernel's.
            fault(7, 0x11_000, 6),
            fault(7, 0x20_000, 4),
            fault(7, 0x20_000, 7),
            fault(7, 0xFFFF_8000_0000_0000, 0),
            // Read, and still so at the end.
            fault(7, 0x12_000, 4),
            " 7/7 10.6: PERF_RECORD_EXIT(7:7):(1:1)\n".into(),
        ];
        let expected = Counts { lasting_s: 0.0, faults: 7, mapped: 2, written: 1, torn_down: 1 };
        assert_eq!(counts(&text.concat()), Ok(expected));
    }

    #[test]
    fn children_do_not_tear_down_what_their_parents_mapped() {
        let text = [
            MAPS.to_string(),
            fault(7, 0x10_000, 4),
            fault(7, 0x11_000, 4),
            " 7/7 10.6: PERF_RECORD_FORK(8:8):(7:7)\n 7/7 10.6: PERF_RECORD_FORK(7:9):(7:7)\n".into(),
            fault(8, 0x10_000, 7),
            " 8/8 10.6: PERF_RECORD_COMM exec: cc:8/8\n 7/9 10.6: PERF_RECORD_EXIT(7:9):(7:7)\n".into(),
            // After exec, other memory: nothing of it is known, so it is nobody's file.
            fault(8, 0x20_000, 4),
            // Torn down and touched again.
            fault(7, 0x10_000, 4),
        ];
        let expected = Counts { lasting_s: 0.0, faults: 5, mapped: 4, written: 1, torn_down: 4 };
        assert_eq!(counts(&text.concat()), Ok(expected));
    }

    #[test]
    fn lost_records_are_no_counts() {
        assert!(counts(" 7/7 10.6: PERF_RECORD_LOST lost 3\n").is_err());
    }
}
