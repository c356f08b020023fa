//! Perfetto's protocol buffers: a `Trace` is packets; a packet has a timestamp and an event of a track.
//!
//! All packets are of one sequence. Its first packets say the clock, and the names that all later ones refer to by numbers (interned data): they are
//! known before the first event, from the metadata.

use std::sync::Arc;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_analysis::Number;
use dormouse_analysis::timeline::{Loss, NameText, TrackKind, What};
use dormouse_ctf::model::{Base, Meaning};
use dormouse_ctf::plan::{Group, IntegerNode, Visitor};
use dormouse_ctf::{Clock, Event, Scratch};

use crate::fields::{Fields, Member};
use crate::op::{At, Op};
use crate::wire::{close, open, put_bytes, put_fixed64, put_message, put_text, put_uint, put_varint};

/// Numbers of fields, by their messages.
mod field {
    pub mod trace {
        pub const PACKET: u64 = 1;
    }
    pub mod packet {
        pub const CLOCK_SNAPSHOT: u64 = 6;
        pub const TIMESTAMP: u64 = 8;
        pub const SEQUENCE_ID: u64 = 10;
        pub const TRACK_EVENT: u64 = 11;
        pub const INTERNED_DATA: u64 = 12;
        pub const SEQUENCE_FLAGS: u64 = 13;
        pub const DEFAULTS: u64 = 59;
        pub const TRACK_DESCRIPTOR: u64 = 60;
        pub const FIRST_ON_SEQUENCE: u64 = 87;
    }
    pub mod defaults {
        pub const TIMESTAMP_CLOCK_ID: u64 = 58;
    }
    pub mod event {
        pub const CATEGORY_IIDS: u64 = 3;
        pub const DEBUG_ANNOTATIONS: u64 = 4;
        pub const TYPE: u64 = 9;
        pub const NAME_IID: u64 = 10;
        pub const TRACK_UUID: u64 = 11;
        pub const NAME: u64 = 23;
        pub const COUNTER_VALUE: u64 = 30;
        pub const DOUBLE_COUNTER_VALUE: u64 = 44;
        pub const FLOW_IDS: u64 = 47;
        pub const TERMINATING_FLOW_IDS: u64 = 48;
    }
    pub mod annotation {
        pub const NAME_IID: u64 = 1;
        pub const BOOL: u64 = 2;
        pub const UINT: u64 = 3;
        pub const INT: u64 = 4;
        pub const DOUBLE: u64 = 5;
        pub const STRING: u64 = 6;
        pub const POINTER: u64 = 7;
        pub const NAME: u64 = 10;
        pub const DICT_ENTRIES: u64 = 11;
        pub const ARRAY_VALUES: u64 = 12;
    }
    pub mod track {
        pub const UUID: u64 = 1;
        pub const NAME: u64 = 2;
        pub const PROCESS: u64 = 3;
        pub const THREAD: u64 = 4;
        pub const PARENT_UUID: u64 = 5;
        pub const COUNTER: u64 = 8;
    }
    pub mod process {
        pub const PID: u64 = 1;
        pub const NAME: u64 = 6;
    }
    pub mod thread {
        pub const PID: u64 = 1;
        pub const TID: u64 = 2;
    }
    pub mod snapshot {
        pub const CLOCKS: u64 = 1;
        pub const PRIMARY: u64 = 2;
    }
    pub mod clock {
        pub const ID: u64 = 1;
        pub const TIMESTAMP: u64 = 2;
    }
    pub mod interned {
        pub const CATEGORIES: u64 = 1;
        pub const NAMES: u64 = 2;
        pub const ANNOTATION_NAMES: u64 = 3;
        /// Of each of these.
        pub const IID: u64 = 1;
        pub const TEXT: u64 = 2;
    }
}

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// `BUILTIN_CLOCK_REALTIME`: nanoseconds since the epoch.
const REALTIME: u64 = 1;
const MONOTONIC: u64 = 3;

