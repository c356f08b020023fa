//! Questions to traces in SQL, and to stores of traces: the program `dormouse-query`, which `dormouse query` runs.
//!
//! ```text
//!   SQL ─▶ DataFusion ─▶ plan ─▶ scan (push) ─▶ Request ─▶ dormouse_columns ─▶ batches ─▶ DataFusion ─▶ Printer
//!            │  names     │           time, classes, columns, conditions: looked at while the trace is read
//!            ▼            ├─▶ store: files of Parquet that manifests name ─▶ DataFusion ─▶ Printer
//!         catalog         └─▶ cluster: the same plan, to a scheduler of Ballista ─▶ executors ─▶ a file ─▶ Printer
//! ```
//! * The tables of a source (`Source`: traces, or a store): a table for each class, events, pairs, classes, losses, processes, totals.
//! * Nothing is decoded here: batches come from `dormouse_columns`, pairs from `dormouse_analysis`, figures from `dormouse_ctf`, files of a store from DataFusion.
//! * A query reads the source that was named, and nothing else: it opens and writes no file but what `-o` names.
//! * `--memory` bounds what DataFusion keeps; sorting, grouping and joining go on in temporary files beyond it.
//! * Whole numbers are exact: DataFusion's sums and operators, which wrap, are replaced (`exact`).
//! * Plans are changed by DataFusion's rules, and by three of ours (`rules`): where only `count(*)` is asked, by class and time, nothing becomes a row, and
//!   whoever reads counts (`count`); tables of a trace that a union brings together are read in one pass (`together`); `locf` keeps the last values by key
//!   (`carried`).
//! * Pairs of a store are found by an operator of its own (`store::PairExec`). A cluster knows it by `codec`, as it knows those of `count` and `carried`.
//! * The programs of a cluster (`dormouse_cluster`) get from [`engine`] what their plans need: functions, operators, and object stores by their addresses.
#![forbid(unsafe_code)]
// They panic when nobody reads: `Output` does not.
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

/// The program.
pub fn main() -> ExitCode {
    dormouse_terminal::main(|command| command, arguments::Query::run)
}
