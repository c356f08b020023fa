//! `cargo xtask demo`: traces three programs, and compares each count of events with babeltrace2's.
//!
//! ```text
//!   1. Lua compiled by make and the system's C compiler, unmodified     dormouse record --libc, report
//!   2. a bakery in Rust, already running                                dormouse list, arm, disarm
//!   3. a shop in C, already running                                     the same
//! ```

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::install::Install;
use crate::lua;
use crate::run::{self, cargo, line, succeed};
use crate::system::{self, BABELTRACE2, CC, MAKE};

/// How long the live programs run, in seconds.
const PROGRAM_SECONDS: &str = "4";
const ARMED: Duration = Duration::from_millis(1500);
/// Maximum time until a program listens. It is polled every `ASKED_AGAIN`.
const LISTENS: Duration = Duration::from_secs(10);
const ASKED_AGAIN: Duration = Duration::from_millis(50);
/// File name of the report on the compile.
const REPORT: &str = "lua.html";
/// Maximum number of output lines that are shown of a command.
const LINES_SHOWN: usize = 8;

/// Runs the demo.
pub(crate) fn run() -> Result<()> {
    system::ensure(&[CC, MAKE, BABELTRACE2])?;
    succeed(&mut cargo(["build", "--quiet", "--release", "--package", "dormouse", "--example", "bakery"]))?;
    let mut demo = Demo::new()?;
    let started = Instant::now();
    demo.compile()?;
    demo.bakery()?;
    demo.shop()?;
    demo.finish(started.elapsed())
}

/// State of the demo: where commands run, and results of the checks.
struct Demo {
    /// Working directory of commands, which keeps paths short.
    dir: PathBuf,
    /// `PATH` of commands, with the installed programs first.
    path: std::ffi::OsString,
    checks: usize,
    failed: Vec<String>,
}

