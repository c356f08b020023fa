//! Perfetto's protocol buffers: a `Trace` consists of packets; a packet has a timestamp and an event of a track.
//!
//! All packets belong to one sequence. Its first packets contain the clock, and the names that later packets refer to
//! by number (interned data). The metadata give the names before the first event.

use std::sync::Arc;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_analysis::timeline::{NameText, TrackKind};
use dormouse_analysis::{Number, Recent};
use dormouse_ctf::model::Meaning;
use dormouse_ctf::plan::{Group, IntegerNode, Visitor};
use dormouse_ctf::stream::Block;
use dormouse_ctf::time::Scale;
use dormouse_ctf::{Clock, Scratch};

use crate::annotation::{named, number_kind};
use crate::fields::{Fields, Member};
use crate::op::{At, Batch, Kind, More, NewTrack, Op, loss_name};
use crate::wire::{LENGTH, LENGTH_BYTES, Piece, VARINT, Wire, tag, varint_at};

/// Field numbers, by message.
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
    pub(super) use crate::annotation;
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
        pub const NAME: u64 = 5;
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
        /// Field numbers in each of these.
        pub const IID: u64 = 1;
        pub const TEXT: u64 = 2;
    }
}

/// Bytes between the timestamp of a packet and its event.
const SAID: [u8; 5 + LENGTH_BYTES] = [
    tag(field::packet::SEQUENCE_ID, VARINT),
    SEQUENCE as u8,
    tag(field::packet::SEQUENCE_FLAGS, VARINT),
    NEEDS_NAMES as u8,
    tag(field::packet::TRACK_EVENT, LENGTH),
    0,
    0,
];

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// `BUILTIN_CLOCK_REALTIME`: nanoseconds since the epoch.
const REALTIME: u64 = 1;
const MONOTONIC: u64 = 3;

/// Id of the only sequence.
const SEQUENCE: u64 = 1;
/// Flag of the first packet: names of an earlier sequence are invalid.
const CLEARED: u64 = 1;
/// Flag of other packets: they refer to names by number.
const NEEDS_NAMES: u64 = 2;

/// Number of interned names per packet.
const NAMES_EACH: usize = 1000;
/// Maximum number of array elements that are written of an event. The number of further elements is written.
const ELEMENTS_MAX: u32 = 1 << 16;

/// Data that all encoders of a trace share.
#[derive(Debug)]
pub(crate) struct Known {
    names: Vec<NameText>,
    /// Encoded references of an event to each name and its category.
    pieces: Vec<Piece>,
    category_names: Vec<String>,
    fields: Fields,
    clock: Option<Clock>,
}

impl Known {
    pub(crate) fn new(names: Vec<NameText>, fields: Fields, clock: Option<Clock>) -> Known {
        let mut category_names: Vec<String> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        let mut category = |name: &NameText| match name.category.as_str() {
            "" => 0,
            category => *numbers.entry(category.to_owned()).or_insert_with(|| {
                category_names.push(category.into());
                category_names.len() as u64
            }),
        };
        let piece = |(number, name)| {
            Piece::uint(field::event::NAME_IID, number).and_uint(field::event::CATEGORY_IIDS, category(name))
        };
        let pieces = (1..).zip(&names).map(piece).collect();
        Known { pieces, category_names, names, fields, clock }
    }
}

/// Names of annotations that Dormouse adds. Their numbers follow those of fields.
const OURS: [&str; 7] = [
    "cpu",
    "end",
    "continued",
    "events lost between begin and end",
    "begin is not in the trace",
    "slice is cut before",
    "begins and ends are on different threads",
];
#[derive(Debug, Clone, Copy)]
enum Ours {
    Cpu,
    End,
    Continued,
    AcrossLoss,
    EndAlone,
    CutBefore,
    Doubtful,
}

/// An event of a block, by its index.
type Kept<'a> = Option<(&'a Block<'a>, usize)>;

/// Encodes operations as Perfetto's packets.
#[derive(Debug)]
pub(crate) struct Perfetto {
    known: Arc<Known>,
    /// Encoded references to the names in [`OURS`].
    ours: [Piece; OURS.len()],
    wire: Wire,
    scratch: Scratch,
    recent: Recent,
}

fn timestamp(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}

fn uuid(track: u32) -> u64 {
    u64::from(track) + 1
}

impl Perfetto {
    pub(crate) fn new(known: &Arc<Known>) -> Perfetto {
        let ours = std::array::from_fn(|index| named(known.fields.next_number() + index as u64));
        let known = Arc::clone(known);
        Perfetto { known, ours, wire: Wire::default(), scratch: Scratch::default(), recent: Recent::default() }
    }

