//! The session owner: holds the memory, hands it out, drains it and writes the trace.
//!
//! # The problem
//! What a program commits must survive the program, and no program may suffer from whoever reads. So a separate process (or
//! thread) owns the memory; programs only map it. The owner trusts nothing that it reads there.
//!
//! # The picture
//! ```text
//!   program ── hello, classes ──▶ ┌───────────────┐ ── metadata, state ──▶ DIR/metadata, DIR/state
//!           ◀── memfd, ids ────── │ server thread │
//!                                 └───────────────┘
//!   program ── pages (memfd) ───▶ ┌───────────────┐ ── packets as they are ──▶ DIR/cpu_0, DIR/cpu_1, …
//!           ◀── used pages ────── │ drain thread  │
//!                                 └───────────────┘
//! ```
//! No connection lasts longer than its question: programs keep no descriptor of ours, and their death is seen by pidfd.
//!
//! # States of a session
//! *open* (programs join, pages flow) → *stopped* (the flag in the header: producers leave at their next page switch) →
//! *drained* (what the state words cover is on disk, nothing else is touched).
//!
//! *killed*: the directory has what was drained, `.session` says where the memory is, and [`salvage`] puts both together;
//! nobody else needs to have been told.
//!
//! # What is checked
//! Ring indices and descriptors (by `vring`), page addresses and sizes, every packet's header, class ids and field types by
//! the metadata, frames by `abi::wire`, and who connects by peer credentials. A packet that fails is counted, not written.
//!
//! # Cost
//! The owner runs on the processors of those whom it records. The drain thread is woken for several pages of a stream at a time
//! and looks every 100 ms for fewer; each page is copied once, its records counted by their classes' sizes, and written into
//! space that was set aside for many. `dormouse lab run compile-job` states what that comes to (`armed-discard.owner`).
//!
//! # Limits
//! One owner for each session; in overwrite mode the trace is what is retained when the session ends, and [`ask_for_snapshot`] takes
//! it before. A snapshot copies: it needs memory for what is retained, up to 64 MiB.

// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod allowance;
mod budget;
mod clock;
mod command;
mod drain;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod packets;
mod program;
mod remains;
mod salvage;
mod server;
mod session;
mod snapshot;
#[cfg(test)]
mod testing;
mod trace;
mod tunable;
mod whereabouts;

pub use budget::{BudgetState, ask_for_budget};
pub use command::{CommandError, LIBC_LIBRARY, Traced, find_libc_library, why_not_preloaded};
pub use files::{OpenError, TraceFiles, Window};
pub use program::{Program, ProgramError, process_name, socket_dir, stop_session};
pub use salvage::{Salvage, SalvageError, salvage};
pub use session::{Context, Cpus, End, Mode, Options, Session, SessionError, Summary};
pub use snapshot::{Snapshot, SnapshotError, Take, ask_for_snapshot, find_session};
pub use trace::Refusal;
pub use tunable::{TunableError, Tunables};
