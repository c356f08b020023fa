//! How the processes of Dormouse talk over Unix sockets.
//!
//! # The problem
//! A traced program asks its session's owner from a constructor or a fork handler, and must go on soon, whatever the owner does: stopped, dead,
//! or hostile. An owner must not be held up by one program, nor a tool by another.
//!
//! # The picture
//! ```text
//!   Conversation      one deadline for connect, send and receive together
//!     │   └── Deadline ── Clock        what is left of it is passed to each call that blocks
//!   Incoming, Outgoing                what has come of a message, what is left to send: never wait
//!     │
//!   a socket: preamble, frames (`dormouse_abi::message`), perhaps a descriptor with a frame
//! ```
//! An event loop uses [`Incoming`] and [`Outgoing`] by themselves; everybody else a [`Conversation`].
//!
//! # What it promises
//! * Two calls block: connect(2), bounded by `SO_SNDTIMEO`, because a backlog that is full cannot be polled for; and ppoll(2). Both get what is
//!   left, after an interruption too. A call that has nothing left is not made. So the times that a conversation passes to the kernel end at its
//!   deadline, however a peer spends them. (The kernel rounds connect(2)'s up to its next tick.)
//! * No more is allocated for a frame than has come of it, and at most its message's bound.
//! * A descriptor comes only with a message that is received for it. Others are closed, and those that did not fit are an error.
//! * No signal (`MSG_NOSIGNAL`); no descriptor that outlives exec; no error is turned into libc's text, which could call the loader.
//! * [`Peer`] is what the kernel says. The process id of one that is in no namespace of ours is unknown.
//!
//! # Limits
//! Time that the process spends without a CPU is not bounded. The peer's process id is that of who made the socket: it may have passed it on.
//!
//! # Source
//! unix(7), socket(7); Linux 6.1, `net/unix/af_unix.c`, `net/core/scm.c`, `net/core/sock.c` (`sock_set_timeout`).

mod conversation;
mod deadline;
mod error;
mod peer;
mod socket;
mod stream;

pub use conversation::Conversation;
pub use deadline::{Clock, Deadline, Monotonic};
pub use error::Error;
pub use peer::Peer;
pub use socket::{connect, is_answered, try_connect};
pub use stream::{Incoming, Outgoing};
