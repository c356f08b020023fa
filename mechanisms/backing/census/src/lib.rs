//! What stands behind every mapping of a process, by names that a person knows, and which variables are the zero page.
//!
//! # The problem
//! A benchmark that reads an array which nobody has written reads one page of zeroes, over and over, from the first-level cache. It
//! looks fast, and its result is meaningless. The program does not show it; the page table does.
//!
//! # The picture
//! ```text
//!   /proc/PID/maps ──▶ mappings ──▶ names: object, .bss, heap, stack of a thread, file, shared, anonymous
//!                         │                    ▲
//!                         │                    └── symbols and segments of the object files
//!                         ▼
//!   page table ──▶ runs of pages that are alike ──▶ bytes unbacked, zero, small, huge, swapped ──▶ Census
//!                                                └▶ variables on the zero page
//! ```
//!
//! # A command
//! [`run`] starts a command and takes a census of each of its processes just before it ends; on request also periodically
//! ([`RunOptions::period`]). Three threads work together:
//! ```text
//!   supervisor   traces the command and its descendants (`trace.rs`), stops one that ends until its census is taken
//!   watcher      the caller: takes censuses, keeps the worst state of each buffer, counts faults
//!   forwarder    passes on signals that another process sends to this one
//! ```
//! Only the supervisor waits for processes, and only the watcher has state; events reach it over a channel, in their order. `README.md`
//! shows programs in which this has found something, and how it is measured.
//!
//! # Cost
//! A census reads the page table once: some 10 ns for each present page. Samples take at most a twentieth of a CPU. A traced
//! command stops where a thread or process begins or ends, at an exec and at a signal, and nowhere else.
//!
//! # Limits
//! The process goes on running: the state of each mapping is that of a moment of its own. Variables are known if the object has a symbol table;
//! a stripped object has only those that it exports. Memory that is read, and then written or given back between two samples, is not seen. The
//! memory that a process had before an exec is that of the last sample. A page that is the zero page was read since it was mapped; when is not known.
//!
//! # Source
//! `ptrace(2)`, `proc(5)`, the kernel's `Documentation/admin-guide/mm/pagemap.rst`; Xinyu Chen, "ZERO PAGE removal influence:
//! Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

// The caller prints; this crate does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod buffers;
mod census;
mod html;
mod object_file;
mod process;
mod signals;
mod speed;
mod stacks;
mod text;
mod trace;
mod watch;

pub use buffers::{Buffer, Limits, What};
pub use census::{Census, Mapping, Name, Pages, ZeroVariable};
pub use dormouse_backing::page_table::Way;
pub use html::{html, html_of_run};
pub use speed::Speed;
pub use text::{run_table, table};
pub use watch::{Counts, Other, Run, RunOptions, Sample, Verdict, run};

use dormouse_backing::BackingError;
use rustix::io::Errno;

/// Why there is no census. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// No process has that id.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// It belongs to another user, or has raised its privileges.
    #[error(
        "process {0} may not be looked into: it is another user's, or has raised its privileges; run this as root or as that user"
    )]
    NotAllowed(u32),
    /// A thread of the kernel's, or one that has ended.
    #[error("process {0} has no memory: it has ended, or is a thread of the kernel's")]
    NoMemory(u32),
    /// The command cannot be run.
    #[error("cannot run `{program}`: {error}")]
    Start {
        /// Which.
        program: String,
        /// Why.
        error: std::io::Error,
    },
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    /// Anything else.
    #[error("cannot look into process {pid}: {errno}")]
    System {
        /// The process.
        pid: u32,
        /// What the kernel said.
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
