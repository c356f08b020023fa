//! Tests of the command `dormouse`.

mod clocks;
mod damage;
mod doctor;
mod during;
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
mod rule;
mod stats;
mod view;

const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(DORMOUSE, "dormouse");
}
