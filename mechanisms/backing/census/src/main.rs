//! The command `dormouse-pages`, which `dormouse pages` runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use dormouse_census::{
    COMPARED_RUNS_MIN, Census, Fix, KernelInterface, Limits, MachineCensus, MachineSurveyor, Run, RunOptions, Scope,
    Verdict, fix, fixed_table, html, html_of_run, machine_line, machine_table, run_table, table,
};
use dormouse_terminal::{Output, parse_duration, parse_size, report, style};

/// Show what backs a program's memory: pages of its own, the zero page, or nothing
///
/// Memory that was read but never written is backed by the zero page, one physical page for all of it. It fits in the first-level cache, so a
/// benchmark that reads such a buffer measures the cache. The report names mappings, and variables on the zero page.
///
/// With a command, the command is run and its memory is examined just before it ends; with --watch also while it runs. The command keeps
/// its input, output and signals; the report goes to standard error.
#[derive(Debug, Parser)]
#[command(name = "dormouse-pages", bin_name = "dormouse pages", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  dormouse pages 1234             every mapping of process 1234
  dormouse pages 1234 --each      each mapping separately, with its address
  dormouse pages 1234 --json      for scripts
  dormouse pages -- ./codec       what ./codec has in memory when it ends
  dormouse pages --watch -- ./benchmark --size 64M
                                  which buffers it reads from the zero page; useful in a test
  dormouse pages --watch --explain -- ./benchmark
                                  and which instruction reads each first
  dormouse pages --watch --from 2s --until 10s --html pages.html -- ./benchmark
                                  only during the measured time, with a picture
  dormouse pages --all            which processes of the machine map the zero page
  dormouse pages --cgroup /system.slice --every 1s
                                  how much of it those of a control group map, over time
  dormouse pages --fix -- ./benchmark --size 64M
                                  what it measures with memory instead of the zero page
  dormouse pages --fix --compare 20 -- ./benchmark > /dev/null
                                  and how much longer it takes

Columns: unbacked: the next access faults; zero: the zero page; small, huge: memory, in small pages or in huge ones.

What --all and --cgroup count: MAPPINGS are entries of page tables that lead to the zero page; one of the huge zero page counts once. SHARE is the part of \
all memory that the processes have touched. Each process is examined at a different moment. Entries that came and went between two lines cannot be told, nor \
how those that are gone went: by a write, munmap, exec or exit.

What --watch counts: SHARE is the size of a buffer's part on the zero page, divided by all memory that its process had touched at that time \
(zero page and anonymous memory, without files). It is from the sample in which that part was largest; AT END is the size of the part at the end, \
so that a buffer that is written later is also listed. FIRST TOUCHES are the minor faults that mapped anonymous memory or the \
zero page; NEW MEMORY is their size. Pages that came and went between two samples, and pages that a forked child had \
before its first sample, are not counted. After the command has ended, up to 256 MiB are read in order, to measure how many times faster reads of the \
zero page are on this machine.

What --explain adds: `first read by read_all+0x14 in codec` is the instruction whose page fault entered the first of the buffer's zero pages. Each fault \
then takes about a microsecond longer (perf_event_open(2); kernel.perf_event_paranoid must be 2 or less). `obtained by main+0x42 in codec` is where the program \
goes on behind the call, of an allocator or of mmap, that obtained a mapping of 64 KiB or more. For that the command is stopped where it obtains memory or \
gives it back, as with --fix, and steps out of the C library, of operator new and of Rust's alloc instruction by instruction, up to 4000. Smaller blocks share \
a mapping with others, and keep its name; so does memory of a statically linked program without symbols. If an object has debugging information (`cc -g`), \
the source line follows: `(codec.c:17)`, or `(sum at sum.h:5, inlined in codec.c:17)` if the compiler has put the function there instead of a call. Debugging \
information in a file of its own, and compressed, is not read.