/// The one sequence.
const SEQUENCE: u64 = 1;
/// Of its first packet: names are not those of a sequence before.
const CLEARED: u64 = 1;
/// Of others: they have numbers in place of names.
const NEEDS_NAMES: u64 = 2;

/// Interned names of a packet.
const NAMES_EACH: usize = 1000;
/// Elements of arrays that are written of one event. How many more there are is said.
const ELEMENTS_MAX: u32 = 1 << 16;

/// What all encoders of a trace share.
#[derive(Debug)]
pub(crate) struct Known {
    pub names: Vec<NameText>,
    /// Of each name the number of its category; 0: none.
    categories: Vec<u64>,
    category_names: Vec<String>,
    fields: Fields,
    clock: Option<Clock>,
}

impl Known {
    pub(crate) fn new(names: Vec<NameText>, fields: Fields, clock: Option<Clock>) -> Known {
        let mut category_names: Vec<String> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        let categories = names.iter().map(|name| match name.category.as_str() {
            "" => 0,
            category => *numbers.entry(category).or_insert_with(|| {
                category_names.push(category.into());
                category_names.len() as u64
            }),
        });
        let categories = categories.collect();
        Known { categories, category_names, names, fields, clock }
    }
}

/// Names of annotations that are ours: behind those of fields.
const OURS: [&str; 5] = ["cpu", "end", "continued", "events lost between begin and end", "begin is not in the trace"];
const CPU: usize = 0;
const END: usize = 1;
const CONTINUED: usize = 2;
const NOT_BELIEVED: usize = 3;
const END_ALONE: usize = 4;

/// Encodes operations.
#[derive(Debug)]
pub(crate) struct Perfetto {
    known: Arc<Known>,
    /// Numbers of [`OURS`].
    ours: u64,
    body: Vec<u8>,
    scratch: Scratch,
}

fn timestamp(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}

fn uuid(track: u32) -> u64 {
    u64::from(track) + 1
}

impl Perfetto {
    pub(crate) fn new(known: &Arc<Known>) -> Perfetto {
        let ours = known.fields.names().count() as u64 + 1;
        Perfetto { known: Arc::clone(known), ours, body: Vec::new(), scratch: Scratch::default() }
    }

    fn ours(&self, name: usize) -> u64 {
        self.ours + name as u64
    }

    /// Appends what stands before all events.
    pub(crate) fn begin(&self, out: &mut Vec<u8>) {
        let packet = |out: &mut Vec<u8>, flags: u64, fill: &dyn Fn(&mut Vec<u8>)| {
            put_message(out, field::trace::PACKET, |out| {
                put_uint(out, field::packet::SEQUENCE_ID, SEQUENCE);
                put_uint(out, field::packet::SEQUENCE_FLAGS, flags);
                fill(out);
            });
        };
        packet(out, CLEARED, &|out| {
            put_uint(out, field::packet::FIRST_ON_SEQUENCE, 1);
            put_message(out, field::packet::DEFAULTS, |out| {
                put_uint(out, field::defaults::TIMESTAMP_CLOCK_ID, REALTIME)
            });
        });
        packet(out, NEEDS_NAMES, &|out| put_message(out, field::packet::CLOCK_SNAPSHOT, |out| self.clocks(out)));
        let names = (1..).zip(self.known.names.iter().map(|name| name.text.as_str()));
        let categories = (1..).zip(self.known.category_names.iter().map(String::as_str));
        let annotations = self.known.fields.names().map(|(name, number)| (number, name));
        let annotations = annotations.chain((self.ours..).zip(OURS));
        let all = [
            (field::interned::CATEGORIES, categories.collect::<Vec<(u64, &str)>>()),
            (field::interned::NAMES, names.collect()),
            (field::interned::ANNOTATION_NAMES, annotations.collect()),
        ];
        for (kind, names) in all {
            for names in names.chunks(NAMES_EACH) {
                packet(out, NEEDS_NAMES, &|out| {
                    put_message(out, field::packet::INTERNED_DATA, |out| {
                        for (number, name) in names {
                            put_message(out, kind, |out| {
                                put_uint(out, field::interned::IID, *number);
                                put_text(out, field::interned::TEXT, name.as_bytes());
                            });
                        }
                    });
                });
            }
        }
    }

