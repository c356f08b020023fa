//! What a trace's metadata say, whatever they are written in: classes of fields, events, streams and clocks.
//!
//! The texts of CTF 1.8 and of CTF 2 ([`crate::metadata`]) become this model, and [`crate::plan`] compiles it. Neither knows the other.

mod field;
mod role;

pub(crate) use field::shown_name;
pub use field::{
    Base, ByteOrder, Coding, Encoding, FieldClass, FieldPath, Float, Integer, Label, Length, Meaning, Member, Option_,
    Optional, Range, Scope, Struct, Text, Variant,
};
pub use role::{Role, Roles};

/// All that the metadata say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceClass {
    /// The trace's identity, which packets can repeat.
    pub uuid: Option<[u8; 16]>,
    /// The environment, in its order.
    pub env: Vec<(String, EnvValue)>,
    /// The clocks, which fields name by their index.
    pub clocks: Vec<ClockClass>,
    /// What a packet begins with.
    pub packet_header: Option<Struct>,
    /// The classes of streams, by rising id.
    pub streams: Vec<StreamClass>,
}

impl TraceClass {
    /// A text of the environment.
    pub fn env_text(&self, name: &str) -> Option<&str> {
        match self.env.iter().find(|(key, _)| key == name)? {
            (_, EnvValue::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// A value of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum EnvValue {
    Text(String),
    Number(i64),
}

/// A clock (clause 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockClass {
    /// Its name.
    pub name: String,
    /// For people.
    pub description: String,
    /// Ticks per second, not 0.
    pub frequency_hz: u64,
    /// Seconds from the origin to tick 0.
    pub offset_s: i64,
    /// Ticks to add to `offset_s`.
    pub offset_cycles: u64,
    /// Whether the origin is the Unix epoch by the metadata's own words.
    pub is_absolute: bool,
}

/// A class of streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamClass {
    /// What `stream_id` in packet headers names it by.
    pub id: u64,
    /// What follows a packet's header.
    pub packet_context: Option<Struct>,
    /// What an event record begins with.
    pub event_header: Option<Struct>,
    /// What follows it in each.
    pub event_context: Option<Struct>,
    /// The clock of its times.
    pub clock: Option<usize>,
    /// The classes of its events, by rising id.
    pub events: Vec<EventClass>,
}

/// A class of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventClass {
    /// What the headers of its records name it by.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The context that its events alone have.
    pub context: Option<Struct>,
    /// What they say.
    pub fields: Option<Struct>,
}
