//! SQL queries on traces and on stores of traces: the program `dormouse-query`, which `dormouse query` runs.
//!
//! ```text
//!   SQL ─▶ DataFusion ─▶ plan ─▶ scan (push) ─▶ Request ─▶ dormouse_columns ─▶ batches ─▶ DataFusion ─▶ Printer
//!            │  names     │           time, classes, columns, conditions: applied while the trace is read
//!            ▼            ├─▶ store: the Parquet files named in manifests ─▶ DataFusion ─▶ Printer
//!         catalog         └─▶ cluster: the same plan, to a Ballista scheduler ─▶ executors ─▶ a file ─▶ Printer
//! ```
//! * A source (`Source`) is traces or a store. Its tables: one for each class, events, pairs, classes, losses,
//!   processes, totals.
//! * Nothing is decoded here: batches come from `dormouse_columns`, pairs from `dormouse_analysis`, figures from
//!   `dormouse_ctf`, the files of a store from DataFusion.
//! * A query reads only the source that was named. It opens and writes no file except the one given by `-o`.
//! * `--memory` bounds the memory of DataFusion; beyond it, sorting, grouping and joining use temporary files.
//! * Integers are exact: DataFusion's sums and operators, which wrap, are replaced (`exact`).
//! * Plans are changed by DataFusion's rules and three of Dormouse's (`rules`). A plain `count(*)` by class and time
//!   builds no rows; the reader counts (`count`). Tables of a trace in a union are read in one pass (`together`).
//!   `locf` keeps the last values by key (`carried`).
//! * Pairs of a store are found by its own operator (`store::PairExec`). `codec` serialises it for a cluster, as it
//!   does the operators of `count` and `carried`.
//! * The programs of a cluster (`dormouse_cluster`) get what their plans need from [`engine`]: functions, operators,
//!   and object stores by address.
#![forbid(unsafe_code)]
// The print macros panic when the reader has closed the pipe; `Output` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arguments;
mod carried;
mod catalog;
mod cluster;
mod codec;
mod count;
mod descriptors;
pub mod engine;
mod exact;
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
mod quantile;
mod rules;
mod run;
mod scan;
mod shell;
mod source;
mod statements;
mod store;
mod together;
mod traces;

use std::process::ExitCode;

/// Runs the program.
pub fn main() -> ExitCode {
    dormouse_terminal::main(|command| command, arguments::Query::run)
}
