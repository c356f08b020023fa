//! The command `dormouse-pages`, which `dormouse pages` runs.

mod explain;
mod fix;
mod machine;
mod process;
mod watch;

const PAGES: &str = env!("CARGO_BIN_EXE_dormouse-pages");

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(PAGES, "dormouse pages");
}
