//! Content of a packet's header and context that a reader of the stream uses.

use super::bits::{Cursor, FieldError};
use super::node::IntegerNode;
use super::walk::{Blind, Group, Memory, Visitor};
use super::{Outer, Plan, StreamPlan};
use crate::model::{Role, Roles};

/// Numbers of header and context, where they are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PacketFields {
    pub magic: Option<u64>,
    pub uuid: Uuid,
    pub stream_id: Option<u64>,
    pub stream_instance_id: Option<u64>,
    pub cpu_id: Option<u64>,
    pub timestamp_begin: Option<u64>,
    pub timestamp_begin_bits: u32,
    pub timestamp_end: Option<u64>,
    pub timestamp_end_bits: u32,
    pub content_size_bits: Option<u64>,
    pub packet_size_bits: Option<u64>,
    /// Sequence number. Like `events_discarded`, it wraps to 0 at the size of its field.
    pub packet_seq_num: Option<u64>,
    pub packet_seq_num_bits: u32,
    pub events_discarded: Option<u64>,
    pub events_discarded_bits: u32,
}

/// The bytes of `uuid` that are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Uuid {
    pub bytes: [u8; 16],
    pub count: usize,
}

/// Visitor that collects the numbers by their roles.
#[derive(Default)]
struct Taker {
    fields: PacketFields,
    is_uuid: bool,
    depth: u32,
    /// Size of the next variable-length number, in bits.
    variable_bits: u32,
}

impl Visitor for Taker {
    fn name(&mut self, name: &str) {
        if self.depth == 0 {
            self.is_uuid = name == "uuid";
        }
    }

    fn integer(&mut self, value: u64, class: &IntegerNode) {
        let fields = &mut self.fields;
        if class.roles == Roles::NONE && self.is_uuid && self.depth == 1 && fields.uuid.count < 16 {
            fields.uuid.bytes[fields.uuid.count] = value as u8;
            fields.uuid.count += 1;
        }
        for (role, place) in [
            (Role::Magic, &mut fields.magic),
            (Role::StreamId, &mut fields.stream_id),
            (Role::StreamInstanceId, &mut fields.stream_instance_id),
            (Role::CpuId, &mut fields.cpu_id),
            (Role::TimestampBegin, &mut fields.timestamp_begin),
            (Role::TimestampEnd, &mut fields.timestamp_end),
            (Role::ContentSize, &mut fields.content_size_bits),
            (Role::PacketSize, &mut fields.packet_size_bits),
            (Role::PacketSeqNum, &mut fields.packet_seq_num),
            (Role::EventsDiscarded, &mut fields.events_discarded),
        ] {
            if class.roles.has(role) {
                *place = Some(value);
            }
        }
        let time_bits = class.time_bits(self.variable_bits);
        for (role, place, size_bits) in [
            (Role::TimestampBegin, &mut fields.timestamp_begin_bits, time_bits),
            (Role::TimestampEnd, &mut fields.timestamp_end_bits, time_bits),
            (Role::PacketSeqNum, &mut fields.packet_seq_num_bits, class.size_bits),
            (Role::EventsDiscarded, &mut fields.events_discarded_bits, class.size_bits),
        ] {
            if class.roles.has(role) {
                *place = size_bits;
            }
        }
    }

    fn variable(&mut self, size_bits: u32) {
        self.variable_bits = size_bits;
    }

    fn blob(&mut self, bytes: &[u8], is_uuid: bool) {
        if let Some(uuid) = bytes.first_chunk().filter(|_| is_uuid) {
            self.fields.uuid = Uuid { bytes: *uuid, count: 16 };
        }
    }

    fn element(&mut self, _: u64) {}
    fn float(&mut self, _: f64) {}
    fn text(&mut self, _: &[u8]) {}
    fn open(&mut self, _: Group) {
        self.depth += 1;
    }
    fn close(&mut self, _: Group) {
        self.depth -= 1;
    }
}

/// Result of reading a packet's header and context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketStart {
    pub fields: PacketFields,
    /// End of the header and start of the context, in bits.
    pub context: u64,
    /// End of the context and start of the records, in bits.
    pub end: u64,
    pub outer: Outer,
}

impl Plan {
    /// Reads the header of the packet at the start of `bytes`.
    pub(crate) fn packet_header(&self, bytes: &[u8]) -> Result<PacketFields, FieldError> {
        let mut cursor = Cursor::new(bytes, 0, 0, u64::MAX);
        let mut taker = Taker::default();
        if let Some(header) = &self.packet_header {
            header.walk(&mut cursor, &mut Memory::default(), &mut taker)?;
        }
        Ok(taker.fields)
    }
}

impl StreamPlan {
    /// Reads the context of the packet at the start of `bytes`. `fields` is the content of its header.
    pub(crate) fn packet_context(&self, bytes: &[u8], fields: PacketFields) -> Result<PacketStart, FieldError> {
        let (mut memory, mut taker) = (Memory::default(), Taker { fields, ..Taker::default() });
        let mut cursor = Cursor::new(bytes, 0, 0, u64::MAX);
        // Header fields that the context refers to are read again into the slots of this stream.
        if let Some(header) = &self.packet_header {
            header.walk(&mut cursor, &mut memory, &mut Blind)?;
        }
        let context = cursor.position;
        if let Some(node) = &self.packet_context {
            node.walk(&mut cursor, &mut memory, &mut taker)?;
        }
        Ok(PacketStart { fields: taker.fields, context, end: cursor.position, outer: memory.outer() })
    }
}
