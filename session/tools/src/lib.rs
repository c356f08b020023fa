//! How tools find programs and sessions, know who answers, and ask them.
//!
//! # The problem
//! A tool is told a process id or the path of a socket. Another process may have that id by now, and any process can
//! say anything. A tool, especially one that runs as root, must be sure that it talks to the process it was told to
//! talk to, and must not let what that process says make it act on other processes.
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
//!   elf                     segments and sections of a file
//!   error                   a reason as one line
//!   executable · classes    what a program's file says; its event classes
//!   call                    which thread of a program is sent the signal that makes the program create a socket
//!   facts                   what can be seen of a process that does not answer
//!   unjoined                programs with tracepoints that have not joined
//!   reason                  which fact is the reason
//!   program · tunable       a program that runs: its sockets, questions to it, its variables
//!   client                  what tools ask an owner for
//!   running                 the programs with tracepoints that run
//! ```
//!
//! # Which answers are believed
//! * A tool names a program by its id. The pidfd is opened first; the id belongs to that process as long as it lives.
//!   Tools look only in socket directories of the program's user: `/run/user/UID/dormouse` and `/tmp/dormouse-UID`; if
//!   that user is the tool's own, also `dormouse` in the tool's `XDG_RUNTIME_DIR`; and the directory that the tool's
//!   `DORMOUSE_SOCKET_DIR` names. They follow no symbolic link and connect to the very file that was checked. The
//!   listening process must be the program's, by id, user and start time, and (from Linux 6.5) by pidfd. If a program's
//!   files or users have other names (a mount or user namespace, a chroot), tools search the same directories below its
//!   root in the same way.
//! * If a process has no socket, the tool inspects it from outside. If the process has tracepoints and a handler of
//!   `SIGURG`, the tool sends it that signal, which is ignored by default, and asks once the process listens. Other
//!   findings explain why the process cannot be reached; they are printed, and no action follows from them.
//! * A program's answer is text about itself. The path of its session is used only if it names a session's socket in a
//!   directory of the program's user or the tool's own, and a process of that user or root answers. A tool's request to
//!   end a session names the program, and the session's owner refuses it if the program is not in that session.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod call;
mod classes;
mod client;
mod elf;
mod error;
mod executable;
mod facts;
mod program;
mod reason;
mod running;
mod tunable;
mod unjoined;

pub use classes::{FileClass, classes_of_command, classes_of_file};
pub use client::{
    SessionSocket, all_sessions, ask_for_budget, ask_for_rules, ask_for_snapshot, ask_for_status, find_session,
    sessions_of, stop_session,
};
pub use error::Error;
pub use executable::Privileges;
pub use facts::DirectoryObstacle;
pub use program::{Program, Wait};
pub use reason::{
    NamedSession, NoTracepoints, NotJoined, PreloadObstacle, ProgramError, Reason, Still, Unreachable, WhyNotJoined,
    WhyUnreachable, why_not_joined, why_not_preloaded,
};
pub use running::{Membership, RunningProgram, RunningPrograms, others_armed};
pub use unjoined::{Descendants, Unjoined, UnjoinedReason, has_tracepoints};
