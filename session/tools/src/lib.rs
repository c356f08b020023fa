//! How tools find programs and sessions, know who answers, and ask them.
//!
//! # The problem
//! A tool is told a process id or the path of a socket. Another process may have that id by now, and any process can say anything. A tool, one that
//! runs as root above all, must be sure that it talks to the process that it was told to, and must do nothing to others because of what that process
//! says.
//!
//! # The picture
//! ```text
//!            directories of sockets, checked and opened once     peer credentials, pidfd
//!   tool ──── Program::find ──────────────────────▶ program's socket ── answers ──▶ tool
//!        ──── find_session, Program::session ─────▶ session's socket (server: dormouse-control)
//! ```
//!
//! # The modules
//! A module uses only those that stand above it, or to its left.
//! ```text
//!   executable              what a program's file says
//!   call                    which thread of a program is sent the signal that has it make a socket
//!   facts                   what can be seen of a process that does not answer
//!   unjoined                programs with tracepoints that have not joined
//!   why                     which fact is the reason, and what to do about it
//!   program · tunable       a program that runs: its sockets, questions to it, its variables
//!   client                  what tools ask an owner for
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
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod call;
mod client;
mod executable;
mod facts;
mod program;
mod tunable;
mod unjoined;
mod why;

pub use client::{SessionSocket, ask_for_budget, ask_for_snapshot, ask_for_status, find_session, stop_session};
pub use program::{Program, Wait};
pub use unjoined::{Descendants, Unjoined, has_tracepoints};
pub use why::{why_not_joined, why_not_preloaded};
