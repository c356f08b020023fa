//! The program `dormouse-ship`, which `dormouse ship` runs: puts closed traces into a store of Parquet.
//!
//! ```text
//!   DIR ─▶ chunks: which traces there are, and which are closed ─▶ dormouse_store::put, one after another ─▶ a line for each
//!    ▲                                                                          │ SIGTERM: ends at the next batch
//!    └── follow: a name has come into a directory ◀─────────────────────────────┘
//! ```
//! * Nothing is kept on this machine of what has been put: the manifests in the store say it.
//! * What is half put when it ends is no part of the store; the next run makes it whole.
#![forbid(unsafe_code)]
// They panic when nobody reads: `Output` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arguments;
mod chunks;
mod follow;
mod run;
mod signals;

use std::process::ExitCode;

fn main() -> ExitCode {
    dormouse_terminal::main(|command| command, |ship, out| run::Shipping::begin(ship, out)?.run())
}
