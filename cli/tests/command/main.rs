//! Tests of the command `dormouse`.

mod clocks;
mod damage;
mod doctor;
mod edges;
mod export;
mod external;
mod kinds;
mod memory;
mod open;
mod questions;
mod record;
mod report;
mod report_diff;
mod stats;
mod view;

const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");