What --fix does: the command runs as it is, and then once more with its memory populated: wherever it obtains memory of its own (mmap, brk, mremap, mprotect; \
its .bss at its first such call), the kernel is asked to enter a page for each address at once, in the program itself (madvise, MADV_POPULATE_WRITE, Linux \
5.14). The program is not changed, and may be static. It uses more memory and starts later, so compare what it prints, not its whole time. \
Not populated are: stacks, ranges larger than half of the available memory, private mappings of /dev/zero, 32-bit programs, and memory that the program \
gives back to the kernel (MADV_DONTNEED) and reads again. In both runs the command is stopped at the same calls, also at munmap, before which its memory \
is examined. A filter of system calls (seccomp) stops it there; it cannot be removed, so that --fix waits for all processes that the command starts, and they \
are killed if it is.

The command and all processes that it starts are traced with ptrace(2), without stops at system calls except with --fix, so that memory is examined just before \
each of them ends. Under ptrace a program cannot raise its privileges. A program that debugs others, or has a leak checker that does, \
needs --no-ptrace.

Exit code: 0; 2 if the process cannot be read, the command cannot be run, or (with --watch) the kernel does not tell which pages are the \
zero page. With a command, the command's exit code; 128 + N if signal N ended it. With --watch, 3 if the command ended with 0 and a buffer was \
found; with --fix always the exit code of the run with populated memory. The last line says what was found.")]
struct Pages {
    /// Process id; only root can read the processes of other users
    #[arg(value_name = "PID", conflicts_with_all = ["command", "watch"], required_unless_present_any = ["command", "machine"])]
    pid: Option<u32>,
    /// Show the zero page in all processes of the machine that may be read
    #[arg(long, group = "machine", conflicts_with_all = ["pid", "command", "each", "html"])]
    all: bool,
    /// Show the zero page in the processes of a control group and of the groups in it
    #[arg(long, value_name = "PATH", group = "machine", conflicts_with_all = ["pid", "command", "each", "html"])]
    cgroup: Option<PathBuf>,
    /// With --all or --cgroup: show it again each TIME, a line each
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "machine")]
    every: Option<Duration>,
    /// With --every: end after so many lines [default: at a signal]
    #[arg(long, value_name = "LINES", requires = "every")]
    count: Option<u64>,
    /// Also examine the memory while the command runs, and report buffers on the zero page
    #[arg(long, requires = "command", group = "sampled")]
    watch: bool,
    /// Run the command twice, as it is and with its memory populated as it obtains it, and say what that changes
    #[arg(long, requires = "command", group = "sampled", conflicts_with_all = ["pid", "each", "html", "no_ptrace"])]
    fix: bool,
    /// With --fix: only the run with populated memory
    #[arg(long, requires = "fix")]
    once: bool,
    /// With --fix: then run it so many times in each way, alternately, and compare the times
    #[arg(long, value_name = "RUNS", value_parser = parse_runs, requires = "fix", conflicts_with = "once")]
    compare: Option<usize>,
    /// Also say which instruction read each buffer first, and which call obtained it
    #[arg(long, requires = "sampled", conflicts_with = "no_ptrace")]
    explain: bool,
    /// Time between two samples, such as 5ms; longer if samples take long, so that sampling takes at most 5 % of a CPU
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10ms", requires = "sampled")]
    period: Duration,
    /// The measured time begins this long after the command's start, so that warm-up does not count
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s", requires = "sampled")]
    from: Duration,
    /// The measured time ends this long after the command's start [default: at its end]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "sampled")]
    until: Option<Duration>,
    /// Report a buffer if its part on the zero page is at least this share of the memory that its process has touched
    #[arg(long, value_name = "PERCENT", value_parser = parse_share, default_value = "10", requires = "sampled")]
    share: f64,
    /// Report a buffer if its part on the zero page is at least this size, such as 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64K", requires = "sampled")]
    size: u64,
    /// Do not use ptrace; what the command does after the last sample is then not seen
    #[arg(long, requires = "command")]
    no_ptrace: bool,
    /// Show each mapping separately, with its address
    #[arg(long)]
    each: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the report to FILE
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write a picture of the address space to FILE, as HTML without other files
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Behave as on a kernel before Linux 6.7
    #[arg(long, hide = true)]
    without_scan: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.trim_end_matches('%').trim_end().parse().ok();
    share.filter(|share| (0.0..=100.0).contains(share)).ok_or_else(|| format!("`{text}` is not a share from 0 to 100"))
}

