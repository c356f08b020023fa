//! Spans of OpenTelemetry: the body of a request to a collector (`ExportTraceServiceRequest`), which can be sent
//! unchanged.
//!
//! A slice is a span. Its parent is the enclosing slice of its thread; the parent of a slice on a lane is the slice in
//! which it began. Other events of a thread are events of its innermost span. Fields of the begin can give the ids of
//! trace, span and parent (`trace_id`, `span_id`, `parent_span_id`). Otherwise a span belongs to the trace of its
//! parent, and its id is derived from its number in the timeline.
//!
//! A span is written when it ends. Messages of a request can be written in parts: readers merge repeated ones.
//!
//! # Source
//! `opentelemetry/proto/{trace,common,resource}/v1/*.proto`; "Limits" of the SDK's specification.

use std::collections::BTreeMap;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_analysis::Recent;
use dormouse_analysis::timeline::{
    Begin, Counter, Doubt, End, Flow, Instant, Loss, NameText, Sink, Track, TrackKind, What,
};
use dormouse_ctf::model::{Base, Meaning};
use dormouse_ctf::plan::{Group, IntegerNode, Visitor};
use dormouse_ctf::{Event, Scratch};

use crate::fields::Fields;
use crate::wire::Wire;

/// Field numbers, by message.
mod field {
    pub const RESOURCE_SPANS: u64 = 1;
    pub mod resource_spans {
        pub const RESOURCE: u64 = 1;
        pub const SCOPE_SPANS: u64 = 2;
    }
    pub mod resource {
        pub const ATTRIBUTES: u64 = 1;
    }
    pub mod scope_spans {
        pub const SCOPE: u64 = 1;
        pub const SPANS: u64 = 2;
    }
    pub mod scope {
        pub const NAME: u64 = 1;
    }
    pub mod span {
        pub const TRACE_ID: u64 = 1;
        pub const SPAN_ID: u64 = 2;
        pub const PARENT_SPAN_ID: u64 = 4;
        pub const NAME: u64 = 5;
        pub const KIND: u64 = 6;
        pub const START_NS: u64 = 7;
        pub const END_NS: u64 = 8;
        pub const ATTRIBUTES: u64 = 9;
        pub const DROPPED_ATTRIBUTES: u64 = 10;
        pub const EVENTS: u64 = 11;
        pub const DROPPED_EVENTS: u64 = 12;
    }
    pub mod event {
        pub const NS: u64 = 1;
        pub const NAME: u64 = 2;
        pub const ATTRIBUTES: u64 = 3;
    }
    pub mod key_value {
        pub const KEY: u64 = 1;
        pub const VALUE: u64 = 2;
    }
    pub mod value {
        pub const TEXT: u64 = 1;
        pub const BOOL: u64 = 2;
        pub const INT: u64 = 3;
        pub const DOUBLE: u64 = 4;
        pub const ARRAY: u64 = 5;
        pub const KEY_VALUES: u64 = 6;
        pub const BYTES: u64 = 7;
        /// Field number in both lists.
        pub const VALUES: u64 = 1;
    }
}

const INTERNAL: u64 = 1;

/// Maximum number of events of a span (the default of OpenTelemetry's SDKs). The number of further events is written.
const EVENTS_MAX: u64 = 128;
/// Maximum number of array elements of an event.
const ELEMENTS_MAX: u32 = 1 << 12;
/// Maximum size of the attributes and events of open spans, in bytes. Beyond it, only the numbers of attributes and
/// events are written.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Size of pending spans, in bytes, at which they are written, in one message for each process.
const PENDING_BYTES_MAX: usize = 256 << 10;

type TraceId = [u8; 16];
type SpanId = [u8; 8];

/// An open span.
#[derive(Debug)]
struct Span {
    id: u64,
    trace_id: TraceId,
    span_id: SpanId,
    parent: Option<SpanId>,
    /// Whether its begin gives the id of its trace.
    has_trace: bool,
    /// Encoded attributes and events.
    kept: Vec<u8>,
    dropped_attributes: u64,
    events: u64,
    dropped_events: u64,
}

/// Properties of a track.
#[derive(Debug, Clone, Default)]
struct Place {
    /// Track of its process.
    process: u32,
    pid: Option<u64>,
    tid: Option<u64>,
    /// Name, if it is a process.
    name: String,
}