    /// What clocks show at one moment: a second after the trace's clock showed 0.
    fn clocks(&self, out: &mut Vec<u8>) {
        let second = 1_000_000_000;
        let monotonic =
            self.known.clock.as_ref().filter(|clock| clock.name == "monotonic" && clock.frequency_hz == second);
        let realtime = monotonic.map_or(second, |clock| timestamp(clock.epoch_ns(second)));
        for (id, ns) in [(REALTIME, realtime)].into_iter().chain(monotonic.map(|_| (MONOTONIC, second))) {
            put_message(out, field::snapshot::CLOCKS, |out| {
                put_uint(out, field::clock::ID, id);
                put_uint(out, field::clock::TIMESTAMP, ns);
            });
        }
        put_uint(out, field::snapshot::PRIMARY, REALTIME);
    }

    /// Appends a packet with the body's event.
    fn packet(&mut self, ns: i64, out: &mut Vec<u8>) {
        let mut head = [0; SHORT_BYTES];
        let values = [
            field::packet::TIMESTAMP << 3,
            timestamp(ns),
            field::packet::SEQUENCE_ID << 3,
            SEQUENCE,
            field::packet::SEQUENCE_FLAGS << 3,
            NEEDS_NAMES,
            field::packet::TRACK_EVENT << 3 | 2,
            self.body.len() as u64,
        ];
        let at = values.into_iter().fold(0, |at, value| varint_at(&mut head, at, value));
        put_varint(out, field::trace::PACKET << 3 | 2);
        put_varint(out, (at + self.body.len()) as u64);
        out.extend_from_slice(&head[..at]);
        out.extend_from_slice(&self.body);
    }

    /// Begins the body of an event.
    #[inline]
    fn event(&mut self, kind: u64, track: u32) {
        self.body.clear();
        put_uint(&mut self.body, field::event::TYPE, kind);
        put_uint(&mut self.body, field::event::TRACK_UUID, uuid(track));
    }

    #[inline]
    fn name(&mut self, name: u32) {
        put_uint(&mut self.body, field::event::NAME_IID, u64::from(name) + 1);
        match self.known.categories.get(name as usize) {
            None | Some(0) => {}
            Some(category) => put_uint(&mut self.body, field::event::CATEGORY_IIDS, *category),
        }
    }

    fn flag(&mut self, name: usize) {
        let number = self.ours(name);
        put_message(&mut self.body, field::event::DEBUG_ANNOTATIONS, |out| {
            put_uint(out, field::annotation::NAME_IID, number);
            put_uint(out, field::annotation::BOOL, 1);
        });
    }

    /// CPU and fields of an event, as annotations; `within`: as entries of one.
    #[inline]
    fn fields(&mut self, event: &Event<'_>, within: bool) {
        let (cpu, end) = (self.ours(CPU), self.ours(END));
        let Perfetto { known, body, scratch, .. } = self;
        let kind = if within { field::annotation::DICT_ENTRIES } else { field::event::DEBUG_ANNOTATIONS };
        let begin = within.then(|| {
            let begin = open(body, field::event::DEBUG_ANNOTATIONS);
            put_uint(body, field::annotation::NAME_IID, end);
            begin
        });
        let mut annotations = Annotations {
            out: body,
            fields: &known.fields,
            depth: 1,
            kind,
            name: Named::Number(cpu),
            is_shown: true,
            member: None,
            open: Vec::new(),
            elements: 0,
            more: 0,
        };
        if event.cpu_id != CPU_UNKNOWN {
            annotations.number(field::annotation::UINT, event.cpu_id.into());
        }
        if let Some(shown) = known.fields.shown(std::ptr::from_ref(event.class).addr()) {
            // The record has been measured, so its fields can be read.
            let _ = event.project_in_turn(&shown.projection, scratch, &mut annotations, |annotations, index| {
                let member = &shown.members[index];
                annotations.member = Some(member);
                annotations.name = Named::Number(member.name);
            });
        }
        if let Some(begin) = begin {
            close(body, begin);
        }
    }

