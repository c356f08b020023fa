//! An event, borrowed from its stream.

use dormouse_abi::class::CLASS_ID_MAX;

use super::trace::TraceRef;
use crate::plan::{
    Blind, Class, Cursor, FieldError, FieldReader, Group, IntegerNode, Memory, Outer, Pick, Picked, Projection,
    StreamPlan, Visitor,
};
use crate::state::StateRecord;
use crate::value::Value;

/// An event, borrowed from its stream.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Number of the stream that [`StreamReader::new`](crate::StreamReader::new) was given.
    pub stream: usize,
    /// Time in ticks of the stream's clock.
    pub timestamp: u64,
    /// Time in nanoseconds since the epoch, if the stream has a clock.
    pub time_ns: Option<i64>,
    /// Names and fields.
    pub class: &'a Class,
    /// CPU of the packet, or `CPU_UNKNOWN`.
    pub cpu_id: u32,
    /// `vpid` and `vtid`; `None` in the state stream, and in traces whose records do not have them.
    pub context: Option<(u32, u32)>,
    /// Size of the record in bytes, including its header.
    pub size_bytes: usize,
    pub(super) trace: TraceRef<'a>,
    pub(super) plan: &'a StreamPlan,
    pub(super) class_index: usize,
    pub(super) body: Body<'a>,
    pub(super) packet: PacketStartRef<'a>,
}

/// Values that later fields of an event depend on. It should be reused, because it allocates memory.
#[derive(Debug, Default)]
pub struct Scratch(pub(super) Memory);

/// Contexts and fields of a record. Positions are in bits from the packet's start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body<'a> {
    /// Bytes from the one in which the contexts begin, including bytes after the record.
    pub bytes: &'a [u8],
    pub begin: u64,
    pub end: u64,
    pub outer: Outer,
}

/// Contexts and fields of an event, with the properties that a table row needs: an [`Event`] without the costly
/// lookups.
#[derive(Debug, Clone, Copy)]
pub struct EventFields<'a> {
    /// Same as [`Event::time_ns`].
    pub time_ns: Option<i64>,
    /// Same as [`Event::cpu_id`].
    pub cpu_id: u32,
    /// Same as [`Event::size_bytes`].
    pub size_bytes: usize,
    pub(super) body: Body<'a>,
}

/// Header and context of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketStartRef<'a> {
    /// Index of the packet in its stream.
    pub index: u64,
    pub bytes: &'a [u8],
    /// Start of the context, in bits.
    pub context: u64,
    pub outer: Outer,
}

impl<'a> Event<'a> {
    /// Whether the session owner wrote the event, in the state stream of a Dormouse trace.
    #[inline]
    pub fn is_state(&self) -> bool {
        self.trace.is_own() && self.class.id > CLASS_ID_MAX.into()
    }

    /// Returns the event's trace.
    pub fn trace(&self) -> TraceRef<'a> {
        self.trace
    }

    pub(crate) fn plan(&self) -> &'a StreamPlan {
        self.plan
    }

    /// Returns the value of a field, or `None` if this event does not have it. The pick must be for the event's class.
    pub fn pick<'p>(&self, pick: &'p Pick, scratch: &mut Scratch) -> Option<Picked<'p>>
    where
        'a: 'p,
    {
        self.body().pick(pick, scratch)
    }

    /// Returns only the contexts and fields.
    #[inline]
    pub fn body(&self) -> EventFields<'a> {
        let Event { time_ns, cpu_id, size_bytes, body, .. } = *self;
        EventFields { time_ns, cpu_id, size_bytes, body }
    }

    /// Returns the index of the packet in its stream, from 0.
    #[inline]
    pub fn packet_index(&self) -> u64 {
        self.packet.index
    }

    /// Returns the address of the plan of the event's stream class. It is the same for all events of this class, and
    /// differs between the classes of all traces that are open.
    #[inline]
    pub fn plan_address(&self) -> usize {
        std::ptr::from_ref(self.plan).addr()
    }

    /// Returns the index of the event class in its stream class, from 0.
    #[inline]
    pub fn class_index(&self) -> usize {
        self.class_index
    }

    /// Returns a reader at the beginning of the contexts.
    #[inline(always)]
    pub fn field_reader<'s>(&self, scratch: &'s mut Scratch) -> FieldReader<'a, 's> {
        scratch.0.restart(&self.body.outer);
        FieldReader { cursor: self.cursor(), memory: &mut scratch.0 }
    }

    #[inline(always)]
    fn cursor(&self) -> Cursor<'a> {
        self.body.cursor()
    }

    /// Visits the packet's context. Returns false if there is none.
    pub fn visit_packet_context(&self, visitor: &mut impl Visitor) -> bool {
        let Some(context) = self.plan.packet_context.as_ref().filter(|context| context.has_shown()) else {
            return false;
        };
        let mut cursor = Cursor::new(self.packet.bytes, 0, self.packet.context, u64::MAX);
        // The context has been read before, so it can be read.
        let _ = context.walk_shown(&mut cursor, &mut Memory::with_outer(&self.packet.outer), visitor);
        true
    }

    /// Visits contexts and fields, each structure as a group, in the order of the record.
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

    /// Returns names and values of the fields, in order. Only for Dormouse's traces; fields of other traces can have
    /// values that [`Value`] cannot hold.
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
    /// Returns the value of a field, or `None` if this event does not have it. The pick must be for the event's class.
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

    /// Returns an integer at a constant position, like [`EventFields::pick`].
    #[inline(always)]
    pub(crate) fn number<'p>(&self, pick: &'p Pick) -> Option<(u64, &'p IntegerNode)> {
        pick.number(&mut self.body.cursor())
    }

    /// Visits chosen members of contexts and fields, each with its own visitor.
    ///
    /// # Errors
    /// Returns an error if the projection belongs to another class.
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

    /// Visits chosen members of contexts and fields with one visitor. `tell` is called before each one with its chosen
    /// index.
    ///
    /// # Errors
    /// Returns an error if the projection belongs to another class.
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

    /// Visits a field, if this event has it. The pick must be for the event's class.
    ///
    /// # Errors
    /// Returns an error if the pick belongs to another class.
    pub fn show(&self, pick: &Pick, scratch: &mut Scratch, visitor: &mut impl Visitor) -> Result<(), FieldError> {
        scratch.0.restart(&self.body.outer);
        pick.show(&mut self.body.cursor(), &mut scratch.0, visitor)
    }
}

impl<'a> StateRecord<'a> {
    /// Decodes an event of the state stream; `None` for any other event, or if a text is not UTF-8.
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
