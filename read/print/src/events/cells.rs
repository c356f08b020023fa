//! The fields of an event as cells: a name, and a value that each format quotes in its own way.

use std::ops::Range;

use dormouse_abi::class::Kind;
use dormouse_abi::text::is_printable;

use super::number::{put_i64, put_u64};
use super::{put, put_integer};
use dormouse_ctf::model::Meaning;
use dormouse_ctf::plan::{Group, IntegerNode, Visitor};
use dormouse_ctf::stream::{Event, Scratch};

/// Style in which values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// For people: numbers in the base of the trace.
    People,
    /// For programs: numbers in decimal, compound values as JSON.
    Json,
}

/// Kind of value that a cell holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellKind {
    /// Bytes of a text, without quotes.
    Text,
    /// A label, without quotes.
    Label,
    /// A number or a boolean.
    Plain,
    /// A floating-point number that JSON cannot express.
    NoNumber,
    /// JSON, or its form for people.
    Compound,
}

/// A field of an event.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub is_context: bool,
    pub kind: CellKind,
    name: Range<usize>,
    value: Range<usize>,
}

/// Fields of one event. The memory is reused for the next event.
#[derive(Debug)]
pub(super) struct Cells {
    style: Style,
    /// Names of the selected fields, unless all are selected.
    only: Option<Vec<String>>,
    cells: Vec<Cell>,
    bytes: Vec<u8>,
    scratch: Scratch,
}

impl Cells {
    pub(super) fn new(style: Style, only: Option<Vec<String>>) -> Cells {
        Cells { style, only, cells: Vec::new(), bytes: Vec::new(), scratch: Scratch::default() }
    }

    /// Reads the fields of an event.
    pub(super) fn take(&mut self, event: &Event<'_>) {
        self.cells.clear();
        self.bytes.clear();
        let contexts = [&event.class.event_context, &event.class.own_context];
        let mut taker = Taker {
            style: self.style,
            only: self.only.as_deref(),
            cells: &mut self.cells,
            bytes: &mut self.bytes,
            event,
            contexts_left: contexts.into_iter().flatten().count(),
            depth: 0,
            member: 0,
            declared: 0,
            is_wanted: true,
            is_boolean: false,
            is_first: true,
        };
        event.visit(&mut self.scratch, &mut taker);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Cell, &str, &[u8])> {
        self.cells.iter().map(|cell| {
            // Names come from metadata, which are UTF-8.
            let name = std::str::from_utf8(&self.bytes[cell.name.clone()]).unwrap_or("?");
            (cell, name, &self.bytes[cell.value.clone()])
        })
    }
}

/// Contexts and fields of events as names and texts for people.
#[derive(Debug)]
pub struct FieldTexts(Cells);

impl Default for FieldTexts {
    fn default() -> FieldTexts {
        FieldTexts(Cells::new(Style::People, None))
    }
}

impl FieldTexts {
    /// Returns names and values of an event's contexts and fields, in order. Values need not be UTF-8.
    pub fn of(&mut self, event: &Event<'_>) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.take(event);
        self.0.iter().map(|(_, name, value)| (name, value))
    }
}

struct Taker<'t> {
    style: Style,
    only: Option<&'t [String]>,
    cells: &'t mut Vec<Cell>,
    bytes: &'t mut Vec<u8>,
    event: &'t Event<'t>,
    /// Number of context structures that are not yet complete.
    contexts_left: usize,
    /// Number of open groups.
    depth: u32,
    /// Index of the next member in the current structure.
    member: usize,
    /// Number of fields of the class's declaration that were visited.
    declared: usize,
    is_wanted: bool,
    is_boolean: bool,
    /// Whether nothing has been written in the current group.
    is_first: bool,
}

impl Taker<'_> {
    fn is_context(&self) -> bool {
        self.contexts_left > 0
    }

    /// Sets the kind of the current cell, if the value is the whole cell.
    fn kind(&mut self, kind: CellKind) {
        if self.depth == 1
            && let Some(cell) = self.cells.last_mut()
        {
            cell.kind = kind;
        }
    }

    fn separate(&mut self) {
        if !self.is_first {
            self.bytes.extend_from_slice(if self.style == Style::Json { b"," } else { b", " });
        }
        self.is_first = false;
    }

    /// Ends the current cell at the end of the written bytes.
    fn end(&mut self) {
        if let Some(cell) = self.cells.last_mut().filter(|_| self.depth == 1 && self.is_wanted) {
            cell.value.end = self.bytes.len();
        }
    }

    /// Whether to skip the next member: it is not selected, or it only holds the length of the next member and is not
    /// selected by name.
    fn skips(&mut self, name: &str) -> bool {
        let class = self.event.class;
        self.is_boolean = false;
        if !self.is_context() {
            let is_count = class.fields.as_ref().is_some_and(|fields| fields.is_count(self.member));
            if is_count {
                // The sequence after it has the declared name. LTTng's counts also have names of this form.
                if class.decl.is_some() || name.ends_with("_length") {
                    return !self.only.is_some_and(|only| only.iter().any(|wanted| wanted == name));
                }
            } else if let Some(decl) = &class.decl {
                self.is_boolean = decl.fields.get(self.declared).is_some_and(|(_, field)| field.kind == Kind::Bool);
                self.declared += 1;
            }
        }
        self.only.is_some_and(|only| !only.iter().any(|wanted| wanted == name))
    }

    fn text_within(&mut self, text: &[u8]) {
        match self.style {
            Style::Json => put_json_text(self.bytes, text),
            Style::People => put_people_text(self.bytes, text),
        }
    }

    fn name_within(&mut self, name: &str) {
        match self.style {
            Style::Json => {
                put_json_text(self.bytes, name.as_bytes());
                self.bytes.push(b':');
            }
            Style::People => {
                self.bytes.extend_from_slice(name.as_bytes());
                self.bytes.push(b'=');
            }
        }
    }
}

