//! The session owner: holds the memory, hands it out, drains it and writes the trace.
//!
//! # The problem
//! What a program commits must survive the program, and no reader may slow a program down. So a separate process (or thread) owns the
//! memory; programs only map it. The owner trusts nothing that it reads there.
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
//! Programs that the traced command starts have inherited the memfd, and say no hello. A connection ends with the answer to its question. The
//! owner sees the death of a process by its pidfd.
//! Server and clients, and who is believed, are in `dormouse-control`.
//!
//! # The modules
//! A module uses only those that stand above it, or to its left.
//! ```text
//!   error · clock · fault · points         why not, in a line; the session's clock; memory that goes away; where tests end an owner
//!   dir · quota · options     directories and their files; how much may be written; options, and their plan
//!   user_disk                 how much all sessions of a user may write
//!   ledger                    what an owner has got done, for the next one
//!   memory                    the pool that programs map, and the budget: how much of it is there
//!   pages                     the copy of a page, and the check of a copy; what a stream has of pages
//!   summary                   what a session came to
//!   announced                 what programs say of themselves and their classes, checked
//!   trace · streams · session_file      a trace on disk that is written: metadata and state; events; what `salvage` starts from
//!   files                     a trace on disk that is read
//!   losses                    losses by class
//!   drain · snapshot · salvage          pages that are offered, that live writers retain, that have no owner → a trace
//!   register                     what programs have entered in the memory
//!   service                      what the server of `dormouse-control` serves on the session's socket
//!   begin                     a session that begins: what all its owners take up
//!   end · owner               how long a session's end may take; a session from its being taken up to its end
//!   command                   the traced command
//!   inheritance · notify      what an owner that is a process is started with, and says; what a service manager is told
//!   supervisor · supervised   the owner as a process that is started again: its two sides
//! ```
//!
//! # States of a session
//! *open* (programs join, pages flow) → *stopped* (the flag in the header: producers leave at their next page switch) →
//! *drained* (what the state words cover is on disk, nothing else is touched).
//!
//! An owner that is killed in any of them is followed by one that takes the session up (`ledger`, `supervisor`).
//!
//! *without an owner*: the directory has what was drained, `.session` says where the memory is, and [`salvage()`] puts both together.
//!
//! # What is checked
//! Ring indices and descriptors (by `vring`), page addresses and sizes, every packet's header, class ids and field types by
//! the metadata, messages by `abi::message`, and who connects by peer credentials. A packet that fails is counted, not written.
//!
//! # Cost
//! The owner runs on the CPUs of the programs that it records. The drain thread is woken for several pages of a stream at a time
//! and looks every 100 ms for fewer; each page is copied once, its records counted by their classes' sizes, and written into
//! space that was set aside for many. `dormouse lab run compile-job` states what that comes to (`armed-discard.owner`).
//!
//! # Limits
//! One owner at a time for each session; in overwrite mode the trace is what is retained when the session ends, and [`ask_for_snapshot`] takes
//! it before. A snapshot copies: it needs memory for what is retained, up to 64 MiB.

// Who calls says what there is to say.
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
pub use command::{Ended, LIBC_LIBRARY, Traced, find_libc_library, on_ending_signals};
pub use error::Error;
pub use inheritance::Inheritance;
pub use options::{Cpus, Mode, Options};
pub use owner::Session;
pub use salvage::{Salvage, salvage};
pub use session_file::is_owner_alive;
pub use summary::{Executed, NAMED_SHOWN_MAX, NotJoined, Running, Summary};
pub use supervised::{Ending, SupervisedOwner};
pub use supervisor::{COMMAND, Outcome, Remote, Supervisor};