/// A sink that writes spans.
#[derive(Debug)]
pub(crate) struct Otlp {
    names: Vec<NameText>,
    fields: Fields,
    field_names: Vec<String>,
    host: Option<String>,
    seed: u64,
    places: Vec<Place>,
    /// Open spans by track, the innermost last.
    open: Vec<Vec<Span>>,
    kept_bytes: usize,
    /// Limit of `kept_bytes`, at most [`KEPT_BYTES_MAX`].
    kept_bytes_max: usize,
    /// Track and number of the slice that began last.
    last: (u32, u64),
    /// Encoded spans, by process.
    pending: BTreeMap<u32, Wire>,
    pending_bytes: usize,
    scratch: Scratch,
    recent: Recent,
    /// Buffer for attributes, which is reused.
    buffer: Wire,
    /// Number of events outside of all spans, which are not written.
    pub events_outside: u64,
}

/// Returns a pseudo-random number that differs for neighbouring arguments (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ mixed >> 31).max(1)
}

/// Identifiers from fields of a begin.
#[derive(Debug, Default)]
struct Ids {
    trace: Option<TraceId>,
    span: Option<SpanId>,
    parent: Option<SpanId>,
}

impl Ids {
    /// Notes a field's value, if the field is an identifier: as hexadecimal digits, or as bytes of a number.
    fn note(&mut self, name: &str, digits: &[u8]) {
        match name {
            "trace_id" => self.trace = identifier(digits).or(self.trace),
            "span_id" => self.span = identifier(digits).or(self.span),
            "parent_span_id" => self.parent = identifier(digits).or(self.parent),
            _ => {}
        }
    }
}

/// Parses an identifier of `BYTES` bytes: hexadecimal digits and optional hyphens. All zeros mean that there is none.
fn identifier<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let mut id = [0; BYTES];
    let mut count = 0;
    for digit in text.iter().filter(|byte| **byte != b'-') {
        let digit = char::from(*digit).to_digit(16)? as u8;
        *id.get_mut(count / 2)? |= if count % 2 == 0 { digit << 4 } else { digit };
        count += 1;
    }
    (count == 2 * BYTES && id != [0; BYTES]).then_some(id)
}

fn ns_of(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}

fn attribute(wire: &mut Wire, kind: u64, key: &str, fill: impl FnOnce(&mut Wire)) {
    wire.message(kind, |wire| {
        wire.text(field::key_value::KEY, key.as_bytes());
        wire.message(field::key_value::VALUE, fill);
    });
}

impl Otlp {
    pub(crate) fn new(names: Vec<NameText>, fields: Fields, host: Option<String>, base_ns: i64) -> Otlp {
        let mut field_names = vec![String::new(); fields.next_number() as usize];
        fields.names().for_each(|(name, number)| field_names[number as usize] = name.into());
        Otlp {
            names,
            fields,
            field_names,
            host,
            seed: mixed(base_ns as u64),
            places: Vec::new(),
            open: Vec::new(),
            kept_bytes: 0,
            kept_bytes_max: KEPT_BYTES_MAX,
            last: (0, 0),
            pending: BTreeMap::new(),
            pending_bytes: 0,
            scratch: Scratch::default(),
            recent: Recent::default(),
            buffer: Wire::default(),
            events_outside: 0,
        }
    }

    /// Limits the size of the attributes and events of open spans to `bytes`.
    pub(crate) fn limit(&mut self, bytes: usize) {
        self.kept_bytes_max = KEPT_BYTES_MAX.min(bytes);
    }

    /// Whether enough spans are pending for [`Otlp::write`].
    pub(crate) fn is_full(&self) -> bool {
        self.pending_bytes >= PENDING_BYTES_MAX
    }

    /// Writes the spans that have ended.
    pub(crate) fn write(&mut self, out: &mut Wire) {
        self.pending_bytes = 0;
        for (process, spans) in std::mem::take(&mut self.pending) {
            let place = &self.places[process as usize];
            out.message(field::RESOURCE_SPANS, |out| {
                out.message(field::resource_spans::RESOURCE, |out| {
                    let kind = field::resource::ATTRIBUTES;
                    let mut text = |key, text: &str| {
                        attribute(out, kind, key, |out| out.text(field::value::TEXT, text.as_bytes()))
                    };
                    text("service.name", if place.name.is_empty() { "unknown_service" } else { &place.name });
                    self.host.iter().for_each(|host| text("host.name", host));
                    if let Some(pid) = place.pid {
                        attribute(out, kind, "process.pid", |out| out.uint(field::value::INT, pid));
                    }
                });
                out.message(field::resource_spans::SCOPE_SPANS, |out| {
                    out.message(field::scope_spans::SCOPE, |out| out.text(field::scope::NAME, b"dormouse"));
                    out.raw(spans.as_bytes());
                });
            });
        }
    }

