//! Events as text for people on a terminal.
//!
//! ```text
//! 14:03:05.123456789 nginx 4711      4713 [2] http:request  id=7 path="/x" status=OK
//! ```
//!
//! Columns grow with their content up to a share of the width. Longer content is cut and marked. Threads that have a name of
//! their own have it behind the thread id. An event of a slice ([`Within`]) is indented by its depth, behind the duration of what
//! it ends.

use dormouse_abi::class::{Level, matches};
use dormouse_abi::page::CPU_UNKNOWN;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::cells::{CellKind, Cells, Style, put_people_text, put_printable};
use super::clock::{ClockFormat, ClockText};
use super::within::Within;
use crate::units::duration;
use dormouse_ctf::select::Writer;
use dormouse_ctf::stream::Event;

/// Mark at the place of a cut.
const MARK: &str = "…";
/// Maximum width of a class name that widens the event column in advance, in columns.
const EXPECTED_MAX: usize = 24;
/// Maximum depth by which an event is indented.
const DEPTH_MAX: u32 = 16;
/// Minimum width of a value that is cut, in columns.
const VALUE_MIN: usize = 16;

/// Parts of a line, each with its own colour.
#[derive(Debug, Clone, Copy)]
enum Ink {
    Time,
    Process,
    Cpu,
    /// The name of an event, by its level.
    Event(Option<Level>),
    Name,
    Text,
    Plain,
}

impl Ink {
    /// Returns the Select Graphic Rendition sequence (ECMA-48, 8.3.117).
    fn begin(self) -> &'static str {
        match self {
            Ink::Time | Ink::Cpu => "\x1b[2m",
            Ink::Process => "\x1b[36m",
            // Bold: red, yellow, or the terminal's own colour; dim for debugging.
            Ink::Event(Some(Level::Emerg | Level::Alert | Level::Crit | Level::Err)) => "\x1b[1;31m",
            Ink::Event(Some(Level::Warning)) => "\x1b[1;33m",
            Ink::Event(None | Some(Level::Notice | Level::Info)) => "\x1b[1m",
            Ink::Event(Some(_)) => "\x1b[2m",
            Ink::Name => "\x1b[34m",
            Ink::Text => "\x1b[32m",
            Ink::Plain => "",
        }
    }
}

/// Formats events for people.
#[derive(Debug)]
pub struct People<'a> {
    clock: ClockText<'a>,
    cells: Cells,
    has_color: bool,
    /// Maximum width of a line, in columns.
    width: Option<usize>,
    columns: Columns,
    /// Width of the time column.
    time_width: usize,
}

/// Current widths of the columns.
#[derive(Debug, Default)]
struct Columns {
    process: usize,
    pid: usize,
    tid: usize,
    thread: usize,
    cpu: usize,
    took: usize,
    event: usize,
}

/// Parts of a line, which is cut at a width when it is written.
#[derive(Debug, Default)]
struct Line {
    parts: Vec<(Ink, String)>,
    width: usize,
}