    /// Appends an operation.
    pub(crate) fn op(&mut self, op: &Op, event: Option<&Event<'_>>, out: &mut Vec<u8>) {
        match op {
            Op::Begin { at, name, .. } => {
                self.event(SLICE_BEGIN, at.track);
                self.name(*name);
                event.into_iter().for_each(|event| self.fields(event, false));
                self.packet(at.ns, out);
            }
            Op::Continue { at, name } => {
                self.event(SLICE_BEGIN, at.track);
                self.name(*name);
                self.flag(CONTINUED);
                self.packet(at.ns, out);
            }
            Op::Cut { at } => {
                self.event(SLICE_END, at.track);
                self.packet(at.ns, out);
            }
            // A slice without an end is shown as one.
            Op::End { event: None, .. } => {}
            Op::End { at, is_believed, .. } => {
                self.event(SLICE_END, at.track);
                if !is_believed {
                    self.flag(NOT_BELIEVED);
                }
                event.into_iter().for_each(|event| self.fields(event, true));
                self.packet(at.ns, out);
            }
            Op::Instant { at, name, what, .. } => {
                self.event(INSTANT, at.track);
                self.name(*name);
                match what {
                    What::Begins(id) => put_fixed64(&mut self.body, field::event::FLOW_IDS, *id),
                    What::EndsElsewhere(id) => put_fixed64(&mut self.body, field::event::TERMINATING_FLOW_IDS, *id),
                    What::EndAlone => self.flag(END_ALONE),
                    What::Plain | What::Ends(_) => {}
                }
                event.into_iter().for_each(|event| self.fields(event, false));
                self.packet(at.ns, out);
            }
            Op::Counter { at, value, .. } => {
                self.event(COUNTER, at.track);
                match value {
                    Number::Whole(value) if i64::try_from(*value).is_ok() => {
                        put_uint(&mut self.body, field::event::COUNTER_VALUE, *value as i64 as u64);
                    }
                    value => put_fixed64(&mut self.body, field::event::DOUBLE_COUNTER_VALUE, value.real().to_bits()),
                }
                self.packet(at.ns, out);
            }
            // The instants at its ends have it.
            Op::Flow { .. } => {}
            Op::Loss { at, end_ns, loss } => self.loss(*at, *end_ns, loss, out),
            Op::Track { at, parent, kind, name } => track(*at, *parent, *kind, name, out),
        }
    }

    fn loss(&mut self, at: At, end_ns: i64, loss: &Loss, out: &mut Vec<u8>) {
        self.event(SLICE_BEGIN, at.track);
        let name = loss.count.map_or_else(|| "events lost".into(), |count| format!("{count} events lost"));
        // Not interned: it is one of many.
        put_text(&mut self.body, field::event::NAME, name.as_bytes());
        put_message(&mut self.body, field::event::DEBUG_ANNOTATIONS, |out| {
            put_text(out, field::annotation::NAME, b"what");
            put_text(out, field::annotation::STRING, loss.text.as_bytes());
        });
        self.packet(at.ns, out);
        self.event(SLICE_END, at.track);
        self.packet(end_ns, out);
    }
}

