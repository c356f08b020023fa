//! Automation of the project: `cargo xtask demo`, `install`, `test`, `cross`, `soak`, `fuzz`, `lab`, `lines`, `tracepoints`,
//! `picture`, `commands`, `ci`.
//!
//! ```text
//!   demo         a live tour: a real build, a Rust program and a C program, each checked against babeltrace2
//!   install      installs everything that a user needs below a prefix
//!   test         runs and counts the tests of all workspaces except that of SQL, on request repeatedly or next to busy processes
//!   cross        runs and counts tests on other machines, in emulation
//!   soak         runs the randomised and sampling tests for hours
//!   fuzz         runs the fuzz targets for a while
//!   lab          runs every experiment, compared with other tracers
//!   peers        only builds the engines of those tracers
//!   lines        counts the product's lines of code, in any revision
//!   tracepoints  measures what tracepoints in C and C++ cost to compile, and at a program's start
//!   picture      makes an SVG of a command's terminal output for the documents, or a WebP of a page
//!   commands     writes the help of all commands into `docs/commands.md`
//!   ci           runs all checks that a change must pass before it is merged; `.ci/run` calls it
//!   fetch-lua    copies the C project that the demo and the tests compile
//! ```
//! Each task builds what it needs and, as root, installs missing system packages.

mod ci;
mod commands;
mod crates;
mod cross;
mod demo;
mod fuzz;
mod headers;
mod install;
mod lab;
mod lines;
mod load;
mod lua;
mod peers;
mod picture;
mod programs;
mod run;
mod soak;
mod system;
mod tally;
mod test;
mod tracepoints;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Automation of Dormouse
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Trace a real build, a Rust program and a C program, and check the traces against babeltrace2
    Demo,
    /// Install the command, the C libraries, manual pages and completions below a directory
    Install(install::Install),
    /// Run the tests of all workspaces except that of SQL
    Test(test::Test),
    /// Run the tests on another machine, in emulation
    Cross(cross::Cross),
    /// Run the randomised and sampling tests in their exhaustive form
    Soak(soak::Soak),
    /// Run the fuzz targets, each for a while
    Fuzz(fuzz::Fuzz),
    /// Run experiments of the lab, compared with every tracer that can be installed here
    Lab(lab::Lab),
    /// Build the tracers that the lab compares with
    Peers {
        /// Fail if one of them cannot be built
        #[arg(long)]
        strict: bool,
    },
    Lines(lines::Lines),
    Tracepoints(tracepoints::Tracepoints),
    Picture(picture::Picture),
    /// Write the purpose and the options of all commands into docs/commands.md
    Commands(commands::Commands),
    /// Run all checks of a change: crates, formatter, linter, headers, tests, documentation, fuzz targets, the lab and the demo
    Ci {
        /// Names of the steps to run, as the table of a run shows them [default: all]
        steps: Vec<String>,
    },
    /// Copy the Lua sources, with a Makefile, to a directory and print its path
    FetchLua {
        /// Directory to write to, which is replaced [default: demo/lua in the target directory]
        dir: Option<PathBuf>,
        /// Also copy SQLite's source, for the goal `long`: a build of more than a minute on two CPUs
        #[arg(long)]
        long: bool,
    },
    /// Busy process of `test --load`
    #[command(hide = true)]
    Busy,
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    let is_preloading = matches!(task, Task::Demo | Task::Test(_) | Task::Soak(_) | Task::Lab(_) | Task::Ci { .. });
    let checked = if is_preloading { run::check_path() } else { Ok(()) };
    let result = checked.and_then(|()| match task {
        Task::Demo => demo::run(),
        Task::Install(install) => install.run(),
        Task::Test(test) => test.run(),
        Task::Cross(cross) => cross.run(),
        Task::Soak(soak) => soak.run(),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::Lab(lab) => lab.run(),
        Task::Peers { strict } => peers::run(strict),
        Task::Lines(lines) => lines.run(),
        Task::Tracepoints(tracepoints) => tracepoints.run(),
        Task::Picture(picture) => picture.run(),
        Task::Commands(commands) => commands.run(),
        Task::Ci { steps } => ci::run(&steps),
        Task::FetchLua { dir, long } => lua::run(dir, long),
        Task::Busy => load::busy(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The last line must be that of the counts.
        Err(error) if error.is::<programs::Failed>() => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
