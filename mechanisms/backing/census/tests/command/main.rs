//! The command `dormouse-pages`, which `dormouse pages` runs.

mod process;
mod watch;

const PAGES: &str = env!("CARGO_BIN_EXE_dormouse-pages");
