//! A session's socket: the server on which programs join and tools ask, and how tools find programs and sessions and know who answers.
//!
//! # The problem
//! Programs, tools and owners of several users meet at sockets in directories. Any of them may be slow, stopped, or hostile. An owner has to
//! answer the others all the same, and with bounded memory, descriptors and threads; a tool, root's above all, has to be sure that it talks to the
//! process that it was told to, and does nothing to others because of what that process says.
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
//! A module uses only those that stand above it, or to its left.
//! ```text
//!   error · process · limits      why not, in a line; what the kernel tells of processes; descriptors
//!   peer · directory · executable the process at the other end; directories of sockets; what a program's file says
//!   call                          which thread of a program is sent the signal that has it make a socket
//!   facts                         what can be seen of a process that does not answer
//!   processes · members           who has joined; who has a session's memory mapped
//!   unjoined                      programs with tracepoints that have not joined
//!   why                           which of that is the reason, and what to do about it
//!   program · tunable             a program that runs: its sockets, questions to it, its variables
//!   client                        what tools ask an owner for
//!   allowance                     how many snapshots
//!   server                        what is answered to whom, without sockets and clocks
//!   event_loop                    the server's thread
//! ```
//!
//! # Who is believed
//! * A tool names a program by its id. The pidfd is opened first; as long as that process lives, the id is its own. Only sockets in directories of
//!   the program's user are looked at (`/run/user/UID/dormouse`, `/tmp/dormouse-UID`; the tool's own `XDG_RUNTIME_DIR` for its own user; what
//!   `DORMOUSE_SOCKET_DIR` of the tool names). No symbolic link is followed, the file that was checked is the one that is connected to, and
//!   the process that listens has to be that process, by id, user and start, and (from Linux 6.5) by pidfd. Below the root of a program whose
//!   files or users have other names (a mount or user namespace, a chroot) the same directories are looked into in the same way.
//! * A process without a socket is looked at. One that has tracepoints and a handler of `SIGURG` is sent that signal, which is ignored by default,
//!   and is asked once it listens. What else is seen explains why it cannot be reached; it is printed, and nothing is done because of it.
//! * What a program answers is text about itself. The path of its session is used where it names a socket of a session in a directory of the
//!   program's user or the tool's own, and a process of that user or root answers; a session is ended only if its owner has the program in it.
//! * An owner answers processes of its own user and root, by the credentials of the connection. One in a PID namespace that it cannot see is
//!   taken in where the kernel gives a pidfd all the same (Linux 6.5), and refused with the reason where not.
//!
//! # Bounds
//! Clients at once, the time and the memory of each, threads, processes (one pidfd each, and no more than descriptors), numbers of a process,
//! snapshots that programs ask for, entries of a directory that are looked at. `dormouse status` shows them.
//!
//! # Cost
//! A process that lives costs a pidfd, and no time: its end wakes the thread. At rest the thread wakes every ten seconds, to remove sockets of dead
//! programs.
//!
//! # Limits
//! Before Linux 6.5, the end of a socket that a process has inherited from a dead one of the same id and user cannot be told from that process.

// Who calls says what there is to say.
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
