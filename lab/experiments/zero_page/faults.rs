//! Effect of a build's faults on the zero page, from the kernel's tracepoints.
//!
//! ```text
//!   perf record ── make -j4 ──▶ perf script ──▶ per process, by page:
//!     read, not present, no file ───▶ mapped
//!     written, present, and mapped before ───▶ written (copy-on-write)
//!     exit, exec, or not present again ───▶ torn down without having been written
//! ```
//! Every fault is counted; none is sampled. The mappings that perf records show which addresses belong to files.
//!
//! * `munmap` is not recorded. Pages that it tore down are found at exit, or when their addresses are touched again.
//! * A child of `vfork` uses its parent's memory until it executes a program or ends, which tears nothing down: the kernel's
//!   tracepoint for new tasks tells which children these are. A huge zero page is counted as the small one of the address
//!   that faulted.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use dormouse_testing::printed;

use crate::experiments::compile_job::find_project;
use crate::experiments::compile_job::project::{Goals, Project};
use crate::plan::{Samples, in_turn};
use crate::statistics::ROUNDS_MIN;
use crate::{LabError, RunOptions};

const RECORD: &str = "perf record --quiet --no-buildid --no-bpf-event --data \
                      --event exceptions:page_fault_user,exceptions:page_fault_kernel,task:task_newtask --output";
const SCRIPT: &str =
    "script --show-mmap-events --show-task-events --show-lost-events --fields pid,tid,time,event,trace --input";
pub(super) const NEEDS: &str =
    "perf (apt-get install linux-perf; needs x86-64, and root or kernel.perf_event_paranoid = -1)";

/// Number of make's jobs, as in the paper.
pub(super) const JOBS: usize = 4;

/// Bit of an error code: the page is present.
const PRESENT: u64 = 1;
/// Bit of an error code: the access is a write.
const WRITE: u64 = 2;
const PAGE_SHIFT: u32 = 12;
/// Flags of clone(2): the new task shares the memory of its parent; it is a thread.
const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x1_0000;

/// Memory of a process.
#[derive(Debug, Clone, Default)]
struct Space {
    /// Mappings, the latest last, and whether reads in them get the zero page.
    maps: Vec<(Range<u64>, bool)>,
    /// Pages that are the zero page, and whether this process mapped them, and not the one that it was forked from.
    zero: HashMap<u64, bool>,
}

/// Faults of a build, as far as they have been read.
#[derive(Debug, Default)]
struct Faults {
    spaces: BTreeMap<u64, Space>,
    /// Processes that use the memory of another one, which is the value.
    lenders: BTreeMap<u64, u64>,
    begun_s: Option<f64>,
    lasting_s: f64,
    counts: BTreeMap<&'static str, u64>,
    is_incomplete: bool,
}

impl Faults {
    /// Processes a line of `perf script`; irrelevant lines are ignored.
    fn take(&mut self, line: &str) -> Option<()> {
        let (head, record) = line.split_once(": ")?;
        let (task, now_s) = head.trim().split_once(char::is_whitespace)?;
        let task: u64 = task.split('/').next()?.parse().ok()?;
        let now_s: f64 = now_s.trim().parse().ok()?;
        let mut words = record.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let kind = words.next()?;
        let number = |word: &str| match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        let numbers: Vec<u64> = words.filter_map(number).collect();
        match (kind, numbers.as_slice()) {
            // A thread's begin and end leave the memory unchanged.
            ("PERF_RECORD_FORK", [child, _, parent, ..]) if child != parent => {
                let parent = self.owner(*parent);
                let mut space = self.spaces.entry(parent).or_default().clone();
                space.zero.values_mut().for_each(|is_own| *is_own = false);
                self.spaces.insert(*child, space);
            }
            ("task", [child, ..]) => {
                let flags = record.split_once("clone_flags=")?.1.split_whitespace().next()?;
                let flags = u64::from_str_radix(flags, 16).ok()?;
                if flags & (CLONE_VM | CLONE_THREAD) == CLONE_VM {
                    self.spaces.remove(child);
                    self.lenders.insert(*child, self.owner(task));
                }
            }
            ("PERF_RECORD_EXIT", [process, thread, ..]) if process == thread => self.leave(*process),
            ("PERF_RECORD_COMM", _) if record.contains("PERF_RECORD_COMM exec") => self.leave(task),
            ("PERF_RECORD_MMAP" | "PERF_RECORD_MMAP2", [_, _, start, size, ..]) => {
                let name = record.split_once("]: ")?.1.split_once(' ')?.1.trim();
                let is_anonymous = ["//anon", "[heap]", "[stack]"].contains(&name) || name.starts_with("[anon");
                let owner = self.owner(task);
                self.spaces.entry(owner).or_default().maps.push((*start..start.saturating_add(*size), is_anonymous));
            }
            // The kernel's addresses are the upper half.
            ("exceptions", [address, .., code]) if address >> 63 == 0 => {
                self.lasting_s = now_s - *self.begun_s.get_or_insert(now_s);
                let owner = self.owner(task);
                let space = self.spaces.entry(owner).or_default();
                let page = address >> PAGE_SHIFT;
                let (is_there, is_written) = (code & PRESENT != 0, code & WRITE != 0);
                let was_zero = if is_there && !is_written { None } else { space.zero.remove(&page) };
                // A stack that grows is in no recorded mapping.
                let map = || space.maps.iter().rev().find(|(range, _)| range.contains(address));
                let is_zero = !is_there && !is_written && map().is_none_or(|(_, is_anonymous)| *is_anonymous);
                if is_zero {
                    space.zero.insert(page, true);
                }
                let mut count = |name, is_one: bool| *self.counts.entry(name).or_default() += u64::from(is_one);
                count("faults", true);
                count("zero-mapped", is_zero);
                count("zero-written", is_there && was_zero.is_some());
                // The page is not present, so the zero page there was torn down.
                count("zero-torn-down", !is_there && was_zero == Some(true));
            }
            (kind, _) if kind.starts_with("PERF_RECORD_LOST") => self.is_incomplete = true,
            _ => {}
        }
        Some(())
    }

