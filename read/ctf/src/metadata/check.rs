//! Checks that go beyond the grammar: fields that a reader finds by name in packets and records.

use super::error::{Checked, fail};
use super::syntax::At;
use crate::model::{FieldClass, Length, Struct, TraceClass};

/// Fields of a packet's header and context that a reader uses.
const NUMBERS: [&str; 9] = [
    "magic",
    "stream_id",
    "stream_instance_id",
    "timestamp_begin",
    "timestamp_end",
    "content_size",
    "packet_size",
    "packet_seq_num",
    "events_discarded",
];

pub(super) fn check(trace: &TraceClass, at: At) -> Checked<()> {
    let structures =
        [trace.packet_header.as_ref()].into_iter().chain(trace.streams.iter().map(|s| s.packet_context.as_ref()));
    for structure in structures.flatten() {
        for name in NUMBERS {
            if let Some(class) = member(structure, name)
                && !is_unsigned(class)
            {
                return fail(at, format!("the field {name} of packets is an unsigned number"));
            }
        }
    }
    if let Some(header) = &trace.packet_header {
        let is_word = |class: &FieldClass| matches!(class, FieldClass::Integer(integer) if integer.size_bits == 32);
        if member(header, "magic").is_some_and(|class| !is_word(class)) {
            return fail(at, "the field magic of packets has 32 bits");
        }
        if header.members.iter().skip(1).any(|member| member.name == "magic") {
            return fail(at, "the field magic is the first of packets");
        }
        if member(header, "uuid").is_some_and(|class| !is_uuid(class)) {
            return fail(at, "the field uuid of packets is an array of 16 bytes");
        }
    }
    let has_stream_id = trace.packet_header.as_ref().is_some_and(|header| member(header, "stream_id").is_some());
    if trace.streams.len() > 1 && !has_stream_id {
        return fail(at, "there are several streams, but packets have no field stream_id");
    }
    for stream in &trace.streams {
        let id = stream.event_header.as_ref().and_then(|header| member(header, "id"));
        if id.is_some_and(|class| !is_unsigned(class)) {
            return fail(at, format!("the field id of the event.header of stream {} is an unsigned number", stream.id));
        }
        if stream.events.len() > 1 && id.is_none() {
            return fail(at, format!("stream {} has several events, but its event.header has no field id", stream.id));
        }
    }
    Ok(())
}

fn member<'a>(structure: &'a Struct, name: &str) -> Option<&'a FieldClass> {
    structure.members.iter().find(|member| member.name == name).map(|member| member.class.as_ref())
}

fn is_unsigned(class: &FieldClass) -> bool {
    matches!(class, FieldClass::Integer(integer) if !integer.is_signed)
}

fn is_uuid(class: &FieldClass) -> bool {
    let is_byte = |class: &FieldClass| {
        is_unsigned(class)
            && matches!(class, FieldClass::Integer(integer) if (integer.size_bits, integer.align_bits) == (8, 8))
    };
    matches!(class, FieldClass::Array { element, length: Length::Fixed(16), .. } if is_byte(element))
}
