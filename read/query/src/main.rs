//! The program `dormouse-query`, which `dormouse query` runs: questions to traces in SQL.
//!
//! ```text
//!   SQL ─▶ DataFusion ─▶ plan ─▶ scan (push) ─▶ Request ─▶ dormouse_columns ─▶ batches ─▶ DataFusion ─▶ Printer
//!            │  names                 time, classes, columns, conditions: looked at while the trace is read
//!            ▼
//!         catalog: a table for each class, events, pairs, classes, losses, processes, totals
//! ```
//! * Nothing is decoded here: batches come from `dormouse_columns`, pairs from `dormouse_analysis`, figures from `dormouse_ctf`.
//! * A query reads the traces that were named, and nothing else: it opens and writes no file but what `-o` names.
//! * `--memory` bounds what DataFusion keeps; sorting, grouping and joining go on in temporary files beyond it.
#![forbid(unsafe_code)]
// They panic when nobody reads: `Output` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arguments;
mod catalog;
mod export;
mod facts;
mod fault;
mod functions;
mod leaf;
mod named;
mod output;
mod pairs;
mod progress;
mod push;
mod run;
mod scan;
mod shell;
mod traces;

use std::process::ExitCode;

fn main() -> ExitCode {
    dormouse_terminal::main(|command| command, arguments::Query::run)
}
