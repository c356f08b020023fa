//! The program `dormouse-ship`, which `dormouse ship` runs: puts closed traces into a store of Parquet.
//!
//! ```text
//!   DIR ─▶ chunks: finds traces that are closed ─▶ dormouse_store::put, one after another ─▶ a line for each
//!    ▲                                                             │ SIGTERM: ends at the next batch
//!    └── follow: waits for changes in directories ◀────────────────┘
//! ```
//! * This machine keeps no list of traces that were put: the manifests in the store are that list.
//! * A trace that is only partly put when the program ends is not part of the store. The next run completes it.
#![forbid(unsafe_code)]
// `println!` and `eprintln!` panic if the reader has closed the pipe; `Output` does not.
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
