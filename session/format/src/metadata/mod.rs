//! Metadata: the text that describes the layout of the streams, in TSDL (CTF 1.8, clause 7) or in JSON (CTF 2).
//!
//! The text grows while a session runs. It starts with the preamble, and a block is appended for every event class
//! before the first record of that class is written. Three kinds of declaration depend on the session (`env`, `clock`,
//! `event`), and there are two possible headers of event records, and their tags. All others are fixed by `dormouse-abi`.
//!
//! As in other tracers' metadata, a field `x` is declared as `_x`, so that names such as `int` or `event` do not
//! collide with words of TSDL. Readers remove the underscore again. The count of a sequence `x` is a separate field,
//! `__x_length`.

pub mod ctf2;
pub mod json;
pub mod tsdl;

use dormouse_abi::class::{ClassDecl, Label};
use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::record::RecordKind;
use dormouse_abi::tag::TagNames;

use crate::totals::Totals;

/// The clock of all timestamps in a trace (clause 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// Name: an identifier, such as `monotonic` or `tsc`. Other characters become `_`.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Ticks per second, not 0.
    pub frequency_hz: u64,
    /// Seconds from the epoch (1970-01-01 UTC) to tick 0.
    pub offset_s: i64,
    /// Ticks to add to `offset_s`.
    pub offset_cycles: u64,
}

/// Format of metadata. The streams are the same in both formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// CTF 1.8: text in TSDL.
    #[default]
    Ctf18,
    /// CTF 2: a JSON text sequence.
    Ctf2,
}

impl Format {
    /// Name of the format on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Ctf18 => "ctf1.8",
            Format::Ctf2 => "ctf2",
        }
    }

    /// Returns the block that declares a class. It must be appended before the first record with this id. Ids of
    /// programs end at [`CLASS_ID_MAX`](dormouse_abi::class::CLASS_ID_MAX).
    pub fn class(self, id: u16, decl: &ClassDecl) -> String {
        match self {
            Format::Ctf18 => tsdl::event(STREAM_EVENTS, id, decl),
            Format::Ctf2 => ctf2::event(STREAM_EVENTS, id, decl),
        }
    }

    /// Detects the format of a text.
    pub fn of(text: &str) -> Format {
        if text.starts_with(ctf2::SEPARATOR) { Format::Ctf2 } else { Format::Ctf18 }
    }
}

/// A tag of all events of programs: a number, for some of which there are texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// Name, for which [`dormouse_abi::tag::is_tag_name`] holds.
    pub name: String,
    /// Texts and their numbers; of a trace that is being written, those that its owner has seen.
    pub texts: Vec<Label>,
}

impl Tag {
    /// Returns the tags with these names, without texts.
    pub fn all(names: &TagNames) -> Vec<Tag> {
        names.iter().map(|name| Tag { name: name.into(), texts: Vec::new() }).collect()
    }
}

/// Options of the preamble, which describe the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataOptions {
    /// UUID of the trace, as in every packet.
    pub uuid: [u8; 16],
    /// Name of the host.
    pub hostname: String,
    /// Clock of the timestamps.
    pub clock: Clock,
    /// Major and minor version of Dormouse.
    pub tracer_version: (u32, u32),
    /// Start of the session, in seconds since the epoch.
    pub start_time_s: i64,
    /// Kind of the programs' records, which determines their headers.
    pub record_kind: RecordKind,
    /// Tags of the programs' records.
    pub tags: Vec<Tag>,
    /// Format of the text.
    pub format: Format,
}

impl MetadataOptions {
    /// Returns the start of the text, up to the first class of a program. `totals` is empty until the trace is closed.
    pub fn preamble(&self, totals: &Totals) -> String {
        match self.format {
            Format::Ctf18 => tsdl::preamble(self, totals),
            Format::Ctf2 => ctf2::preamble(self, totals),
        }
    }
}