    /// Appends the packets before all events.
    pub(crate) fn begin(&self, out: &mut Vec<u8>) {
        let mut wire = Wire::of(std::mem::take(out));
        let mut packet = |flags: u64, fill: &dyn Fn(&mut Wire)| {
            wire.message(field::trace::PACKET, |wire| {
                wire.uint(field::packet::SEQUENCE_ID, SEQUENCE);
                wire.uint(field::packet::SEQUENCE_FLAGS, flags);
                fill(wire);
            });
        };
        packet(CLEARED, &|wire| {
            wire.uint(field::packet::FIRST_ON_SEQUENCE, 1);
            wire.message(field::packet::DEFAULTS, |wire| wire.uint(field::defaults::TIMESTAMP_CLOCK_ID, REALTIME));
        });
        packet(NEEDS_NAMES, &|wire| wire.message(field::packet::CLOCK_SNAPSHOT, |wire| self.clocks(wire)));
        let Known { names, category_names, fields, .. } = &*self.known;
        let mut annotations: Vec<(u64, &str)> = fields.names().map(|(name, number)| (number, name)).collect();
        annotations.sort_unstable();
        annotations.extend((fields.next_number()..).zip(OURS));
        let all = [
            (field::interned::CATEGORIES, (1..).zip(category_names.iter().map(String::as_str)).collect::<Vec<_>>()),
            (field::interned::NAMES, (1..).zip(names.iter().map(|name| name.text.as_str())).collect()),
            (field::interned::ANNOTATION_NAMES, annotations),
        ];
        for (kind, names) in all {
            for names in names.chunks(NAMES_EACH) {
                packet(NEEDS_NAMES, &|wire| {
                    wire.message(field::packet::INTERNED_DATA, |wire| {
                        for (number, name) in names {
                            wire.message(kind, |wire| {
                                wire.uint(field::interned::IID, *number);
                                wire.text(field::interned::TEXT, name.as_bytes());
                            });
                        }
                    });
                });
            }
        }
        *out = wire.finish();
    }

    /// Writes the values of the clocks at the same moment: one second after the zero of the trace's clock.
    fn clocks(&self, wire: &mut Wire) {
        let second = 1_000_000_000;
        let monotonic =
            self.known.clock.as_ref().filter(|clock| clock.name == "monotonic" && clock.frequency_hz == second);
        let realtime = monotonic.map_or(second, |clock| timestamp(Scale::of(clock).epoch_ns(second)));
        for (id, ns) in [(REALTIME, realtime)].into_iter().chain(monotonic.map(|_| (MONOTONIC, second))) {
            wire.message(field::snapshot::CLOCKS, |wire| {
                wire.uint(field::clock::ID, id);
                wire.uint(field::clock::TIMESTAMP, ns);
            });
        }
        wire.uint(field::snapshot::PRIMARY, REALTIME);
    }

    /// Appends the operations of a batch.
    pub(crate) fn encode(&mut self, batch: &mut Batch<'_>) {
        let Batch { block, ops, more, out } = batch;
        std::mem::swap(&mut self.wire, out);
        for op in ops.iter() {
            match op.kind {
                Kind::More => more.get(op.number as usize).into_iter().for_each(|more| self.more(op.at, more)),
                _ => self.op(op, op.event().map(|event| (&*block, event))),
            }
        }
        std::mem::swap(&mut self.wire, out);
    }

    /// Writes the packet of an event of this kind; `fill` adds its contents.
    #[inline(always)]
    fn event(&mut self, kind: u64, at: At, name: Option<u32>, fill: impl FnOnce(&mut Perfetto)) {
        let name = name.and_then(|name| self.known.pieces.get(name as usize)).copied().unwrap_or_default();
        let packet = self.wire.position() + 1 + LENGTH_BYTES;
        let mut event = 0;
        self.wire.short(|room| {
            room[0] = tag(field::trace::PACKET, LENGTH);
            let mut at_byte = 1 + LENGTH_BYTES;
            room[at_byte] = tag(field::packet::TIMESTAMP, VARINT);
            at_byte += 1;
            at_byte += varint_at(&mut room[at_byte..], timestamp(at.ns));
            room[at_byte..][..SAID.len()].copy_from_slice(&SAID);
            at_byte += SAID.len();
            event = at_byte;
            room[at_byte..][..3].copy_from_slice(&[
                tag(field::event::TYPE, VARINT),
                kind as u8,
                tag(field::event::TRACK_UUID, VARINT),
            ]);
            at_byte += 3;
            at_byte += varint_at(&mut room[at_byte..], uuid(at.track));
            at_byte + name.put_at(&mut room[at_byte..])
        });
        let event = packet - 1 - LENGTH_BYTES + event;
        fill(self);
        self.wire.close(event);
        self.wire.close(packet);
    }

