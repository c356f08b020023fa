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

use crate::progress::Progress;
use crate::report::{Drawn, about, are_closed, notes, opened, title};
use crate::selection::SelectionOptions;

/// Show a trace in a browser: the page of `dormouse report`, which asks for more as one zooms in
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse open TRACE                                  all of it; Ctrl-C ends it
  dormouse open TRACE --since +2s --until +3s          one second of it
  dormouse open TRACE --pairs req:in..req:out --key id what is a slice, where names do not say it
  dormouse open TRACE --no-browser --idle-timeout 1h   prints the address, and ends when nobody has looked for an hour

The page is that of `dormouse report`, and leaves nothing out: what has no room in it is fetched when one zooms in, fields when one clicks. Only what is \
nested more than 128 deep in a thread, or beside more than 32 others on a CPU, is not drawn, and counted.

The trace is read once, in the beginning. Of a trace that is larger than --memory allows only long items are kept, and neighbours that are short as one; what the page shows when one \
zooms in, and fields, are read from the trace again.

A recording in progress (the directory of a session that lives) is read as far as it goes: packets that are whole. `Read on` in the page has it read again, from its beginning.

The address is on 127.0.0.1, has a random token in it, and works once: the browser that opens it first gets the page, and keeps it when it is reloaded. Whoever \
comes later is told so, and gets nothing; start the command again for another browser. A browser is opened if standard output is a terminal with a display, and xdg-open is there.

Exit code: 0 when it was ended by Ctrl-C, or by --idle-timeout; 1 the same if the trace is damaged or something is missing (the page says so, and has what can be read); 2 if it cannot be read \
or the port cannot be had, or if an option names what is in none of its events.")]
pub(crate) struct Open {
    /// Traces: directories of one or with several below, archives of such (.tar, .tar.gz, .tar.zst), or `-`
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    selection: SelectionOptions,
    #[command(flatten)]
    drawn: Drawn,
    /// Take so much memory, besides 64 MiB and 1 MiB for each stream that reading takes; at least 64M
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "512M", help_heading = "How it is served")]
    memory: u64,
    /// Listen here [default: a port that is free]
    #[arg(
        long,
        value_name = "PORT",
        default_value = "0",
        hide_default_value = true,
        help_heading = "How it is served"
    )]
    port: u16,
    /// Only print the address
    #[arg(long, help_heading = "How it is served")]
    no_browser: bool,
    /// End when the page has not asked for anything for so long: `30m`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "How it is served")]
    idle_timeout: Option<Duration>,
}

fn parse_memory(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|size| match size < MEMORY_BYTES_MIN {
        true => Err(format!("{text} is too little; at least {}M are needed", MEMORY_BYTES_MIN >> 20)),
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
                say("nobody has looked for --idle-timeout");
            }
        }
        Ok((!summary.warnings.is_empty()).into())
    }
}

/// Reads the traces once. The last value returned is whether more can be read later.
fn survey(this: &Arc<Open>) -> anyhow::Result<(Served, ReadSummary, bool)> {
    let (files, is_growing, corrections) = opened(&this.dirs, &this.selection)?;
    let mut reading = this.selection.reading(&files)?;
    let (first_ns, last_ns) = (reading.bounds().first_ns, reading.bounds().last_ns);
    let traces: Vec<&Trace> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    let mut timeline = Timeline::new(&this.drawn.options(), &traces, streams).map_err(anyhow::Error::msg)?;
    let memory = usize::try_from(this.memory).unwrap_or(usize::MAX);
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
    let surveyed = surveyed.told(&totals, about(&traces), notes, is_growing);
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
