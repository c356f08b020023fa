//! A session's socket: the server where programs join and tools ask. The tools' side is `dormouse-tools`.
//!
//! # The problem
//! Programs, tools and session owners of several users meet at sockets in directories. Any of them may be slow, stopped
//! or hostile. An owner must still answer the others, with bounded memory, descriptors and threads.
//!
//! # The picture
//! ```text
//!   program ── hello ──▶ ┌──────────────────────────────┐
//!   tool ── question ──▶ │ event loop: accept, deadlines│◀── pidfds of processes: their ends
//!     one thread,        │ server: who may ask, and what│──▶ threads for answers that take their time
//!     one epoll          └───────────────┬──────────────┘
//!                                        ▼ Service: the session (memory, trace)
//! ```
//!
//! # The modules
//! A module uses only modules above it or to its left.
//! ```text
//!   error · process · limits      errors; what the kernel tells about processes; descriptors
//!   peer · directory              the process at the other end; directories of sockets, checked and opened once
//!   processes · members           processes that have joined; processes that have a session's memory mapped
//!   allowance                     limit of triggered snapshots
//!   server                        which client gets which answer, without sockets and clocks
//!   unheard                       programs whose time ran out before the socket took them
//!   event_loop                    the server's thread
//! ```
//!
//! # Which clients are believed
//! An owner answers processes of its own user and root, by the credentials of the connection. A process in a PID
//! namespace that the owner cannot see is taken in if the kernel still provides a pidfd (Linux 6.5), and otherwise
//! refused with the reason.
//!
//! # Bounds
//! These are bounded: concurrent clients, the time and memory of each, threads, processes (one pidfd each, at most as
//! many as descriptors), numbers of a process, snapshots that programs ask for, and entries read from a directory.
//! `dormouse status` shows these bounds.
//!
//! # Cost
//! A live process costs one pidfd and no time: its end wakes the thread. At rest, the thread wakes every ten seconds to
//! remove sockets of dead programs.
//!
//! # Limits
//! Before Linux 6.5, a socket that a process has inherited from a dead one cannot be told from a socket of the process
//! that has the dead one's id and user now. Before Linux 5.3 there are no pidfds: a process is known by its directory of
//! proc(5), and the owner looks for the ends of processes whenever it looks for new ones.

// The caller decides what to print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod allowance;
pub mod directory;
mod error;
mod event_loop;
mod limits;
mod members;
pub mod peer;
pub mod process;
mod processes;
mod server;
#[cfg(test)]
mod tests;
mod unheard;

pub use directory::{ENV_SOCKET_DIR, socket_dir, user_file};
pub use error::{Error, Problem, Refusal};
pub use event_loop::{SessionListener, SessionServer};
pub use limits::{raise_descriptor_limit, restore_descriptor_limit};
pub use members::MappedFile;
pub use process::{
    Stat, Status, boot, is_dead, is_image, open, pid_in_namespace, pid_namespace, process_name, send_signal, start_of,
};
pub use processes::{NamedThread, NewProcess, Processes};
pub use server::{Counts, ENDS_WITH_COMMAND, Joining, Service, Take};
pub use unheard::UnheardFile;
