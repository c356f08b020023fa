//! Automation of the project: `cargo xtask demo`, `install`, `test`, `soak`, `fuzz`, `lab`, `lines`, `tracepoints`, `picture`, `ci`.
//!
//! ```text
//!   demo         the whole of it, live: a real build, a Rust program and a C program, each checked against babeltrace2
//!   install      everything that a user needs, below a prefix
//!   test         every test of all workspaces, counted; again and again, or beside busy processes
//!   soak         the tests that draw at random, for hours
//!   fuzz         what the fuzz targets find in a while
//!   lab          every experiment, beside the tracers that people use
//!   peers        those tracers' engines alone: builds them
//!   lines        how long the product is, in any revision
//!   tracepoints  what tracepoints in C and C++ cost to compile, and at a program's start
//!   picture      what a command prints on a terminal, as an SVG for the documents; what a browser shows of a page, as WebP
//!   ci           what has to hold before a change is merged; `.ci/run` calls it
//!   fetch-lua    the C project that the demo and the tests compile
//! ```
//! Each does the set-up that it needs: it builds, and as root it installs what the system lacks.

mod aarch64;
mod ci;
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
    /// Run every test of all workspaces
    Test(test::Test),
    /// Run the tests that draw at random, or look at one case of many, in their exhaustive form
    Soak(soak::Soak),
    /// Run the fuzz targets, each for a while
    Fuzz(fuzz::Fuzz),
    /// Run experiments of the lab, beside every tracer that can be installed here
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
    /// Run formatter, linter, header checks, tests, documentation, fuzz targets, the lab's experiments and the demo
    Ci {
        /// Only these steps, by the names that the table of a run shows
        steps: Vec<String>,
    },
    /// Copy the Lua sources, with a Makefile, to a directory and print its path
    FetchLua {
        /// Where to; what is there is replaced [default: demo/lua in the target directory]
        dir: Option<PathBuf>,
    },
    /// What `test --load` starts
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
        Task::Soak(soak) => soak.run(),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::Lab(lab) => lab.run(),
        Task::Peers { strict } => peers::run(strict),
        Task::Lines(lines) => lines.run(),
        Task::Tracepoints(tracepoints) => tracepoints.run(),
        Task::Picture(picture) => picture.run(),
        Task::Ci { steps } => ci::run(&steps),
        Task::FetchLua { dir } => lua::run(dir),
        Task::Busy => load::busy(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The last line is that of the counts.
        Err(error) if error.is::<test::Failed>() => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