    fn open(&mut self, track: u32) -> &mut Vec<Span> {
        let index = track as usize;
        if self.open.len() <= index {
            self.open.resize_with(index + 1, Vec::new);
        }
        &mut self.open[index]
    }

    /// Appends CPU and fields of an event as attributes. Returns the identifiers among them, and the number of
    /// attributes.
    fn attributes(&mut self, event: &Event<'_>, kind: u64, prefix: &'static str, wire: &mut Wire) -> (Ids, u64) {
        let Otlp { fields, field_names, scratch, recent, .. } = self;
        if event.cpu_id != CPU_UNKNOWN {
            attribute(wire, kind, &format!("{prefix}cpu"), |wire| wire.uint(field::value::INT, event.cpu_id.into()));
        }
        let mut attributes = Attributes {
            wire,
            prefix,
            lists: vec![kind],
            name: String::new(),
            is_boolean: false,
            is_pointer: false,
            open: Vec::new(),
            elements: 0,
            ids: Ids::default(),
        };
        let mut count = 1;
        if let Some(shown) = fields.shown(std::ptr::from_ref(event.class).addr(), recent) {
            count += shown.members.len() as u64;
            // The record was measured before, so reading its fields does not fail.
            let _ = event.body().project_in_turn(&shown.projection, scratch, &mut attributes, |attributes, index| {
                let member = &shown.members[index];
                attributes.name.clear();
                attributes.name.push_str(&field_names[member.number as usize]);
                (attributes.is_boolean, attributes.is_pointer) = (member.is_boolean, member.is_pointer);
            });
        }
        let Attributes { wire, elements, ids, .. } = attributes;
        if let Some(more @ 1..) = elements.checked_sub(ELEMENTS_MAX) {
            attribute(wire, kind, &format!("{prefix}elements_not_written"), |wire| {
                wire.uint(field::value::INT, more.into())
            });
        }
        (ids, count)
    }

    fn name(&self, name: u32) -> &str {
        self.names.get(name as usize).map_or("", |name| &name.text)
    }
}

impl Sink for Otlp {
    type Kept = ();

