//! Formats events as text.

use dormouse_ctf::select::Writer;
use dormouse_ctf::{Event, Notice, Writers};
use dormouse_print::{ClockFormat, Formatter, LineFormat, Lines, People, Within};

use super::Format;

/// A formatter for events, in one of the formats.
pub(super) struct Printer {
    /// Formats events for babeltrace's format, and notices for all formats.
    formatter: Formatter<'static>,
    other: Option<Other>,
    /// Last names of threads, for events of threads that have no name yet.
    last: Option<Writers>,
}

/// Returns the writer of an event: a thread that has no name yet has its last one in `last`.
pub(super) fn writer_of<'a>(event: &Event<'a>, writers: &'a mut Writers, last: Option<&'a mut Writers>) -> Writer<'a> {
    let writer = writers.of(event);
    let thread = writer.thread.or_else(|| last?.of(event).thread);
    Writer { thread, ..writer }
}

enum Other {
    People(Box<People<'static>>),
    Lines(Box<Lines>),
}

impl Printer {
    /// Returns a printer for `format`. `is_within`: whether the events are those of slices; `columns` is called for the
    /// columns of a table.
    pub(super) fn new(
        format: Format,
        clock: ClockFormat,
        width: Option<usize>,
        has_color: bool,
        only: Option<Vec<String>>,
        is_within: bool,
        columns: impl Fn() -> Vec<String>,
    ) -> Printer {
        let lines = |format| {
            let lines = Lines::new(format, only.clone());
            Some(Other::Lines(Box::new(if is_within { lines.within() } else { lines })))
        };
        let other = match format {
            Format::Babeltrace => None,
            Format::People => {
                Some(Other::People(Box::new(People::new(clock, utc_offset(), width, has_color, only.clone()))))
            }
            Format::Json => lines(LineFormat::Json),
            Format::Logfmt => lines(LineFormat::Logfmt),
            Format::Csv => lines(LineFormat::Csv(columns())),
        };
        Printer { formatter: Formatter::new(clock, utc_offset()), other, last: None }
    }

    /// Gives threads their last names, for people and in slices, before the trace says them: the session owner looks at names
    /// only from time to time.
    pub(super) fn with_last_names(self, last: Writers) -> Printer {
        Printer { last: Some(last), ..self }
    }

    /// Announces the names of the event classes that can be printed.
    pub(super) fn expect<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        if let Some(Other::People(people)) = &mut self.other {
            people.expect(names);
        }
    }

    /// Appends the text that precedes all events.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(Other::Lines(lines)) = &mut self.other {
            lines.begin(out);
        }
    }

    /// Appends the event's line.
    pub(super) fn event(&mut self, event: &Event<'_>, writers: &mut Writers, out: &mut Vec<u8>) {
        match &mut self.other {
            None => self.formatter.event(event, out),
            Some(Other::People(people)) => people.event(event, &writer_of(event, writers, self.last.as_mut()), out),
            Some(Other::Lines(lines)) => lines.event(event, &writers.of(event), out),
        }
    }

    /// Appends the line of an event of a slice.
    pub(super) fn event_within(
        &mut self,
        event: &Event<'_>,
        writers: &mut Writers,
        within: &Within<'_>,
        out: &mut Vec<u8>,
    ) {
        let writer = writer_of(event, writers, self.last.as_mut());
        match &mut self.other {
            None => self.formatter.event(event, out),
            Some(Other::People(people)) => people.event_within(event, &writer, within, out),
            Some(Other::Lines(lines)) => lines.event_within(event, &writer, within, out),
        }
    }

    pub(super) fn warning(&mut self, notice: &Notice, stream: &str) -> String {
        self.formatter.warning(notice, stream)
    }
}

/// Returns a function that gives the offset of local time from UTC, in seconds, at a time in seconds since the epoch.
pub(crate) fn utc_offset() -> impl Fn(i64) -> i32 {
    let zone = jiff::tz::TimeZone::system();
    move |epoch_s| jiff::Timestamp::from_second(epoch_s).map_or(0, |timestamp| zone.to_offset(timestamp).seconds())
}
