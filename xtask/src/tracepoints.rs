//! `cargo xtask tracepoints`: measures what tracepoints in C and C++ cost before any of them is armed.
//!
//! ```text
//!   files of tracepoints ─▶ compiled as they are, and with DORMOUSE_DISABLE, in turn ─▶ ratio of the CPU times
//!                        └▶ linked as a program, beside one with one tracepoint      ─▶ difference of the start-up times
//! ```
//! A tracepoint's code size and number of relocations are not measured: a test of the C interface asserts them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use dormouse_install::install_libraries;

use crate::{headers, run, system};

/// Measure the cost of tracepoints in C and C++ at compile time and at program start
///
/// For each compiler and two kinds of fields, a table shows the CPU time of compiling all files, relative to that with tracing compiled
/// out: the median of the rounds, with the least and the greatest. Code is optimised (-O2) and position-independent, and each tracepoint
/// is alone in its function. A line below shows what a tracepoint adds to the time from a program's start to its end.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Tracepoints {
    /// Number of tracepoints
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Number of tracepoints in each file
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    per_file: u32,
    /// Number of times that each file is compiled
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// C type of the second field, and the table's name for both fields.
const FIELDS: [(&str, &str); 2] = [("int", "two integers"), ("const char *", "integer and text")];

/// Number of times that each program is started.
const START_COUNT: usize = 300;

impl Tracepoints {
    /// Runs the task.
    ///
    /// # Errors
    /// Something does not build or run.
    pub(crate) fn run(&self) -> Result<()> {
        let dir = tempfile::tempdir().context("cannot make a directory")?;
        println!("{} tracepoints, {} in a file, {} rounds; CPU time", self.count, self.per_file, self.rounds);
        println!("{:8} {:17} {:>9} {:>12}  ratio", "compiler", "fields", "traced", "compiled out");
        let compilers = headers::COMPILERS.iter().filter(|(compiler, ..)| system::has(compiler));
        for (compiler, language, standards) in compilers {
            let standard = if *language == "c" { standards[0] } else { "c++17" };
            for (field, fields) in FIELDS {
                let sources = self.write(dir.path(), language, field)?;
                let (mut traced_s, mut disabled_s, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..self.rounds {
                    let traced = compile(compiler, standard, dir.path(), &sources, "-UDORMOUSE_DISABLE")?;
                    let disabled = compile(compiler, standard, dir.path(), &sources, "-DDORMOUSE_DISABLE")?;
                    traced_s.push(traced);
                    disabled_s.push(disabled);
                    ratios.push(traced / disabled);
                }
                let [traced, disabled, ratio] =
                    [&mut traced_s, &mut disabled_s, &mut ratios].map(|values| median(values));
                println!(
                    "{compiler:8} {fields:17} {traced:7.2} s {disabled:10.2} s  {ratio:.2} [{:.2}, {:.2}]",
                    ratios[0],
                    ratios[ratios.len() - 1]
                );
            }
        }
        self.start_up(dir.path())
    }

    /// Writes files of tracepoints. The programs' `main` is separate.
    fn write(&self, dir: &Path, language: &str, field: &str) -> Result<Vec<PathBuf>> {
        let extension = if language == "c" { "c" } else { "cc" };
        let numbers: Vec<u32> = (0..self.count).collect();
        let mut sources = Vec::new();
        for (index, numbers) in numbers.chunks(self.per_file as usize).enumerate() {
            let mut text = String::from("#include <dormouse/event.h>\n");
            for number in numbers {
                let event = format!("DORMOUSE_EVENT(shop, order_{number}, (order_id, id), (item, item))");
                writeln!(text, "void order_{number}(unsigned long id, {field} item) {{ {event}; }}")?;
            }
            let source = dir.join(format!("orders_{index}.{extension}"));
            fs::write(&source, text).with_context(|| format!("cannot write {}", source.display()))?;
            sources.push(source);
        }
        Ok(sources)
    }

    /// Measures what each tracepoint adds to the duration of a program's run.
    fn start_up(&self, dir: &Path) -> Result<()> {
        let prefix = dir.join("prefix");
        install_libraries(&run::target_dir()?.join("release"), &prefix)?;
        let libraries = prefix.join("lib");
        let program = |name: &str, count: u32| -> Result<PathBuf> {
            let of = Tracepoints { count, ..*self };
            let place = dir.join(name);
            fs::create_dir(&place).context("cannot make a directory")?;
            let sources = of.write(&place, "c", FIELDS[0].0)?;
            let main = place.join("main.c");
            fs::write(&main, "int main(void) { return 0; }\n").context("cannot write a program")?;
            let program = place.join("program");
            let mut link = compiler("cc", "c11");
            link.args(&sources).arg(main).arg("-o").arg(&program).arg("-L").arg(&libraries).arg("-ldormouse");
            let status = link.arg(format!("-Wl,-rpath,{}", libraries.display())).status();
            ensure!(status.is_ok_and(|status| status.success()), "cannot link {}", program.display());
            Ok(program)
        };
        let programs = [program("many", self.count)?, program("one", 1)?];
        let mut times_s = [Vec::new(), Vec::new()];
        for _ in 0..START_COUNT {
            for (program, times_s) in programs.iter().zip(&mut times_s) {
                let started = Instant::now();
                let status = Command::new(program).stdin(Stdio::null()).status();
                ensure!(status.is_ok_and(|status| status.success()), "cannot run {}", program.display());
                times_s.push(started.elapsed().as_secs_f64());
            }
        }
        let [many, one] = times_s.each_mut().map(|times_s| (median(times_s), times_s[0]));
        let each = |many: f64, one: f64| (many - one) * 1e6 / f64::from(self.count - 1).max(1.0);
        println!(
            "start-up: {:.2} µs for each tracepoint ({:.2} by the quickest of {START_COUNT} runs): a program with {} takes {:.2} ms, with one {:.2} ms",
            each(many.0, one.0),
            each(many.1, one.1),
            self.count,
            many.0 * 1e3,
            one.0 * 1e3
        );
        Ok(())
    }
}

fn compiler(compiler: &str, standard: &str) -> Command {
    let mut command = Command::new(compiler);
    command.args([&format!("-std={standard}"), "-O2", "-fPIC"]);
    command.args(dormouse_testing::include_dirs().flat_map(|include| ["-I".into(), include]));
    command
}

/// Compiles each file, and returns the total CPU time, in seconds.
fn compile(name: &str, standard: &str, dir: &Path, sources: &[PathBuf], option: &str) -> Result<f64> {
    let before_s = children_cpu_s()?;
    for source in sources {
        let mut command = compiler(name, standard);
        command.arg(option).arg("-c").arg(source).arg("-o").arg(dir.join("orders.o"));
        let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {name}"))?;
        ensure!(status.success(), "{name} does not compile {}", source.display());
    }
    Ok(children_cpu_s()? - before_s)
}

/// Returns the CPU time of all children that have ended, in seconds: proc_pid_stat(5), cutime and cstime.
fn children_cpu_s() -> Result<f64> {
    /// Clock ticks per second in `/proc`, the same on every architecture of Linux.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    let fields = stat.rsplit_once(')').context("/proc/self/stat names no program")?.1;
    let ticks = fields.split_ascii_whitespace().skip(13).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>().context("/proc/self/stat has no CPU time")? / TICKS)
}

/// Sorts the values and returns their median.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
