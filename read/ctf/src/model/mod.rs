//! Content of a trace's metadata, independent of their syntax: classes of fields, events, streams and clocks.
//!
//! The metadata of CTF 1.8 and of CTF 2 ([`crate::metadata`]) are both converted to this model, and [`crate::plan`]
//! compiles it. Neither module depends on the other.

mod field;
mod role;

pub(crate) use field::shown_name;
pub use field::{
    Base, ByteOrder, Coding, Encoding, FieldClass, FieldPath, Float, Integer, Label, Length, Meaning, Member, Option_,
    Optional, Range, Scope, Struct, Text, Variant,
};
pub use role::{Role, Roles};

use dormouse_abi::class::Level;

/// Content of the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceClass {
    /// UUID of the trace, which packets can repeat.
    pub uuid: Option<[u8; 16]>,
    /// Environment, in order.
    pub env: Vec<(String, EnvValue)>,
    /// Clocks. Fields refer to them by index.
    pub clocks: Vec<ClockClass>,
    /// Structure at the start of a packet.
    pub packet_header: Option<Struct>,
    /// Stream classes, by rising id.
    pub streams: Vec<StreamClass>,
}

impl TraceClass {
    /// Returns the text value of an environment entry.
    pub fn env_text(&self, name: &str) -> Option<&str> {
        match self.env.iter().find(|(key, _)| key == name)? {
            (_, EnvValue::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// A value of an environment entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum EnvValue {
    Text(String),
    Number(i64),
}

/// A clock (clause 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockClass {
    /// Name.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Ticks per second, not 0.
    pub frequency_hz: u64,
    /// Seconds from the origin to tick 0.
    pub offset_s: i64,
    /// Ticks to add to `offset_s`.
    pub offset_cycles: u64,
    /// Whether the metadata say that the origin is the Unix epoch.
    pub is_absolute: bool,
}

/// A stream class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamClass {
    /// Id by which `stream_id` in packet headers refers to the class.
    pub id: u64,
    /// Structure after the packet header.
    pub packet_context: Option<Struct>,
    /// Structure at the start of each event record.
    pub event_header: Option<Struct>,
    /// Structure after the event header in each event record.
    pub event_context: Option<Struct>,
    /// Clock of the timestamps.
    pub clock: Option<usize>,
    /// Event classes, by rising id.
    pub events: Vec<EventClass>,
}

/// An event class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventClass {
    /// Id by which record headers refer to the class.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Level, if the metadata give one that is known.
    pub level: Option<Level>,
    /// Context that only events of this class have.
    pub context: Option<Struct>,
    /// Payload fields.
    pub fields: Option<Struct>,
}