impl Demo {
    fn new() -> Result<Demo> {
        let target = run::target_dir()?;
        let dir = target.join("demo");
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot replace {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let prefix = dir.join("prefix");
        Install {
            prefix: prefix.clone(),
            only: Vec::new(),
            with_lab: false,
            with_query: false,
            uninstall: false,
            with_debug: false,
            debug: false,
        }
        .run()?;
        let dirs = [prefix.join("bin"), target.join("release/examples"), dir.clone()];
        let path = std::env::join_paths(dirs.into_iter().chain(std::env::split_paths(&inherited)))?;
        Ok(Demo { dir, path, checks: 0, failed: Vec::new() })
    }

    /// 1. An unmodified build.
    fn compile(&mut self) -> Result<()> {
        heading("A real build, unmodified: Lua by make and cc, all its processes");
        let files = lua::fetch(&self.dir.join("lua"))?;
        let make = ["make", "-C", "lua", "-j2", "--no-print-directory"];
        let plain = self.command(&make).output().context("cannot run make")?;
        ensure!(plain.status.success(), "make fails without dormouse: {}", String::from_utf8_lossy(&plain.stderr));
        self.command(&["make", "-C", "lua", "clean"]).output()?;

        let mut record = self.command(&["dormouse", "record", "--libc", "-o", "lua.trace", "--"]);
        record.args(make);
        let traced = self.show(&mut record)?;
        let is_same = traced.stdout == plain.stdout && without_ours(&traced.stderr) == without_ours(&plain.stderr);
        self.check(is_same, "the build printed what it prints without dormouse");
        self.check(
            traced.status.code() == plain.status.code(),
            &format!("and exited as it does without dormouse: {}", plain.status),
        );
        let stats = self.stats("lua.trace", 18)?;
        let processes = stats["processes"].as_array().into_iter().flatten();
        let processes = processes.filter(|process| process["program"] != "").count();
        // At least make, and for each file the compiler and the programs that it starts.
        self.check(processes > 2 * files, &format!("{processes} programs of {files} compilations are in one trace"));
        self.counts("lua.trace", &stats)?;
        self.show_success(&["dormouse", "report", "lua.trace", "-o", REPORT])
    }

    /// 2. A Rust program that is already running.
    fn bakery(&mut self) -> Result<()> {
        heading("A Rust program that is already running");
        self.live(&["bakery", PROGRAM_SECONDS], "bakery")
    }

    /// 3. A C program that is already running.
    fn shop(&mut self) -> Result<()> {
        heading("A C program that is already running");
        let source = run::root().join("record/capi/examples/shop.c");
        fs::copy(&source, self.dir.join("shop.c")).with_context(|| format!("cannot copy {}", source.display()))?;
        let flags =
            "-O2 shop.c -o shop -pthread -Iprefix/include -Lprefix/lib -ldormouse -Wl,-rpath,$ORIGIN/prefix/lib";
        let cc: Vec<&str> = ["cc"].into_iter().chain(flags.split(' ')).collect();
        self.quietly(&cc)?;
        self.live(&["shop", PROGRAM_SECONDS], "shop")
    }

    /// Lists, arms and disarms a program while it runs, and checks the recorded events.
    fn live(&mut self, program: &[&str], provider: &str) -> Result<()> {
        let mut command = self.command(program);
        println!("$ {} &", line(&command));
        let mut child = Running::start(&mut command)?;
        let pid = child.pid.clone();
        let (pattern, trace) = (format!("{provider}:*"), format!("{provider}.trace"));

        self.wait_until_it_listens(&pid)?;
        self.show_success(&["dormouse", "list", &pid])?;
        self.check(self.armed(&pid)? == 0, "every event is dormant");
        self.show_success(&["dormouse", "arm", &pid, &pattern, "-o", &trace])?;
        self.check(self.armed(&pid)? > 0, "events are armed while the program runs");
        thread::sleep(ARMED);
        self.show_success(&["dormouse", "disarm", &pid, &pattern])?;
        self.check(self.armed(&pid)? == 0, "every event is dormant again");
        let status = child.wait()?;
        self.check(status.success(), &format!("the program ended by itself: {status}"));

        self.show_first_lines(&["dormouse", "view", &trace], 6)?;
        let stats = self.stats(&trace, 20)?;
        self.counts(&trace, &stats)
    }

    /// Waits until a thread of the tracing library listens, which can be some time after the program's start.
    fn wait_until_it_listens(&self, pid: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.command(&["dormouse", "list", pid]).output()?.status.success() && begun.elapsed() < LISTENS {
            // There is no notification: poll until LISTENS is over. The next command shows an error that remains.
            thread::sleep(ASKED_AGAIN);
        }
        Ok(())
    }

    /// Returns the number of armed event classes of a process.
    fn armed(&self, pid: &str) -> Result<usize> {
        let tracers = json(&mut self.command(&["dormouse", "list", pid, "--json"]))?;
        let classes = tracers.as_array().into_iter().flatten().flat_map(|tracer| tracer["classes"].as_array());
        Ok(classes.flatten().filter(|class| class["armed"] == true).count())
    }

    /// Shows the first lines of a trace's statistics, and returns all of them.
    fn stats(&self, trace: &str, count: usize) -> Result<Value> {
        self.show_first_lines(&["dormouse", "stats", trace], count)?;
        json(&mut self.command(&["dormouse", "stats", trace, "--json"]))
    }

    /// Compares the count of events with babeltrace2's.
    fn counts(&mut self, trace: &str, stats: &Value) -> Result<()> {
        let events = stats["events"].as_u64().context("`dormouse stats --json` has no events")?;
        let lost = stats["events_lost"].as_u64().context("`dormouse stats --json` has no events_lost")?;
        self.check(events > 0, &format!("{} events were recorded, {} lost", grouped(events), grouped(lost)));
        if !system::has(BABELTRACE2.program) {
            println!("  - babeltrace2 is not installed: its count is not compared");
            return Ok(());
        }
        let mut babeltrace2 = self.command(&["babeltrace2", trace]);
        println!("$ {} | grep -vc ' dormouse:'", line(&babeltrace2));
        let theirs = count_events(&mut babeltrace2)?;
        let text = format!("babeltrace2 counts {}, dormouse {}", grouped(theirs), grouped(events));
        self.check(theirs == events, &text);
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("PATH", &self.path).current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed, and shows only its command line.
    fn quietly(&self, words: &[&str]) -> Result<()> {
        let mut command = self.command(words);
        println!("$ {}", line(&command));
        let output = command.output().with_context(|| format!("cannot run `{}`", line(&command)))?;
        ensure!(output.status.success(), "`{}` failed:\n{}", line(&command), String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Runs a command that must succeed, and shows it with its output.
    fn show_success(&self, words: &[&str]) -> Result<()> {
        let mut command = self.command(words);
        let output = self.show(&mut command)?;
        ensure!(output.status.success(), "`{}` failed: {}", line(&command), output.status);
        Ok(())
    }

    /// Shows a command with its output, without the middle of a long one.
    fn show(&self, command: &mut Command) -> Result<Output> {
        println!("$ {}", line(command));
        let output = command.output().with_context(|| format!("cannot run `{}`", line(command)))?;
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let (head, tail) =
            if lines.len() > LINES_SHOWN { (LINES_SHOWN / 2, LINES_SHOWN / 2 - 1) } else { (lines.len(), 0) };
        lines[..head].iter().for_each(|text| print_cut(text));
        if head < lines.len() {
            println!("  … {} more lines", lines.len() - head - tail);
        }
        lines[lines.len() - tail..].iter().for_each(|text| print_cut(text));
        Ok(output)
    }

    /// Shows a command and the first lines of its output, then closes the pipe.
    fn show_first_lines(&self, words: &[&str], count: usize) -> Result<()> {
        let mut command = self.command(words);
        println!("$ {} | head -{count}", line(&command));
        let mut child = spawn(&mut command)?;
        let stdout = child.stdout.take().context("no output")?;
        for text in BufReader::new(stdout).lines().take(count) {
            print_cut(&text?);
        }
        let status = child.wait()?;
        ensure!(status.success(), "`{}` failed: {status}", line(&command));
        Ok(())
    }

    fn check(&mut self, holds: bool, what: &str) {
        self.checks += 1;
        println!("  {} {what}", if holds { "✓" } else { "✗" });
        if !holds {
            self.failed.push(what.into());
        }
    }

    fn finish(&self, elapsed: Duration) -> Result<()> {
        println!();
        if !self.failed.is_empty() {
            bail!("{} of {} checks of the demo failed: {}", self.failed.len(), self.checks, self.failed.join("; "));
        }
        let dir = self.dir.strip_prefix(run::root()).unwrap_or(&self.dir);
        println!(
            "all {} checks of the demo passed ({:.0} s); the traces are in {}",
            self.checks,
            elapsed.as_secs_f64(),
            dir.display()
        );
        println!("the report of the compile is {}: open it in a browser", dir.join(REPORT).display());
        Ok(())
    }
}

/// A background program, which is killed if the demo fails.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pid: String,
}

impl Running {
    /// Starts a program, and waits for its first line, which has its process id.
    fn start(command: &mut Command) -> Result<Running> {
        let mut child = spawn(command)?;
        let stdout = BufReader::new(child.stdout.take().context("no output")?);
        let pid = child.id().to_string();
        let mut running = Running { child, stdout, pid };
        let mut first = String::new();
        running.stdout.read_line(&mut first)?;
        print_cut(first.trim_end());
        ensure!(first.contains(&running.pid), "`{}` did not print its process id", line(command));
        Ok(running)
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        rest.lines().for_each(print_cut);
        Ok(self.child.wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn heading(text: &str) {
    let (bold, plain) = if std::io::stdout().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    println!("\n{bold}{text}{plain}");
}

/// Maximum width of a shown line, in characters.
const COLUMNS: usize = 140;

fn print_cut(text: &str) {
    let cut: String = text.chars().take(COLUMNS).collect();
    println!("  {cut}{}", if cut.len() < text.len() { " …" } else { "" });
}

/// Returns error output without Dormouse's lines.
fn without_ours(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().filter(|line| !line.starts_with("dormouse: ")).map(|line| format!("{line}\n")).collect()
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run `{}`", line(command)))
}

fn json(command: &mut Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("cannot run `{}`", line(command)))?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("`{}` printed no JSON", line(command)))
}

/// Counts the programs' events that `babeltrace2` prints, one line each, without those of the session owner.
fn count_events(command: &mut Command) -> Result<u64> {
    let mut child = spawn(command)?;
    let mut stdout = BufReader::new(child.stdout.take().context("no output")?);
    let mut text = Vec::new();
    let mut count = 0;
    while stdout.read_until(b'\n', &mut text)? > 0 {
        count += u64::from(!is_owners(&text));
        text.clear();
    }
    let status = child.wait()?;
    ensure!(status.success(), "`{}` failed: {status}", line(command));
    Ok(count)
}

/// Whether a line of `babeltrace2` is an event of the session owner, `dormouse:…`.
fn is_owners(text: &[u8]) -> bool {
    let head = text.split(|byte| *byte == b'{').next().unwrap_or_default();
    head.windows(10).any(|window| window == b" dormouse:")
}

/// Formats a count with thousands separators.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn events_of_the_owner_are_recognised_by_name() {
        assert!(is_owners(b"[12:00:00.1] (+0.2) dormouse:process: { }, { vpid = 1 }"));
        assert!(!is_owners(b"[12:00:00.1] (+0.2) shop:order_end: { cpu_id = 1 }, { customer = \" dormouse:\" }"));
    }

    #[test]
    fn our_lines_are_left_out() {
        assert_eq!(without_ours(b"a\ndormouse: 3 events\nb\n"), "a\nb\n");
    }
}
