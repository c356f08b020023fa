//! Plans that are compiled once from a trace's model, to make reading of records cheap.
//!
//! A record's header is read by a table of constant positions if it has them (`head`). A class with records of constant
//! size is skipped by that size, another class by a short program (`program`). A tree describes the fields (`node`) for
//! visitors (`walk`), and for a reader of one field after another (`reader`). Records that are only counted or left out
//! are skipped by size (`skim`). The value of a field that determines another field (a length, the option of a variant)
//! is kept in a slot.

mod bits;
mod class_table;
mod head;
mod node;
mod packet;
mod pick;
mod program;
mod reader;
mod shape;
mod skim;
mod walk;

pub use bits::FieldError;
pub use class_table::Class;
pub use node::{IntegerNode, PlanError, StructNode, Word};
pub use pick::{Pick, Picked, Projection};
pub use reader::FieldReader;
pub use shape::{Field, FieldRef, MemberRef, Shape};
pub use walk::{Group, Visitor};

pub(crate) use bits::Cursor;
pub(crate) use head::Time;
pub(crate) use node::{Node, roles_of};
pub(crate) use packet::{PacketFields, PacketStart};
pub(crate) use skim::{NOT_PLAIN, Skimming, Tally};
pub(crate) use walk::{Blind, Memory, advance};

use bits::AtByte;
use class_table::ClassTable;
use dormouse_abi::class::ClassDecl;
use head::{Head, Said, Short};
use node::{OUTER_COUNT, Slots, check_size};
use program::{Known, fixed_size, program};

use crate::model::{EventClass, Role, Scope, StreamClass, Struct, TraceClass};

/// Values of header fields that other fields refer to.
pub(crate) type Outer = [u64; OUTER_COUNT];

/// A compiled trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub(crate) packet_header: Option<StructNode>,
    pub(crate) streams: Vec<StreamPlan>,
}

/// A compiled stream class.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StreamPlan {
    pub id: u64,
    pub clock: Option<usize>,
    packet_header: Option<StructNode>,
    pub packet_context: Option<StructNode>,
    event_header: StructNode,
    head: Head,
    event_context: Option<Struct>,
    /// Offsets of `vpid` and `vtid`, in bits from the beginning of the contexts.
    who: Option<(u64, u64)>,
    outer: Slots,
    classes: ClassTable,
}

impl std::fmt::Debug for StreamPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamPlan").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A reason why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Header,
    UnknownClass(u64),
    /// Field that cannot be read, by index.
    Field(usize, FieldError),
}

/// Iterator over plain records, which have a short header and a class with records of constant size. One record's
/// position depends on the previous one's only through the loads of a header word and a size.
#[derive(Debug)]
pub(crate) struct PlainRecords<'p> {
    short: &'p Short,
    classes: &'p ClassTable,
    at: AtByte<'p>,
    /// Size of the previous record: bytes after its header, and total bytes. If the next record has the same size, the
    /// CPU predicts the branch and continues with this size, without waiting for the load.
    last: (u64, u64),
}

impl PlainRecords<'_> {
    /// Returns the next record, or `None` if it is not plain or not complete.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Record> {
        let Said { id, time } = self.short.said(self.at.word()?)?;
        let step_bytes = self.classes.step_bytes(id)?;
        let (class, size_bits) = self.classes.plain(id)?;
        let body = self.at.position() + self.short.size_bits;
        let end = body + size_bits;
        // Both cases are branches, because a conditional move would have to wait for the loaded size.
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

/// A measured record. Positions are in bits from the packet's start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Record {
    /// Index of the class.
    pub class: usize,
    pub time: Time,
    /// Start of the contexts.
    pub body: u64,
    pub end: u64,
}

impl Plan {
    /// Compiles a trace.
    ///
    /// # Errors
    /// Returns an error if there are too many fields, or too many header fields that determine other fields.
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

    /// Returns the minimum size of a packet's header and context, in bytes.
    pub(crate) fn header_size_bytes_min(&self) -> u64 {
        let size = |structure: Option<&StructNode>| {
            fixed_size(&program(structure, Known { modulus: 64, rest: 0 })).unwrap_or(0)
        };
        let contexts = self.streams.iter().map(|stream| size(stream.packet_context.as_ref()));
        (size(self.packet_header.as_ref()) + contexts.min().unwrap_or(0)) / 8
    }

    /// Returns a stream if all streams have the same packet context.
    pub(crate) fn any_stream(&self) -> Option<&StreamPlan> {
        let first = self.streams.first()?;
        self.streams.iter().all(|stream| stream.packet_context == first.packet_context).then_some(first)
    }

    pub(crate) fn stream(&self, id: u64) -> Option<&StreamPlan> {
        self.streams.iter().find(|stream| stream.id == id)
    }
}

/// Returns the tree of packet headers, which all streams share. A stream reads the header again to fill its own slots.
fn packet_header(header: Option<&Struct>) -> Option<StructNode> {
    header.map(|header| Slots::default().with([header]).node(Scope::PacketHeader, header, None))
}

impl StreamPlan {
    /// Returns a stream without event classes.
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

    /// Adds a class. Returns whether the id was free; an existing class is not replaced.
    pub(crate) fn insert(&mut self, event: &EventClass, decl: Option<ClassDecl>) -> bool {
        let context = self.event_context.as_ref();
        let known = self.head.known_behind();
        self.classes.insert(Class::new(event, decl, context, &self.outer, self.clock, known))
    }

    pub(crate) fn class(&self, id: u64) -> Option<&Class> {
        self.classes.index(id).map(|index| self.classes.at(index))
    }

    #[inline]
    pub(crate) fn class_at(&self, index: usize) -> &Class {
        self.classes.at(index)
    }

    pub(crate) fn class_count(&self) -> usize {
        self.classes.count()
    }

    pub(crate) fn class_index(&self, id: u64) -> Option<usize> {
        self.classes.index(id)
    }

    /// Returns the known alignment of the position after a record's header.
    fn known_behind_head(&self) -> Known {
        self.head.known_behind()
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.by_id()
    }

    /// Returns the size in bytes of a class's records with the smallest header, if it is constant.
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

    /// Returns an iterator over the plain records from the cursor on.
    #[inline(always)]
    pub(crate) fn plain_records<'p>(&'p self, cursor: &Cursor<'p>) -> Option<PlainRecords<'p>> {
        Some(PlainRecords {
            short: self.head.short()?,
            classes: &self.classes,
            at: cursor.at_byte()?,
            last: (u64::MAX, 0),
        })
    }

    /// Measures the record at the cursor and advances past it.
    #[inline(always)]
    pub(crate) fn record(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<Record, Failure> {
        let (id, time) = self.head(cursor, memory)?;
        let body = cursor.position;
        // A structure of size zero can be aligned beyond the end.
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

    /// Returns `vpid` and `vtid` of the record whose contexts begin at the cursor.
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

    /// Whether every packet has its complete begin time, so that its records can be read without earlier packets.
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

/// Returns the offsets of the writer's two ids in a context, if they are constant and the ids are little-endian numbers
/// of 32 bits.
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
