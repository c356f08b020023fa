//! The command `dormouse`.

mod damage;
mod doctor;
mod external;
mod questions;
mod stats;

const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");
