//! The session owner: holds a session's memory, hands it out to programs, drains it and writes the trace.
//!
//! # The problem
//! Every event that a program has committed must survive the program, and draining must not slow the program down. So a
//! separate process (or thread) owns the memory; programs only map it. The owner trusts nothing that it reads there.
//!
//! # The picture
//! ```text
//!   program ── asks to join ────▶ ┌───────────────┐
//!           ◀── memfd ─────────── │ server thread │
//!                                 └───────────────┘
//!   program ── itself, classes ─▶ ┌───────────────┐ ── metadata, state ──▶ DIR/metadata, DIR/state
//!       (in the memory) ── pages ▶│ drain thread  │ ── packets as they are ──▶ DIR/cpu_0, DIR/cpu_1, …
//!           ◀── used pages ────── └───────────────┘
//! ```
//! Programs started by the traced command inherit the memfd and need not ask. Each connection serves one request and is
//! closed after the answer. The owner learns of the death of a process through its pidfd. The server, its clients and
//! the rules of trust are in `dormouse-control`.
//!
//! # The modules
//! Lower ones first:
//!
//! | module | contents |
//! | --- | --- |
//! | `error`, `clock` | errors; the session's clock |
//! | `fault` | SIGBUS when a file that is mapped as memory is truncated |
//! | `points` | points at which tests kill the owner |
//! | `dir` | the directory of a trace and its files |
//! | `quota`, `user_disk` | how much a session, and all sessions of a user, may write to disk |
//! | `rules` | which events are recorded, as a user writes it and as programs read it |
//! | `options` | options, and the plan that is made of them on this machine |
//! | `ledger` | an owner's progress, for the next owner |
//! | `memory` | the memory that programs map, and the budget of its pages |
//! | `pages` | the pages of a stream; the copy of a page and its check |
//! | `summary` | the results of a session |
//! | `announced` | checks what programs say of themselves and their classes |
//! | `trace`, `streams` | a trace that is being written: metadata and state stream; the streams of events |
//! | `session_file` | the file from which `salvage` starts |
//! | `follow`, `followed` | recorded programs that do not report to the owner themselves, for example an attached program after `exec` |
//! | `losses` | losses, and events that rules left out, by event class |
//! | `drain`, `snapshot`, `salvage` | write pages that are offered; pages that live writers retain; pages without an owner |
//! | `register` | entries of programs in the memory |
//! | `service` | the session, as the server of `dormouse-control` serves it on the session's socket |
//! | `begin`, `end` | a new session, with everything that its first owner and any later one start from; a limit on how long its end may last |
//! | `owner` | a session, from when an owner takes it up until it ends |
//! | `command` | the traced command |
//! | `inheritance`, `notify` | arguments and messages of an owner process; messages to a service manager |
//! | `supervisor`, `supervised` | restarts the owner process; the owner's side of that |
//!
//! # States of a session
//! *open* (programs join, pages are offered) → *stopped* (the flag in the header is set: programs leave at their next
//! page switch) → *drained* (every committed record is on disk; nothing else was written).
//!
//! If an owner is killed in any of these states, another one takes the session up (`ledger`, `supervisor`).
//!
//! If no other owner takes it up, the session is *without an owner*: the directory has the drained packets, `.session`
//! names the memory, and [`salvage()`] combines the packets with what is in the memory.
//!
//! # Checks
//! The owner checks ring indices and descriptors (in `vring`), page addresses and sizes, the header of each packet,
//! class ids and field types (against the metadata), messages (in `abi::message`), and who connects (peer credentials).
//! A packet that fails a check is counted, not written.
//!
//! # Cost
//! The owner competes for CPU time with the programs that it records. The drain thread polls for pages: with the
//! default budget every 8 ms, or 2 ms after a poll that found pages. With a larger budget or in overwrite mode it polls
//! less often, but at least every 50 ms. It copies each page once, counts its records by stepping over them with the
//! sizes that their classes give, and writes it into file space that is allocated for many pages at a time. `dormouse
//! lab run compile-job` measures the cost (`armed-discard.owner`).
//!
//! # Limits
//! A session has one owner at a time. In overwrite mode the trace consists of what is still in memory when the session
//! ends; `dormouse_tools::ask_for_snapshot` saves it earlier. A snapshot copies pages into a buffer before it writes
//! them. If the budget cannot grow for the duration of the snapshot, the buffer is at most 64 MiB. If it can, writers
//! get other pages in exchange for those to be copied, and pages that do not fit the buffer wait where they are, so a
//! smaller buffer is enough: at most 4 MiB.

// The caller decides what to print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod announced;
mod begin;
mod clock;
mod command;
mod context;
mod dir;
mod drain;
mod end;
mod error;
mod fault;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
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
mod rules;
mod salvage;
mod service;
mod session_file;
mod snapshot;
mod streams;
mod summary;
mod supervised;
mod supervisor;
mod tail;
#[cfg(test)]
mod testing;
mod trace;
mod user_disk;

pub use begin::{Entrance, NewSession};
pub use command::{CommandEnd, LIBC_LIBRARY, Traced, find_libc_library, on_ending_signals};
pub use error::Error;
pub use inheritance::{Inheritance, Joined, Recording};
pub use options::{Cpus, Mode, Options};
pub use owner::Session;
pub use ownership::{EXIT_LOSS, Recorded, Report, detach_from_terminal, own};
pub use rules::RuleSet;
pub use salvage::{Salvage, salvage};
pub use session_file::{is_owner_alive, socket_of};
pub use summary::{Executed, NAMED_SHOWN_MAX, Running, Summary};
pub use supervisor::{Outcome, Remote, Supervisor};
