//! Programs that hold still, and the kernel's own sums of their memory.
//! Each test binary uses a part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dormouse_census::{Census, KernelInterface, PagesError};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub const INTERFACES: [KernelInterface; 3] = KernelInterface::ALL;

/// Builds a C program.
pub fn build(dir: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(options).arg(&file).arg("-o").arg(&program).status().unwrap();
    assert!(built.success());
    program
}

/// A stopped program, which is killed on drop.
pub struct Stopped {
    pub child: Child,
    /// Lines that it has printed before it was ready.
    pub lines: Vec<String>,
}

impl Stopped {
    /// Starts a program, and stops it when it has printed `ready`, if `says_so`.
    pub fn new(command: &mut Command, says_so: bool) -> Stopped {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = Vec::new();
        if says_so {
            let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            lines.extend(said.take_while(|line| line != "ready"));
        }
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        Stopped { child, lines }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes by name, for each mapping by its first address.
pub type Sums = BTreeMap<u64, BTreeMap<String, u64>>;

/// Returns the sums of `/proc/PID/smaps`, in bytes.
pub fn smaps(pid: u32) -> Sums {
    let mut all = Sums::new();
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some(name) = first.strip_suffix(':') {
            if let (Some(value), Some(mut mapping)) =
                (second.and_then(|value| value.parse::<u64>().ok()), all.last_entry())
            {
                mapping.get_mut().insert(name.into(), value << 10);
            }
        } else {
            let start = first.split('-').next().unwrap();
            all.insert(u64::from_str_radix(start, 16).unwrap(), BTreeMap::new());
        }
    }
    all
}

/// Takes a census while the kernel's sums before and after it are equal: the kernel may take pages back at any time.
pub fn settled(pid: u32, interface: KernelInterface) -> Result<(Census, Sums), PagesError> {
    let mut before = smaps(pid);
    for _ in 0..100 {
        let census = Census::of(pid, &[interface])?;
        let after = smaps(pid);
        if after == before {
            return Ok((census, after));
        }
        before = after;
    }
    panic!("what process {pid} has in memory never stays as it is");
}
