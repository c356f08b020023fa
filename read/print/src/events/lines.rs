//! Events as lines for programs: JSON, CSV, logfmt.

use dormouse_abi::page::CPU_UNKNOWN;

use super::cells::{CellKind, Cells, Style, put_json_text, put_printable};
use super::clock::put_utc;
use super::number::{put_i64, put_u64};
use super::within::Within;
use dormouse_analysis::PairFields;
use dormouse_ctf::select::Writer;
use dormouse_ctf::stream::Event;

/// Format of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineFormat {
    /// One JSON object on each line.
    Json,
    /// `name=value` pairs.
    Logfmt,
    /// One row for each event (RFC 4180). Columns for the fields with these names follow the columns that all events
    /// have.
    Csv(Vec<String>),
}

/// Columns of events of slices, before the others.
const WITHIN: [&str; 5] = ["slice", "since_begin_ns", "depth", "ended", "ended_ns"];

/// Columns that all events have.
const COLUMNS: [&str; 8] = ["time", "time_ns", "event", "cpu", "pid", "tid", "process", "thread"];

/// Formats events for programs.
#[derive(Debug)]
pub struct Lines {
    format: LineFormat,
    cells: Cells,
    /// Whether the events are those of slices.
    is_within: bool,
    /// Whether the header of a table has been written.
    has_header: bool,
}

impl Lines {
    /// `only` names the selected fields; `None` selects all.
    pub fn new(format: LineFormat, only: Option<Vec<String>>) -> Lines {
        Lines { format, cells: Cells::new(Style::Json, only), is_within: false, has_header: false }
    }

    /// Returns lines for the events of slices, see [`Lines::event_within`].
    pub fn within(self) -> Lines {
        Lines { is_within: true, ..self }
    }

    /// Appends the event's line with its newline. The header of a table precedes the first row.
    pub fn event(&mut self, event: &Event<'_>, writer: &Writer<'_>, out: &mut Vec<u8>) {
        self.line(event, writer, None, out);
    }

    /// Appends the line of an event of a slice.
    pub fn event_within(&mut self, event: &Event<'_>, writer: &Writer<'_>, within: &Within<'_>, out: &mut Vec<u8>) {
        self.line(event, writer, Some(within), out);
    }

    fn line(&mut self, event: &Event<'_>, writer: &Writer<'_>, within: Option<&Within<'_>>, out: &mut Vec<u8>) {
        self.begin(out);
        self.cells.take(event);
        match &self.format {
            LineFormat::Json => json(&self.cells, event, writer, within, out),
            LineFormat::Logfmt => logfmt(&self.cells, event, writer, within, out),
            LineFormat::Csv(columns) => csv(&self.cells, columns, event, writer, within, out),
        }
        out.push(b'\n');
    }

    /// Appends the header of a table, if it has not been written.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let LineFormat::Csv(columns) = &self.format
            && !std::mem::replace(&mut self.has_header, true)
        {
            let front: &[&str] = if self.is_within { &WITHIN } else { &[] };
            out.extend_from_slice([front, &COLUMNS].concat().join(",").as_bytes());
            for column in columns {
                out.push(b',');
                // Column names must be unique, because readers find columns by name.
                if front.iter().chain(&COLUMNS).any(|known| known == column) {
                    out.extend_from_slice(b"fields.");
                }
                put_csv(out, column.as_bytes());
            }
            out.push(b'\n');
        }
    }
}

/// Visits the properties that all events have, by name and value. Texts are the bytes that the program wrote.
fn each_common(
    event: &Event<'_>,
    writer: &Writer<'_>,
    within: Option<&Within<'_>>,
    mut see: impl FnMut(&str, Option<(CellKind, &[u8])>),
) {
    let mut text = Vec::new();
    if let Some(Within { slice, since_ns, depth, ended }) = within {
        for (name, number) in WITHIN.into_iter().zip([*slice, *since_ns, u64::from(*depth)]) {
            text.clear();
            put_u64(&mut text, number);
            see(name, Some((CellKind::Plain, &text)));
        }
        text.clear();
        ended.iter().for_each(|(_, ns)| put_u64(&mut text, *ns));
        see("ended", ended.map(|(name, _)| (CellKind::Text, name.as_bytes())));
        see("ended_ns", ended.map(|_| (CellKind::Plain, text.as_slice())));
        text.clear();
    }
    let number = |number: Option<u64>, text: &mut Vec<u8>| {
        text.clear();
        number.map(|number| put_u64(text, number)).is_some()
    };
    if let Some(ns) = event.time_ns {
        put_utc(ns, &mut text);
        see("time", Some((CellKind::Text, &text)));
        text.clear();
        put_i64(&mut text, ns);
        see("time_ns", Some((CellKind::Plain, &text)));
    } else {
        see("time", None);
        see("time_ns", None);
    }
    see("event", Some((CellKind::Text, event.class.full_name.as_bytes())));
    let cpu = Some(event.cpu_id).filter(|cpu| *cpu != CPU_UNKNOWN).map(u64::from);
    for (name, value) in [("cpu", cpu), ("pid", writer.pid), ("tid", writer.tid)] {
        let is_there = number(value, &mut text);
        see(name, is_there.then_some((CellKind::Plain, &text)));
    }
    see("process", writer.name.as_deref().map(|name| (CellKind::Text, name)));
    see("thread", writer.thread.map(|name| (CellKind::Text, name.as_bytes())));
}