impl Visitor for Taker<'_> {
    fn name(&mut self, name: &str) {
        if self.depth > 1 {
            if self.is_wanted {
                self.separate();
                self.name_within(name);
            }
            return;
        }
        self.is_wanted = !self.skips(name);
        self.member += 1;
        if self.is_wanted {
            let begin = self.bytes.len();
            self.bytes.extend_from_slice(name.as_bytes());
            let end = self.bytes.len();
            let is_context = self.is_context();
            self.cells.push(Cell { is_context, kind: CellKind::Plain, name: begin..end, value: end..end });
        }
    }

    fn option(&mut self, name: &str) {
        if self.is_wanted {
            self.is_first = false;
            self.name_within(name);
        }
    }

    fn element(&mut self, _: u64) {
        if self.is_wanted {
            self.separate();
        }
    }

    fn integer(&mut self, value: u64, class: &IntegerNode) {
        if !self.is_wanted {
            return;
        }
        let is_boolean_enum = class.labels.as_ref().is_some_and(|labels| {
            labels.len() == 2 && labels.iter().all(|label| ["false", "true"].contains(&label.name.as_str()))
        });
        match class.label(value) {
            _ if class.meaning == Meaning::Boolean => {
                self.bytes.extend_from_slice(if value == 0 { b"false" } else { b"true" });
            }
            Some(label) if is_boolean_enum => self.bytes.extend_from_slice(label.as_bytes()),
            Some(label) => {
                self.kind(CellKind::Label);
                if self.depth == 1 {
                    self.bytes.extend_from_slice(label.as_bytes());
                } else if self.style == Style::Json {
                    put_json_text(self.bytes, label.as_bytes());
                } else {
                    put_printable(self.bytes, label.as_bytes());
                }
            }
            None if self.is_boolean && value <= 1 => {
                self.bytes.extend_from_slice(if value == 1 { b"true" } else { b"false" });
            }
            None if self.style == Style::People => put_integer(self.bytes, value, class),
            None if class.is_signed => put_i64(self.bytes, value as i64),
            None => put_u64(self.bytes, value),
        }
        self.end();
    }

    fn float(&mut self, value: f64) {
        if !self.is_wanted {
            return;
        }
        match (value.is_finite(), self.style, self.depth) {
            (true, ..) => put(self.bytes, format_args!("{value:?}")),
            (false, Style::Json, 2..) => put(self.bytes, format_args!("\"{value}\"")),
            (false, ..) => {
                self.kind(CellKind::NoNumber);
                put(self.bytes, format_args!("{value}"));
            }
        }
        self.end();
    }

    fn text(&mut self, text: &[u8]) {
        if !self.is_wanted {
            return;
        }
        if self.depth == 1 {
            self.kind(CellKind::Text);
            self.bytes.extend_from_slice(text);
        } else {
            self.text_within(text);
        }
        self.end();
    }

    fn blob(&mut self, bytes: &[u8], _: bool) {
        self.open(Group::Array);
        if self.is_wanted {
            for byte in bytes {
                self.separate();
                put_u64(self.bytes, u64::from(*byte));
            }
        }
        self.close(Group::Array);
    }

    fn absent(&mut self) {
        if self.is_wanted {
            self.bytes.extend_from_slice(if self.style == Style::Json { b"null" } else { b"none" });
            self.end();
        }
    }

    fn open(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        if self.depth == 0 {
            self.depth = 1;
            self.member = 0;
            return;
        }
        self.kind(CellKind::Compound);
        self.depth += 1;
        if self.is_wanted {
            self.bytes.push(if group == Group::Array { b'[' } else { b'{' });
            self.is_first = true;
        }
    }

    fn close(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        self.depth -= 1;
        if self.depth == 0 {
            self.contexts_left = self.contexts_left.saturating_sub(1);
        } else if self.is_wanted {
            self.bytes.push(if group == Group::Array { b']' } else { b'}' });
            self.is_first = false;
            self.end();
        }
    }
}

/// Returns the characters of a text, with U+FFFD for each invalid sequence.
fn characters(text: &[u8]) -> impl Iterator<Item = char> {
    text.utf8_chunks().flat_map(|chunk| {
        let invalid = if chunk.invalid().is_empty() { 0 } else { 1 };
        chunk.valid().chars().chain(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, invalid))
    })
}

/// Appends text as a JSON string. Characters that could move a terminal's cursor are escaped.
pub fn put_json_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for c in characters(text) {
        match c {
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            // All of these characters are in the basic plane.
            c if !is_printable(c) => put(out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out.push(b'"');
}

/// Appends text in quotes for people. Characters that move a cursor, and bytes that are not UTF-8, are escaped.
pub(super) fn put_people_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.extend(b"\\\""),
                '\\' => out.extend(b"\\\\"),
                c if is_printable(c) => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                c => put(out, format_args!("{}", c.escape_default())),
            }
        }
        chunk.invalid().iter().for_each(|byte| put(out, format_args!("\\x{byte:02x}")));
    }
    out.push(b'"');
}

/// Appends a name that a program chose, with characters that could move a cursor replaced.
pub(super) fn put_printable(out: &mut Vec<u8>, text: &[u8]) {
    for c in characters(text) {
        let c = if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER };
        out.extend(c.encode_utf8(&mut [0; 4]).bytes());
    }
}
