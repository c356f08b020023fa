//! The parts of a trace that a session owner writes, and reads back as its own.
//!
//! The events of a trace are pages, which programs fill and the owner writes unchanged. The owner adds everything else:
//! the metadata that describe all streams, the headers of its packets, and the state stream, which has the session's
//! processes and its losses. Each of these is defined here once, with its encoder and its decoder.
//!
//! ```text
//!   MetadataOptions, Totals ─▶ metadata ─▶ text, in TSDL or JSON
//!   ClassDecl ───────────────▶ Format::class ─▶ a block of that text for each event class
//!   Losses ─▶ StateRecord ───▶ PacketWriter ─▶ packets of the state stream
//!   pages of programs ─▶ PacketHeader::decode          state stream ─▶ StateRecord::decode ─▶ StatedLosses
//! ```
//!
//! * [`metadata`]: the text that describes the streams, and its options.
//! * [`packet`]: the packet header, and a writer of the state stream's packets.
//! * [`state`]: the records of the state stream.
//! * [`loss`]: causes of losses, and losses in words.
//! * [`totals`]: the numbers of events and packets in each stream when the trace was closed.
//! * [`date`] formats dates.
//!
//! # Place
//! Below `dormouse-ctf`, the reader of any tracer's CTF. Its plan of a Dormouse trace is built from these layouts without
//! a look at the text, its statistics decode these records, and it recognises metadata by writing the same metadata
//! again ([`metadata::ctf2`], [`metadata::tsdl`]). The recognition itself is in `dormouse-ctf`: it needs the grammars of
//! both formats. The owner uses `dormouse-ctf` only where it reads records and metadata back: to check pages, in
//! salvage, and after an owner that was killed.
//!
//! # Source
//! Common Trace Format 1.8.3, <https://diamon.org/ctf/v1.8.3/>: clause 5 (packet header and context), 6 (event header
//! and context), 7 (TSDL), 8 (clocks). Common Trace Format 2, CTF2-SPEC-2.0, <https://diamon.org/ctf/>. JSON text
//! sequences: RFC 7464.
#![forbid(unsafe_code)]
// Output is left to the programs that use this crate.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod date;
pub mod loss;
pub mod metadata;
pub mod packet;
pub mod state;
pub mod totals;

pub use loss::{Cause, Losses, Refusal, StatedLosses};
pub use metadata::{Clock, Format, MetadataOptions, Tag};
pub use packet::{HeaderError, PacketHeader, PacketWriter};
pub use state::StateRecord;
pub use totals::{StreamTotals, Totals};
