//! What is compiled once from a trace's model, so that each record costs as little as it can.
//!
//! A record's header is found by a table of constant places, if it has such (`head`); a class whose records all have one size is passed
//! by that size, others by a short program (`program`); and a tree says what the fields are (`node`), for whoever looks at them
//! (`walk`). Records that are only counted, or left out, are passed by size alone (`skim`). What another field says (a length, the option of a variant) goes through a slot.

mod bits;
mod class;
mod head;
mod node;
mod packet;
mod pick;
mod program;
mod shape;
mod skim;
mod walk;

pub use bits::FieldError;
pub use class::Class;
pub use node::{IntegerNode, PlanError};
pub use pick::{Pick, Picked, Projection};
pub use shape::{FieldRef, MemberRef, Shape};
pub use walk::{Group, Visitor};

pub(crate) use bits::{Cursor, extend_sign};
pub(crate) use head::Time;
pub(crate) use node::{Node, StructNode, roles_of};
pub(crate) use packet::{PacketFields, PacketStart};
pub(crate) use skim::{NOT_PLAIN, Skimming, Tally};
pub(crate) use walk::{Blind, Memory, advance};

use bits::AtByte;
use class::ClassTable;
use dormouse_abi::class::ClassDecl;
use head::{Head, Said, Short};
use node::{OUTER_COUNT, Slots, check_size};
use program::{Known, fixed_size, program};

use crate::model::{EventClass, Role, Scope, StreamClass, Struct, TraceClass};

/// The values of headers that fields refer to.
pub(crate) type Outer = [u64; OUTER_COUNT];

/// A compiled trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub(crate) packet_header: Option<StructNode>,
    pub(crate) streams: Vec<StreamPlan>,
}

/// A compiled class of streams.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StreamPlan {
    pub id: u64,
    pub clock: Option<usize>,
    packet_header: Option<StructNode>,
    pub packet_context: Option<StructNode>,
    event_header: StructNode,
    head: Head,
    event_context: Option<Struct>,
    /// Where `vpid` and `vtid` are, in bits from the beginning of the contexts.
    who: Option<(u64, u64)>,
    outer: Slots,
    classes: ClassTable,
}

impl std::fmt::Debug for StreamPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamPlan").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Header,
    UnknownClass(u64),
    /// By index.
    Field(usize, FieldError),
}

/// Records that have a short header and a class whose records have all one size. Nothing but a word's load, and that of a size, stands between one
/// record's place and the next one's.
#[derive(Debug)]
pub(crate) struct PlainRecords<'p> {
    short: &'p Short,
    classes: &'p ClassTable,
    at: AtByte<'p>,
    /// Of the record before: bytes behind the header, and all bytes. Where the next record has as many, the processor goes on by these, which it has
    /// guessed, and need not wait for the size of this one.
    last: (u64, u64),
}

impl PlainRecords<'_> {
    /// The next record; `None` if it is no plain one, or not there as a whole.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Record> {
        let Said { id, time } = self.short.said(self.at.word()?)?;
        let step_bytes = self.classes.step_bytes(id)?;
        let (class, size_bits) = self.classes.plain(id)?;
        let body = self.at.position() + self.short.size_bits;
        let end = body + size_bits;
        // By a branch in both cases: a selected value would have to be waited for.
        if step_bytes == self.last.0 {
            self.at.pass(self.last.1, end)?;
        } else {
            let all_bytes = self.short.size_bits / 8 + step_bytes;
            self.at.pass(all_bytes, end)?;
            self.last = (step_bytes, all_bytes);
        }
        Some(Record { class, time, body, end })
    }
}

/// A record that has been measured. Positions are in bits from the packet's start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Record {
    /// Of the class.
    pub class: usize,
    pub time: Time,
    /// Where the contexts begin.
    pub body: u64,
    pub end: u64,
}