impl<'a> People<'a> {
    /// `utc_offset_s` is as for [`super::Formatter::new`]. `width` is the width of the terminal, if lines should be
    /// cut. `only` names the selected fields; `None` selects all.
    pub fn new(
        clock_format: ClockFormat,
        utc_offset_s: impl Fn(i64) -> i32 + 'a,
        width: Option<usize>,
        has_color: bool,
        only: Option<Vec<String>>,
    ) -> People<'a> {
        People {
            clock: ClockText::new(clock_format, utc_offset_s),
            cells: Cells::new(Style::People, only),
            has_color,
            width,
            columns: Columns { cpu: 1, ..Columns::default() },
            time_width: 0,
        }
    }

    /// Announces the names of classes that can occur, so that their column is wide enough from the beginning, up to its
    /// maximum.
    pub fn expect<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        let widths = names.map(|name| printable(name.as_bytes()).width()).filter(|width| *width <= EXPECTED_MAX);
        let event_max = self.width.unwrap_or(usize::MAX) / 4;
        self.columns.event = widths.max().unwrap_or(0).min(event_max);
    }

    /// Appends the event's line with its newline. Nothing in it moves a cursor.
    pub fn event(&mut self, event: &Event<'_>, writer: &Writer<'_>, out: &mut Vec<u8>) {
        self.line(event, writer, None, out);
    }

    /// Appends the line of an event of a slice. Its time is that since the slice's begin.
    pub fn event_within(&mut self, event: &Event<'_>, writer: &Writer<'_>, within: &Within<'_>, out: &mut Vec<u8>) {
        self.line(event, writer, Some(within), out);
    }

    fn line(&mut self, event: &Event<'_>, writer: &Writer<'_>, within: Option<&Within<'_>>, out: &mut Vec<u8>) {
        let number = |number: u64| number.to_string();
        let mut time = Vec::new();
        match (within, event.time_ns) {
            (Some(within), _) => within.put_since(&mut time),
            (None, Some(ns)) => self.clock.put(ns, &mut time),
            (None, None) => time.push(b'-'),
        }
        let process = printable(writer.name.as_deref().unwrap_or_default());
        let pid = writer.pid.map_or_else(|| "-".into(), number);
        // The first thread of a process has the id of the process, which is not repeated.
        let tid = writer.tid.filter(|tid| writer.pid != Some(*tid)).map_or_else(String::new, number);
        let cpu = if event.cpu_id == CPU_UNKNOWN { "-".into() } else { number(event.cpu_id.into()) };
        let thread = printable(writer.thread.unwrap_or_default().as_bytes());
        let took = within.and_then(|within| within.ended).map_or_else(String::new, |(_, ns)| duration(ns as f64));
        let depth = within.map_or(0, |within| within.depth.min(DEPTH_MAX)) as usize;
        let name = format!("{:1$}{2}", "", 2 * depth, printable(event.class.full_name.as_bytes()));
        self.time_width = self.time_width.max(time.len());

        let width = self.width.unwrap_or(usize::MAX);
        // For a width of 80 columns, these are 13 and 20.
        let (process_max, event_max) = (width / 6, width / 4);
        let Columns {
            process: w_process,
            pid: w_pid,
            tid: w_tid,
            thread: w_thread,
            cpu: w_cpu,
            took: w_took,
            event: w_event,
        } = &mut self.columns;
        *w_process = (*w_process).max(process.width()).min(process_max);
        *w_pid = (*w_pid).max(pid.len());
        *w_tid = (*w_tid).max(tid.len());
        *w_thread = (*w_thread).max(thread.width()).min(process_max);
        *w_cpu = (*w_cpu).max(cpu.len());
        *w_took = (*w_took).max(took.chars().count());
        *w_event = (*w_event).max(name.width()).min(event_max);

        let mut line = Line::default();
        let time = String::from_utf8_lossy(&time);
        line.put(Ink::Time, &format!("{time:>width$} ", width = self.time_width));
        if *w_process > 0 {
            line.put(Ink::Process, &format!("{} ", padded(&process, *w_process)));
        }
        line.put(Ink::Process, &format!("{pid:>w_pid$} ", w_pid = *w_pid));
        if *w_tid > 0 {
            line.put(Ink::Process, &format!("{tid:>w_tid$} ", w_tid = *w_tid));
        }
        if *w_thread > 0 {
            line.put(Ink::Process, &format!("{} ", padded(&thread, *w_thread)));
        }
        line.put(Ink::Cpu, &format!("{:>width$} ", format!("[{cpu}]"), width = *w_cpu + 2));
        if within.is_some() {
            line.put(Ink::Time, &format!("{took:>w_took$} ", w_took = *w_took));
        }
        line.put(Ink::Event(event.class.level), &padded(&name, *w_event));
        self.cells.take(event);
        put_fields(&self.cells, &mut line, width);
        let of_event = event.class.full_name.as_str();
        // Most names say it already: `shop:serve_end` ends `shop:serve`.
        let is_end = |ended: &str| ended.split_once("..").is_some_and(|(_, end)| matches(end, of_event));
        let is_plain = |ended: &str| of_event.starts_with(ended) || is_end(ended);
        if let Some((ended, _)) = within.and_then(|within| within.ended).filter(|(ended, _)| !is_plain(ended)) {
            line.put(Ink::Time, &format!(" ends {}", printable(ended.as_bytes())));
        }
        line.write(width, self.has_color, out);
    }
}

