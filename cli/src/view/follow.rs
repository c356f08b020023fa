//! `dormouse view --follow`: prints a trace while it is recorded.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::bail;
use dormouse_ctf::{Event, Notice, Writers};
use dormouse_owner::is_owner_alive;
use dormouse_reader::{Bounds, FollowEnd, FollowOptions, Follower, Show, TraceFiles};

use super::View;
use super::printer::Printer;
use super::sink::Sink;

/// Returns the line that says why following has ended, if the user does not know.
fn end_line(end: FollowEnd) -> Option<&'static str> {
    Some(match end {
        FollowEnd::Closed => "the session has ended",
        FollowEnd::Killed => "the session was killed; `dormouse salvage` recovers what it had in memory",
        FollowEnd::Interrupted => "interrupted; the session continues",
        FollowEnd::CountReached | FollowEnd::OutputClosed => return None,
    })
}

/// Prints events as they are read.
struct Lines<'l, 'o> {
    printer: &'l mut Printer,
    sink: &'l mut Sink<'o>,
    text: Vec<u8>,
}

impl Show for Lines<'_, '_> {
    fn event(&mut self, event: &Event<'_>, writers: &mut Writers) {
        self.text.clear();
        self.printer.event(event, writers, &mut self.text);
        self.sink.write(&self.text);
    }

    fn notice(&mut self, notice: &Notice, stream: &str) {
        self.sink.say(self.printer.warning(notice, stream));
    }

    fn is_over(&self) -> bool {
        self.sink.is_over()
    }
}

impl View {
    pub(super) fn print_following(
        &self,
        files: TraceFiles,
        bounds: Bounds,
        printer: &mut Printer,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<u8> {
        let [dir] = self.dirs.as_slice() else { bail!("--follow is for one trace") };
        if !dir.is_dir() {
            bail!("--follow needs the directory of a trace; {} is not a directory", dir.display());
        }
        let is_interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&is_interrupted))?;
        let mut text = Vec::new();
        printer.begin(&mut text);
        sink.write(&text);
        files.left_out.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let count_max = self.count.unwrap_or(u64::MAX);
        let options = FollowOptions { delay: self.delay, count_max, is_owner_alive, is_interrupted };
        let mut follower = Follower::new(dir, files, bounds, options);
        let mut lines = Lines { printer, sink, text };
        let end = loop {
            let end = follower.round(self.selection.selection_of_live()?, &mut lines);
            lines.sink.flush();
            if let Some(end) = end {
                break end;
            }
            follower.wait()?;
        };
        let late = follower.late_count();
        if late > 0 {
            let (events, streams) =
                if late == 1 { ("event was", "its stream was") } else { ("events were", "their streams were") };
            sink.say(format!(
                "{late} {events} printed after later events: {streams} silent for longer than --delay {:?}",
                self.delay
            ));
        }
        follower.losses().into_iter().for_each(|line| sink.say(line));
        end_line(end).into_iter().for_each(|line| sink.say(line.into()));
        let is_incomplete = !follower.files().left_out.is_empty() || end == FollowEnd::Killed;
        Ok((follower.is_damaged() || is_incomplete).into())
    }
}