impl Plan {
    /// Compiles a trace.
    ///
    /// # Errors
    /// More fields than any tracer has, or more of headers that say lengths of other fields.
    pub fn new(trace: &TraceClass) -> Result<Plan, PlanError> {
        check_size(trace)?;
        let header = trace.packet_header.as_ref();
        let streams = trace.streams.iter().map(|stream| {
            let mut plan = StreamPlan::new(header, stream)?;
            stream.events.iter().for_each(|event| {
                plan.insert(event, None);
            });
            Ok(plan)
        });
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        Ok(Plan { packet_header: packet_header(header), streams })
    }

    /// Bytes that the header and the context of a packet have at least.
    pub(crate) fn header_size_bytes_min(&self) -> u64 {
        let size = |structure: Option<&StructNode>| {
            fixed_size(&program(structure, Known { modulus: 64, rest: 0 })).unwrap_or(0)
        };
        let contexts = self.streams.iter().map(|stream| size(stream.packet_context.as_ref()));
        (size(self.packet_header.as_ref()) + contexts.min().unwrap_or(0)) / 8
    }

    /// The stream whose packets have contexts such as those of all others.
    pub(crate) fn any_stream(&self) -> Option<&StreamPlan> {
        let first = self.streams.first()?;
        self.streams.iter().all(|stream| stream.packet_context == first.packet_context).then_some(first)
    }

    pub(crate) fn stream(&self, id: u64) -> Option<&StreamPlan> {
        self.streams.iter().find(|stream| stream.id == id)
    }
}

/// The tree of packet headers is the same for all streams. What they say that streams need is asked of it once more, by its stream.
fn packet_header(header: Option<&Struct>) -> Option<StructNode> {
    header.map(|header| Slots::default().with([header]).node(Scope::PacketHeader, header, None))
}

impl StreamPlan {
    /// A stream without events.
    pub(crate) fn new(packet_header: Option<&Struct>, stream: &StreamClass) -> Result<StreamPlan, PlanError> {
        let header = stream.event_header.as_ref();
        let of_events = stream
            .events
            .iter()
            .flat_map(|event| [(Scope::OwnContext, event.context.as_ref()), (Scope::Fields, event.fields.as_ref())]);
        let scopes = [(Scope::EventHeader, header), (Scope::EventContext, stream.event_context.as_ref())];
        let later = scopes.into_iter().chain(of_events).filter_map(|(scope, structure)| Some((scope, structure?)));
        let outer = Slots::outer(later)?;
        let slots = outer.with([packet_header, stream.packet_context.as_ref()].into_iter().flatten());
        let packet_context =
            stream.packet_context.as_ref().map(|context| slots.node(Scope::PacketContext, context, stream.clock));
        let event_header = header.map_or_else(StructNode::default, |header| {
            outer.with([header]).node(Scope::EventHeader, header, stream.clock)
        });
        let event_header = StructNode { align_bits: event_header.align_bits.max(1), ..event_header };
        let head = match header {
            Some(_) => Head::new(&event_header),
            None => Head::Structure,
        };
        Ok(StreamPlan {
            id: stream.id,
            clock: stream.clock,
            packet_header: packet_header.map(|header| slots.node(Scope::PacketHeader, header, None)),
            packet_context,
            who: stream.event_context.as_ref().and_then(|context| who(context, head.known_behind())),
            event_header,
            head,
            event_context: stream.event_context.clone(),
            outer,
            classes: ClassTable::default(),
        })
    }

    /// Adds a class. Returns whether the id was free; a class that is there already stays.
    pub(crate) fn insert(&mut self, event: &EventClass, decl: Option<ClassDecl>) -> bool {
        let context = self.event_context.as_ref();
        let known = self.head.known_behind();
        self.classes.insert(Class::new(event, decl, context, &self.outer, self.clock, known))
    }

    pub(crate) fn class(&self, id: u64) -> Option<&Class> {
        self.classes.index(id).map(|index| self.classes.at(index))
    }

    pub(crate) fn class_at(&self, index: usize) -> &Class {
        self.classes.at(index)
    }

    pub(crate) fn class_count(&self) -> usize {
        self.classes.count()
    }

