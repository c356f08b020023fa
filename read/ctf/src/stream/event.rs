//! An event, borrowed from its stream.

use dormouse_abi::class::CLASS_ID_MAX;

use super::trace::TraceRef;
use crate::plan::{
    Blind, Class, Cursor, FieldError, Group, IntegerNode, Memory, Outer, Pick, Picked, Projection, StreamPlan, Visitor,
};
use crate::state::StateRecord;
use crate::value::Value;

/// An event, borrowed from its stream.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// The stream, as [`StreamReader::new`](crate::StreamReader::new) was told.
    pub stream: usize,
    /// Ticks of the stream's clock.
    pub timestamp: u64,
    /// The same in nanoseconds since the epoch, if the stream has a clock.
    pub time_ns: Option<i64>,
    /// Names and fields.
    pub class: &'a Class,
    /// The packet's processor, or `CPU_UNKNOWN`.
    pub cpu_id: u32,
    /// `vpid` and `vtid`; `None` in the state stream, and in traces whose records do not have them.
    pub context: Option<(u32, u32)>,
    /// Bytes of the record, header included.
    pub size_bytes: usize,
    pub(super) trace: TraceRef<'a>,
    pub(super) plan: &'a StreamPlan,
    pub(super) class_index: usize,
    pub(super) body: Body<'a>,
    pub(super) packet: PacketStartRef<'a>,
}

/// What an event's fields say of one another while they are shown; to be used again, because it takes memory.
#[derive(Debug, Default)]
pub struct Scratch(pub(super) Memory);

/// Contexts and fields of a record. Positions are in bits, from the packet's start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body<'a> {
    /// From the byte on in which they begin, and what is behind them.
    pub bytes: &'a [u8],
    pub begin: u64,
    pub end: u64,
    pub outer: Outer,
}

/// Contexts and fields of an event, and what a row has of it besides: an [`Event`] without what has to be looked up for it.
#[derive(Debug, Clone, Copy)]
pub struct EventFields<'a> {
    /// As [`Event::time_ns`].
    pub time_ns: Option<i64>,
    /// As [`Event::cpu_id`].
    pub cpu_id: u32,
    /// As [`Event::size_bytes`].
    pub size_bytes: usize,
    pub(super) body: Body<'a>,
}

/// Header and context of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketStartRef<'a> {
    /// Of the stream.
    pub index: u64,
    pub bytes: &'a [u8],
    /// Where the context begins, in bits.
    pub context: u64,
    pub outer: Outer,
}

impl<'a> Event<'a> {
    /// Whether it is the session owner's, in the state stream of a trace of Dormouse.
    #[inline]
    pub fn is_state(&self) -> bool {
        self.trace.is_own() && self.class.id > CLASS_ID_MAX.into()
    }

    /// The trace that it is of.
    pub fn trace(&self) -> TraceRef<'a> {
        self.trace
    }

    pub(crate) fn plan(&self) -> &'a StreamPlan {
        self.plan
    }

    /// The value of a field, which was found for the event's class; `None` if this event has none.
    pub fn pick<'p>(&self, pick: &'p Pick, scratch: &mut Scratch) -> Option<Picked<'p>>
    where
        'a: 'p,
    {
        self.body().pick(pick, scratch)
    }

    /// Its contexts and fields alone.
    #[inline]
    pub fn body(&self) -> EventFields<'a> {
        let Event { time_ns, cpu_id, size_bytes, body, .. } = *self;
        EventFields { time_ns, cpu_id, size_bytes, body }
    }

    /// What is written before the events of its trace: where it was recorded.
    pub(crate) fn origin(&self) -> Option<&'a str> {
        self.trace.origin()
    }

    /// Which packet of its stream it is in, from 0.
    pub(crate) fn packet_index(&self) -> u64 {
        self.packet.index
    }

    /// The index of its class in the plan.
    pub(crate) fn class_index(&self) -> usize {
        self.class_index
    }

    /// What reads its contexts and fields, one behind another.
    #[inline(always)]
    pub(crate) fn begin_fields<'s>(&self, scratch: &'s mut Scratch) -> (Cursor<'a>, &'s mut Memory) {
        scratch.0.restart(&self.body.outer);
        (self.cursor(), &mut scratch.0)
    }

    #[inline(always)]
    fn cursor(&self) -> Cursor<'a> {
        self.body.cursor()
    }

    /// Shows the packet's context to a visitor; false if there is none.
    pub fn visit_packet_context(&self, visitor: &mut impl Visitor) -> bool {
        let Some(context) = self.plan.packet_context.as_ref().filter(|context| context.has_shown()) else {
            return false;
        };
        let mut cursor = Cursor::new(self.packet.bytes, 0, self.packet.context, u64::MAX);
        // It has been read before, so it can be.
        let _ = context.walk_shown(&mut cursor, &mut Memory::with_outer(&self.packet.outer), visitor);
        true
    }

    /// Shows contexts and fields to a visitor: each structure in brackets, in the order in which they are written.
    pub fn visit(&self, scratch: &mut Scratch, visitor: &mut impl Visitor) {
        scratch.0.restart(&self.body.outer);
        let mut cursor = self.cursor();
        let class = self.class;
        for structure in [&class.event_context, &class.own_context, &class.fields].into_iter().flatten() {
            visitor.open(Group::Struct);
            // The record has been measured, so its fields can be read.
            let _ = structure.walk(&mut cursor, &mut scratch.0, visitor);
            visitor.close(Group::Struct);
        }
    }

    /// Names and values of the fields, in their order. Of traces of Dormouse only: fields of others can be more than these values.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let mut fields = Vec::new();
        let (Some(decl), Some(structure)) = (&self.class.decl, &self.class.fields) else { return fields.into_iter() };
        let (mut cursor, mut memory) = (self.cursor(), Memory::with_outer(&self.body.outer));
        let contexts = [&self.class.event_context, &self.class.own_context];
        for context in contexts.into_iter().flatten() {
            if context.walk(&mut cursor, &mut memory, &mut Blind).is_err() {
                return fields.into_iter();
            }
        }
        let mut types = decl.fields.iter();
        for (index, member) in structure.members.iter().enumerate() {
            let begin = cursor.position;
            if member.node.walk(&mut cursor, &mut memory, &mut Blind).is_err() {
                break;
            }
            if structure.is_count(index) {
                continue;
            }
            let Some((name, field_type)) = types.next() else { break };
            fields.push((name.as_str(), Value::decode(*field_type, cursor.between(begin, cursor.position))));
        }
        fields.into_iter()
    }
}

