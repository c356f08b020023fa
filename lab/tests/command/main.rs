//! The command `dormouse-lab`, which `dormouse lab` runs.

mod common;
mod compare;
mod doctor;
mod filter;
mod flight_recorder;
mod install;
mod merge;
mod output;
mod percpu;
mod query;
mod reader;
mod relay_write;
mod report;
mod run;
mod vring;
mod zero_page;

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(env!("CARGO_BIN_EXE_dormouse-lab"), "dormouse lab");
}