    fn track(&mut self, track: &Track<'_>) {
        let index = track.id as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::default());
        }
        let of_parent = track.parent.map(|parent| self.places[parent as usize].clone()).unwrap_or_default();
        self.places[index] = match track.kind {
            TrackKind::Process { pid } => {
                Place { process: track.id, pid: Some(pid), tid: None, name: track.name.into() }
            }
            kind => {
                let tid = if let TrackKind::Thread { tid, .. } = kind { Some(tid) } else { None };
                let process = track.parent.map_or(track.id, |_| of_parent.process);
                Place { process, pid: of_parent.pid, tid, name: String::new() }
            }
        };
    }

    fn begin(&mut self, begin: &Begin<'_>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let (ids, count) = self.attributes(begin.event, field::span::ATTRIBUTES, "", &mut buffer);
        let has_room = self.kept_bytes + buffer.as_bytes().len() <= self.kept_bytes_max;
        let kept = if has_room { buffer.as_bytes().to_vec() } else { Vec::new() };
        let dropped_attributes = if has_room { 0 } else { count };
        self.buffer = buffer;
        self.kept_bytes += kept.len();
        let seed = self.seed;
        let open = self.open(begin.track);
        let outer = open.last().map(|outer| (outer.trace_id, outer.span_id));
        let own = || {
            let [high, low] = [seed ^ begin.id, seed.rotate_left(32).wrapping_add(begin.id)].map(mixed);
            (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
        };
        let trace_id = ids.trace.or(outer.map(|(trace, _)| trace)).unwrap_or_else(own);
        let outer = outer.filter(|(trace, _)| *trace == trace_id).map(|(_, span)| span);
        open.push(Span {
            id: begin.id,
            trace_id,
            span_id: ids.span.unwrap_or(mixed(seed.wrapping_mul(3) ^ begin.id).to_be_bytes()),
            parent: ids.parent.or(outer),
            has_trace: ids.trace.is_some(),
            kept,
            dropped_attributes,
            events: 0,
            dropped_events: 0,
        });
        self.last = (begin.track, begin.id);
    }

    fn end(&mut self, end: &End<'_>, (): ()) {
        let open = self.open(end.track);
        let Some(index) = open.iter().rposition(|span| span.id == end.id) else { return };
        let mut span = open.remove(index);
        self.kept_bytes = self.kept_bytes.saturating_sub(span.kept.len());
        let mut kept = std::mem::take(&mut self.buffer);
        kept.clear();
        kept.raw(&std::mem::take(&mut span.kept));
        match end.event {
            Some(event) => drop(self.attributes(event, field::span::ATTRIBUTES, "end.", &mut kept)),
            None => attribute(&mut kept, field::span::ATTRIBUTES, "end.not_in_the_trace", |wire| {
                wire.uint(field::value::BOOL, 1);
            }),
        }
        let place = &self.places[end.track as usize];
        if let Some(tid) = place.tid {
            attribute(&mut kept, field::span::ATTRIBUTES, "thread.id", |wire| wire.uint(field::value::INT, tid));
        }
        let doubt = end.doubt.map(|doubt| match doubt {
            Doubt::Lost => "events_lost_between_begin_and_end",
            Doubt::Threads => "begins_and_ends_are_on_different_threads",
        });
        if let Some(name) = doubt {
            attribute(&mut kept, field::span::ATTRIBUTES, name, |wire| wire.uint(field::value::BOOL, 1));
        }
        let process = place.process;
        let name = self.name(end.name).to_owned();
        let wire = self.pending.entry(process).or_default();
        let before = wire.as_bytes().len();
        wire.message(field::scope_spans::SPANS, |wire| {
            wire.bytes(field::span::TRACE_ID, &span.trace_id);
            wire.bytes(field::span::SPAN_ID, &span.span_id);
            span.parent.iter().for_each(|parent| wire.bytes(field::span::PARENT_SPAN_ID, parent));
            wire.text(field::span::NAME, name.as_bytes());
            wire.uint(field::span::KIND, INTERNAL);
            wire.fixed64(field::span::START_NS, ns_of(end.begin_ns));
            wire.fixed64(field::span::END_NS, ns_of(end.ns.max(end.begin_ns)));
            wire.raw(kept.as_bytes());
            wire.uint(field::span::DROPPED_ATTRIBUTES, span.dropped_attributes);
            wire.uint(field::span::DROPPED_EVENTS, span.dropped_events);
        });
        self.pending_bytes += wire.as_bytes().len() - before;
        self.buffer = kept;
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        let outer = self.open(instant.track).last().map(|outer| (outer.trace_id, outer.span_id));
        if let What::Begins(id) = instant.what
            && self.last.1 == id
        {
            // The span began on its lane just before; this instant shows within which slice.
            let Some((trace_id, span_id)) = outer else { return };
            let Some(span) = self.open(self.last.0).last_mut().filter(|span| span.id == id) else { return };
            if !span.has_trace || span.trace_id == trace_id {
                span.trace_id = trace_id;
                span.parent = span.parent.or(Some(span_id));
            }
            return;
        }
        if matches!(instant.what, What::Ends(_) | What::EndsElsewhere(_)) {
            return;
        }
        let Some(span) = self.open(instant.track).last_mut() else {
            self.events_outside += 1;
            return;
        };
        if span.events == EVENTS_MAX {
            span.dropped_events += 1;
            return;
        }
        let mut event = std::mem::take(&mut self.buffer);
        event.clear();
        let name = self.name(instant.name).to_owned();
        let begin = event.open(field::span::EVENTS);
        event.fixed64(field::event::NS, ns_of(instant.ns));
        event.text(field::event::NAME, name.as_bytes());
        self.attributes(instant.event, field::event::ATTRIBUTES, "", &mut event);
        event.close(begin);
        let is_kept = self.kept_bytes + event.as_bytes().len() <= self.kept_bytes_max;
        self.kept_bytes += if is_kept { event.as_bytes().len() } else { 0 };
        if let Some(span) = self.open(instant.track).last_mut() {
            match is_kept {
                true => {
                    span.events += 1;
                    span.kept.extend_from_slice(event.as_bytes());
                }
                false => span.dropped_events += 1,
            }
        }
        self.buffer = event;
    }

    fn counter(&mut self, _: &Counter) {}
    /// The span of the lane contains both ends.
    fn flow(&mut self, _: &Flow) {}
    /// Slices that may be affected have an attribute for it.
    fn loss(&mut self, _: &Loss) {}
}

