//! The command `dormouse`.

mod damage;
mod doctor;
mod export;
mod external;
mod kinds;
mod questions;
mod stats;
mod view;

const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");