    fn flag(&mut self, ours: Ours) {
        let name = &self.ours[ours as usize];
        self.wire.named_uint(field::event::DEBUG_ANNOTATIONS, name, field::annotation::BOOL, 1);
    }

    /// Writes CPU and fields of an event as annotations of this kind.
    #[inline]
    fn fields(&mut self, event: Kept<'_>, kind: u64) {
        let Some((block, index)) = event else { return };
        let Some((class, event)) = block.fields(index) else { return };
        let Perfetto { known, wire, scratch, ours, recent } = self;
        if event.cpu_id != CPU_UNKNOWN {
            wire.named_uint(kind, &ours[Ours::Cpu as usize], field::annotation::UINT, event.cpu_id.into());
        }
        let Some(shown) = known.fields.shown(std::ptr::from_ref(class).addr(), recent) else { return };
        let mut annotations = Annotations {
            wire,
            fields: &known.fields,
            kind,
            name: &Piece::NONE,
            is_shown: true,
            member: None,
            open: Vec::new(),
            elements: 0,
            more: 0,
        };
        // The record was measured before, so reading its fields does not fail.
        let _ = event.project_in_turn(&shown.projection, scratch, &mut annotations, |annotations, index| {
            let member = &shown.members[index];
            annotations.member = Some(member);
            annotations.name = &member.name;
        });
    }

    /// Writes CPU and fields of an end as one annotation.
    fn end_fields(&mut self, event: Kept<'_>) {
        let begin = self.wire.open(field::event::DEBUG_ANNOTATIONS);
        self.wire.piece(&self.ours[Ours::End as usize]);
        self.fields(event, field::annotation::DICT_ENTRIES);
        self.wire.close(begin);
    }

    fn op(&mut self, op: &Op, event: Kept<'_>) {
        let Op { at, name, kind, number, .. } = *op;
        match kind {
            Kind::Begin => self.event(SLICE_BEGIN, at, Some(name), |this| {
                this.fields(event, field::event::DEBUG_ANNOTATIONS);
            }),
            Kind::Continue => self.event(SLICE_BEGIN, at, Some(name), |this| this.flag(Ours::Continued)),
            Kind::Cut => self.event(SLICE_END, at, None, |_| {}),
            // Perfetto shows a slice without an end as unfinished.
            Kind::End | Kind::EndAcrossLoss | Kind::EndDoubtful if event.is_none() => {}
            Kind::End | Kind::EndAcrossLoss | Kind::EndDoubtful => self.event(SLICE_END, at, None, |this| {
                match kind {
                    Kind::EndAcrossLoss => this.flag(Ours::AcrossLoss),
                    Kind::EndDoubtful => this.flag(Ours::Doubtful),
                    _ => {}
                }
                this.end_fields(event);
            }),
            _ => self.event(INSTANT, at, Some(name), |this| {
                match kind {
                    Kind::Begins => this.wire.fixed64(field::event::FLOW_IDS, number),
                    Kind::EndsElsewhere => this.wire.fixed64(field::event::TERMINATING_FLOW_IDS, number),
                    Kind::EndAlone => this.flag(Ours::EndAlone),
                    Kind::CutBefore => this.flag(Ours::CutBefore),
                    _ => {}
                }
                this.fields(event, field::event::DEBUG_ANNOTATIONS);
            }),
        }
    }

    fn more(&mut self, at: At, more: &More) {
        match more {
            More::Counter { value } => self.event(COUNTER, at, None, |this| match value {
                Number::Whole(value) if i64::try_from(*value).is_ok() => {
                    this.wire.uint(field::event::COUNTER_VALUE, *value as i64 as u64);
                }
                value => this.wire.fixed64(field::event::DOUBLE_COUNTER_VALUE, value.real().to_bits()),
            }),
            // The instants at its ends contain the flow.
            More::Flow { .. } => {}
            More::Loss { end_ns, loss } => {
                self.event(SLICE_BEGIN, at, None, |this| {
                    // Name and text are not interned: both vary too much.
                    this.wire.text(field::event::NAME, loss_name(loss).as_bytes());
                    this.wire.message(field::event::DEBUG_ANNOTATIONS, |wire| {
                        wire.text(field::annotation::NAME, b"what");
                        wire.text(field::annotation::STRING, loss.text.as_bytes());
                    });
                });
                self.event(SLICE_END, At { ns: *end_ns, ..at }, None, |_| {});
            }
            More::Track(track) => self.track(at, track),
        }
    }