    /// Returns the process whose memory a process uses: another one's or its own.
    fn owner(&self, process: u64) -> u64 {
        self.lenders.get(&process).copied().unwrap_or(process)
    }

    /// Ends a process's use of its memory. Memory that belongs to another process stays.
    fn leave(&mut self, process: u64) {
        if self.lenders.remove(&process).is_none() {
            self.tear_down(process);
        }
    }

    /// Removes a process's memory, and with it the zero pages that it has mapped.
    fn tear_down(&mut self, process: u64) {
        let space = self.spaces.remove(&process).unwrap_or_default();
        let own = space.zero.values().filter(|is_own| **is_own);
        *self.counts.entry("zero-torn-down").or_default() += own.count() as u64;
    }
}

/// Returns the counts per second of the lines of `perf script`.
fn rates(lines: impl Iterator<Item = io::Result<String>>) -> io::Result<BTreeMap<&'static str, f64>> {
    let mut faults = Faults::default();
    for line in lines {
        faults.take(&line?);
    }
    while let Some(process) = faults.spaces.keys().next().copied() {
        faults.tear_down(process);
    }
    if faults.is_incomplete {
        return Err(io::Error::other("perf has lost records"));
    }
    Ok(faults.counts.into_iter().map(|(name, count)| (name, count as f64 / faults.lasting_s)).collect())
}

/// Returns the words of a command that records the faults of the command after them.
pub(super) fn perf_words(data: &Path) -> Vec<OsString> {
    RECORD.split(' ').map(OsString::from).chain([data.into(), "--".into()]).collect()
}

/// Returns the counts per second of a recording of perf.
pub(super) fn rates_of(data: &Path) -> io::Result<BTreeMap<&'static str, f64>> {
    let mut script = Command::new("perf");
    script.args(SCRIPT.split(' ')).arg(data).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut script = script.spawn()?;
    let rates = rates(script.stdout.take().into_iter().flat_map(|text| BufReader::new(text).lines()))?;
    let status = script.wait()?;
    if status.success() { Ok(rates) } else { Err(io::Error::other(format!("perf script: {status}"))) }
}

