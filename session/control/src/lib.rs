//! A session's socket: the server where programs join and tools ask, and how tools find programs and sessions and know
//! which process answers.
//!
//! # The problem
//! Programs, tools and session owners of several users meet at sockets in directories. Any of them may be slow, stopped
//! or hostile. An owner must still answer the others, with bounded memory, descriptors and threads. A tool, above all
//! one that root runs, must be sure that it talks to the process it was told to, and must do nothing to other processes
//! because of that process's answers.
//!
//! # The picture
//! ```text
//!            DIR of sockets, checked and opened once           peer credentials, pidfd
//!   tool ──── Program::find ──────────────────────▶ program's socket ── answers ──▶ tool
//!        ──── find_session, Program::session ─────▶ session's socket
//!                                                        │
//!   program ── hello ────────────────────────────────────┤
//!                                        ┌───────────────▼──────────────┐
//!             one thread, one epoll:     │ event loop: accept, deadlines│◀── pidfds of processes: their ends
//!                                        │ server: who may ask, and what│──▶ threads for answers that take their time
//!                                        └───────────────┬──────────────┘
//!                                                        ▼ Service: the session (memory, trace)
//! ```
//!
//! # The modules
//! A module uses only modules above it or to its left.
//! ```text
//!   error · process · limits      reasons as one line; what the kernel tells about processes; descriptors
//!   peer · directory · executable the process at the other end; directories of sockets; what a program's file says
//!   call                          which thread of a program gets the signal that makes it open a socket
//!   facts                         what can be seen of a process that does not answer
//!   processes · members           processes that have joined; processes that have a session's memory mapped
//!   unjoined                      programs with tracepoints that have not joined
//!   why                           which of these facts is the reason, and the remedy
//!   program · tunable             a running program: its sockets, questions to it, its variables
//!   client                        what tools ask an owner for
//!   allowance                     limit of triggered snapshots
//!   server                        which client gets which answer, without sockets and clocks
//!   event_loop                    the server's thread
//! ```
//!
//! # Which answers are believed
//! * A tool names a program by its id. The pidfd is opened first; the id belongs to that process as long as it lives.
//!   Tools look only in socket directories of the program's user (`/run/user/UID/dormouse`, `/tmp/dormouse-UID`; the
//!   tool's own `XDG_RUNTIME_DIR` for its own user; the directory in the tool's `DORMOUSE_SOCKET_DIR`). They follow no
//!   symbolic link and connect to the very file that was checked. The listening process must be the program's, by id,
//!   user and start time, and (from Linux 6.5) by pidfd. If a program's files or users have other names (a mount or
//!   user namespace, a chroot), tools search the same directories below its root in the same way.
//! * A tool inspects a process without a socket. If the process has tracepoints and a handler of `SIGURG`, the tool
//!   sends it that signal, which is ignored by default, and asks once the process listens. Other findings explain why
//!   the process cannot be reached; they are printed, and no action follows from them.
//! * A program's answer is text about itself. The path of its session is used only if it names a session's socket in a
//!   directory of the program's user or the tool's own, and a process of that user or root answers. A session is ended
//!   only if its owner has the program in it.
//! * An owner answers processes of its own user and root, by the credentials of the connection. A process in a PID
//!   namespace that the owner cannot see is taken in if the kernel still provides a pidfd (Linux 6.5), and otherwise
//!   refused with the reason.
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
//! that has the dead one's id and user now.

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
pub use error::Error;
pub use event_loop::{SessionListener, SessionServer, no_thread};
pub use limits::{raise_descriptor_limit, restore_descriptor_limit};
pub use members::MappedFile;
pub use process::{Stat, boot, is_dead, is_image, open, pid_in_namespace, pid_namespace, process_name, start_of};
pub use processes::{Entering, Processes};
pub use server::{Counts, ENDS_WITH_COMMAND, Joining, Service, Take};
pub use unheard::Unheard;
