//! `dormouse view`: the events of traces on disk.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dormouse_consumer::TraceFiles;
use dormouse_ctf::loss::DAMAGED;
use dormouse_ctf::text::{ClockFormat, Formatter};
use dormouse_ctf::{Problem, StateRecord, StatedLosses, StreamReader};

use dormouse_terminal::{Output, say};

/// Print the events of traces in order of time, as babeltrace2 does
#[derive(Debug, Args)]
#[command(
    after_help = "Reads traces of the Common Trace Format 1.8, whoever has written them: Dormouse, LTTng, barectf, babeltrace2, perf.\n\n\
                  When a session of Dormouse ends, it writes into the metadata what each stream holds. Streams that are missing, empty, too short or \
                  duplicated are named on standard error, and the last line there says what was lost, if anything was. In a trace that was not closed (the session is live, or was killed), missing \
                  streams cannot be noticed.\n\n\
                  Exit code: 0; 1 if the trace is damaged or something is missing (what can be read is printed); 2 if it cannot be read. \
                  If the reader of the output closes it, `view` stops with 0, or with 1 if there was damage before."
)]
pub(crate) struct View {
    /// Directory of the trace, or one with traces in directories below
    dir: PathBuf,
    /// How times are printed
    #[arg(long, value_enum, default_value = "time")]
    clock: ClockArgument,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ClockArgument {
    /// Time of day, local
    Time,
    /// Date and time of day, local
    Date,
    /// Seconds since 1970
    Seconds,
}

/// Bytes of text gathered before they are written.
const CHUNK_BYTES: usize = 64 << 10;

impl View {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let files = TraceFiles::open(&self.dir)?;
        let names: Vec<&str> = files.names().collect();
        let format = match self.clock {
            ClockArgument::Time => ClockFormat::TimeOfDay,
            ClockArgument::Date => ClockFormat::DateTime,
            ClockArgument::Seconds => ClockFormat::Seconds,
        };
        let zone = jiff::tz::TimeZone::system();
        let offset = |epoch_s: i64| {
            jiff::Timestamp::from_second(epoch_s).map_or(0, |timestamp| zone.to_offset(timestamp).seconds())
        };
        let mut formatter = Formatter::new(format, offset);
        let mut text = Vec::with_capacity(2 * CHUNK_BYTES);
        files.left_out.iter().for_each(|line| say(format_args!("warning: {line}")));
        let (is_left_out, mut is_damaged) = (!files.left_out.is_empty(), false);
        let mut losses = StatedLosses::default();
        let mut events = files.events();
        while let Some(item) = events.next_event() {
            match item {
                Ok(event) => {
                    StateRecord::decode(&event).iter().for_each(|record| losses.note(record));
                    formatter.event(&event, &mut text);
                }
                Err(notice) => {
                    // What comes before the notice comes out before it.
                    out.lines(&text)?;
                    text.clear();
                    is_damaged |= !matches!(notice.problem, Problem::Discarded { .. });
                    say(formatter.warning(&notice, names[notice.stream]));
                }
            }
            if text.len() >= CHUNK_BYTES {
                out.lines(&text)?;
                text.clear();
            }
            if out.is_over() {
                return Ok((is_left_out || is_damaged).into());
            }
        }
        out.lines(&text)?;
        let missing = files.missing(&events);
        missing.iter().for_each(|line| say(format_args!("warning: {line}")));
        is_damaged |= !missing.is_empty();
        if is_damaged {
            losses.add(DAMAGED, 0);
        }
        let totals = events.streams().iter().filter_map(StreamReader::totals);
        let stated = totals.fold(0, |sum: u64, totals| sum.saturating_add(totals.events_discarded));
        if losses.unstated > 0 || stated > 0 || !losses.uncounted.is_empty() {
            say(losses.told(stated));
        }
        Ok((is_left_out || is_damaged).into())
    }
}