impl<'a> Body<'a> {
    #[inline(always)]
    fn cursor(&self) -> Cursor<'a> {
        Cursor::new(self.bytes, self.begin / 8 * 8, self.begin, self.end)
    }
}

impl<'a> EventFields<'a> {
    /// The value of a field, which was found for the event's class; `None` if this event has none.
    #[inline]
    pub fn pick<'p>(&self, pick: &'p Pick, scratch: &mut Scratch) -> Option<Picked<'p>>
    where
        'a: 'p,
    {
        if pick.is_told() {
            scratch.0.restart(&self.body.outer);
        }
        pick.read(&mut self.body.cursor(), &mut scratch.0)
    }

    /// As [`EventFields::pick`], of whole numbers at a constant place.
    #[inline(always)]
    pub(crate) fn number<'p>(&self, pick: &'p Pick) -> Option<(u64, &'p IntegerNode)> {
        pick.number(&mut self.body.cursor())
    }

    /// Shows chosen members of contexts and fields, each to its visitor.
    ///
    /// # Errors
    /// The projection is that of another class.
    #[inline]
    pub fn project<V: Visitor>(
        &self,
        projection: &Projection,
        scratch: &mut Scratch,
        visitors: &mut [V],
    ) -> Result<(), FieldError> {
        if projection.is_told() {
            scratch.0.restart(&self.body.outer);
        }
        projection.show(&mut self.body.cursor(), &mut scratch.0, visitors)
    }

    /// Shows chosen members of contexts and fields to one visitor; `tell` is called before each with the index that was chosen for it.
    ///
    /// # Errors
    /// The projection is that of another class.
    #[inline(always)]
    pub fn project_in_turn<V: Visitor>(
        &self,
        projection: &Projection,
        scratch: &mut Scratch,
        visitor: &mut V,
        tell: impl FnMut(&mut V, usize),
    ) -> Result<(), FieldError> {
        if projection.is_told() {
            scratch.0.restart(&self.body.outer);
        }
        projection.show_in_turn(&mut self.body.cursor(), &mut scratch.0, visitor, tell)
    }

    /// Shows a field, which was found for the event's class, to a visitor; nothing, if this event has none.
    ///
    /// # Errors
    /// It is that of another class.
    pub fn show(&self, pick: &Pick, scratch: &mut Scratch, visitor: &mut impl Visitor) -> Result<(), FieldError> {
        scratch.0.restart(&self.body.outer);
        pick.show(&mut self.body.cursor(), &mut scratch.0, visitor)
    }
}

impl<'a> StateRecord<'a> {
    /// Reads an event of the state stream; `None` for every other event, and where text is not UTF-8.
    #[inline]
    pub fn decode(event: &Event<'a>) -> Option<StateRecord<'a>> {
        if event.is_state() { StateRecord::decode_state(event) } else { None }
    }

    #[cold]
    fn decode_state(event: &Event<'a>) -> Option<StateRecord<'a>> {
        let id = u16::try_from(event.class.id).ok()?;
        StateRecord::of_fields(id, event.fields().map(|(_, value)| value))
    }
}
