//! Lets operators list and set the immediate values and static branches of a running program, without a tracer.
//!
//! # The problem
//! A value that is an operand of the program's instructions is worth most in a program that runs for months, and whoever
//! wants to change it is not the program. The program would need a channel for that: one which no other user reaches,
//! which checks what comes in, and which never makes the program wait. This crate is that channel, for the command
//! `dormouse imv`.
//!
//! # Picture
//! ```text
//!   imv! { static BATCH: u32 = 16; }                          dormouse imv list PROGRAM
//!   tunable!(BATCH, "batch", "requests at once", 1..=1024);   dormouse imv set PROGRAM batch 64
//!   static AUDIT: StaticKey = StaticKey::new();                    │
//!   tunable!(AUDIT, "audit", "note who asks");                     │ ListTunables, SetTunables
//!                                                                  ▼
//!   registry (dormouse-imv) ◀── answer ◀── thread "dormouse" ◀── socket PID.NUMBER.sock (dormouse-listener)
//!
//!   fn main() { dormouse_imv_control::listen().ok(); … }
//! ```
//!
//! ```
//! use dormouse_imv::{StaticKey, imv, imv_read, static_branch, tunable};
//!
//! imv! { static BATCH: u32 = 16; }
//! static AUDIT: StaticKey = StaticKey::new();
//! tunable!(BATCH, "server.batch", "requests answered at once", 1..=1024);
//! tunable!(AUDIT, "server.audit", "note who asks");
//!
//! fn main() -> std::io::Result<()> {
//!     dormouse_imv_control::listen()?;
//!     if static_branch!(AUDIT) {
//!         println!("{}", imv_read!(BATCH));
//!     }
//!     dormouse_imv_control::stop_listening()
//! }
//! ```
//!
//! A value or key is visible once [`tunable!`](dormouse_imv::tunable) gives it a name; a key is listed as type `key`,
//! `on` or `off`. In C that is `dormouse/tunable.h`, and [`listen`] is `imv_listen` of `dormouse/imv.h`.
//!
//! # States
//! A program that only contains this crate has no thread, no socket and no handler. From [`listen`] to
//! [`stop_listening`] it has a thread, whose states `dormouse-listener` describes. The command finds its socket where it
//! finds those of tracers.
//!
//! * A *forked child* has a thread and a socket of its own; a tool that has connected to the parent is told by the kernel
//!   who answers, and the child has no copy of the parent's socket.
//! * *`exec`* ends the thread, and the socket refuses connections. The new program listens if it asks to.
//! * With a *tracer in the same object*, the tracer listens, so that each tunable is listed once. In C, with libdormouse
//!   and libdormouse_imv as shared libraries, tunables are with the library that the loader finds first, as sites are.
//!
//! # Who may ask
//! The socket has mode 0600, in a directory that only the program's user may write to, and the peer's user must be the
//! program's or root. What the peer sends is untrusted: lengths, counts and texts are bounded (`dormouse-abi`), names are
//! looked up, values are checked for type and range, and then all of a batch are set or none.
//!
//! # Cost
//! A thread that sleeps, with a stack of 256 KiB of which it touches a few pages. Setting costs what an update costs
//! (`dormouse-imv`), in that thread; other threads execute one barrier.
//!
//! # Limits
//! A tool that is silent is left after four seconds, and other tools wait for that. A batch has at most 1,024 values.
//!
//! # Source
//! The kernel's counterparts are parameters of modules (`/sys/module/*/parameters`) and `/proc/sys/kernel/sched_schedstats`,
//! which switches a static key: names with one value each, written by root.

mod answer;
mod listen;

pub use answer::{answer, list, patching, set};
pub use listen::{Host, listen, set_host, stop_listening};