/// Appends a packet that describes a track.
fn track(at: At, parent: Option<u32>, kind: TrackKind, name: &str, out: &mut Vec<u8>) {
    let thread = |out: &mut Vec<u8>| {
        put_message(out, field::track::THREAD, |out| {
            put_uint(out, field::thread::PID, at.pid.into());
            put_uint(out, field::thread::TID, at.tid.into());
        });
    };
    put_message(out, field::trace::PACKET, |out| {
        put_uint(out, field::packet::SEQUENCE_ID, SEQUENCE);
        put_message(out, field::packet::TRACK_DESCRIPTOR, |out| {
            put_uint(out, field::track::UUID, uuid(at.track));
            parent.into_iter().for_each(|parent| put_uint(out, field::track::PARENT_UUID, uuid(parent)));
            let name = match kind {
                TrackKind::Process { .. } => {
                    return put_message(out, field::track::PROCESS, |out| {
                        put_uint(out, field::process::PID, at.pid.into());
                        put_text(out, field::process::NAME, name.as_bytes());
                    });
                }
                TrackKind::Thread { .. } if parent.is_some() => return thread(out),
                TrackKind::Thread { tid, .. } => format!("thread {tid}"),
                TrackKind::Cpu { cpu } => format!("CPU {cpu}"),
                TrackKind::Trace => "trace".into(),
                TrackKind::Losses { .. } => format!("lost by {name}"),
                TrackKind::Lane { .. } => name.into(),
                TrackKind::Counter { .. } => {
                    put_bytes(out, field::track::COUNTER, &[]);
                    name.into()
                }
            };
            put_text(out, field::track::NAME, name.as_bytes());
        });
    });
}

/// Bytes of a number with its name, or of what stands before an event, at most.
const SHORT_BYTES: usize = 32;
/// Texts up to so long, with their names, have a length of one byte.
const TEXT_SHORT: usize = 100;

/// Writes a varint into a buffer; gives where it ends.
#[inline(always)]
fn varint_at(buffer: &mut [u8; SHORT_BYTES], mut at: usize, mut value: u64) -> usize {
    while value >= 0x80 {
        buffer[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    buffer[at] = value as u8;
    at + 1
}

/// What a value is called.
#[derive(Debug, Clone, Copy)]
enum Named<'n> {
    /// It is an element.
    No,
    Number(u64),
    Text(&'n str),
}

/// Writes fields as annotations.
struct Annotations<'a> {
    out: &'a mut Vec<u8>,
    fields: &'a Fields,
    /// Groups that are open, the event's own included.
    depth: u32,
    /// The number of the field that a value is, in the message that is open.
    kind: u64,
    name: Named<'static>,
    is_shown: bool,
    member: Option<&'a Member>,
    /// Messages that are open: where they begin, what a value is in the one around them, and whether they are written.
    open: Vec<(usize, u64, bool)>,
    elements: u32,
    /// Elements that are not written.
    more: u64,
}

impl Annotations<'_> {
    /// Begins a value in a buffer of its own, and gives its length so far. A value is at most twice a varint and a few bytes: it has a length of one byte.
    #[inline(always)]
    fn head(&self, buffer: &mut [u8; SHORT_BYTES]) -> usize {
        // The numbers of these fields have one byte.
        buffer[0] = (self.kind << 3 | 2) as u8;
        let mut len = 2;
        if let Named::Number(number) = self.name {
            buffer[len] = (field::annotation::NAME_IID << 3) as u8;
            len = varint_at(buffer, len + 1, number);
        }
        len
    }

    #[inline(always)]
    fn put_short(&mut self, mut buffer: [u8; SHORT_BYTES], len: usize) {
        buffer[1] = (len - 2) as u8;
        self.out.extend_from_slice(&buffer[..len]);
    }

    fn long(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        if !self.is_shown {
            return;
        }
        let begin = open(self.out, self.kind);
        self.named();
        fill(self.out);
        close(self.out, begin);
    }

    fn named(&mut self) {
        match self.name {
            Named::No => {}
            Named::Number(number) => put_uint(self.out, field::annotation::NAME_IID, number),
            Named::Text(name) => put_text(self.out, field::annotation::NAME, name.as_bytes()),
        }
    }

    #[inline(always)]
    fn number(&mut self, kind: u64, value: u64) {
        if !self.is_shown {
            return;
        }
        if let Named::Text(_) = self.name {
            return self.long(|out| put_uint(out, kind, value));
        }
        let mut buffer = [0; SHORT_BYTES];
        let len = self.head(&mut buffer);
        buffer[len] = (kind << 3) as u8;
        let len = varint_at(&mut buffer, len + 1, value);
        self.put_short(buffer, len);
    }
}

