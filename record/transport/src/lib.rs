//! Communication between Dormouse's processes over Unix sockets.
//!
//! # The problem
//! A traced program asks its session's owner from a constructor or a fork handler, and must continue soon, whether the
//! owner is stopped, dead, or hostile. One program must not delay an owner, nor one tool another.
//!
//! # Structure
//! ```text
//!   Conversation      one deadline for connect, send and receive together
//!     │   └── Deadline ── Clock        the remaining time is passed to each call that blocks
//!   Incoming, Outgoing                received and unsent parts of messages: never wait
//!     │
//!   a socket: preamble, frames (`dormouse_abi::message`), optionally a descriptor with a frame
//! ```
//! An event loop uses [`Incoming`] and [`Outgoing`] directly; other code uses a [`Conversation`].
//!
//! # Guarantees
//! * Two calls block: connect(2), bounded by `SO_SNDTIMEO`, because there is no polling for room in a backlog; and
//!   ppoll(2). Both get the remaining time, after an interruption too, and are not called if no time remains. So all
//!   times that a conversation passes to the kernel end at its deadline, whatever the peer does. (The kernel rounds the
//!   time of connect(2) up to its next tick.)
//! * Memory for a frame is allocated in proportion to what has been received of it, and at most for its message's
//!   maximum size.
//! * A descriptor is accepted only with a message that is received for it. Others are closed, and those that did not
//!   fit are an error.
//! * No signal (`MSG_NOSIGNAL`); no descriptor survives exec; no error is converted to libc's text, which could call
//!   the loader.
//! * [`Peer`] contains the kernel's information. The process id of a peer in a PID namespace that is not visible here
//!   is unknown.
//!
//! # Limits
//! Time that the process spends without a CPU is not bounded. The peer's process id is that of the process that created
//! the socket, which may have passed it on.
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
