//! How a program lets tools reach it: a thread that listens on a socket, and what is needed to start it.
//!
//! # The problem
//! A tool asks a running program, which may close any descriptor, change its user, fork, or be at its limits. The
//! program must not wait for the tool, nor notice it. Whether the program contains a tracer does not matter here: the
//! crate that listens has the answers.
//!
//! # Picture
//! ```text
//!   IDLE ──start──▶ STARTING ──bound──▶ LISTENING ──stop──▶ STOPPING ──the thread──▶ IDLE
//!     ▲                │   └───stop───────────────────────────▲
//!     └──no socket─────┘
//!
//!   tool ──connect──▶ socket ──accept──▶ thread ──[`converse`]──▶ the listener's answer
//! ```
//! The state belongs to the thread that changes it from `IDLE` or to `STOPPING`, and else to the listening thread.
//!
//! # The thread
//! It has a descriptor table of its own that contains only its socket. So the program has no additional descriptor,
//! cannot close or replace the thread's, and may be at its limit. If the kernel refuses a separate table (before Linux
//! 5.9, some containers), the program's is used: the socket is then never one of the first three descriptors, and
//! before each use the thread checks whether the number is still its socket.
//!
//! A socket belongs to the user at the time of listen(2). When the program changes its user, libc makes every thread
//! change, which interrupts the thread's wait; it then listens again, in the directory for programs of the new user. A
//! forked child has no thread; the crate that listens decides whether the child listens again.
//!
//! A tool that is silent is left after twice [`PATIENCE`]; others wait that long, the program's threads never.
//!
//! Nothing is done at the program's end, when a filter of system calls may be in force. A dead program leaves a socket
//! name that refuses connections; the next program that listens in that directory removes it. A program whose other
//! threads have all ended, its first one by `pthread_exit`, should end: the thread checks for this once a second, and
//! ends itself.
//!
//! # Ordering
//! A thread that sees a state sees what the listening thread did before it stored that state: (S') pairs with (S). The
//! path of the socket is published before the state says that there is one: (Q') pairs with (Q).
//!
//! # Limits
//! One tool at a time. Sixteen may wait.
//!
//! # Source
//! unix(7); close_range(2); credentials(7).

mod conversation;
mod environment;
mod listener;
mod object;
mod socket;
mod spawn;

pub use conversation::{Answer, PATIENCE, converse};
pub use environment::{is_secure, variable};
pub use listener::{CHECK_INTERVAL, End, IDLE, LISTENING, Listener, SIGNAL, STARTING, STOPPING, Service};
pub use object::{keep_loaded, object_of};
pub use spawn::{is_last, spawn};