impl Visitor for Annotations<'_> {
    fn name(&mut self, name: &str) {
        // All names of metadata are known.
        self.name = self.fields.number(name).map_or(Named::Text("?"), Named::Number);
    }

    fn option(&mut self, name: &str) {
        self.name = self.fields.number(name).map_or(Named::Text("?"), Named::Number);
    }

    fn element(&mut self, _: u64) {
        self.name = Named::No;
        if self.is_shown {
            self.elements += 1;
            self.is_shown = self.elements <= ELEMENTS_MAX;
        }
        self.more += u64::from(self.elements > ELEMENTS_MAX);
    }

    #[inline]
    fn integer(&mut self, value: u64, class: &IntegerNode) {
        if !self.is_shown {
            return;
        }
        let member = self.member.filter(|_| self.depth == 1);
        let is_boolean =
            class.meaning == Meaning::Boolean || (value <= 1 && member.is_some_and(|member| member.is_boolean));
        if is_boolean {
            return self.number(field::annotation::BOOL, u64::from(value != 0));
        }
        if class.labels.is_some()
            && let Some(label) = class.label(value)
        {
            return self.long(|out| put_text(out, field::annotation::STRING, label.as_bytes()));
        }
        let is_pointer = class.base == Base::Hexadecimal || member.is_some_and(|member| member.is_pointer);
        let kind = match (is_pointer, class.is_signed) {
            (true, _) => field::annotation::POINTER,
            (false, true) => field::annotation::INT,
            (false, false) => field::annotation::UINT,
        };
        self.number(kind, value);
    }

    fn float(&mut self, value: f64) {
        self.long(|out| put_fixed64(out, field::annotation::DOUBLE, value.to_bits()));
    }

    #[inline]
    fn text(&mut self, text: &[u8]) {
        let Some(Ok(text)) = (text.len() <= TEXT_SHORT).then(|| std::str::from_utf8(text)) else {
            return self.long(|out| put_text(out, field::annotation::STRING, text));
        };
        if !self.is_shown {
            return;
        }
        if let Named::Text(_) = self.name {
            return self.long(|out| put_text(out, field::annotation::STRING, text.as_bytes()));
        }
        let mut buffer = [0; SHORT_BYTES];
        let len = self.head(&mut buffer);
        buffer[1] = (len + text.len()) as u8;
        buffer[len] = (field::annotation::STRING << 3 | 2) as u8;
        buffer[len + 1] = text.len() as u8;
        self.out.extend_from_slice(&buffer[..len + 2]);
        self.out.extend_from_slice(text.as_bytes());
    }

    fn blob(&mut self, bytes: &[u8], _: bool) {
        let text: String = bytes.iter().take(ELEMENTS_MAX as usize).map(|byte| format!("{byte:02x}")).collect();
        let more = if bytes.len() > ELEMENTS_MAX as usize { "…" } else { "" };
        self.long(|out| put_text(out, field::annotation::STRING, format!("0x{text}{more}").as_bytes()));
    }

    fn open(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        self.depth += 1;
        let begin = if self.is_shown { open(self.out, self.kind) } else { 0 };
        if self.is_shown {
            self.named();
        }
        self.open.push((begin, self.kind, self.is_shown));
        self.kind = match group {
            Group::Array => field::annotation::ARRAY_VALUES,
            _ => field::annotation::DICT_ENTRIES,
        };
    }

    fn close(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        self.depth -= 1;
        let Some((begin, kind, is_shown)) = self.open.pop() else { return };
        self.is_shown = is_shown;
        if is_shown {
            if self.more > 0 && group == Group::Array {
                let text = format!("and {} more", std::mem::take(&mut self.more));
                self.name = Named::No;
                self.long(|out| put_text(out, field::annotation::STRING, text.as_bytes()));
            }
            close(self.out, begin);
        }
        self.kind = kind;
    }
}
