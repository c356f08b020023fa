//! Code that Dormouse's commands share: `dormouse` itself, and `dormouse-lab`, `dormouse-vring` and `dormouse-pages`,
//! which run as `dormouse lab`, `dormouse vring` and `dormouse pages`.
//!
//! ```text
//!   arguments ──▶ main ──▶ the command ──▶ Output, say, report ──▶ standard output, standard error, exit code
//!                   └─ --write-texts DIR ──▶ manual pages, completions        (for `cargo xtask install`)
//! ```

// The print macros panic if standard output is closed. `Output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod output;
#[cfg(feature = "quantities")]
mod size;
pub mod style;
mod suggestions;
mod texts;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

pub use output::{Output, printable_lines, report, say};
#[cfg(feature = "quantities")]
pub use size::{parse_duration, parse_size};

/// Text at the end of each command's help.
pub const EXIT_CODES: &str = "\
Exit code: 0; 2 after an error, which is one line on standard error; the help of each command lists other codes. A reader that closes standard \
output early (`dormouse view TRACE | head`) is not an error. If standard output cannot be written for another reason, such as a full disk, \
the command completes its work and exits with 2.";

/// Parses the arguments and runs the command. `complete` adds the parts of the command that only help, errors and texts
/// need.
pub fn main<A: Parser>(
    complete: impl FnOnce(clap::Command) -> clap::Command,
    run: impl FnOnce(A, &mut Output) -> Result<u8>,
) -> ExitCode {
    let mut out = Output::new();
    let arguments: Vec<_> = std::env::args_os().collect();
    let result = match arguments.as_slice() {
        [_, option, dir] if option == texts::OPTION => texts::write(complete(A::command()), Path::new(dir)).map(|()| 0),
        _ => match A::try_parse_from(&arguments) {
            Ok(arguments) => run(arguments, &mut out),
            Err(error) => {
                let mut error = complete(A::command()).try_get_matches_from(&arguments).err().unwrap_or(error);
                suggestions::leave_out_far(&mut error);
                let printed = error.print();
                // Requested help, and the version.
                if !error.use_stderr() {
                    out.note(printed);
                }
                Ok(error.exit_code() as u8)
            }
        },
    };
    match result.and_then(|code| out.finish().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::from(2)
        }
    }
}