/// Writes fields as attributes.
struct Attributes<'a> {
    wire: &'a mut Wire,
    prefix: &'static str,
    /// Field number of a value in each open list; the first is that of attributes.
    lists: Vec<u64>,
    /// Name of the value; empty for an element.
    name: String,
    is_boolean: bool,
    is_pointer: bool,
    /// Begins of the messages of each open group.
    open: Vec<Vec<usize>>,
    elements: u32,
    ids: Ids,
}

impl Attributes<'_> {
    /// Begins a value. Returns the begins of its messages; `None` if there are too many elements.
    fn begin(&mut self) -> Option<Vec<usize>> {
        let is_within_hidden = self.open.last().is_some_and(Vec::is_empty);
        if is_within_hidden || (self.name.is_empty() && self.elements > ELEMENTS_MAX) {
            return None;
        }
        let mut begins = vec![self.wire.open(self.lists.last().copied().unwrap_or(field::value::VALUES))];
        if !self.name.is_empty() {
            let prefix = if self.open.is_empty() { self.prefix } else { "" };
            self.wire.text(field::key_value::KEY, format!("{prefix}{}", self.name).as_bytes());
            begins.push(self.wire.open(field::key_value::VALUE));
        }
        Some(begins)
    }

    fn value(&mut self, fill: impl FnOnce(&mut Wire)) {
        if let Some(begins) = self.begin() {
            fill(self.wire);
            begins.into_iter().rev().for_each(|begin| self.wire.close(begin));
        }
    }

    /// Notes an identifier.
    fn note(&mut self, digits: &[u8]) {
        if self.open.is_empty() {
            self.ids.note(&self.name, digits);
        }
    }
}

impl Visitor for Attributes<'_> {
    fn name(&mut self, name: &str) {
        self.name.clear();
        self.name.push_str(name);
    }

    fn option(&mut self, name: &str) {
        Visitor::name(self, name);
    }

    fn element(&mut self, _: u64) {
        self.name.clear();
        self.elements = self.elements.saturating_add(1);
    }

    fn integer(&mut self, value: u64, class: &IntegerNode) {
        let is_member = self.open.is_empty();
        let digits = if self.name == "trace_id" { format!("{value:032x}") } else { format!("{value:016x}") };
        self.note(digits.as_bytes());
        if class.meaning == Meaning::Boolean || (is_member && self.is_boolean && value <= 1) {
            return self.value(|wire| wire.uint(field::value::BOOL, u64::from(value != 0)));
        }
        if let Some(label) = class.label(value) {
            return self.value(|wire| wire.text(field::value::TEXT, label.as_bytes()));
        }
        if class.base == Base::Hexadecimal || (is_member && self.is_pointer) {
            return self.value(|wire| wire.text(field::value::TEXT, format!("{value:#x}").as_bytes()));
        }
        match class.is_signed || value <= i64::MAX as u64 {
            true => self.value(|wire| wire.uint(field::value::INT, value)),
            // Integers of OpenTelemetry are `int64`.
            false => self.value(|wire| wire.text(field::value::TEXT, value.to_string().as_bytes())),
        }
    }

    fn float(&mut self, value: f64) {
        self.value(|wire| wire.fixed64(field::value::DOUBLE, value.to_bits()));
    }

    fn text(&mut self, text: &[u8]) {
        self.note(text);
        self.value(|wire| wire.text(field::value::TEXT, text));
    }

    fn blob(&mut self, bytes: &[u8], _: bool) {
        let bytes = &bytes[..bytes.len().min(ELEMENTS_MAX as usize)];
        if bytes.len() <= size_of::<TraceId>() {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            self.note(digits.as_bytes());
        }
        self.value(|wire| wire.bytes(field::value::BYTES, bytes));
    }

    fn open(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        let list = if group == Group::Array { field::value::ARRAY } else { field::value::KEY_VALUES };
        let mut begins = self.begin().unwrap_or_default();
        if !begins.is_empty() {
            begins.push(self.wire.open(list));
        }
        self.open.push(begins);
        self.lists.push(field::value::VALUES);
    }

    fn close(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        self.lists.pop();
        self.open.pop().into_iter().flatten().rev().for_each(|begin| self.wire.close(begin));
    }
}