/// Builds a project repeatedly, with four jobs as in the paper. Adds the rates of its faults to the samples, and
/// returns a description of the build.
pub(super) fn of_builds(options: &RunOptions, samples: &mut Samples) -> Result<String, LabError> {
    let failed = |error| LabError::System { what: NEEDS, error };
    let source = find_project(options.project.as_deref())?;
    let mut project = Project::copy(&source, Goals::new(options.is_quick, 2, Goals::All))?;
    let dir = tempfile::tempdir().map_err(failed)?;
    let data = dir.path().join("perf.data");
    (project.job_count, project.under) = (JOBS, perf_words(&data));
    // perf is tried alone, so that its refusal is not taken for a failure of make.
    let tried = printed(Command::new("perf").args(&project.under[1..]).arg("true"), "perf");
    tried.map_err(|why| failed(io::Error::other(why)))?;
    let rounds = options.rounds(ROUNDS_MIN, 2 * ROUNDS_MIN);
    let mut of_all = Samples::new();
    in_turn("faults of a build", rounds + 1, 1, None, |_, _, _| {
        project.build::<OsString>(&[])?;
        for (name, rate) in rates_of(&data).map_err(failed)? {
            of_all.entry((format!("build.{name}"), "1/s")).or_default().push(rate);
        }
        Ok(())
    })?;
    samples.extend(of_all);
    Ok(format!("faults: {}; every one counted, by perf", project.describe(&source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of perf, shortened; all but the first fault happen a second later.
    const LINES: &str = "
        7/7 9.5: PERF_RECORD_MMAP2 7/7: [0x10000(0x8000) @ 0 00:00 0 0]: rw-p //anon
        7/7 9.5: PERF_RECORD_MMAP2 7/7: [0x20000(0x4000) @ 0 fe:00 9 0]: rw-p /usr/lib/a file.so
        # Read, written, and memory when it is written again; written first.
        7/7 9.5:   exceptions:page_fault_user: address=0x10008 ip=0x1 error_code=0x4
        7/7 10.5:   exceptions:page_fault_user: address=0x10010 ip=0x1 error_code=0x7
        7/7 10.5:   exceptions:page_fault_user: address=0x10010 ip=0x1 error_code=0x7
        7/7 10.5:   exceptions:page_fault_user: address=0x11000 ip=0x1 error_code=0x6
        # Read in a file's mapping, and copied there; of the kernel's own.
        7/7 10.5:   exceptions:page_fault_user: address=0x20000 ip=0x1 error_code=0x4
        7/7 10.5:   exceptions:page_fault_user: address=0x20000 ip=0x1 error_code=0x7
        7/7 10.5:   exceptions:page_fault_kernel: address=0xffff800000000000 ip=memcpy error_code=0x0
        # A child and a thread: neither tears down by exec or exit what the process has mapped.
        7/7 10.5:   exceptions:page_fault_user: address=0x12000 ip=0x1 error_code=0x4
        7/7 10.5:   exceptions:page_fault_kernel: address=0x13000 ip=memcpy error_code=0x0
        7/7 10.5: PERF_RECORD_FORK(8:8):(7:7)
        7/7 10.5: PERF_RECORD_FORK(7:9):(7:7)
        8/8 10.5:   exceptions:page_fault_user: address=0x12000 ip=0x1 error_code=0x7
        8/8 10.5: PERF_RECORD_COMM exec: cc:8/8
        7/9 10.5: PERF_RECORD_EXIT(7:9):(7:7)
        7/7 10.5:   exceptions:page_fault_user: address=0x12000 ip=0x1 error_code=0x7
        # Of the memory after exec nothing is known, so it is nobody's file; torn down and touched again; left at the end.
        8/8 10.5:   exceptions:page_fault_user: address=0x20000 ip=0x1 error_code=0x4
        7/7 10.5:   exceptions:page_fault_user: address=0x13000 ip=0x1 error_code=0x4
        7/7 10.5:   exceptions:page_fault_user: address=0x14000 ip=0x1 error_code=0x4
        7/7 10.5: PERF_RECORD_EXIT(7:7):(1:1)";

    /// A child of vfork: a page that its parent has read is written, and one that it reads is still there afterwards.
    const LINES_OF_VFORK: &str = "
        7/7 9.5: PERF_RECORD_MMAP2 7/7: [0x10000(0x8000) @ 0 00:00 0 0]: rw-p //anon
        7/7 9.5:   exceptions:page_fault_user: address=0x10008 ip=0x1 error_code=0x4
        7/7 10.5: PERF_RECORD_FORK(8:8):(7:7)
        7/7 10.5:   task:task_newtask: pid=8 comm=make 4.3 clone_flags=4100 oom_score_adj=0
        8/8 10.5:   exceptions:page_fault_user: address=0x10008 ip=0x1 error_code=0x7
        8/8 10.5:   exceptions:page_fault_user: address=0x11000 ip=0x1 error_code=0x4
        8/8 10.5: PERF_RECORD_COMM exec: cc:8/8
        7/7 10.5:   exceptions:page_fault_user: address=0x11000 ip=0x1 error_code=0x7
        7/7 10.5: PERF_RECORD_FORK(7:9):(7:7)
        7/7 10.5:   task:task_newtask: pid=9 comm=make clone_flags=3d0f00 oom_score_adj=0
        8/8 10.5:   exceptions:page_fault_user: address=0x12000 ip=0x1 error_code=0x4
        8/8 10.5: PERF_RECORD_EXIT(8:8):(7:7)
        7/7 10.5: PERF_RECORD_EXIT(7:7):(1:1)";

    #[test]
    fn what_is_read_is_mapped_then_written_or_torn_down() {
        let lines = || LINES.lines().map(|line| Ok(line.to_string()));
        let expected = [("faults", 13.0), ("zero-mapped", 6.0), ("zero-torn-down", 4.0), ("zero-written", 3.0)];
        assert_eq!(rates(lines()).expect("all of them"), BTreeMap::from(expected));
        let of_vfork = LINES_OF_VFORK.lines().map(|line| Ok(line.to_string()));
        let expected = [("faults", 5.0), ("zero-mapped", 3.0), ("zero-torn-down", 1.0), ("zero-written", 2.0)];
        assert_eq!(rates(of_vfork).expect("all of them"), BTreeMap::from(expected));
        let lost = " 7/7 10.6: PERF_RECORD_LOST lost 3".to_string();
        assert!(rates(lines().chain([Ok(lost)])).is_err());
    }
}