fn parse_runs(text: &str) -> Result<usize, String> {
    let runs = text.parse().ok().filter(|runs| (COMPARED_RUNS_MIN..=10_000).contains(runs));
    runs.ok_or_else(|| format!("`{text}` is not a number from {COMPARED_RUNS_MIN} to 10000"))
}

fn main() -> ExitCode {
    dormouse_terminal::main(std::convert::identity, Pages::run)
}

impl Pages {
    fn interfaces(&self) -> &'static [KernelInterface] {
        if self.without_scan {
            &[KernelInterface::WordsAndFlags, KernelInterface::Words]
        } else {
            &KernelInterface::ALL
        }
    }

    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        // Errors of these files are found before a benchmark runs.
        for file in self.output.iter().chain(&self.html) {
            write(file, "")?;
        }
        if self.all || self.cgroup.is_some() {
            return self.machine(out);
        }
        if let Some(pid) = self.pid {
            let census = Census::of(pid, self.interfaces())?;
            self.html_file(&html(&census))?;
            let text = if self.json { json(&census)? } else { table(&census, style::columns(), self.each) };
            match &self.output {
                Some(file) => write(file, &text)?,
                None => write!(out, "{text}")?,
            }
            return Ok(0);
        }
        if self.until.is_some_and(|until| until <= self.from) {
            bail!("the measured time would end before it begins; --until must be later than --from");
        }
        let options = RunOptions {
            interfaces: self.interfaces().into(),
            period: (self.watch || self.fix).then_some(self.period),
            is_traced: !self.no_ptrace,
            // Where memory comes from is known only if the command is stopped there.
            fix: self.explain.then_some(Fix::Observe),
            is_explained: self.explain,
            is_speed_measured: true,
            from: self.from,
            until: self.until,
            limits: Limits { share_percent: self.share, size_bytes: self.size },
        };
        if self.fix {
            let fixed = fix(&self.command, &options, self.once, self.compare)?;
            self.report(&if self.json { json(&fixed)? } else { fixed_table(&fixed) })?;
            return Ok(fixed.after.exit_code as u8);
        }
        let run = dormouse_census::run(&self.command, &options)?;
        self.html_file(&html_of_run(&run))?;
        let text = if self.json { json(&run)? } else { run_table(&run, style::columns(), self.each) };
        self.report(&text)?;
        Ok(self.exit_code(&run))
    }

    /// Writes what a command's run has shown. Standard output belongs to the command.
    fn report(&self, text: &str) -> anyhow::Result<()> {
        self.output.as_ref().map_or_else(|| report(text), |file| write(file, text))
    }

    /// Shows the zero page in several processes, once or repeatedly.
    fn machine(&self, out: &mut Output) -> anyhow::Result<u8> {
        let scope = self.cgroup.clone().map_or(Scope::All, Scope::Group);
        let mut surveyor = MachineSurveyor::new(scope, self.interfaces())?;
        let mut file = self.output.as_ref().map(File::create).transpose()?;
        let Some(every) = self.every else {
            let census = surveyor.census()?;
            let text = if self.json { json(&census)? } else { machine_table(&census) };
            file.as_mut().map_or_else(|| out.write_all(text.as_bytes()), |file| file.write_all(text.as_bytes()))?;
            return Ok(0);
        };
        let (start, mut next) = (Instant::now(), Instant::now());
        for index in 0..self.count.unwrap_or(u64::MAX) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let time_s = start.elapsed().as_secs_f64();
            let census = surveyor.census()?;
            let line = if self.json {
                serde_json::to_string(&Timed { time_s, census: &census })? + "\n"
            } else {
                machine_line(&census, time_s, index == 0)
            };
            match &mut file {
                Some(file) => file.write_all(line.as_bytes())?,
                None => out.write_all(line.as_bytes()).and_then(|()| out.flush())?,
            }
            next = (next + every).max(Instant::now());
        }
        Ok(0)
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

/// A census of several processes, with its time.
#[derive(serde::Serialize)]
struct Timed<'a> {
    /// Time since the first, in seconds.
    time_s: f64,
    #[serde(flatten)]
    census: &'a MachineCensus,
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