/// Adds the fields. If they are too long together, long ones are cut.
fn put_fields(cells: &Cells, line: &mut Line, width: usize) {
    let of = |kind: CellKind, value: &[u8]| {
        let mut text = Vec::new();
        match kind {
            CellKind::Text => put_people_text(&mut text, value),
            CellKind::Label => put_printable(&mut text, value),
            CellKind::Plain | CellKind::NoNumber => text.extend_from_slice(value),
            // Names in it were chosen by the program too.
            CellKind::Compound => put_printable(&mut text, value),
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    // The writer of the event is shown in front of the fields.
    let is_shown = |is_context: bool, name: &str| {
        !is_context || !["vpid", "vtid", "pid", "tid", "procname", "comm", "cpu_id"].contains(&name)
    };
    let fields: Vec<_> = cells
        .iter()
        .filter(|(cell, name, _)| is_shown(cell.is_context, name))
        .map(|(cell, name, value)| (cell.kind, printable(name.as_bytes()), of(cell.kind, value)))
        .collect();
    let total: usize = fields.iter().map(|(_, name, value)| name.width() + value.width() + 2).sum();
    let left = width.saturating_sub(line.width);
    let value_max = if total > left { (left / 3).max(VALUE_MIN) } else { usize::MAX };
    for (kind, name, value) in fields {
        line.put(Ink::Plain, " ");
        line.put(Ink::Name, &name);
        line.put(Ink::Plain, "=");
        let ink = if kind == CellKind::Text { Ink::Text } else { Ink::Plain };
        line.put(ink, &cut(&value, value_max));
    }
}

impl Line {
    fn put(&mut self, ink: Ink, text: &str) {
        self.width += text.width();
        self.parts.push((ink, text.into()));
    }

    fn write(self, width: usize, has_color: bool, out: &mut Vec<u8>) {
        // If the line does not fit, the last column is for the mark.
        let is_cut = self.width > width;
        let mut left = if is_cut { width.saturating_sub(1) } else { width };
        for (ink, text) in &self.parts {
            let shown = prefix(text, left);
            left -= shown.width();
            let begin = if has_color && !shown.trim_end().is_empty() { ink.begin() } else { "" };
            out.extend_from_slice(begin.as_bytes());
            out.extend_from_slice(shown.as_bytes());
            if !begin.is_empty() {
                out.extend_from_slice(b"\x1b[0m");
            }
            if shown.len() < text.len() {
                break;
            }
        }
        // Padding at the end of the line is removed.
        let kept = out.trim_ascii_end().len();
        out.truncate(kept);
        if is_cut {
            out.extend_from_slice(MARK.as_bytes());
        }
        out.push(b'\n');
    }
}

fn printable(text: &[u8]) -> String {
    let mut out = Vec::new();
    put_printable(&mut out, text);
    String::from_utf8(out).unwrap_or_default()
}

/// Returns the text in exactly `width` columns, cut or padded with blanks.
fn padded(text: &str, width: usize) -> String {
    let mut shown = cut(text, width).into_owned();
    let blanks = width.saturating_sub(shown.width());
    shown.extend(std::iter::repeat_n(' ', blanks));
    shown
}

/// Returns the longest prefix that fits `width` columns.
fn prefix(text: &str, width: usize) -> &str {
    let (mut left, mut end) = (width, 0);
    for (at, c) in text.char_indices() {
        let columns = c.width().unwrap_or(0);
        if columns > left {
            break;
        }
        left -= columns;
        end = at + c.len_utf8();
    }
    &text[..end]
}

/// Returns the text, cut to `width` columns with a mark if it is longer.
fn cut(text: &str, width: usize) -> std::borrow::Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    if width == 0 { "".into() } else { format!("{}{MARK}", prefix(text, width - 1)).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_columns() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("a", 0), "");
        assert_eq!(padded("日", 4), "日  ");
    }
}
