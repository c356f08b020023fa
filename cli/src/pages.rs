//! `dormouse pages`.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use dormouse_pages::{Census, Limits, Options, Run, RunOptions, Verdict, Way, html, html_of_run, run_table, table};

use crate::output::{self, Output};
use crate::style;

/// What stands behind a program's memory: real pages, the zero page, or nothing
///
/// Memory that was read and never written is one page of zeroes, over and over: it fits in the first-level cache, and a benchmark that reads it
/// measures that. Each mapping is named as a person knows it, and so are the variables that lie on the zero page.
///
/// With a command, it is run, and looked at as it is about to end; with --watch also while it runs. Its input, output and signals are its own;
/// the report goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse pages 1234             every mapping of process 1234
  dormouse pages 1234 --each      with addresses, and neighbours of the same name apart
  dormouse pages 1234 --json      for scripts
  dormouse pages -- ./codec       what ./codec has in memory when it ends
  dormouse pages --watch -- ./benchmark --size 64M
                                  which buffers it reads from the zero page; for a test of your own project
  dormouse pages --watch --from 2s --until 10s --html pages.html -- ./benchmark
                                  of the time that is measured alone, with a picture

Columns: unbacked: the next access faults; zero: the zero page; small, huge: memory, in pages of 4 KiB or of 2 MiB.

What --watch counts: SHARE is what a buffer has of the zero page, of all that its process had touched at that moment: zero page and
memory of its own, without files. It is told of the sample where the buffer had most; a buffer that is written later is told of too,
and AT END says what was left. FIRST TOUCHES are those of the minor faults that brought memory of the process's own, or the zero page; NEW
MEMORY is how much. What came and went between two samples is not in them, nor what a
forked child had before its first sample. How many times as fast the zero page is read is measured on
this machine after the command has ended, with up to 256 MiB, in order.

The command and all that it starts are traced by ptrace(2), without stops at system calls, so that the last look is just before each
of them ends. A program that raises its privileges does not under it; one that debugs others, or has a leak checker that does, needs
--no-ptrace.

Exit code: 0; 2 if the process may not be looked into, the command cannot be run, or (--watch) the zero page cannot be seen here. With a
command the command's own, and 128 and the signal's number if a signal ended it. With --watch, 3 if the command ended with 0 and a buffer was
found. The last line says what was found.")]
pub(crate) struct PagesCommand {
    /// The process: one's own, or as root anybody's
    #[arg(value_name = "PID", conflicts_with_all = ["command", "watch"], required_unless_present = "command")]
    pid: Option<u32>,
    /// Look while the command runs, too, and tell what it reads from the zero page
    #[arg(long, requires = "command")]
    watch: bool,
    /// From one look to the next, such as 5ms; more where a look takes long, so that looking takes no more than a twentieth of a
    /// processor
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10ms", requires = "watch")]
    period: Duration,
    /// The measured time begins so long after the command's start: warm-up before it does not count
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s", requires = "watch")]
    from: Duration,
    /// The measured time ends so long after the command's start [default: at its end]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "watch")]
    until: Option<Duration>,
    /// A buffer is found if so much of what its process has touched is the zero page in it
    #[arg(long, value_name = "PERCENT", value_parser = parse_share, default_value = "10", requires = "watch")]
    share: f64,
    /// And if it is at least as much, such as 64K
    #[arg(long, value_name = "SIZE", value_parser = dormouse_consumer::parse_size, default_value = "64K", requires = "watch")]
    size: u64,
    /// Leave the command untraced: what it does after the last sample is not seen
    #[arg(long, requires = "command")]
    no_ptrace: bool,
    /// Each mapping by itself, with its address
    #[arg(long)]
    each: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the report to FILE
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write a picture of the address space as HTML: one file that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// As on a kernel before Linux 6.7
    #[arg(long, hide = true)]
    without_scan: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// `500us`, `10ms`, `2s`, `1.5s`, `1m`
fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time, such as 10ms, 1.5s or 2m");
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.trim_end_matches('%').trim_end().parse().ok();
    share.filter(|share| (0.0..=100.0).contains(share)).ok_or_else(|| format!("`{text}` is not a share from 0 to 100"))
}

impl PagesCommand {
    fn census_options(&self) -> Options {
        if self.without_scan { Options { ways: vec![Way::WordsAndFlags, Way::Words] } } else { Options::default() }
    }

    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        // A benchmark is not to end in a name that cannot be written.
        for file in self.output.iter().chain(&self.html) {
            write(file, "")?;
        }
        if let Some(pid) = self.pid {
            let census = Census::of(pid, &self.census_options())?;
            self.html_file(&html(&census))?;
            let text = if self.json { json(&census)? } else { table(&census, style::columns(), self.each) };
            match &self.output {
                Some(file) => write(file, &text)?,
                None => write!(out, "{text}")?,
            }
            return Ok(0);
        }
        if self.until.is_some_and(|until| until <= self.from) {
            bail!("the measured time would end before it begins: --until has to be later than --from");
        }
        let options = RunOptions {
            census: self.census_options(),
            period: self.watch.then_some(self.period),
            is_traced: !self.no_ptrace,
            from: self.from,
            until: self.until,
            limits: Limits { share_percent: self.share, size_bytes: self.size },
        };
        let run = dormouse_pages::run(&self.command, &options)?;
        self.html_file(&html_of_run(&run))?;
        let text = if self.json { json(&run)? } else { run_table(&run, style::columns(), self.each) };
        match &self.output {
            Some(file) => write(file, &text)?,
            // Standard output is the command's.
            None => output::report(&text)?,
        }
        Ok(self.exit_code(&run))
    }

    fn exit_code(&self, run: &Run) -> u8 {
        match (run.exit_code, run.verdict) {
            (0, Verdict::Found) if self.watch => 3,
            (0, Verdict::Unknown) if self.watch => 2,
            (code, _) => code as u8,
        }
    }

    fn html_file(&self, page: &str) -> anyhow::Result<()> {
        self.html.as_ref().map_or(Ok(()), |file| write(file, page))
    }
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