    /// Writes a packet that describes a track.
    fn track(&mut self, at: At, track: &NewTrack) {
        let packet = self.wire.open(field::trace::PACKET);
        self.wire.uint(field::packet::SEQUENCE_ID, SEQUENCE);
        self.wire.message(field::packet::TRACK_DESCRIPTOR, |wire| {
            wire.uint(field::track::UUID, uuid(at.track));
            track.parent.into_iter().for_each(|parent| wire.uint(field::track::PARENT_UUID, uuid(parent)));
            match track.kind {
                TrackKind::Process { .. } => wire.message(field::track::PROCESS, |wire| {
                    wire.uint(field::process::PID, at.pid.into());
                    wire.text(field::process::NAME, track.name.as_bytes());
                }),
                TrackKind::Thread { .. } if track.parent.is_some() => wire.message(field::track::THREAD, |wire| {
                    wire.uint(field::thread::PID, at.pid.into());
                    wire.uint(field::thread::TID, at.tid.into());
                    if !track.name.is_empty() {
                        wire.text(field::thread::NAME, track.name.as_bytes());
                    }
                }),
                kind => {
                    if let TrackKind::Counter { .. } = kind {
                        wire.bytes(field::track::COUNTER, &[]);
                    }
                    wire.text(field::track::NAME, track.label().as_bytes());
                }
            }
        });
        self.wire.close(packet);
    }
}

/// Writes fields as annotations.
struct Annotations<'a> {
    wire: &'a mut Wire,
    fields: &'a Fields,
    /// Field number of a value in the open message.
    kind: u64,
    /// Name of the value; none for elements.
    name: &'a Piece,
    is_shown: bool,
    member: Option<&'a Member>,
    /// Open messages: begin, field number of values in the enclosing message, and whether they are written.
    open: Vec<(usize, u64, bool)>,
    elements: u32,
    /// Number of elements that are not written.
    more: u64,
}

impl Annotations<'_> {
    #[inline(always)]
    fn put_text(&mut self, text: &[u8]) {
        if self.is_shown {
            self.wire.named_text(self.kind, self.name, field::annotation::STRING, text);
        }
    }
}

impl Visitor for Annotations<'_> {
    fn name(&mut self, name: &str) {
        // All names in the metadata are known.
        self.name = self.fields.named(name);
    }

    fn option(&mut self, name: &str) {
        self.name = self.fields.named(name);
    }

    fn element(&mut self, _: u64) {
        self.name = &Piece::NONE;
        if self.is_shown {
            self.elements += 1;
            self.is_shown = self.elements <= ELEMENTS_MAX;
        }
        self.more += u64::from(self.elements > ELEMENTS_MAX);
    }

    #[inline(always)]
    fn integer(&mut self, value: u64, class: &IntegerNode) {
        if !self.is_shown {
            return;
        }
        let member = self.member.filter(|_| self.open.is_empty());
        if let Some(Member { name, plain: Some(kind), .. }) = member {
            return self.wire.named_uint(self.kind, name, *kind, value);
        }
        let is_boolean =
            class.meaning == Meaning::Boolean || (value <= 1 && member.is_some_and(|member| member.is_boolean));
        if is_boolean {
            return self.wire.named_uint(self.kind, self.name, field::annotation::BOOL, u64::from(value != 0));
        }
        match class.label(value) {
            Some(label) => self.put_text(label.as_bytes()),
            None => self.wire.named_uint(self.kind, self.name, number_kind(class), value),
        }
    }

    fn float(&mut self, value: f64) {
        if self.is_shown {
            self.wire.message(self.kind, |wire| {
                wire.piece(self.name);
                wire.fixed64(field::annotation::DOUBLE, value.to_bits());
            });
        }
    }

    #[inline(always)]
    fn text(&mut self, text: &[u8]) {
        self.put_text(text);
    }

    fn blob(&mut self, bytes: &[u8], _: bool) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let shown = &bytes[..bytes.len().min(ELEMENTS_MAX as usize)];
        let mut text = b"0x".to_vec();
        text.extend(shown.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)]));
        if shown.len() < bytes.len() {
            text.extend_from_slice("…".as_bytes());
        }
        self.put_text(&text);
    }

    fn open(&mut self, group: Group) {
        if group == Group::Optional {
            return;
        }
        let mut begin = 0;
        if self.is_shown {
            begin = self.wire.open(self.kind);
            self.wire.piece(self.name);
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
        let Some((begin, kind, is_shown)) = self.open.pop() else { return };
        self.is_shown = is_shown;
        if is_shown {
            if self.more > 0 && group == Group::Array {
                self.name = &Piece::NONE;
                let more = std::mem::take(&mut self.more);
                self.put_text(format!("and {more} more").as_bytes());
            }
            self.wire.close(begin);
        }
        self.kind = kind;
    }
}
