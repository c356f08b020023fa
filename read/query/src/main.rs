//! The program `dormouse-query`; see the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dormouse_query::main()
}
