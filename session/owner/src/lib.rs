//! The session owner: holds a session's memory, hands it out to programs, drains it and writes the trace.
//!
//! # The problem
//! Everything that a program has committed must survive the program, and no reader may slow a program down. So a
//! separate process (or thread) owns the memory; programs only map it. The owner trusts nothing that it reads there.
//!
//! # The picture
//! ```text
//!   program ── hello ───────────▶ ┌───────────────┐
//!           ◀── memfd ─────────── │ server thread │
//!                                 └───────────────┘
//!   program ── itself, classes ─▶ ┌───────────────┐ ── metadata, state ──▶ DIR/metadata, DIR/state
//!       (in the memory) ── pages ▶│ drain thread  │ ── packets as they are ──▶ DIR/cpu_0, DIR/cpu_1, …
//!           ◀── used pages ────── └───────────────┘
//! ```
//! Programs that the traced command starts have inherited the memfd and send no hello. A connection ends with the
//! answer to its question. The owner notices the death of a process by its pidfd. The server, its clients and the rules
//! of trust are in `dormouse-control`.
//!
//! # The modules
//! A module uses only modules above it or to its left.
//! ```text
//!   error · clock · fault · points         reasons; the session's clock; memory that disappears; points of tests
//!   dir · quota · options     directories and their files; how much may be written; options and the plan made of them
//!   user_disk                 how much all sessions of a user may write
//!   ledger                    progress of an owner, for the next one
//!   memory                    the memory pool that programs map, and the budget: the limit of its pages
//!   pages                     the copy of a page, and the check of a copy; the pages of a stream
//!   summary                   results of a session
//!   announced                 announcements of programs about themselves and their classes, checked
//!   trace · streams · session_file      a trace being written: metadata and state; events; the start of `salvage`
//!   files                     a trace on disk that is read
//!   losses                    losses by class
//!   drain · snapshot · salvage          pages that are offered, that live writers retain, that have no owner → a trace
//!   register                     entries of programs in the memory
//!   service                      the session, as the server of `dormouse-control` serves it on the session's socket
//!   begin                     a new session, with everything that its owners take up
//!   end · owner               how long a session's end may take; a session from the time it is taken up to its end
//!   command                   the traced command
//!   inheritance · notify      what an owner process is started with, and its messages; messages to a service manager
//!   supervisor · supervised   the owner as a process that is started again: its two sides
//!   ownership                 the life of an owner's process
//! ```
//!
//! # States of a session
//! *open* (programs join, pages are offered) → *stopped* (the flag in the header is set: producers leave at their next
//! page switch) → *drained* (everything that the state words cover is on disk; nothing else is touched).
//!
//! If an owner is killed in any of these states, another one takes the session up (`ledger`, `supervisor`).
//!
//! *without an owner*: the directory has the drained packets, `.session` names the memory, and [`salvage()`] combines
//! them.
//!
//! # Checks
//! Ring indices and descriptors (by `vring`), page addresses and sizes, every packet's header, class ids and field
//! types by the metadata, messages by `abi::message`, and connecting processes by peer credentials. A packet that fails
//! a check is counted, not written.
//!
//! # Cost
//! The owner runs on the CPUs of the programs that it records. The drain thread looks for pages at least every 50 ms,
//! and more often with a small budget or after pages have come. Each page is copied once, its records are counted by
//! their classes' sizes, and it is written into space that was set aside for many pages. `dormouse lab run compile-job`
//! measures the cost (`armed-discard.owner`).
//!
//! # Limits
//! A session has one owner at a time. In overwrite mode the trace consists of the pages retained when the session ends;
//! `dormouse_tools::ask_for_snapshot` takes them earlier. A snapshot copies: it needs memory for the retained pages, up to 64 MiB.

// The caller decides what to print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod announced;
mod begin;
mod clock;
mod command;
mod dir;
mod drain;
mod end;
mod error;
mod fault;
#[cfg(all(test, target_arch = "x86_64"))]
mod first_touch;
mod follow;
mod followed;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod inheritance;
mod ledger;
mod losses;
mod memory;
mod notify;
mod options;
mod owner;
mod ownership;
mod pages;
mod points;
mod quota;
mod register;
mod salvage;
mod service;
mod session_file;
mod snapshot;
mod streams;
mod summary;
mod supervised;
mod supervisor;
#[cfg(test)]
mod testing;
mod trace;
mod user_disk;

pub use begin::{Entrance, NewSession};
pub use command::{CommandEnd, LIBC_LIBRARY, Traced, find_libc_library, on_ending_signals};
pub use error::Error;
pub use inheritance::{Inheritance, Recording};
pub use options::{Cpus, Mode, Options};
pub use owner::Session;
pub use ownership::{EXIT_LOSS, Recorded, Report, detach_from_terminal, own};
pub use salvage::{Salvage, salvage};
pub use session_file::is_owner_alive;
pub use summary::{Executed, NAMED_SHOWN_MAX, Running, Summary};
pub use supervisor::{Outcome, Remote, Supervisor};
