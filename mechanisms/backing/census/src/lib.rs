//! The kinds of pages behind every mapping of a process, by meaningful names, and the variables on the zero page.
//!
//! # The problem
//! A benchmark that reads an array that was never written reads one page of zeroes, repeatedly, from the first-level
//! cache. It looks fast, and its result is meaningless. The program does not show it; the page table does.
//!
//! # The picture
//! ```text
//!   /proc/PID/maps ──▶ mappings ──▶ names: object, .bss, heap, stack of a thread, file, shared, anonymous
//!                         │                    ▲
//!                         │                    └── symbols and segments of the object files
//!                         ▼
//!   page table ──▶ runs of equal pages ──▶ bytes unbacked, zero, small, huge, swapped ──▶ Census
//!                                       └▶ variables on the zero page
//! ```
//!
//! # A command
//! [`run`] starts a command and takes a census of each of its processes just before it ends; on request also periodically
//! ([`RunOptions::period`]). Three threads work together:
//! ```text
//!   supervisor   traces the command and its descendants (`trace.rs`), stops each one that ends until its census is taken
//!   watcher      the calling thread: takes censuses, keeps the worst state of each buffer, counts faults
//!   forwarder    passes on signals that another process sends to this one
//! ```
//! Only the supervisor waits for processes, and only the watcher has state; it receives events over a channel, in their
//! order. `README.md` shows programs in which this has found something, and explains the measurement.
//!
//! With [`RunOptions::fix`], a filter of system calls (`filter.rs`) also stops the command where it obtains memory or gives it
//! back. There the supervisor makes it populate what it has obtained (`populate.rs`), by a system call between two of the
//! command's own instructions (`inject.rs`). [`fix()`] compares a run with this to one without.
//!
//! With [`RunOptions::is_explained`], page faults are recorded (`faults.rs`), and a thread that has obtained memory steps out of
//! the C library, so that the caller is known.
//!
//! # Cost
//! A census reads the page table once: about 10 ns for each present page. Samples take at most a twentieth of a CPU. A
//! traced command stops when a thread or process begins or ends, at an exec and at a signal, and nowhere else; with a fix, also
//! at system calls that obtain memory or give it back.
//!
//! # Limits
//! The process continues to run: the state of each mapping is read at a different moment. Variables are known if the
//! object has a symbol table; a stripped object has only those that it exports. Memory that is read, and then written
//! or given back between two samples, is not seen. The memory that a process had before an exec is known from the last
//! sample only. A page on the zero page was read since it was mapped; the time of the read is not known.
//!
//! # Source
//! `ptrace(2)`, `proc(5)`, the kernel's `Documentation/admin-guide/mm/pagemap.rst`; Xinyu Chen, "ZERO PAGE removal influence:
//! Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

// The caller prints; this crate does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod allocators;
mod buffers;
mod census;
mod faults;
mod filter;
mod fix;
mod html;
mod inject;
mod machine;
mod object_file;
mod populate;
mod process;
mod ptrace;
mod signals;
mod source_lines;
mod speed;
mod stacks;
mod text;
mod trace;
mod watch;

pub use buffers::{Buffer, BufferName, Limits};
pub use census::{Census, CodePlace, Mapping, Name, Pages, ZeroVariable};
pub use dormouse_backing::page_table::KernelInterface;
pub use fix::{COMPARED_RUNS_MIN, Comparison, Fixed, fix};
pub use html::{html, html_of_run};
pub use machine::{MachineCensus, MachineSurveyor, Scope, ZeroProcess};
pub use populate::{Fix, LeftAlone, Populated};
pub use source_lines::SourceLine;
pub use speed::Speed;
pub use text::{fixed_table, machine_line, machine_table, run_table, table};
pub use watch::{Counts, EndedProcess, Run, RunOptions, Sample, Verdict, run};

use dormouse_backing::BackingError;
use rustix::io::Errno;

/// An error of a census, with a remedy in its message.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// No process has that id.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// The process belongs to another user, or has raised its privileges.
    #[error(
        "cannot read the memory of process {0}: it belongs to another user, or has raised its privileges; run this command as root or as that user"
    )]
    NotAllowed(u32),
    /// A kernel thread, or a process that has ended.
    #[error("process {0} has no memory: it has ended, or is a kernel thread")]
    NoMemory(u32),
    /// There is no such control group.
    #[error("there is no control group {}; give its directory, or its name in /proc/PID/cgroup", .0.display())]
    NoGroup(std::path::PathBuf),
    /// The command cannot be run.
    #[error("cannot run `{program}`: {error}")]
    Start {
        /// Name of the program.
        program: String,
        /// Error of the kernel.
        error: std::io::Error,
    },
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    /// Any other error of the kernel.
    #[error("cannot read the memory of process {pid}: {errno}")]
    System {
        /// Id of the process.
        pid: u32,
        /// Error of the kernel.
        errno: Errno,
    },
}

impl PagesError {
    fn of_errno(pid: u32, errno: Errno) -> PagesError {
        match errno {
            Errno::NOENT | Errno::SRCH => PagesError::NoProcess(pid),
            Errno::ACCESS | Errno::PERM => PagesError::NotAllowed(pid),
            errno => PagesError::System { pid, errno },
        }
    }

    fn of_io(pid: u32, error: std::io::Error) -> PagesError {
        PagesError::of_errno(pid, Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn of_backing(pid: u32, error: BackingError) -> PagesError {
        let errno = if let BackingError::System { errno, .. } = error { errno } else { Errno::IO };
        PagesError::of_errno(pid, errno)
    }
}