    pub(crate) fn class_index(&self, id: u64) -> Option<usize> {
        self.classes.index(id)
    }

    /// What is known of the position behind a record's header.
    fn known_behind_head(&self) -> Known {
        self.head.known_behind()
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.by_id()
    }

    /// Bytes of the records of a class that have the smallest header, where that is all that there is to know.
    pub(crate) fn record_size_bytes(&self, id: u64) -> Option<u64> {
        let class = self.class(id)?;
        Some(self.head.smallest_size_bytes(id)? + class.fixed_size_bits()? / 8)
    }

    /// Reads the header at the cursor.
    #[inline(always)]
    pub(crate) fn head(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<(u64, Time), Failure> {
        let said = self.head.read(&self.event_header, cursor, memory).map_err(|_| Failure::Header)?;
        Ok((said.id, said.time))
    }

    /// The records from the cursor on, as long as they are plain.
    #[inline(always)]
    pub(crate) fn plain_records<'p>(&'p self, cursor: &Cursor<'p>) -> Option<PlainRecords<'p>> {
        Some(PlainRecords {
            short: self.head.short()?,
            classes: &self.classes,
            at: cursor.at_byte()?,
            last: (u64::MAX, 0),
        })
    }

    /// Measures the record at the cursor, and passes it.
    #[inline(always)]
    pub(crate) fn record(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<Record, Failure> {
        let (id, time) = self.head(cursor, memory)?;
        let body = cursor.position;
        // What has no size can be aligned beyond all that there is.
        if cursor.is_beyond() {
            return Err(Failure::Header);
        }
        let class = self.classes.index(id).ok_or(Failure::UnknownClass(id))?;
        match self.classes.pass(class, cursor, memory) {
            Ok(()) if cursor.is_beyond() => Err(Failure::Field(0, FieldError::Cut)),
            Ok(()) => Ok(Record { class, time, body, end: cursor.position }),
            Err(error) => {
                cursor.position = body;
                let (index, error) = self.classes.at(class).failure(cursor, memory).unwrap_or((0, error));
                Err(Failure::Field(index, error))
            }
        }
    }

    /// `vpid` and `vtid` of a record whose contexts begin at the cursor.
    #[inline(always)]
    pub(crate) fn who(&self, cursor: &Cursor<'_>) -> Option<(u32, u32)> {
        let (vpid, vtid) = self.who?;
        let at = |offset: u64| {
            let mut cursor = cursor.clone();
            cursor.position += offset;
            cursor.number(32, crate::model::ByteOrder::Little).ok()
        };
        Some((at(vpid)? as u32, at(vtid)? as u32))
    }

    /// Whether every packet says when it begins, wholly: then its records can be read without the packets before it.
    pub(crate) fn begins_wholly(&self) -> bool {
        let members = self.packet_context.iter().flat_map(|context| &context.members);
        members.into_iter().any(|member| match &member.node {
            Node::Integer(integer) => integer.roles.has(Role::TimestampBegin) && integer.is_whole_word(),
            _ => false,
        })
    }

    pub(crate) fn has_who(&self) -> bool {
        self.who.is_some()
    }
}

/// Where a context has the two ids of who it is that writes, if all records have them at one place: little-endian, of 32 bits.
fn who(context: &Struct, known: Known) -> Option<(u64, u64)> {
    let slots = Slots::default().with([context]);
    let place = |name: &str| {
        let index = context.members.iter().position(|member| member.shown_name() == name)?;
        let upto = |count: usize| {
            let members = context.members[..count].to_vec();
            let part = slots.node(Scope::EventContext, &Struct { members, ..context.clone() }, None);
            fixed_size(&program([&part], known))
        };
        let part = slots.node(Scope::EventContext, context, None);
        match &part.members[index].node {
            Node::Integer(integer) if integer.size_bits == 32 && integer.is_little_endian() => {
                Some(upto(index + 1)? - 32)
            }
            _ => None,
        }
    };
    Some((place("vpid")?, place("vtid")?))
}
