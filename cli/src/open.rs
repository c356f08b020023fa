//! `dormouse open`: a report on loopback, for a browser.

use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use dormouse_analysis::timeline::Timeline;
use dormouse_ctf::Trace;
use dormouse_reader::{Bounds, Item, ReadSummary, TraceFiles};
use dormouse_report::serve::{Again, Ended, Server};
use dormouse_report::{MEMORY_BYTES_MIN, PAGE_BYTES, Served, Show, Source, Survey};
use dormouse_terminal::{Output, parse_duration, parse_size, say};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::pairing::find_keys;
use crate::progress::Progress;
use crate::report::{Drawn, about, are_closed, notes, opened, title};
use crate::selection::{SelectionOptions, zero_ns};

/// Show a trace in a browser: the page of `dormouse report`, which loads details as you zoom in
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse open TRACE                                    the whole trace; Ctrl-C stops the server
  dormouse open TRACE --since +2s --until +3s            one second of it
  dormouse open TRACE --pairs req:in..req:out --key id   slices of your own
  dormouse open TRACE --no-browser --idle-timeout 1h     ends after an hour without requests

The page is that of `dormouse report`, but leaves nothing out: it fetches more when you zoom in, and the fields of an event when you click it. Slices that are \
nested more than 128 deep in a thread or 32 on a CPU, or that belong to a 33rd thread on a CPU, are not drawn, but counted. A search in the page reads the whole trace; labels and tables by a field are only in the page of `dormouse report`.

The trace is read once, at the beginning. If the trace is larger than --memory allows, only long items are kept, and short neighbours are kept as one; when you zoom in or click, \
the command reads that part of the trace again.

A recording in progress (the directory of a live session) is read up to its last complete packet. `Read on` in the page reads it again, from the beginning.

The address is on 127.0.0.1, contains a random token, and works once: the first browser that opens it gets the page, and can reload it. A later browser \
gets only a message; start the command again for it. The command opens a browser if standard output is a terminal with a display, and xdg-open is installed.

Exit code: 0 after Ctrl-C or --idle-timeout; 1 instead of 0 if the trace is damaged or incomplete (the page says so, and shows what can be read); 2 if the trace cannot be read, \
the port is not available, or an option names something that no event of the trace has.")]
pub(crate) struct Open {
    /// Trace directories, directories that contain traces, archives of these (.tar, .tar.gz, .tar.zst), or `-` for an archive on standard input
    #[arg(required = true, value_name = "TRACE")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    selection: SelectionOptions,
    #[command(flatten)]
    drawn: Drawn,
    /// Maximum memory for the page's data, at least 64M; reading takes another 64 MiB, and 1 MiB for each stream
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "512M", help_heading = "Server")]
    memory: u64,
    /// Port to listen on [default: any free port]
    #[arg(long, value_name = "PORT", default_value = "0", hide_default_value = true, help_heading = "Server")]
    port: u16,
    /// Print the address, but do not open a browser
    #[arg(long, help_heading = "Server")]
    no_browser: bool,
    /// End after this time without requests from the page, such as `30m`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Server")]
    idle_timeout: Option<Duration>,
}

fn parse_memory(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|size| match size < MEMORY_BYTES_MIN {
        true => Err(format!("{text} is too little; give at least {}M", MEMORY_BYTES_MIN >> 20)),
        false => Ok(size),
    })
}

impl Open {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let this = Arc::new(self);
        let (served, summary, is_growing) = survey(&this)?;
        let again: Option<Again> = is_growing.then(|| {
            let this = Arc::clone(&this);
            let again = move || survey(&this).map(|(served, ..)| served).map_err(|error| format!("{error:#}"));
            Box::new(again) as Again
        });
        let port = this.port;
        let server = Server::new(port, served, again);
        let server = server.with_context(|| format!("cannot listen on 127.0.0.1, port {port}"))?;
        // Registered only now: while the trace is read, these signals end the program as usual.
        let (stop, stopped) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, stopped.try_clone()?)?;
        }
        let url = server.url();
        writeln!(out, "{url}")?;
        out.flush()?;
        if !this.no_browser && std::io::stdout().is_terminal() {
            open_browser(&url);
        }
        // If the reader of standard output is gone, nothing can open the address.
        if !out.is_over() {
            say("this address works once; Ctrl-C ends it");
            if server.run(&stop, this.idle_timeout)? == Ended::Idle {
                say("no requests for --idle-timeout");
            }
        }
        Ok((!summary.warnings.is_empty()).into())
    }
}

/// Reads the traces once. The last value returned is whether more can be read later.
fn survey(this: &Arc<Open>) -> anyhow::Result<(Served, ReadSummary, bool)> {
    let (files, is_growing, mut corrections) = opened(&this.dirs, &this.selection)?;
    let memory = usize::try_from(this.memory).unwrap_or(usize::MAX);
    let mut options = this.drawn.options();
    corrections.extend(find_keys(&mut options, &files, &this.selection, memory / 4, "")?);
    let mut reading = this.selection.reading(&files)?;
    let (first_ns, last_ns) = (reading.bounds().first_ns, reading.bounds().last_ns);
    let traces: Vec<&Trace> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    let mut timeline = Timeline::new(&options, &traces, streams).map_err(anyhow::Error::msg)?;
    timeline.limit(memory / 8);
    reading.limit_names(memory / 32);
    let mut survey = Survey::new(&title(&this.dirs), timeline, this.memory);
    let mut progress = Progress::of(&reading, true);
    while let Some(item) = reading.next_item() {
        match item {
            Item::Wanted(event, _) => survey.event(&event, true),
            Item::Other(event) => survey.event(&event, false),
            Item::Notice(notice) => survey.notice(&notice, reading.time_ns(notice.stream)),
        }
        progress.step(&reading);
    }
    drop(progress);
    let (surveyed, totals) = survey.finish();
    let summary = reading.finish(true);
    let notes = notes(&files, &summary, corrections, "");
    let is_growing = is_growing && !are_closed(&files);
    let surveyed = surveyed.told(&totals, about(&traces), notes, is_growing, zero_ns(&files));
    let source = Box::new(Files { files, this: Arc::clone(this), first_ns, last_ns });
    Ok((Served::new(surveyed, source, PAGE_BYTES)?, summary, is_growing))
}

/// Traces that stay open, and the events and times that the command asked for.
struct Files {
    files: TraceFiles,
    this: Arc<Open>,
    first_ns: i64,
    last_ns: i64,
}

impl Source for Files {
    fn read(&self, first_ns: i64, last_ns: i64, show: Show<'_>) -> Result<(), String> {
        let times = (first_ns.max(self.first_ns), last_ns.min(self.last_ns));
        if times.0 > times.1 {
            return Ok(());
        }
        let bounds = Bounds::new(&self.files, times, None, None);
        let reading = self.this.selection.reading_within(&self.files, bounds);
        let mut reading = reading.map_err(|error| format!("{error:#}"))?;
        while let Some(item) = reading.next_item() {
            match item {
                Item::Wanted(event, _) => show(&event, true),
                Item::Other(event) => show(&event, false),
                // Damage and losses were reported when the whole trace was read.
                Item::Notice(_) => {}
            }
        }
        Ok(())
    }
}

/// Opens `url` in the desktop's browser, if there is a display. The URL is printed in any case.
fn open_browser(url: &str) {
    if !["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
    {
        return;
    }
    let mut command = Command::new("xdg-open");
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        // The exit code is not needed, but an ended child must be reaped.
        std::thread::spawn(move || child.wait());
    }
}