fn put_json(out: &mut Vec<u8>, kind: CellKind, value: &[u8]) {
    match kind {
        CellKind::Text | CellKind::Label | CellKind::NoNumber => put_json_text(out, value),
        CellKind::Plain | CellKind::Compound => out.extend_from_slice(value),
    }
}

/// Writer of contexts and fields in the form that [`Lines`] has in JSON.
#[derive(Debug)]
pub struct JsonFields(Cells);

impl Default for JsonFields {
    fn default() -> JsonFields {
        JsonFields(Cells::new(Style::Json, None))
    }
}

impl JsonFields {
    /// Appends `"context":{…},"fields":{…}`.
    pub fn put(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        self.0.take(event);
        json_fields(&self.0, out);
    }
}

/// Returns the fields of an event of a pair, without its contexts.
pub fn pair_fields(event: &Event<'_>) -> PairFields {
    let mut json = vec![b'{'];
    JsonFields::default().put(event, &mut json);
    json.push(b'}');
    // The text was written here: it is JSON.
    let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap_or_default();
    let mut cells = Cells::new(Style::People, None);
    cells.take(event);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fields = cells.iter().filter(|(cell, ..)| !cell.is_context);
    let texts = fields.map(|(_, name, value)| (name.to_string(), text(value))).collect();
    PairFields { json: json["fields"].take(), texts }
}

fn json_fields(cells: &Cells, out: &mut Vec<u8>) {
    for (title, is_context) in [("context", true), ("fields", false)] {
        if !is_context {
            out.push(b',');
        }
        put_json_text(out, title.as_bytes());
        out.push(b':');
        let mut separator = b'{';
        for (cell, name, value) in cells.iter().filter(|(cell, ..)| cell.is_context == is_context) {
            out.push(separator);
            separator = b',';
            put_json_text(out, name.as_bytes());
            out.push(b':');
            put_json(out, cell.kind, value);
        }
        if separator == b'{' {
            out.push(b'{');
        }
        out.push(b'}');
    }
}

fn json(cells: &Cells, event: &Event<'_>, writer: &Writer<'_>, within: Option<&Within<'_>>, out: &mut Vec<u8>) {
    let mut separator = b'{';
    each_common(event, writer, within, |name, value| {
        if let Some((kind, value)) = value {
            out.push(separator);
            separator = b',';
            put_json_text(out, name.as_bytes());
            out.push(b':');
            put_json(out, kind, value);
        }
    });
    out.push(b',');
    json_fields(cells, out);
    out.push(b'}');
}

fn logfmt(cells: &Cells, event: &Event<'_>, writer: &Writer<'_>, within: Option<&Within<'_>>, out: &mut Vec<u8>) {
    let mut is_first = true;
    let mut pair = |name: &str, kind: CellKind, value: &[u8]| {
        if !std::mem::replace(&mut is_first, false) {
            out.push(b' ');
        }
        // Keys must not contain blanks, quotes and equals signs.
        let key: String = name.chars().map(|c| if c.is_whitespace() || "=\"".contains(c) { '_' } else { c }).collect();
        put_printable(out, if key.is_empty() { b"_" } else { key.as_bytes() });
        out.push(b'=');
        let is_bare = |byte: &u8| byte.is_ascii_graphic() && !b"=\"\\".contains(byte);
        if matches!(kind, CellKind::Plain | CellKind::NoNumber) || (!value.is_empty() && value.iter().all(is_bare)) {
            out.extend_from_slice(value);
        } else {
            put_json_text(out, value);
        }
    };
    each_common(event, writer, within, |name, value| {
        if let Some((kind, value)) = value {
            pair(name, kind, value);
        }
    });
    cells.iter().for_each(|(cell, name, value)| pair(name, cell.kind, value));
}

fn csv(
    cells: &Cells,
    columns: &[String],
    event: &Event<'_>,
    writer: &Writer<'_>,
    within: Option<&Within<'_>>,
    out: &mut Vec<u8>,
) {
    let mut is_first = true;
    each_common(event, writer, within, |_, value| {
        if !std::mem::replace(&mut is_first, false) {
            out.push(b',');
        }
        if let Some((_, value)) = value {
            put_csv(out, value);
        }
    });
    for column in columns {
        out.push(b',');
        // A field takes precedence over a context of the same name.
        let of_name = || cells.iter().filter(|(_, name, _)| name == column);
        let found = of_name().find(|(cell, ..)| !cell.is_context).or_else(|| of_name().next());
        if let Some((_, _, value)) = found {
            put_csv(out, value);
        }
    }
}

/// Appends text, in quotes if they are necessary.
fn put_csv(out: &mut Vec<u8>, text: &[u8]) {
    // Bytes that are not UTF-8 are replaced, because many programs would refuse the whole table.
    let text = String::from_utf8_lossy(text);
    if !text.contains(['"', ',', '\n', '\r']) {
        return out.extend_from_slice(text.as_bytes());
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}
