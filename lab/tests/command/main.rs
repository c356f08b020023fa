//! The command `dormouse-lab`, which `dormouse lab` runs.

mod common;
mod compare;
mod doctor;
mod flight_recorder;
mod install;
mod output;
mod query;
mod reader;
mod relay_write;
mod report;
mod run;
mod vring;
mod zero_page;
